//! `Ledger`: the slots of a shard's threads, behind the shard's lock. It counts the timers that were taken and those that are kept.

use std::{collections::BinaryHeap, num::NonZeroU32, task::Waker};

use super::slot::{Content, Slot};
use crate::engine::{
    shard::{Counters, NEVER},
    sync::Arc,
    timing_wheel::{Key, Tick, TimingWheel},
};

/// The open slots of the threads that have one in this shard.
#[derive(Default)]
pub(in crate::engine::shard) struct Ledger {
    open: Vec<Account>,
    /// The tick by which every open slot is emptied and closed.
    closes_at: Tick,
}

struct Account {
    slot: Arc<Slot>,
    /// The content when taken timers were last counted.
    counted: Content,
}

impl Ledger {
    /// Opens a slot, which is emptied and closed at `closes_at` or earlier.
    pub(super) fn open(&mut self, slot: Arc<Slot>, closes_at: Tick) {
        let counted = slot.look();
        self.closes_at = self.closes_at().min(closes_at);
        self.open.push(Account { slot, counted });
    }

    /// Returns the tick by which every slot is emptied and closed, or [`NEVER`] while none is open.
    #[inline]
    pub(in crate::engine::shard) fn closes_at(&self) -> Tick {
        match self.open.is_empty() {
            true => NEVER,
            false => self.closes_at,
        }
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
        let closes_all = now >= self.closes_at();
        self.open.retain_mut(|account| {
            let closes = closes_all || account.slot.look() == account.counted;
            let left = match closes {
                true => account.slot.close(),
                false => account.slot.empty(),
            };
            account.count(left, counters);
            if let Some(waker) = left
                .number()
                .and_then(|number| wheel.remove(Key::from_number(number)))
            {
                counters.cancelled += 1;
                spent.push(waker);
            }
            !closes
        });
    }

    /// Counts the timers that have been taken, and returns the numbers of those that are kept for reuse in a shard that has `reached`
    /// a tick.
    pub(in crate::engine::shard) fn look(
        &mut self,
        reached: Tick,
        wheel: &mut TimingWheel<Waker>,
        counters: &mut Counters,
    ) -> Vec<NonZeroU32> {
        let mut kept = BinaryHeap::new();
        for account in &mut self.open {
            let content = account.slot.look();
            account.count(content, counters);
            kept.extend(content.number());
        }
        // A timer that is put during a visit may have expired, or be about to, before its thread finds the next generation.
        kept.retain(|number| {
            let key = Key::from_number(*number);
            wheel.get_mut(&key).is_some() && (wheel.is_incoming(&key) || wheel.due(&key) > reached)
        });
        // A timer that is taken meanwhile and put into another thread's slot is seen twice.
        let mut kept = kept.into_sorted_vec();
        kept.dedup();
        kept
    }

    /// Returns the number of slots, each of which keeps one timer at most.
    pub(in crate::engine::shard) fn len(&self) -> usize {
        self.open.len()
    }
}

impl Account {
    /// Counts the timers that had been taken when this was in the slot.
    fn count(&mut self, content: Content, counters: &mut Counters) {
        let taken = content.taken_since(self.counted);
        self.counted = content.without_timer();
        counters.registered += taken;
        counters.cancelled += taken;
    }
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
