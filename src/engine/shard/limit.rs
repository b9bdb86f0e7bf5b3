//! `Limit`: the limit on pending timers, whose count all shards share. It exists only under `max_pending`.

use crate::{
    engine::sync::{AtomicUsize, Ordering},
    error::SleepError,
};

/// A count of pending timers. It exceeds its maximum only by timers that were admitted before.
pub(crate) struct Limit {
    max: usize,
    pending: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(max: usize) -> Limit {
        Limit {
            max,
            pending: AtomicUsize::new(0),
        }
    }

    pub(super) fn admit(&self, admission: Admission) -> Result<(), SleepError> {
        if admission == Admission::Admitted {
            self.pending.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.pending
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pending| {
                (pending < self.max).then_some(pending + 1)
            })
            .map(|_| ())
            .map_err(|_| SleepError::AtCapacity { limit: self.max })
    }

    pub(super) fn release(&self, timers: usize) {
        self.pending.fetch_sub(timers, Ordering::Relaxed);
    }
}

/// Whether a timer still has to be admitted. A timer that was admitted once may exceed the limit for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Admission {
    New,
    Admitted,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_the_limit_but_who_was_admitted_before() {
        let limit = Limit::new(2);
        assert_eq!(limit.admit(Admission::New), Ok(()));
        assert_eq!(limit.admit(Admission::New), Ok(()));
        assert_eq!(
            limit.admit(Admission::New),
            Err(SleepError::AtCapacity { limit: 2 })
        );
        assert_eq!(limit.admit(Admission::Admitted), Ok(()));
        limit.release(2);
        assert_eq!(limit.admit(Admission::New), Ok(()), "one of the three is left");
        assert_eq!(
            limit.admit(Admission::New),
            Err(SleepError::AtCapacity { limit: 2 })
        );
    }
}
