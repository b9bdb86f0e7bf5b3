//! `Script`: a Lua script, sent by its hash, or by its text if the server does not have it. `Call`: one call
//! of it, with its keys and arguments, and how its answer is read.

use std::{sync::OnceLock, time::Duration};

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value};

use super::{connection::Connection, names::Tag};
use crate::error::Error;

/// A Lua script that lives in a `static`.
pub(crate) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
    /// The names of its keys, of a script that names them.
    keys: OnceLock<Vec<&'static str>>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Script {
        Script {
            text,
            hash: OnceLock::new(),
            keys: OnceLock::new(),
        }
    }

    /// Starts a call without keys and arguments.
    pub(crate) fn call(&'static self) -> Call {
        Call {
            script: self,
            keys: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Starts a call with those keys of a tag that the script names in its line `local .. = unpack(KEYS)`. A
    /// name in Lua has an underscore where that of the key has a colon.
    pub(crate) fn on(&'static self, tag: &Tag) -> Call {
        let key = |call: Call, name: &&str| call.key(tag.key(&name.replace('_', ":")));
        self.key_names().iter().fold(self.call(), key)
    }

    /// Starts a call with keys by the names that the script has for the first of its keys.
    pub(crate) fn with_keys<const N: usize>(&'static self, keys: [(&str, String); N]) -> Call {
        debug_assert!(
            self.key_names()
                .starts_with(&keys.each_ref().map(|(name, _)| *name))
        );
        keys.into_iter().fold(self.call(), |call, (_, key)| call.key(key))
    }

    fn key_names(&self) -> &[&'static str] {
        self.keys.get_or_init(|| {
            let (before, _) = self.text.split_once(" = unpack(KEYS)").unwrap_or_default();
            let (_, names) = before.rsplit_once("local ").unwrap_or_default();
            names.split(", ").collect()
        })
    }

    /// Whether the script has these names for its arguments after the first `given` ones.
    fn names(&self, given: usize, names: &[&str]) -> bool {
        let from = if given == 0 {
            String::new()
        } else {
            format!(", {}", given + 1)
        };
        let line = format!("local {} = unpack(ARGV{from})\n", names.join(", "));
        self.text.contains(&line)
    }

    fn hash(&self) -> &str {
        self.hash
            .get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

/// A call of a script, which can be sent repeatedly.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    /// Adds a key, `KEYS[n]`. All keys of a call share one hash tag.
    pub(crate) fn key(mut self, key: impl Into<String>) -> Call {
        self.keys.push(key.into());
        self
    }

    /// Adds arguments by the names that the script has for them, in a line `local .. = unpack(ARGV)` or,
    /// behind others, `unpack(ARGV, n)`.
    pub(crate) fn named<const N: usize>(self, arguments: [(&str, String); N]) -> Call {
        debug_assert!(
            self.script
                .names(self.arguments.len(), &arguments.each_ref().map(|(name, _)| *name))
        );
        self.args(arguments.map(|(_, argument)| argument.into_bytes()))
    }

    /// Adds several arguments.
    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = Vec<u8>>) -> Call {
        self.arguments.extend(arguments);
        self
    }

    /// Returns a call with a short answer, which arrives behind those of all calls that were sent to the same
    /// server before.
    pub(crate) fn probe(&self) -> Call {
        static PROBE: Script = Script::new("#!lua flags=allow-oom\nreturn 1");
        Call {
            script: &PROBE,
            keys: self.keys.iter().take(1).cloned().collect(),
            arguments: Vec::new(),
        }
    }

    /// Returns the key that decides to which node of a cluster the call goes.
    pub(crate) fn first_key(&self) -> &str {
        self.keys.first().map_or("", |key| key)
    }

    /// Returns the error of a call for that of its connection.
    pub(crate) fn error(&self, error: RedisError) -> Error {
        match error.code() {
            Some("WRONGTYPE") => {
                // Of a script that has looked for it, the error names the key.
                let named = self.keys.iter().find(|key| error.detail() == Some(key));
                Error::WrongType {
                    keys: named.map_or_else(|| self.keys.clone(), |key| vec![key.clone()]),
                }
            }
            _ => Error::Redis(error),
        }
    }

    /// Sends the call once.
    ///
    /// A server that does not know the hash is sent the text with the call, and keeps it. `SCRIPT LOAD` would
    /// have to reach every node of a cluster, including those that are unavailable.
    pub(crate) async fn query(&self, mut connection: impl Connection) -> RedisResult<Value> {
        let sent = self
            .command("EVALSHA", self.script.hash())
            .query_async(&mut connection)
            .await;
        match sent {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.command("EVAL", self.script.text)
                    .query_async(&mut connection)
                    .await
            }
            answer => answer,
        }
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}

/// The largest number that scripts are sent, because Lua represents it exactly.
pub(crate) const LARGEST_NUMBER: u64 = 9_000_000_000_000_000;

/// Returns microseconds as scripts are sent them, rounded up so that nothing is early.
pub(crate) fn micros(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1000);
    micros.min(u128::from(LARGEST_NUMBER)) as u64
}

/// Reads an answer. The error of one that no script of ours gives does not show it.
pub(crate) fn parse<T: FromRedisValue>(answer: Value) -> Result<T, Error> {
    let form = form(&answer);
    redis::from_redis_value(answer).map_err(|_| of_form(form))
}

/// Returns a text that another program may have stored.
pub(crate) fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the error for an answer that none of our scripts gives.
pub(crate) fn unexpected(answer: &Value) -> Error {
    of_form(form(answer))
}

/// What an answer is and its size. It may contain payloads, which no error shows.
fn form(answer: &Value) -> (&'static str, usize) {
    match answer {
        Value::Nil => ("nothing", 0),
        Value::Int(_) => ("an integer", 1),
        Value::BulkString(bytes) => ("a string", bytes.len()),
        Value::Array(values) => ("an array", values.len()),
        _ => ("an answer of another type", 1),
    }
}

fn of_form((form, size): (&'static str, usize)) -> Error {
    Error::Redis(RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "not the answer of this script",
        format!("{form} of size {size}"),
    )))
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    static SCRIPT: Script =
        Script::new("local a, b = unpack(KEYS)\nlocal c, d = unpack(ARGV)\nlocal e = unpack(ARGV, 3)\n");

    fn text() -> String {
        String::new()
    }

    #[test]
    fn names_are_those_of_the_script() {
        let call = SCRIPT
            .with_keys([("a", text())])
            .named([("c", text()), ("d", text())]);
        call.named([("e", text())]);
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn another_order_is_refused() {
        SCRIPT.call().named([("d", text()), ("c", text())]);
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn an_argument_that_is_missing_is_refused() {
        SCRIPT.call().named([("c", text())]);
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn another_key_is_refused() {
        SCRIPT.with_keys([("b", text())]);
    }

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
