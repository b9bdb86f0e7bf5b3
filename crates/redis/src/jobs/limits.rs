//! `Limits`: the settings of a queue's handle, and their allowed values.

use std::time::Duration;

use crate::error::Error;

/// The longest string that Redis accepts by default (`proto-max-bulk-len`).
const LONGEST_PAYLOAD: usize = 512 << 20;

/// What a queue's handle asks of Redis at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_payload: usize,
    pub(super) answer_within: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_payload: 1 << 20,
            answer_within: Duration::from_secs(2),
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
        if self.max_payload > LONGEST_PAYLOAD {
            let value = format!("{} bytes", self.max_payload);
            return wrong("max_payload", value, "up to 512 MiB, the longest string of Redis");
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
