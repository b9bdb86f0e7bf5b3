//! The counts of one thread under some labels of one wheel.
//!
//! Only that thread writes, so a count costs a load and a store and touches no cache line of another worker. A tally outlives its thread:
//! the next thread takes it over and continues counting in it.

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

/// The number of labels that one tally counts, a power of two.
const LABELS: usize = 64;
/// The number of counters of a label, a power of two, so that the last one is unused.
const COUNTERS: usize = 16;

thread_local! {
    /// The tally that this thread used last. It has no destructor, because with one, every count would check whether it has run.
    /// [`OTHERS`] gives this tally back.
    static LAST: Cell<Last> = const { Cell::new(NO_TALLY) };
    /// The tallies that this thread used earlier.
    static OTHERS: RefCell<Others> = const { RefCell::new(Others(Vec::new())) };
}

type Last = ManuallyDrop<Option<Arc<Tally>>>;

const NO_TALLY: Last = ManuallyDrop::new(None);

struct Others(Vec<Arc<Tally>>);

/// An event in the life of a timeout, as an index into its label's counters. The first ten are completions, by the tenths of the
/// time that were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(usize);

impl Count {
    /// The timeout was ready at its first poll.
    pub(crate) const AT_ONCE: Count = Count(10);
    /// The timeout was pending at its first poll.
    pub(crate) const BEGUN: Count = Count(11);
    pub(crate) const ELAPSED: Count = Count(12);
    pub(crate) const REFUSED: Count = Count(13);
    pub(crate) const CANCELLED: Count = Count(14);

    /// The timeout was pending, and completed with this many tenths of its time left, 9 at most.
    #[inline]
    pub(crate) fn completed(tenths: usize) -> Count {
        debug_assert!(tenths <= 9);
        Count(tenths)
    }
}

/// The counters of one thread for some labels. The alignment is that of two cache lines, because processors fetch cache lines in
/// pairs.
#[repr(align(128))]
pub(super) struct Tally {
    /// The first of the labels that this tally counts, as [`Label::number`].
    first: u64,
    counters: [[AtomicU64; COUNTERS]; LABELS],
}

/// The sums of all threads' counts under one label.
#[derive(Default)]
pub(super) struct Totals([u64; COUNTERS]);

impl Totals {
    pub(super) fn of(&self, count: Count) -> u64 {
        self.0[count.0]
    }

    /// Returns the number of completions by tenths of the time left. Timeouts that were ready at once are not included.
    pub(super) fn headroom(&self) -> [u64; 10] {
        array::from_fn(|tenths| self.0[tenths])
    }
}

impl Label {
    /// Returns the first of the labels that share a tally with this one.
    pub(super) fn first(self) -> u64 {
        self.number & !(LABELS as u64 - 1)
    }

    /// Counts in the tally that this thread used last. Returns `false` if that tally does not include this label.
    #[inline]
    pub(crate) fn count(self, count: Count) -> bool {
        // Taking the tally out and putting it back costs less than a `RefCell`, and touches no reference count.
        let last = LAST.replace(NO_TALLY);
        let counted = last.as_ref().is_some_and(|tally| tally.count(self, count));
        LAST.set(last);
        counted
    }

    /// Counts where [`count`](Label::count) could not: in a tally that this thread used earlier, or in a new one.
    pub(crate) fn count_elsewhere(self, count: Count, labels: &Labels) {
        let counted = OTHERS.try_with(|others| {
            let mut others = others.borrow_mut();
            let tally = others.bring(self, labels);
            tally.count(self, count);
            others.keep(LAST.replace(ManuallyDrop::new(Some(tally))));
        });
        if counted.is_err() {
            // The thread is ending, and its thread-locals are gone. Such threads share a tally behind a lock.
            let mut strays = lock(&labels.strays);
            let stray = strays
                .entry(self.first())
                .or_insert_with(|| Tally::new(self.first()));
            stray.count(self, count);
        }
    }
}

impl Others {
    /// Takes out the tally of a label, or opens one. The tally in [`LAST`] is never the one wanted.
    fn bring(&mut self, label: Label, labels: &Labels) -> Arc<Tally> {
        // Tallies of wheels that are gone are of no use.
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
        // `first` is a multiple of `LABELS`, so the result is an index if the label is in this tally, and too large otherwise.
        self.counters.get((label.number ^ self.first) as usize)
    }

    /// Counts, if this is the label's tally. Only the thread that owns the tally may call this.
    #[inline]
    fn count(&self, label: Label, count: Count) -> bool {
        let Some(counters) = self.counters(label) else {
            return false;
        };
        // The remainder saves a bounds check.
        let counter = &counters[count.0 % COUNTERS];
        // The store is a release, so that a reader that sees the end of a timeout also sees its beginning.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
        true
    }

    /// Adds the counts of a label, if this is its tally: with `ends`, all counts of ends, and otherwise the count of beginnings.
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
        // The tally of the last wheel but one would be dropped with the next count.
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
