//! How many timers of a wheel are pending, have expired or were cancelled. The numbers are exact while no
//! timer changes, and no two workers share a counter.
//!
//! A shard counts under its lock. A thread counts what it does without a lock in its own [`SpareCounts`], by
//! plain stores: the deadline of the spare that it keeps, and the number of timers that have taken over a
//! spare. A reader adds up all of these counts:
//!
//! - a take-over counts as one timer cancelled and one timer registered;
//! - a kept spare counts as cancelled. While it is due after its shard's horizon, it is an entry but no
//!   pending timer; once the horizon has reached it, an entry has expired but no timer has;
//! - a timer that is neither cancelled nor pending has expired, so nothing has to be counted when timers
//!   expire.

use std::mem;

use super::{
    clock::Moment,
    shard::Shard,
    shared::Tally,
    sync::{Arc, AtomicU64, LazyLock, Mutex, MutexGuard, Ordering::Relaxed, lock},
};

static ALL: LazyLock<Mutex<Vec<Arc<SpareCounts>>>> = LazyLock::new(Mutex::default);

/// The counts of one thread's spares.
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

    /// Counts the spares of `shard` from now on. The counts so far are added to those of the former shard.
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

    /// Removes these counts, because the thread ends.
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

/// The sums of all threads' counts of the spares of some shards.
#[derive(Default)]
pub(crate) struct SpareSums {
    pub(crate) tally: Tally,
    /// The spares that are kept, each with its shard and deadline.
    pub(crate) kept: Vec<(Arc<Shard>, Moment)>,
}

/// Adds up all threads' counts of the spares of the shards for which `is_counted` holds.
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
        // An engine that has ended has counted the entries that were left.
        if has_expired || !shard.has_ended() {
            sums.tally.cancelled += 1;
        }
        if !has_expired && !shard.has_ended() {
            sums.kept.push((shard.clone(), deadline));
        }
    }
    sums
}

/// The numbers of a wheel's timers. `registered` is the sum of the others.
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
