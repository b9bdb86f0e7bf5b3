//! `Dues`: how many timers are due at each tick, for a [wheel whose clock jumps](super::TimingWheel::for_jumps).

use std::collections::{BTreeMap, btree_map::Entry};

use super::Tick;

/// Nothing is counted unless the clock jumps.
#[derive(Debug, Default)]
pub(super) struct Dues(Option<BTreeMap<Tick, usize>>);

impl Dues {
    pub(super) fn of_jumps() -> Dues {
        // The last tick always has one timer more, so that the map keeps a node, and a few timers at a time
        // allocate nothing.
        Dues(Some(BTreeMap::from([(Tick::MAX, 1)])))
    }

    pub(super) fn is_counting(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn first(&self) -> Option<Tick> {
        let (due, timers) = self.0.as_ref()?.first_key_value()?;
        (*due != Tick::MAX || *timers > 1).then_some(*due)
    }

    pub(super) fn add(&mut self, due: Tick) {
        if let Some(dues) = &mut self.0 {
            count(dues, due);
        }
    }

    pub(super) fn remove(&mut self, due: Tick) {
        if let Some(dues) = &mut self.0 {
            count_out(dues, due);
        }
    }
}

// Out of line, or a timer that fires takes 40 instructions more on the machine's clock.
#[cold]
fn count(dues: &mut BTreeMap<Tick, usize>, due: Tick) {
    *dues.entry(due).or_default() += 1;
}

#[cold]
fn count_out(dues: &mut BTreeMap<Tick, usize>, due: Tick) {
    if let Entry::Occupied(mut timers) = dues.entry(due) {
        *timers.get_mut() -= 1;
        // Or `first` would name a tick at which nothing is due.
        if *timers.get() == 0 {
            timers.remove();
        }
    }
}
