//! The labels of a wheel, and the outcomes of the limits under each.
//!
//! Each shard has a [`Stripe`] of counters. A limit counts in the stripe of the shard in which its timer is, which is that of the thread
//! that polls it, so workers do not contend. A snapshot adds up the stripes.

mod stripe;

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU16, Ordering},
    },
};

pub(crate) use stripe::{Count, Stripe};

use crate::engine::sync::{Mutex, lock};
use stripe::Totals;

/// The number of names that a wheel keeps apart.
const NAMES: usize = 1_000;
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
            [Count::ELAPSED, Count::REFUSED, Count::CANCELLED].map(|count| totals.count(count));
        let ended = headroom.iter().sum::<u64>() + elapsed + refused + cancelled;
        // Timeouts that were ready at once were never counted as begun, so they must not be subtracted from those that have
        // begun.
        headroom[9] += totals.count(Count::AT_ONCE);
        let mut stats = LabelStats {
            name,
            started: 0,
            completed: headroom.iter().sum(),
            elapsed,
            refused,
            cancelled,
            pending: totals.count(Count::BEGUN).saturating_sub(ended),
            headroom,
        };
        if shutdown {
            stats.refused += std::mem::take(&mut stats.pending);
        }
        stats.started = stats.completed + stats.elapsed + stats.refused + stats.cancelled + stats.pending;
        stats
    }
}

/// The names of the labels of one wheel.
#[derive(Default)]
pub(crate) struct Labels {
    names: Mutex<Names>,
    /// The label of each numbered name plus one, or zero if the name has not been used with this wheel. It is allocated with the
    /// first of them.
    numbered: OnceLock<Box<[AtomicU16]>>,
}

#[derive(Default)]
struct Names {
    by_name: HashMap<Arc<str>, Label>,
    in_order: Vec<Arc<str>>,
}

/// A label of a wheel, by its index in the order of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(u16);

impl Labels {
    /// Finds or creates the label with this name. Returns the label and its name, which is [`OTHER`] once there are [`NAMES`]
    /// others.
    pub(crate) fn find(&self, name: Arc<str>) -> (Label, Arc<str>) {
        let mut names = lock(&self.names);
        let name = match names.in_order.len() >= NAMES && !names.by_name.contains_key(&name) {
            true => Arc::from(OTHER),
            false => name,
        };
        let next = Label(names.in_order.len() as u16);
        let label = *names.by_name.entry(name.clone()).or_insert(next);
        if label == next {
            names.in_order.push(name);
        }
        (label, names.in_order[usize::from(label.0)].clone())
    }

    /// Finds or creates the label with this name, which has this number in the whole process. Without a lock, unless this is its
    /// first use with this wheel or there are more than [`NAMES`] numbers.
    #[inline]
    pub(crate) fn find_numbered(&self, number: usize, name: &'static str) -> Label {
        let place = self.numbered.get().and_then(|labels| labels.get(number));
        // The label is all that is read by it, so no order is needed.
        match place.map_or(0, |label| label.load(Ordering::Relaxed)) {
            0 => self.number(number, name),
            label => Label(label - 1),
        }
    }

    #[cold]
    fn number(&self, number: usize, name: &'static str) -> Label {
        let (label, _) = self.find(name.into());
        let numbered = self
            .numbered
            .get_or_init(|| (0..NAMES).map(|_| AtomicU16::new(0)).collect());
        if let Some(place) = numbered.get(number) {
            place.store(label.0 + 1, Ordering::Relaxed);
        }
        label
    }

    /// Adds up the outcomes of each label over the shards. Once the wheel is shut down, limits that were pending count as refused.
    pub(crate) fn stats<'a>(
        &self,
        stripes: impl Iterator<Item = &'a Stripe> + Clone,
        shutdown: bool,
    ) -> Vec<LabelStats> {
        let names = lock(&self.names).in_order.clone();
        let stats = |(index, name)| {
            let totals = Totals::of(Label(index), stripes.clone());
            LabelStats::new(name, &totals, shutdown)
        };
        (0..).zip(names).map(stats).collect()
    }
}
