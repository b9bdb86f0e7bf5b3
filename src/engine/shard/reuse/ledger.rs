//! `Ledger`: the slots of a shard's threads, behind the shard's lock. It counts the timers that were taken and those that are kept.

use std::{collections::BinaryHeap, num::NonZeroU32, task::Waker};

use super::slot::{Slot, Version};
use crate::engine::{
    shard::{Counters, NEVER},
    sync::Arc,
    timing_wheel::{Key, Tick, TimingWheel},
};

/// The slots of the threads that have one in this shard.
pub(in crate::engine::shard) struct Ledger {
    open: Vec<Account>,
    /// Slots that are closed. A timer that was put at that very moment may be left in one until the next slots are closed.
    closed: Vec<Arc<Slot>>,
    /// The tick by which every slot is emptied and closed. [`NEVER`] while none is open.
    closes_at: Tick,
}

struct Account {
    slot: Arc<Slot>,
    /// The version at which taken timers were last counted.
    counted: Version,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            open: Vec::new(),
            closed: Vec::new(),
            closes_at: NEVER,
        }
    }
}

impl Ledger {
    /// Opens a slot, which is emptied and closed at `closes_at` or earlier.
    pub(super) fn open(&mut self, slot: Arc<Slot>, closes_at: Tick) {
        let counted = slot.version();
        self.open.push(Account { slot, counted });
        self.closes_at = self.closes_at.min(closes_at);
    }

    #[inline]
    pub(in crate::engine::shard) fn closes_at(&self) -> Tick {
        self.closes_at
    }

    /// Empties every slot, and closes those that have not been used since the last time or, from [`Ledger::closes_at`] on, all of
    /// them. The caller drops the wakers with no lock held.
    pub(in crate::engine::shard) fn empty(
        &mut self,
        now: Tick,
        wheel: &mut TimingWheel<Waker>,
        counters: &mut Counters,
        spent: &mut Vec<Waker>,
    ) {
        // When the driver ends, closed slots are emptied even if none is open.
        let closes_all = now >= self.closes_at;
        if self.open.is_empty() && !closes_all {
            return;
        }
        if closes_all {
            self.closed.retain_mut(|slot| {
                // After this, everything that the thread did with the slot is visible.
                let has_gone = Arc::get_mut(slot).is_some();
                spent.extend(cancel(slot.empty(), wheel, counters));
                !has_gone
            });
        }
        let closed = &mut self.closed;
        self.open.retain_mut(|Account { slot, counted }| {
            let (kept, version) = slot.look();
            let closes = closes_all || kept.is_none() && version.taken_since(*counted) == 0;
            let (version, left) = slot.end_version(closes);
            let taken = version.taken_since(*counted);
            *counted = version;
            counters.registered += taken;
            counters.cancelled += taken;
            spent.extend(cancel(left, wheel, counters));
            if closes {
                closed.push(slot.clone());
            }
            !closes
        });
        if self.open.is_empty() {
            self.closes_at = NEVER;
        }
    }

    /// Returns the number of timers that are kept for reuse, and of those that were taken but not counted yet.
    pub(in crate::engine::shard) fn stats(&self, wheel: &mut TimingWheel<Waker>) -> Stats {
        let (mut kept, mut taken) = (BinaryHeap::new(), 0);
        for account in &self.open {
            let (timer, version) = account.slot.look();
            taken += version.taken_since(account.counted);
            kept.extend(timer);
        }
        kept.extend(self.closed.iter().filter_map(|slot| slot.look().0));
        // A timer that was overlooked may have expired meanwhile.
        kept.retain(|number| wheel.get_mut(&Key::from_number(*number)).is_some());
        // A timer that is taken meanwhile and put into another thread's slot is seen twice.
        let mut kept = kept.into_sorted_vec();
        kept.dedup();
        Stats {
            kept: kept.len(),
            taken,
        }
    }

    /// Adds the numbers of the timers that are kept for reuse.
    pub(in crate::engine::shard) fn kept(&self, kept: &mut Vec<NonZeroU32>) {
        let open = self.open.iter().map(|account| &account.slot);
        kept.extend(open.chain(&self.closed).filter_map(|slot| slot.look().0));
    }

    /// Returns the number of slots, each of which keeps one timer at most.
    pub(in crate::engine::shard) fn len(&self) -> usize {
        self.open.len() + self.closed.len()
    }
}

/// Counts that the counters of a shard do not include yet.
pub(in crate::engine::shard) struct Stats {
    pub(in crate::engine::shard) kept: usize,
    pub(in crate::engine::shard) taken: u64,
}

/// Removes a timer that was kept and not taken.
fn cancel(left: Option<Key>, wheel: &mut TimingWheel<Waker>, counters: &mut Counters) -> Option<Waker> {
    let waker = wheel.remove(left?)?;
    counters.cancelled += 1;
    Some(waker)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Shard {
        ledger: Ledger,
        wheel: TimingWheel<Waker>,
        counters: Counters,
    }

    impl Shard {
        fn new() -> Shard {
            Shard {
                ledger: Ledger::default(),
                wheel: TimingWheel::new(2, 2),
                counters: Counters::default(),
            }
        }

        /// Opens a slot with a timer in it.
        fn open(&mut self, closes_at: Tick) -> Arc<Slot> {
            let slot = Arc::new(Slot::new());
            self.ledger.open(slot.clone(), closes_at);
            self.put(&slot);
            slot
        }

        fn put(&mut self, slot: &Slot) -> bool {
            let key = self.wheel.insert(Tick::MAX, Waker::noop().clone());
            slot.put(key.into_number(), slot.version())
        }

        fn visit(&mut self, now: Tick) {
            let spent = &mut Vec::new();
            self.ledger.empty(now, &mut self.wheel, &mut self.counters, spent);
        }
    }

    #[test]
    fn a_visit_looks_only_at_slots_that_were_used_before() {
        let mut shard = Shard::new();
        let parked: Vec<_> = (0..1_000).map(|_| shard.open(Tick(100))).collect();
        let used = shard.open(Tick(100));
        for tick in 0..5 {
            shard.visit(Tick(tick));
            assert!(shard.put(&used));
        }
        assert_eq!(shard.ledger.open.len(), 1);
        assert!(parked.iter().all(|slot| slot.is_closed()));
        assert_eq!(shard.counters.cancelled, 1_005);
    }

    #[test]
    fn from_its_tick_on_every_slot_is_closed() {
        let mut shard = Shard::new();
        let slots = [Tick(7), Tick(5)].map(|closes_at| shard.open(closes_at));
        assert_eq!(shard.ledger.closes_at(), Tick(5));
        shard.visit(Tick(6));
        assert!(slots.iter().all(|slot| slot.is_closed()));
        assert_eq!(shard.ledger.closes_at(), NEVER);
        assert_eq!(shard.wheel.len(), 0);
    }

    /// The thread had read the version before the slot was closed.
    #[test]
    fn a_timer_put_as_its_slot_is_closed_leaves_when_the_next_are() {
        let mut shard = Shard::new();
        let slot = shard.open(Tick(5));
        let version = slot.version();
        shard.visit(Tick(5));
        let key = shard.wheel.insert(Tick::MAX, Waker::noop().clone());
        let number = key.into_number();
        assert!(slot.put(number, version));
        assert!(!slot.take(version));
        assert_eq!(shard.ledger.stats(&mut shard.wheel).kept, 1);
        drop(slot);
        shard.open(Tick(9));
        shard.visit(Tick(9));
        assert_eq!((shard.wheel.len(), shard.ledger.len()), (0, 1));
    }

    /// There may be no next slot, and the cell must not stay for ever.
    #[test]
    fn a_timer_put_as_the_last_slot_is_closed_leaves_when_the_driver_ends() {
        let mut shard = Shard::new();
        let slot = shard.open(Tick(5));
        let version = slot.version();
        shard.visit(Tick(5));
        let key = shard.wheel.insert(Tick::MAX, Waker::noop().clone());
        assert!(slot.put(key.into_number(), version));
        shard.visit(NEVER);
        assert!(shard.wheel.is_vacant());
    }
}
