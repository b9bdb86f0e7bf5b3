//! `Ledger`: the slots of a shard's threads, behind the shard's lock. It counts the timers that were taken and those that are kept.

use std::{num::NonZeroU32, task::Waker};

use super::slot::{Slot, Version};
use crate::{
    shard::Counters,
    sync::Arc,
    timing_wheel::{Key, TimingWheel},
};

/// The slots of the threads that have one in this shard.
#[derive(Default)]
pub(in crate::shard) struct Ledger(Vec<Account>);

struct Account {
    slot: Arc<Slot>,
    /// The version at which taken timers were last counted.
    counted: Version,
}

impl Ledger {
    /// Returns a slot for a thread that has none here. If the slot was another thread's, a timer may be left in it, whose waker
    /// is returned too.
    pub(super) fn open(
        &mut self,
        wheel: &mut TimingWheel<Waker>,
        counters: &mut Counters,
    ) -> (Arc<Slot>, Option<Waker>) {
        for account in &mut self.0 {
            if account.thread_has_gone() {
                let waker = account.empty(wheel, counters);
                return (account.slot.clone(), waker);
            }
        }
        let slot = Arc::new(Slot::new());
        self.0.push(Account {
            slot: slot.clone(),
            counted: slot.version(),
        });
        (slot, None)
    }

    /// Empties every slot. The caller drops the wakers with no lock held.
    pub(in crate::shard) fn empty(
        &mut self,
        wheel: &mut TimingWheel<Waker>,
        counters: &mut Counters,
        spent: &mut Vec<Waker>,
    ) {
        self.0.retain_mut(|account| {
            let closes = account.thread_has_gone();
            spent.extend(account.empty(wheel, counters));
            !closes
        });
    }

    /// Returns the number of timers that are kept for reuse, and of those that were taken but not counted yet.
    pub(in crate::shard) fn stats(&self, wheel: &mut TimingWheel<Waker>) -> Stats {
        let (mut kept, mut taken) = (Vec::new(), 0);
        for account in &self.0 {
            let (timer, version) = account.slot.look();
            taken += version.taken_since(account.counted);
            // A timer that was overlooked may have expired meanwhile.
            kept.extend(timer.filter(|number| wheel.get_mut(&Key::from_number(*number)).is_some()));
        }
        // A timer that is taken meanwhile and put into another thread's slot is seen twice.
        kept.sort_unstable();
        kept.dedup();
        Stats {
            kept: kept.len(),
            taken,
        }
    }

    /// Adds the numbers of the timers that are kept for reuse.
    pub(in crate::shard) fn kept(&self, kept: &mut Vec<NonZeroU32>) {
        kept.extend(self.0.iter().filter_map(|account| account.slot.look().0));
    }

    /// Returns the number of slots, each of which keeps one timer at most.
    pub(in crate::shard) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Counts that the counters of a shard do not include yet.
pub(in crate::shard) struct Stats {
    pub(in crate::shard) kept: usize,
    pub(in crate::shard) taken: u64,
}

impl Account {
    /// Returns whether the slot's thread has given it up. After this, everything that the thread did with the slot is visible.
    fn thread_has_gone(&mut self) -> bool {
        Arc::get_mut(&mut self.slot).is_some()
    }

    /// Counts the timers that were taken, and removes the one that was not.
    fn empty(&mut self, wheel: &mut TimingWheel<Waker>, counters: &mut Counters) -> Option<Waker> {
        let (version, left) = self.slot.end_version();
        let taken = version.taken_since(self.counted);
        self.counted = version;
        counters.registered += taken;
        counters.cancelled += taken;
        let waker = wheel.remove(left?)?;
        counters.cancelled += 1;
        Some(waker)
    }
}
