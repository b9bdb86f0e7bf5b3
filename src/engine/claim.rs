//! `Claim`: the right to an entry, which a timer has while it waits, and a thread has for each spare.

use std::task::Waker;

use super::{
    clock::Moment,
    shard::Shard,
    sync::Arc,
    timing_wheel::{Key, Tick},
    waker_id::WakerId,
};

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) shard: Arc<Shard>,
    /// When the entry is due. It may have expired.
    pub(crate) due: Moment,
    /// The task that the waker in the entry wakes. Unknown if each poll has to take the lock.
    pub(crate) task: WakerId,
    pub(crate) key: Key,
    pub(crate) on_leave: OnLeave,
}

/// What becomes of the entry when the timer is dropped or its timeout completes. A timer that takes the entry
/// over keeps this, because it is of the same task and in the same runtime.
// Of four bytes, because a claim has no padding then, which takes 30 instructions of a timeout to copy.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLeave {
    Cancel,
    /// It may become a spare.
    Keep,
}

impl Claim {
    #[inline]
    pub(crate) fn new(shard: Arc<Shard>, key: Key, due: Moment, task: WakerId, on_leave: OnLeave) -> Claim {
        let task = shard.source.remembered(task);
        let on_leave = if task.is_task() { on_leave } else { OnLeave::Cancel };
        Claim {
            shard,
            due,
            task,
            key,
            on_leave,
        }
    }

    /// Returns whether the entry is gone, or is the driver's to free.
    #[inline]
    pub(crate) fn has_expired(&self) -> bool {
        self.due <= self.shard.horizon()
    }

    /// Makes the entry wake the task of `waker`. Returns `false` if the entry is gone.
    pub(crate) fn direct_to(&mut self, waker: &Waker) -> bool {
        // Compared in the shard, because the task is known here only once its vtable has been learnt.
        if !self.shard.wakes(&self.key, self.due, waker) {
            let clone = waker.clone();
            // A clone at another address keeps no task alive at the waker's own, by which this would be known.
            let is_known_by_address = clone.data() == waker.data();
            if !self.shard.replace(&self.key, self.due, clone) {
                return false;
            }
            // This may be a task of another runtime, whose memory and descriptors a spare would keep.
            self.on_leave = OnLeave::Cancel;
            if !is_known_by_address {
                self.task = WakerId::UNKNOWN;
                return true;
            }
        }
        // A timer that is polled twice may be polled often, so its waker's vtable is worth a place.
        self.task = self.shard.source.remembered(WakerId::learn(waker));
        true
    }

    /// Moves the entry to tick `tick`, which begins at `due`, unless it is due earlier. Returns a waker for the caller
    /// to wake with no lock held.
    pub(crate) fn bring_forward(&mut self, tick: Tick, due: Moment, now: Moment) -> Option<Waker> {
        // With slack, two deadlines may be rounded up to the same tick.
        if due >= self.due {
            return None;
        }
        let (is_there, ended) = self.shard.bring_forward(&self.key, self.due, tick, now);
        // Otherwise a turn has just taken the entry out, and its task is woken and starts the timer again.
        if is_there {
            self.due = due;
        }
        ended
    }

    /// Takes the entry out if it is still there, for a timer that has not elapsed. Returns its waker, whose
    /// destructor may be code of the user's.
    // Out of line, it takes 20 instructions more of each timer that finds no spare.
    #[inline(always)]
    pub(crate) fn cancel(self) -> Option<Waker> {
        // A timer that has fired and is dropped takes no lock.
        let Claim { shard, due, key, .. } = self;
        if due <= shard.horizon() {
            return None;
        }
        shard.cancel(key, due)
    }

    /// Takes the entry out if it is still there, for a timer that has elapsed.
    pub(crate) fn expire(self) -> Option<Waker> {
        self.shard.expire(self.key, self.due)
    }
}
