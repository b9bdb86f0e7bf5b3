//! What one thread has counted, under some labels of one wheel.
//!
//! Only that thread writes. So a count costs a load and a store, and no cache line of another worker. A tally outlives its thread. The
//! next thread takes it over and goes on from there.

use std::{
    array,
    cell::{Cell, RefCell},
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Label, Labels, lock};

/// How many labels one tally counts. A power of two.
const LABELS: usize = 64;
/// How many counters a label has. The last one is unused.
const COUNTERS: usize = 16;

thread_local! {
    /// The tally that this thread used last. It has no destructor, for then every count would ask whether that has run: [`OTHERS`]
    /// gives it back.
    static LAST: Cell<Last> = const { Cell::new(NO_TALLY) };
    /// The tallies that it used before.
    static OTHERS: RefCell<Others> = const { RefCell::new(Others(Vec::new())) };
}

type Last = ManuallyDrop<Option<Arc<Tally>>>;

const NO_TALLY: Last = ManuallyDrop::new(None);

struct Others(Vec<Arc<Tally>>);

/// What happened to a timeout. Each has a counter of the label.
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
        debug_assert!(tenths <= 9);
        Count(tenths)
    }
}

#[repr(align(128))]
pub(super) struct Tally {
    /// The first of the labels that it counts, as [`Label::number`].
    first: u64,
    counters: [[AtomicU64; COUNTERS]; LABELS],
}

/// What all threads have counted under one label.
#[derive(Default)]
pub(super) struct Totals([u64; COUNTERS]);

impl Totals {
    pub(super) fn of(&self, count: Count) -> u64 {
        self.0[count.0]
    }

    /// How many completed with so many tenths left, of those that were pending before.
    pub(super) fn headroom(&self) -> [u64; 10] {
        array::from_fn(|tenths| self.0[tenths])
    }
}

impl Label {
    /// The first of the labels that share a tally with this one.
    pub(super) fn first(self) -> u64 {
        self.number & !(LABELS as u64 - 1)
    }

    /// Counts in the tally that this thread used last, if that counts this label.
    #[inline]
    pub(crate) fn count(self, count: Count) -> bool {
        let last = LAST.replace(NO_TALLY);
        let counted = last.as_ref().is_some_and(|tally| tally.count(self, count));
        LAST.set(last);
        counted
    }

    /// Counts in another tally than that.
    pub(crate) fn count_elsewhere(self, count: Count, labels: &Labels) {
        let counted = OTHERS.try_with(|others| {
            let mut others = others.borrow_mut();
            let tally = others.bring(self, labels);
            tally.count(self, count);
            others.keep(LAST.replace(ManuallyDrop::new(Some(tally))));
        });
        if counted.is_err() {
            // The thread's locals are gone. Such threads share a tally, behind a lock.
            let mut strays = lock(&labels.strays);
            let stray = strays
                .entry(self.first())
                .or_insert_with(|| Tally::new(self.first()));
            stray.count(self, count);
        }
    }
}

impl Others {
    /// Finds the tally of a label, which is not the one used last.
    fn bring(&mut self, label: Label, labels: &Labels) -> Arc<Tally> {
        // Tallies of wheels that have gone are of no use.
        self.0.retain(|tally| Arc::strong_count(tally) > 1);
        match self.0.iter().position(|tally| tally.first == label.first()) {
            Some(known) => self.0.swap_remove(known),
            None => labels.open(label.first()),
        }
    }

    fn keep(&mut self, last: Last) {
        self.0.extend(ManuallyDrop::into_inner(last));
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        drop(ManuallyDrop::into_inner(LAST.replace(NO_TALLY)));
    }
}

impl Tally {
    pub(super) fn new(first: u64) -> Tally {
        Tally {
            first,
            counters: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    fn counters(&self, label: Label) -> Option<&[AtomicU64; COUNTERS]> {
        // The first is a multiple of how many there are.
        self.counters.get((label.number ^ self.first) as usize)
    }

    /// Counts, if this is the label's tally. Only one thread may do so at a time.
    #[inline]
    fn count(&self, label: Label, count: Count) -> bool {
        let Some(counters) = self.counters(label) else {
            return false;
        };
        let counter = &counters[count.0 % COUNTERS];
        // Whoever reads that a timeout has ended is to read that it had begun.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
        true
    }

    /// Adds what has been counted under a label, if this is its tally. That is what has ended, or else what has begun.
    pub(super) fn add_to(&self, totals: &mut Totals, label: Label, ends: bool) {
        let Some(counters) = self.counters(label) else {
            return;
        };
        for (count, (counter, total)) in counters.iter().zip(&mut totals.0).enumerate() {
            if ends == (count != Count::BEGUN.0) {
                *total += counter.load(Ordering::Acquire);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn count(labels: &Labels) {
        let (label, _) = labels.find("database".into());
        if !label.count(Count::BEGUN) {
            label.count_elsewhere(Count::BEGUN, labels);
        }
    }

    #[test]
    fn a_thread_keeps_no_tallies_of_wheels_that_have_gone() {
        for _ in 0..10 {
            count(&Labels::new());
        }
        // That of the last but one goes with the next.
        OTHERS.with(|others| assert!(others.borrow().0.len() <= 1));
    }

    #[test]
    fn a_thread_that_ends_gives_its_tally_back() {
        let (labels, other) = (Labels::new(), Labels::new());
        for threads in 1..=3 {
            std::thread::scope(|scope| scope.spawn(|| [&labels, &other, &labels].map(count)).join()).unwrap();
            for (labels, counts) in [(&labels, 2), (&other, 1)] {
                assert_eq!(
                    lock(&labels.tallies).len(),
                    1,
                    "each thread has a tally of its own"
                );
                assert_eq!(labels.stats(false)[0].pending, counts * threads);
            }
        }
    }
}
