//! `Dues`: how many timers are due at each tick, for a [wheel whose clock jumps](super::TimingWheel::for_jumps).

use std::collections::{BTreeMap, btree_map::Entry};

use super::Tick;

/// The last tick always has one timer more, so that the map keeps a node, and a few timers at a time allocate
/// nothing.
#[derive(Debug)]
pub(super) struct Dues(BTreeMap<Tick, usize>);

impl Dues {
    pub(super) fn new() -> Dues {
        Dues(BTreeMap::from([(Tick::MAX, 1)]))
    }

    pub(super) fn first(&self) -> Option<Tick> {
        let (due, timers) = self.0.first_key_value()?;
        (*due != Tick::MAX || *timers > 1).then_some(*due)
    }

    #[cold]
    pub(super) fn add(&mut self, due: Tick) {
        *self.0.entry(due).or_default() += 1;
    }

    #[cold]
    pub(super) fn remove(&mut self, due: Tick) {
        if let Entry::Occupied(mut timers) = self.0.entry(due) {
            *timers.get_mut() -= 1;
            // Or `first` would name a tick at which nothing is due.
            if *timers.get() == 0 {
                timers.remove();
            }
        }
    }
}
