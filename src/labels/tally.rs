//! What one thread has counted, under some labels of one wheel.
//!
//! Only that thread writes: a count costs a load and a store, and no other worker's cache line. A tally outlives its thread; the next
//! one that comes takes it over, and goes on from there.

use std::{
    array,
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Label, Labels, lock};

/// Labels that one tally counts.
const LABELS: u16 = 64;
/// Counters of a label, the last one unused.
const COUNTERS: usize = 16;

thread_local! {
    static TALLIES: RefCell<Tallies> = const {
        RefCell::new(Tallies {
            number: u64::MAX,
            last: None,
            others: Vec::new(),
        })
    };
}

/// Those of one thread.
struct Tallies {
    /// That of the last.
    number: u64,
    /// The one used last.
    last: Option<Arc<Tally>>,
    others: Vec<(u64, Arc<Tally>)>,
}

/// What a timeout counts: which of the counters of its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(usize);

impl Count {
    /// It was ready at its first poll.
    pub(crate) const AT_ONCE: Count = Count(10);
    /// It was pending at its first poll.
    pub(crate) const BEGUN: Count = Count(11);
    pub(crate) const ELAPSED: Count = Count(12);
    pub(crate) const REFUSED: Count = Count(13);
    pub(crate) const CANCELLED: Count = Count(14);

    /// It completed, with so many tenths of its time left, 9 at most.
    #[inline]
    pub(crate) fn completed(tenths: usize) -> Count {
        Count(tenths.min(9))
    }
}

#[repr(align(128))]
pub(super) struct Tally {
    counters: [AtomicU64; LABELS as usize * COUNTERS],
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            counters: array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// What all threads have counted under one label.
#[derive(Default)]
pub(super) struct Totals([u64; COUNTERS]);

impl Totals {
    pub(super) fn of(&self, count: Count) -> u64 {
        self.0[count.0]
    }

    /// Completed, with so many tenths left; of those that were pending before.
    pub(super) fn headroom(&self) -> [u64; 10] {
        array::from_fn(|tenths| self.0[tenths])
    }
}

impl Label {
    /// Tells apart all tallies of a thread.
    #[inline]
    fn tally(self) -> u64 {
        self.wheel_and_index / u64::from(LABELS)
    }

    #[inline]
    fn counter(self, count: Count) -> usize {
        (self.wheel_and_index % u64::from(LABELS)) as usize * COUNTERS + count.0 % COUNTERS
    }

    /// Counts in this thread's tally. Where the thread has to look for that, it needs the wheel's labels; without them nobody could
    /// read the count.
    #[inline]
    pub(crate) fn count<'a>(self, count: Count, labels: impl FnOnce() -> Option<&'a Labels>) {
        let counted = TALLIES.try_with(|tallies| {
            let tallies = tallies.borrow();
            match &tallies.last {
                Some(tally) if tallies.number == self.tally() => {
                    tally.count(self, count);
                    true
                }
                _ => false,
            }
        });
        if !counted.unwrap_or(false) {
            self.count_elsewhere(count, labels());
        }
    }

    /// Counts in another tally than the one used last.
    #[cold]
    #[inline(never)]
    fn count_elsewhere(self, count: Count, labels: Option<&Labels>) {
        let Some(labels) = labels else { return };
        let counted = TALLIES.try_with(|tallies| {
            let mut tallies = tallies.borrow_mut();
            tallies.bring_first(self.tally(), labels).count(self, count);
        });
        if counted.is_err() {
            // The thread's locals are gone. What is shared by such threads is behind a lock.
            let mut strays = lock(&labels.strays);
            strays.entry(self.tally()).or_default().count(self, count);
        }
    }
}

impl Tallies {
    fn bring_first(&mut self, number: u64, labels: &Labels) -> &Tally {
        let former = self.last.take().map(|last| (self.number, last));
        // Those of wheels that have gone are of no use.
        self.others.retain(|(_, tally)| Arc::strong_count(tally) > 1);
        let known = self.others.iter().position(|(tally, _)| *tally == number);
        let tally = match known {
            Some(at) => self.others.swap_remove(at).1,
            None => labels.open(number),
        };
        self.others.extend(former);
        self.number = number;
        self.last.insert(tally)
    }
}

impl Tally {
    /// Only one thread may, at a time.
    #[inline]
    fn count(&self, label: Label, count: Count) {
        let counter = &self.counters[label.counter(count)];
        // Whoever reads that a timeout has ended is to read that it had begun.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Adds what has been counted under a label, if this is its tally: what has ended, or else what has begun.
    pub(super) fn add_to(&self, totals: &mut Totals, label: Label, ends: bool) {
        for (count, total) in totals.0.iter_mut().enumerate() {
            if ends == (count != Count::BEGUN.0) {
                *total += self.counters[label.counter(Count(count))].load(Ordering::Acquire);
            }
        }
    }
}

/// Which tally counts a label.
pub(super) fn tally_of(label: Label) -> u64 {
    label.tally()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_no_tallies_of_wheels_that_have_gone() {
        for _ in 0..10 {
            let labels = Labels::new();
            let (label, _) = labels.find("database".into());
            label.count(Count::BEGUN, || Some(&labels));
        }
        // That of the last but one goes with the next.
        TALLIES.with(|tallies| assert!(tallies.borrow().others.len() <= 1));
    }
}
