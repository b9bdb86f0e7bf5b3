//! `Limits`: the settings of a queue's handle, and their allowed values.

use std::time::Duration;

use crate::error::Error;

/// The largest payload that may be allowed, because it is one answer on a connection that is shared.
const LARGEST_PAYLOAD: usize = 16 << 20;

/// What a queue's handle asks of Redis at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_payload: usize,
    pub(super) answer_within: Duration,
    /// How many dead jobs the queue keeps and for how long, if this handle says so.
    pub(super) keep_dead: Option<(u64, Duration)>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_payload: 1 << 20,
            answer_within: Duration::from_secs(2),
            keep_dead: None,
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |setting, value, allowed| {
            Err(Error::InvalidSetting {
                setting,
                value,
                allowed,
            })
        };
        if self.max_payload > LARGEST_PAYLOAD {
            let value = format!("{} bytes", self.max_payload);
            return wrong("max_payload", value, "up to 16 MiB");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&self.answer_within) {
            return wrong(
                "answer_within",
                format!("{:?}", self.answer_within),
                "10 ms to an hour",
            );
        }
        Ok(())
    }
}
