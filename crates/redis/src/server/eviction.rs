//! `Eviction`: checks whether Redis may evict keys that are in use.

use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};

use super::first_use::FirstUse;
use crate::error::Error;

/// What is stored on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Keys that have a time to live, as those of leases do, which `volatile-*` evicts.
    Expire,
    /// Keys that have no time to live, as those of queues.
    Stay,
}

/// The check of the eviction policy, made at first use.
pub(crate) struct Eviction {
    keys: Keys,
    checked: FirstUse,
}

impl Eviction {
    pub(crate) fn new(keys: Keys) -> Eviction {
        Eviction {
            keys,
            checked: FirstUse::default(),
        }
    }

    /// Returns an error if the server may evict keys, and logs a warning if its policy cannot be read. The
    /// check is repeated until it has succeeded once. `ask` returns what `INFO memory` says.
    pub(crate) async fn check<F>(&self, ask: impl Fn() -> F) -> Result<(), Error>
    where
        F: Future<Output = RedisResult<Value>>,
    {
        self.checked.ensure(|| judge(ask(), self.keys)).await
    }
}

async fn judge(info: impl Future<Output = RedisResult<Value>>, keys: Keys) -> Result<(), Error> {
    match info.await {
        Ok(info) => {
            let mut known = false;
            for text in texts(&info) {
                let Some(policy) = field(&text, "maxmemory_policy") else {
                    continue;
                };
                known = true;
                let is_bounded = field(&text, "maxmemory").is_none_or(|bytes| bytes != "0");
                if is_bounded && evicts(policy, keys) {
                    return Err(Error::EvictionPolicy {
                        policy: policy.to_owned(),
                    });
                }
            }
            if !known {
                warn("INFO does not say");
            }
            Ok(())
        }
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
            ) =>
        {
            warn(error);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn warn(reason: impl std::fmt::Display) {
    tracing::warn!(
        %reason,
        "whether Redis evicts keys that are in use could not be read: its maxmemory-policy has to be noeviction"
    );
}

fn evicts(policy: &str, keys: Keys) -> bool {
    policy.starts_with("allkeys") || (keys == Keys::Expire && policy.starts_with("volatile"))
}

/// Returns the answer of one server, or the answers of a cluster's nodes.
fn texts(info: &Value) -> Vec<String> {
    match info {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(_, value)| texts(value)).collect(),
        _ => Vec::new(),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_evicts() {
        for (policy, keys_that_expire, keys_that_stay) in [
            ("noeviction", false, false),
            ("allkeys-lru", true, true),
            ("allkeys-random", true, true),
            ("volatile-lru", true, false),
            ("volatile-ttl", true, false),
        ] {
            assert_eq!(evicts(policy, Keys::Expire), keys_that_expire, "{policy}");
            assert_eq!(evicts(policy, Keys::Stay), keys_that_stay, "{policy}");
        }
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = "# Memory\r\nmaxmemory_human:1M\r\nmaxmemory:1048576\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(field(info, "maxmemory"), Some("1048576"));
        assert_eq!(field(info, "maxmemory_policy"), Some("noeviction"));
        assert_eq!(field(info, "max"), None);
    }
}
