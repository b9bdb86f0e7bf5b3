//! Reads the answers of scripts.

use redis::Value;

use crate::error::Error;

/// Returns the text of an answer or of a part of one.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Returns the text of a part of an answer that another program may have stored.
pub(crate) fn lossy(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

/// Returns the error for an answer that none of our scripts gives. It tells the form of the answer, which may
/// contain payloads.
pub(crate) fn unexpected(answer: &Value) -> Error {
    let form = match answer {
        Value::Nil => "nothing".to_owned(),
        Value::Int(_) => "an integer".to_owned(),
        Value::BulkString(bytes) => format!("a string of {} bytes", bytes.len()),
        Value::Array(values) => format!("an array of {} elements", values.len()),
        _ => "an answer of another type".to_owned(),
    };
    Error::Redis(redis::RedisError::from((
        redis::ErrorKind::UnexpectedReturnType,
        "not the answer of this script",
        form,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexpected_answer_is_described_and_not_shown() {
        let payload = Value::BulkString(b"SECRET".to_vec());
        for answer in [payload.clone(), Value::Array(vec![Value::Nil, payload])] {
            let error = unexpected(&answer);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("SECRET") && !text.contains("83, 69"), "{text}");
        }
    }
}
