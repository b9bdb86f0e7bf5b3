//! `Ledger`: the slots of a shard's threads, behind the shard's lock. It counts the timers that were taken and those that are kept.

use std::{collections::BinaryHeap, num::NonZeroU32, task::Waker};

use super::slot::{Content, Slot};
use crate::engine::{
    shard::{Counters, NEVER},
    sync::Arc,
    timing_wheel::{Key, Tick, TimingWheel},
};

/// The open slots of the threads that have one in this shard.
pub(in crate::engine::shard) struct Ledger {
    open: Vec<Account>,
    /// The tick by which every slot is emptied and closed. [`NEVER`] while none is open.
    closes_at: Tick,
}

struct Account {
    slot: Arc<Slot>,
    /// The content when taken timers were last counted.
    counted: Content,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            open: Vec::new(),
            closes_at: NEVER,
        }
    }
}

impl Ledger {
    /// Opens a slot, which is emptied and closed at `closes_at` or earlier.
    pub(super) fn open(&mut self, slot: Arc<Slot>, closes_at: Tick) {
        let counted = slot.look();
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
        let closes_all = now >= self.closes_at;
        self.open.retain_mut(|Account { slot, counted }| {
            let closes = closes_all || slot.look() == *counted;
            let left = if closes { slot.close() } else { slot.empty() };
            let taken = left.taken_since(*counted);
            *counted = left.without_timer();
            counters.registered += taken;
            counters.cancelled += taken;
            if let Some(waker) = left
                .number()
                .and_then(|number| wheel.remove(Key::from_number(number)))
            {
                counters.cancelled += 1;
                spent.push(waker);
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
            let content = account.slot.look();
            taken += content.taken_since(account.counted);
            kept.extend(content.number());
        }
        // A timer that is put as a visit begins may expire before its thread finds the next generation.
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
        kept.extend(
            self.open
                .iter()
                .filter_map(|account| account.slot.look().number()),
        );
    }

    /// Returns the number of slots, each of which keeps one timer at most.
    pub(in crate::engine::shard) fn len(&self) -> usize {
        self.open.len()
    }
}

/// Counts that the counters of a shard do not include yet.
pub(in crate::engine::shard) struct Stats {
    pub(in crate::engine::shard) kept: usize,
    pub(in crate::engine::shard) taken: u64,
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
            slot.put(key.into_number(), slot.look())
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
}
