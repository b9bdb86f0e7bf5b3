//! The labels of a wheel, and the outcomes of the timeouts under each.
//!
//! Each thread counts in its own [`tally`], so workers do not contend, and a snapshot adds up the tallies.

mod tally;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub(crate) use tally::Count;

use crate::engine::sync::{Mutex, lock};
use tally::{Tally, Totals};

/// The number of names that a wheel keeps apart.
const NAMES: usize = 1_000;
/// The bits of a label's number that distinguish it from the other labels of its wheel, of which there are up to [`NAMES`] and
/// [`OTHER`].
const INDEX_BITS: u32 = 10;
/// The label of all further names.
const OTHER: &str = "other";

/// The outcomes of the timeouts of one label.
///
/// A timeout counts from its first poll. `started` is the sum of `completed`, `elapsed`, `refused`, `cancelled` and `pending`.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let database = wheel.labelled("database");
/// database.timeout(Duration::from_secs(1), async { 7 }).await.unwrap();
/// database.timeout(Duration::from_secs(1), std::future::pending::<()>()).await.unwrap_err();
///
/// let stats = &wheel.snapshot().labels[0];
/// assert_eq!(&*stats.name, "database");
/// assert_eq!((stats.started, stats.completed, stats.elapsed), (2, 1, 1));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LabelStats {
    /// The name of the label.
    pub name: Arc<str>,
    /// The number of timeouts that were polled.
    pub started: u64,
    /// The number of timeouts whose future completed in time.
    pub completed: u64,
    /// The number of timeouts whose time ran out.
    pub elapsed: u64,
    /// The number of timeouts that failed because the wheel was full, which only a `try_timeout` does, and of timeouts that were
    /// pending at a shutdown or began after it.
    pub refused: u64,
    /// The number of timeouts that were dropped before they ended in any of the ways above.
    pub cancelled: u64,
    /// The number of timeouts that are pending.
    pub pending: u64,
    /// The number of timeouts that completed with 0, 1, .. or 9 tenths of their time left, rounded down. Timeouts with all of
    /// their time left are in the last element.
    ///
    /// If many timeouts are in the first element, the timeout is too tight. If all are in the last, it protects from nothing.
    pub headroom: [u64; 10],
}

impl LabelStats {
    fn new(name: Arc<str>, totals: &Totals, shutdown: bool) -> LabelStats {
        let mut headroom = totals.headroom();
        let [elapsed, refused, cancelled] =
            [Count::ELAPSED, Count::REFUSED, Count::CANCELLED].map(|count| totals.of(count));
        let ended = headroom.iter().sum::<u64>() + elapsed + refused + cancelled;
        // Timeouts that were ready at once were never counted as begun, so they must not be subtracted from those that have
        // begun.
        headroom[9] += totals.of(Count::AT_ONCE);
        let mut stats = LabelStats {
            name,
            started: 0,
            completed: headroom.iter().sum(),
            elapsed,
            refused,
            cancelled,
            pending: totals.of(Count::BEGUN).saturating_sub(ended),
            headroom,
        };
        if shutdown {
            stats.refused += std::mem::take(&mut stats.pending);
        }
        stats.started = stats.completed + stats.elapsed + stats.refused + stats.cancelled + stats.pending;
        stats
    }
}

/// The labels of one wheel.
pub(crate) struct Labels {
    /// The number of the wheel, which is unique in the process.
    number: u64,
    names: Mutex<Names>,
    tallies: Mutex<Vec<Arc<Tally>>>,
    /// The tallies shared by threads whose thread-locals are gone, by the first label of each tally.
    strays: Mutex<HashMap<u64, Tally>>,
}

#[derive(Default)]
struct Names {
    /// The index of each name in `in_order`.
    by_name: HashMap<Arc<str>, u16>,
    in_order: Vec<Arc<str>>,
}

/// The label of a timeout, as the timeout stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The wheel's number in the upper bits, and the label's index in the lower [`INDEX_BITS`].
    number: u64,
}

impl Labels {
    pub(crate) fn new() -> Labels {
        static WHEELS: AtomicU64 = AtomicU64::new(0);
        Labels {
            number: WHEELS.fetch_add(1, Ordering::Relaxed),
            names: Mutex::default(),
            tallies: Mutex::default(),
            strays: Mutex::default(),
        }
    }

    /// Finds or creates the label with this name. Returns the label and its name, which is [`OTHER`] once there are [`NAMES`]
    /// others.
    pub(crate) fn find(&self, name: Arc<str>) -> (Label, Arc<str>) {
        let mut names = lock(&self.names);
        let name = match names.in_order.len() >= NAMES && !names.by_name.contains_key(&name) {
            true => Arc::from(OTHER),
            false => name,
        };
        let next = names.in_order.len() as u16;
        let index = *names.by_name.entry(name.clone()).or_insert(next);
        if index == next {
            names.in_order.push(name);
        }
        (self.label(index), names.in_order[usize::from(index)].clone())
    }

    fn label(&self, index: u16) -> Label {
        Label {
            number: self.number << INDEX_BITS | u64::from(index),
        }
    }

    /// Adds up the outcomes of the timeouts of each label. Once the wheel is shut down, timeouts that were pending count as
    /// refused.
    pub(crate) fn stats(&self, shutdown: bool) -> Vec<LabelStats> {
        let names = lock(&self.names).in_order.clone();
        let tallies = lock(&self.tallies).clone();
        let strays = lock(&self.strays);
        let stats = |(index, name)| {
            let label = self.label(index);
            let mut totals = Totals::default();
            // Ends are read first, so that no end is counted without its beginning.
            for ends in [true, false] {
                for tally in tallies.iter().map(|tally| &**tally).chain(strays.values()) {
                    tally.add_to(&mut totals, label, ends);
                }
            }
            LabelStats::new(name, &totals, shutdown)
        };
        (0..).zip(names).map(stats).collect()
    }

    /// Returns a tally for a thread that has none: one that another thread has left behind, or a new one.
    fn open(&self, first: u64) -> Arc<Tally> {
        let mut tallies = lock(&self.tallies);
        for tally in tallies.iter_mut() {
            // `get_mut` also makes the counts of the other thread visible here.
            if tally.first() == first && Arc::get_mut(tally).is_some() {
                return tally.clone();
            }
        }
        let tally = Arc::new(Tally::new(first));
        tallies.push(tally.clone());
        tally
    }
}
