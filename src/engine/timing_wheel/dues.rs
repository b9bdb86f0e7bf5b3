//! `Dues`: how many timers are due at each tick, for [`TimingWheel::earliest`](super::TimingWheel::earliest).

use std::collections::{BTreeMap, btree_map::Entry};

use super::Tick;

#[derive(Debug, Default)]
pub(super) struct Dues(BTreeMap<Tick, usize>);

impl Dues {
    pub(super) fn first(&self) -> Option<Tick> {
        self.0.keys().next().copied()
    }

    pub(super) fn add(&mut self, due: Tick) {
        *self.0.entry(due).or_default() += 1;
    }

    pub(super) fn remove(&mut self, due: Tick) {
        if let Entry::Occupied(mut timers) = self.0.entry(due) {
            *timers.get_mut() -= 1;
            if *timers.get() == 0 {
                timers.remove();
            }
        }
    }
}
