//! What one thread has counted, under every label of one wheel.
//!
//! Only that thread writes: a count costs a load and a store, and no other worker's cache line. A tally outlives its thread; the next
//! one that comes takes it over, and goes on from there.

use std::{
    cell::RefCell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Label, Labels, lock};

/// Labels that a tally has room for.
pub(super) const LABELS: usize = 1001;
/// Labels whose counters are allocated at once.
const CHUNK: usize = 16;

thread_local! {
    /// This thread's tallies, one for each wheel, the last used first.
    static TALLIES: RefCell<Vec<(u64, Arc<Tally>)>> = const { RefCell::new(Vec::new()) };
}

/// What a timeout counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// It was ready at its first poll.
    AtOnce,
    /// It was pending at its first poll.
    Begun,
    /// It completed, with so many tenths of its time left.
    Completed(usize),
    Elapsed,
    Refused,
    Cancelled,
}

pub(super) struct Tally {
    chunks: [OnceLock<Box<[Counters; CHUNK]>>; LABELS.div_ceil(CHUNK)],
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            chunks: [const { OnceLock::new() }; LABELS.div_ceil(CHUNK)],
        }
    }
}

/// What was counted under one label.
#[derive(Default)]
struct Counters {
    at_once: AtomicU64,
    begun: AtomicU64,
    elapsed: AtomicU64,
    refused: AtomicU64,
    cancelled: AtomicU64,
    headroom: [AtomicU64; 10],
}

/// The same, of all threads.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) at_once: u64,
    pub(super) begun: u64,
    pub(super) elapsed: u64,
    pub(super) refused: u64,
    pub(super) cancelled: u64,
    pub(super) headroom: [u64; 10],
}

impl Totals {
    /// Of those that were pending before.
    pub(super) fn completed(&self) -> u64 {
        self.headroom.iter().sum()
    }
}

impl Label {
    /// Counts in this thread's tally. Where the thread has to look for that, it needs the wheel's labels; without them nobody could
    /// read the count.
    #[inline]
    pub(crate) fn count<'a>(self, count: Count, labels: impl Fn() -> Option<&'a Labels>) {
        let counted = TALLIES.try_with(|tallies| {
            let mut tallies = tallies.borrow_mut();
            match tallies.first() {
                Some((wheel, tally)) if *wheel == self.wheel => tally.count(self.index, count),
                _ => {
                    if let Some(tally) = labels().map(|labels| bring_first(&mut tallies, labels)) {
                        tally.count(self.index, count);
                    }
                }
            }
        });
        if counted.is_err() {
            self.count_stray(count, labels());
        }
    }

    #[cold]
    fn count_stray(self, count: Count, labels: Option<&Labels>) {
        if let Some(labels) = labels {
            lock(&labels.stray).count(self.index, count);
        }
    }
}

/// This thread's tally for another wheel than the last, or its first.
#[cold]
fn bring_first<'a>(tallies: &'a mut Vec<(u64, Arc<Tally>)>, labels: &Labels) -> &'a Tally {
    match tallies.iter().position(|(wheel, _)| *wheel == labels.number) {
        Some(at) => tallies.swap(0, at),
        None => {
            // Those of wheels that have gone are of no use.
            tallies.retain(|(_, tally)| Arc::strong_count(tally) > 1);
            tallies.push((labels.number, labels.open()));
            let last = tallies.len() - 1;
            tallies.swap(0, last);
        }
    }
    &tallies[0].1
}

impl Tally {
    /// Only one thread may, at a time.
    #[inline]
    fn count(&self, label: u16, count: Count) {
        let counters = self.counters(label);
        let counter = match count {
            Count::AtOnce => &counters.at_once,
            Count::Begun => &counters.begun,
            Count::Completed(tenths) => &counters.headroom[tenths.min(9)],
            Count::Elapsed => &counters.elapsed,
            Count::Refused => &counters.refused,
            Count::Cancelled => &counters.cancelled,
        };
        // Whoever reads that a timeout has ended is to read that it had begun.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    #[inline]
    fn counters(&self, label: u16) -> &Counters {
        let label = usize::from(label);
        let chunk = &self.chunks[label / CHUNK];
        &chunk.get_or_init(Box::default)[label % CHUNK]
    }

    /// Adds what has ended.
    pub(super) fn add_ends(&self, label: u16, totals: &mut Totals) {
        if let Some(counters) = self.used(label) {
            let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
            totals.at_once += read(&counters.at_once);
            totals.elapsed += read(&counters.elapsed);
            totals.refused += read(&counters.refused);
            totals.cancelled += read(&counters.cancelled);
            for (total, counter) in totals.headroom.iter_mut().zip(&counters.headroom) {
                *total += read(counter);
            }
        }
    }

    /// Adds what has begun.
    pub(super) fn add_beginnings(&self, label: u16, totals: &mut Totals) {
        if let Some(counters) = self.used(label) {
            totals.begun += counters.begun.load(Ordering::Acquire);
        }
    }

    fn used(&self, label: u16) -> Option<&Counters> {
        let label = usize::from(label);
        Some(&self.chunks[label / CHUNK].get()?[label % CHUNK])
    }
}
