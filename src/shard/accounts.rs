//! The books of a shard's shelves, behind its lock: what was taken over and what is aside, as the counters have it.

use std::task::Waker;

use super::{
    Shard, State,
    shelf::{Gate, Shelf},
};
use crate::{
    metrics::Metrics,
    sync::Arc,
    timing_wheel::{Key, TimingWheel},
};

/// A shelf, in the books of its shard.
pub(super) struct Account {
    shelf: Arc<Shelf>,
    /// What the gate said when the takings were counted last.
    counted: Gate,
}

impl Account {
    /// Whether the shelf's thread has left it. All that it did there is seen after this.
    fn is_abandoned(&mut self) -> bool {
        Arc::get_mut(&mut self.shelf).is_some()
    }

    /// Enters into the counters what was taken over, and ends what nobody took over. The waker is for the caller to drop with
    /// no lock held.
    fn settle(&mut self, wheel: &mut TimingWheel<Waker>, counters: &mut Metrics) -> Option<Waker> {
        let gate = self.shelf.move_gate();
        let taken = gate.taken_since(self.counted);
        self.counted = gate;
        counters.registered += taken;
        counters.cancelled += taken;
        let waker = wheel.remove(self.shelf.clear(gate)?)?;
        counters.cancelled += 1;
        Some(waker)
    }
}

impl Shard {
    /// Ends the term, under the lock, and with it what nobody took over; the wakers are for the caller to drop with no lock
    /// held. No shelf is cleared in a term that lasts: what is set aside meanwhile could be taken down and taken over.
    pub(super) fn end_term(&self, state: &mut State, spent: &mut Vec<Waker>) {
        if cfg!(not(plant_endless_term)) {
            self.aside.next_term();
        }
        let (wheel, counters) = (&mut state.wheel, &mut state.counters);
        state.accounts.retain_mut(|account| {
            let abandoned = account.is_abandoned();
            spent.extend(account.settle(wheel, counters));
            !abandoned
        });
    }
}

impl State {
    /// A shelf for a thread that has none here, and the waker of what another left on it.
    pub(super) fn shelf(&mut self) -> (Arc<Shelf>, Option<Waker>) {
        for account in &mut self.accounts {
            if account.is_abandoned() {
                let waker = account.settle(&mut self.wheel, &mut self.counters);
                return (account.shelf.clone(), waker);
            }
        }
        let shelf = Arc::new(Shelf::new());
        self.accounts.push(Account {
            shelf: shelf.clone(),
            counted: shelf.gate(),
        });
        (shelf, None)
    }

    /// How many timers are aside, and how many have been taken over that the counters do not know of.
    pub(super) fn aside(&mut self) -> (usize, u64) {
        let (mut aside, mut taken) = (Vec::new(), 0);
        for account in &self.accounts {
            let (timer, gate) = account.shelf.look();
            taken += gate.taken_since(account.counted);
            // One that was overlooked may have expired.
            aside.extend(timer.filter(|number| self.wheel.get_mut(&Key::from_number(*number)).is_some()));
        }
        // Taken over meanwhile and set aside by another thread, one is seen twice.
        aside.sort_unstable();
        aside.dedup();
        (aside.len(), taken)
    }

    /// Ends a timer that was aside. Its waker is for the caller to drop with no lock held.
    pub(super) fn end_aside(&mut self, key: Key) -> Option<Waker> {
        let waker = self.wheel.remove(key)?;
        self.counters.cancelled += 1;
        Some(waker)
    }
}
