//! What has become of the timers of a wheel. At quiet points the numbers are exact, and no two workers share
//! a counter.
//!
//! A shard counts under its lock. What a thread does without a lock it counts in a [`SpareCounts`] of its
//! own, by plain stores: the deadline of the spare that it keeps, and how many timers have taken one over. A
//! reader adds them all up:
//!
//! - a take-over is a timer that was cancelled, and one that was registered;
//! - a kept spare was cancelled. Beyond its shard's horizon it is an entry that is not pending; by it, it has
//!   expired without being a timer;
//! - what is neither cancelled nor pending has expired, so nothing is counted as timers expire.

use std::mem;

use super::{
    clock::Moment,
    shard::Shard,
    shared::Tally,
    sync::{Arc, AtomicU64, LazyLock, Mutex, MutexGuard, Ordering::Relaxed, lock},
};

static ALL: LazyLock<Mutex<Vec<Arc<SpareCounts>>>> = LazyLock::new(Mutex::default);

/// What one thread counts of its spares.
pub(crate) struct SpareCounts {
    /// The shard whose spares are counted.
    shard: Mutex<Option<Arc<Shard>>>,
    /// The deadline of the spare that is kept, or [`Moment::ZERO`].
    spare_deadline: AtomicU64,
    /// How many spares have been taken over.
    taken_over: AtomicU64,
}

impl SpareCounts {
    pub(crate) fn new() -> Arc<SpareCounts> {
        let counts = Arc::new(SpareCounts {
            shard: Mutex::new(None),
            spare_deadline: AtomicU64::new(0),
            taken_over: AtomicU64::new(0),
        });
        all().push(counts.clone());
        counts
    }

    /// Counts the spares of `shard` from now on. What was counted of the former one is added to its own
    /// counts.
    #[cold]
    pub(crate) fn switch_to(&self, shard: Option<Arc<Shard>>) {
        let mut counted = lock(&self.shard);
        let taken_over = self.taken_over.load(Relaxed);
        if let Some(former) = counted.as_ref().filter(|_| taken_over > 0) {
            former.add(of_taken_over(taken_over));
        }
        self.taken_over.store(0, Relaxed);
        self.spare_deadline.store(0, Relaxed);
        let former = mem::replace(&mut *counted, shard);
        drop(counted);
        drop(former);
    }

    pub(crate) fn set_spare_deadline(&self, deadline: Moment) {
        self.spare_deadline.store(deadline.0, Relaxed);
    }

    pub(crate) fn count_take_over(&self) {
        self.taken_over.store(self.taken_over.load(Relaxed) + 1, Relaxed);
        self.spare_deadline.store(0, Relaxed);
    }

    /// Called as the thread ends.
    pub(crate) fn retire(self: &Arc<SpareCounts>) {
        self.switch_to(None);
        all().retain(|counts| !Arc::ptr_eq(counts, self));
    }
}

fn all() -> MutexGuard<'static, Vec<Arc<SpareCounts>>> {
    lock(LazyLock::force(&ALL))
}

fn of_taken_over(timers: u64) -> Tally {
    Tally {
        registered: timers,
        cancelled: timers,
    }
}

/// The sums of what all threads have counted of some shards.
#[derive(Default)]
pub(crate) struct SpareSums {
    pub(crate) tally: Tally,
    /// The spares that are kept, each with its shard and deadline.
    pub(crate) kept: Vec<(Arc<Shard>, Moment)>,
}

/// Adds up what all threads have counted of the shards for which `is_counted` holds.
pub(crate) fn sums(is_counted: impl Fn(&Shard) -> bool) -> SpareSums {
    let mut sums = SpareSums::default();
    for counts in all().iter() {
        let shard = lock(&counts.shard);
        let Some(shard) = shard.as_ref().filter(|shard| is_counted(shard)) else {
            continue;
        };
        sums.tally.add(of_taken_over(counts.taken_over.load(Relaxed)));
        let deadline = Moment(counts.spare_deadline.load(Relaxed));
        if deadline == Moment::ZERO {
            continue;
        }
        let has_expired = shard.has_expired(deadline);
        // An engine that has ended has counted what was there.
        if has_expired || !shard.has_ended() {
            sums.tally.cancelled += 1;
        }
        if !has_expired && !shard.has_ended() {
            sums.kept.push((shard.clone(), deadline));
        }
    }
    sums
}

/// How many timers there have been. `registered` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) registered: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) pending: usize,
}

impl Counts {
    pub(crate) fn new(tally: Tally, pending: usize) -> Counts {
        Counts {
            registered: tally.registered,
            expired: tally.registered.saturating_sub(tally.cancelled + pending as u64),
            cancelled: tally.cancelled,
            pending,
        }
    }
}
