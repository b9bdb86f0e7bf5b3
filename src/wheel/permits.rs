//! `Permits`: the places that `max_pending` allows, and whether the wheel has been shut down.

use crate::{
    engine::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    error::SleepError,
};

/// Counts what may be refused and has been admitted, over all runtimes. Nothing is counted without a limit,
/// because all workers share the count.
#[derive(Default)]
pub(crate) struct Permits {
    limit: Option<usize>,
    taken: AtomicUsize,
    rejected: AtomicU64,
    is_shutdown: AtomicBool,
}

impl Permits {
    pub(crate) fn new(limit: Option<usize>) -> Permits {
        Permits {
            limit,
            ..Permits::default()
        }
    }

    /// Takes a permit if there is one left. What `was_admitted` before gets one beyond the limit, too.
    #[inline]
    pub(crate) fn try_take(&self, was_admitted: bool) -> Result<(), SleepError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let more = |taken: usize| (was_admitted || taken < limit).then_some(taken + 1);
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| SleepError::AtCapacity { limit })
    }

    pub(crate) fn give_back(&self) {
        if self.limit.is_some() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts a refusal for want of a permit.
    pub(crate) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Records a shutdown. Returns `false` if the wheel had been shut down before.
    pub(crate) fn shut_down(&self) -> bool {
        !self.is_shutdown.swap(true, Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        self.is_shutdown.load(Ordering::SeqCst)
    }

    /// Fails if the wheel has been shut down.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), SleepError> {
        if self.is_shutdown() {
            Err(SleepError::Shutdown)
        } else {
            Ok(())
        }
    }
}
