//! `Eviction`: checks whether Redis may evict keys that are in use.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::{first_use::FirstUse, names::slot_of};
use crate::{error::Error, mutex::Mutex};

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
    asked: FirstUse,
    /// Whether a server did not answer. The owner of each slot is asked at first use of that slot, then.
    is_by_slot: AtomicBool,
    /// The slots whose owner has been asked.
    checked: Mutex<HashSet<usize>>,
}

impl Eviction {
    pub(crate) fn new(keys: Keys) -> Eviction {
        Eviction {
            keys,
            asked: FirstUse::default(),
            is_by_slot: AtomicBool::new(false),
            checked: Mutex::default(),
        }
    }

    /// Returns an error if the server may evict keys, and logs a warning if its policy cannot be read. The
    /// check is repeated until it has succeeded once. `ask_all` returns what `INFO memory` says on all
    /// servers, or `None` if one of them does not answer. After that, `ask_owner` returns what the owner of
    /// the slot of `key` says, whose answer counts for this slot alone.
    pub(crate) async fn check<A, O>(
        &self,
        key: &str,
        ask_all: impl Fn() -> A,
        ask_owner: impl Fn() -> O,
    ) -> Result<(), Error>
    where
        A: Future<Output = Option<RedisResult<Value>>>,
        O: Future<Output = RedisResult<Value>>,
    {
        let ask = || async {
            match ask_all().await {
                Some(info) => judge(info, self.keys),
                None => {
                    self.is_by_slot.store(true, Ordering::Release);
                    Ok(())
                }
            }
        };
        self.asked.ensure(ask).await?;
        if !self.is_by_slot.load(Ordering::Acquire) {
            return Ok(());
        }
        let slot = slot_of(key);
        if self.checked.lock().contains(&slot) {
            return Ok(());
        }
        judge(ask_owner().await, self.keys)?;
        self.checked.lock().insert(slot);
        Ok(())
    }
}

/// Whether the policy may not be read.
pub(super) fn is_denied(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)
    )
}

fn judge(info: RedisResult<Value>, keys: Keys) -> Result<(), Error> {
    match info {
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
        Err(error) if is_denied(&error) => {
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
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn an_owners_answer_counts_for_its_slot() {
        let info = |policy: &str| {
            let text = format!("maxmemory:1\r\nmaxmemory_policy:{policy}\r\n");
            ready(Ok(Value::BulkString(text.into_bytes())))
        };
        let eviction = Eviction::new(Keys::Expire);
        let first = eviction.check("{1}", || ready(None), || info("noeviction"));
        first.await.unwrap();
        for _ in 0..2 {
            let other = eviction.check("{2}", pending, || info("allkeys-lru")).await;
            assert!(matches!(other, Err(Error::EvictionPolicy { .. })), "{other:?}");
        }
        eviction.check("{1}", pending, pending).await.unwrap();
    }

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
