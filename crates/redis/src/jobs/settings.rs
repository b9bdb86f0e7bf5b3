//! The settings of a queue's handle and of a worker, and their allowed values.

use std::time::Duration;

use tickwheel::Wheel;

use crate::{
    error::{Error, check_lease},
    server::notifications::Notifications,
};

/// The longest interval between two looks at a partition, and the interval while the partition is idle.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// The largest number of partitions that a worker can still sweep.
pub(crate) const MAX_PARTITIONS: usize = 1024;
/// The largest payload that may be allowed, because it is one answer on a connection that is shared.
const LARGEST_PAYLOAD: usize = 16 << 20;
/// The longest look-ahead, because no other worker can take the jobs that one holds.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// The largest prefetch, because every claim has to be renewed.
const LARGEST_PREFETCH: usize = 10_000;

/// Returns the error of a value that is not allowed.
pub(crate) fn wrong<T>(setting: &'static str, value: String, allowed: &'static str) -> Result<T, Error> {
    Err(Error::InvalidSetting {
        setting,
        value,
        allowed,
    })
}

/// The settings of a queue's handle.
#[derive(Clone, Debug)]
pub(crate) struct HandleSettings {
    pub(crate) partitions: usize,
    pub(crate) notifications: Option<Notifications>,
    pub(crate) max_payload: usize,
    pub(crate) answer_within: Duration,
    /// How many dead jobs the queue keeps and for how long, if this handle says so.
    pub(crate) keep_dead: Option<(u64, Duration)>,
    /// How many jobs of the queue run at once, or `u64::MAX` for any number, if this handle says so.
    pub(crate) max_running: Option<u64>,
}

impl Default for HandleSettings {
    fn default() -> HandleSettings {
        HandleSettings {
            partitions: 1,
            notifications: None,
            max_payload: 1 << 20,
            answer_within: Duration::from_secs(2),
            keep_dead: None,
            max_running: None,
        }
    }
}

impl HandleSettings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_PARTITIONS).contains(&self.partitions) {
            return wrong("partitions", self.partitions.to_string(), "1 to 1024");
        }
        if self.max_payload > LARGEST_PAYLOAD {
            let bytes = format!("{} bytes", self.max_payload);
            return wrong("max_payload", bytes, "up to 16 MiB");
        }
        if !(Duration::from_millis(10)..=HOUR).contains(&self.answer_within) {
            let limit = format!("{:?}", self.answer_within);
            return wrong("answer_within", limit, "10 ms to an hour");
        }
        Ok(())
    }

    /// Returns how many jobs of each partition run at once, if this handle says so.
    pub(crate) fn max_running_of_each(&self) -> Result<Option<u64>, Error> {
        let Some(jobs) = self.max_running else {
            return Ok(None);
        };
        let each = jobs / self.partitions as u64;
        if each == 0 {
            let allowed = "as many as the queue has partitions, or more";
            return wrong("max_running", jobs.to_string(), allowed);
        }
        Ok(Some(each))
    }
}

/// The settings of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerSettings {
    pub(crate) lease: Duration,
    pub(crate) max_attempts: u32,
    /// How many jobs the consumer works on at once, if it is said.
    pub(crate) concurrency: Option<usize>,
    pub(crate) prefetch: usize,
    pub(crate) look_ahead: Duration,
    pub(crate) time_limit: Option<Duration>,
}

impl Default for WorkerSettings {
    fn default() -> WorkerSettings {
        WorkerSettings {
            lease: Duration::from_secs(30),
            max_attempts: 5,
            concurrency: None,
            prefetch: 32,
            look_ahead: Duration::ZERO,
            time_limit: None,
        }
    }
}

impl WorkerSettings {
    pub(crate) fn check(&self, wheel: &Wheel) -> Result<(), Error> {
        check_lease(self.lease, wheel.tick_duration())?;
        if self.max_attempts == 0 {
            return wrong("attempts", "0".to_owned(), "1 or more");
        }
        if let Some(places) = self.concurrency.filter(|places| *places == 0) {
            return wrong("concurrency", places.to_string(), "1 or more");
        }
        if !(1..=LARGEST_PREFETCH).contains(&self.prefetch) {
            return wrong("prefetch", self.prefetch.to_string(), "1 to 10,000");
        }
        if self.look_ahead > HOUR {
            return wrong("look_ahead", format!("{:?}", self.look_ahead), "up to an hour");
        }
        if let Some(limit) = self.time_limit.filter(Duration::is_zero) {
            return wrong("time_limit", format!("{limit:?}"), "more than zero");
        }
        Ok(())
    }
}
