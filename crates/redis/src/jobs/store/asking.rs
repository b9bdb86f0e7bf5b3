//! `ask`: repeats a call until it is answered or its deadline has passed.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::erased::AnyConnection;
use crate::{
    error::Error,
    server::{nonce::random_part, script::Call},
    timers,
};

/// The pause after a failed attempt, which doubles from the first value to the second.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Sends a call that may be carried out twice, and repeats it with growing pauses until `read` accepts an
/// answer or `deadline` has passed.
///
/// An answer that took longer than `attempt` may still be filling the connection that all requests of the
/// process share. So the call is not repeated before a probe behind it has been answered.
pub(in crate::jobs) async fn ask<T>(
    server: &dyn AnyConnection,
    call: Call,
    attempt: Duration,
    deadline: Instant,
    read: impl Fn(Value) -> Result<T, Error>,
) -> Result<T, Error> {
    let call = Arc::new(call);
    let mut attempts = Attempts::new(attempt, deadline);
    let mut unanswered = false;
    loop {
        let left = attempts.left();
        let error = if unanswered {
            match within(left, server.send(Arc::new(call.probe()))).await {
                Ok(_) => {
                    unanswered = false;
                    continue;
                }
                Err(error) => error,
            }
        } else {
            let answer = within(left, server.send(call.clone())).await;
            match answer.and_then(&read) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            }
        };
        unanswered = error.is_unanswered();
        attempts.pause_after(error).await?;
    }
}

/// Runs a request that may be carried out twice, and repeats it with growing pauses until it succeeds or
/// `deadline` has passed.
pub(in crate::jobs) async fn repeat<T, F>(
    attempt: Duration,
    deadline: Instant,
    request: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut attempts = Attempts::new(attempt, deadline);
    loop {
        match within(attempts.left(), request()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => attempts.pause_after(error).await?,
        }
    }
}

/// Waits for an answer, but no longer than `limit`, whatever has become of the wheel and on whatever runtime.
pub(in crate::jobs) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let deadline = timers::after(limit);
    let answer = timers::until(deadline, answer).await;
    answer.unwrap_or(Err(Error::NoAnswer { waited: limit }))
}

/// The attempts at one call.
struct Attempts {
    began: Instant,
    deadline: Instant,
    attempt: Duration,
    pause: Duration,
}

impl Attempts {
    fn new(attempt: Duration, deadline: Instant) -> Attempts {
        Attempts {
            began: Instant::now(),
            deadline,
            attempt,
            pause: PAUSE,
        }
    }

    /// Returns how long the next attempt may take.
    fn left(&self) -> Duration {
        self.deadline
            .saturating_duration_since(Instant::now())
            .min(self.attempt)
    }

    /// Waits before the next attempt, or returns the error if there is none.
    async fn pause_after(&mut self, error: Error) -> Result<(), Error> {
        if !is_worth_repeating(&error) || Instant::now() + self.pause >= self.deadline {
            return Err(error.after(self.began.elapsed()));
        }
        timers::sleep(self.pause / 2 + random_part(self.pause / 2)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Whether to send the same call again. A server that is out of memory is not asked again, because that would
/// only add to its load.
fn is_worth_repeating(error: &Error) -> bool {
    error.is_passing()
        && !matches!(error, Error::Redis(error) if matches!(error.code(), Some("OOM" | "STALE")))
}

/// Returns the error for an answer that none of our scripts gives. It tells the form of the answer, which may
/// contain payloads.
pub(in crate::jobs) fn unexpected(answer: &Value) -> Error {
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
