//! The labels of a wheel, and the outcomes of the timeouts under each.
//!
//! A label has a stripe of counters for each core, up to 64. A timeout counts in the stripe of the thread
//! that polls it, so workers hardly contend. A snapshot adds up the stripes.

use std::{
    array,
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
};

use super::number;

/// The number of names that a wheel keeps apart.
const NAMES: usize = 1_000;
/// The label of all further names.
const OTHER: &str = "other";
/// A label has no more stripes than this.
const STRIPES: usize = 64;

/// The outcomes of the timeouts of one label.
///
/// A timeout counts from its first poll. `started` is the sum of `completed`, `elapsed`, `cancelled`
/// and `pending`.
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
    /// The number of timeouts that were dropped before they ended in any of the ways above.
    pub cancelled: u64,
    /// The number of timeouts that are pending.
    pub pending: u64,
    /// The number of timeouts that completed with 0, 1, .. or 9 tenths of their time left, rounded down.
    /// Timeouts with all of their time left are in the last element. The time left is that until the deadline
    /// at which the timeout would elapse.
    ///
    /// If many timeouts are in the first element, the timeout is too tight. If all are in the last, it
    /// protects from nothing.
    pub headroom: [u64; 10],
}

/// What happened to a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its future completed with this many tenths of its time left.
    Completed(u8),
    Elapsed,
    Cancelled,
}

impl Outcome {
    /// Returns the outcome of a timeout that completed with `left` of its `total` time. All of its time
    /// counts as nine tenths.
    pub(crate) fn completed(left: u64, total: u64) -> Outcome {
        let tenths = match left.checked_mul(10) {
            Some(left) => left.checked_div(total).unwrap_or(0),
            // Centuries take a division of 128 bits.
            None => (u128::from(left) * 10 / u128::from(total.max(1))) as u64,
        };
        Outcome::Completed(tenths.min(9) as u8)
    }
}

/// The counters of one label in which some of the threads count.
#[repr(align(128))]
#[derive(Default)]
struct Counters {
    started: AtomicU64,
    headroom: [AtomicU64; 10],
    elapsed: AtomicU64,
    cancelled: AtomicU64,
}

/// A name, and the outcomes of the timeouts under it.
struct Label {
    name: Arc<str>,
    /// Their number is a power of two.
    stripes: Box<[Counters]>,
}

impl Label {
    fn new(name: Arc<str>) -> Label {
        // A thread's number selects its stripe, so as many as there are cores keep busy threads apart.
        let cores = available_parallelism().map_or(1, |cores| cores.get());
        let stripes = cores.next_power_of_two().min(STRIPES);
        Label {
            name,
            stripes: (0..stripes).map(|_| Counters::default()).collect(),
        }
    }

    fn stripe(&self) -> &Counters {
        &self.stripes[number::get() & (self.stripes.len() - 1)]
    }

    /// Adds up the stripes. Starts are read last, so that no end is counted without its start.
    fn stats(&self) -> LabelStats {
        let sum = |counter: &dyn Fn(&Counters) -> &AtomicU64| {
            let stripes = self.stripes.iter();
            stripes
                .map(|stripe| counter(stripe).load(Ordering::Acquire))
                .fold(0, u64::wrapping_add)
        };
        let headroom = array::from_fn(|tenths| sum(&|stripe| &stripe.headroom[tenths]));
        let completed = headroom.iter().sum();
        let elapsed = sum(&|stripe| &stripe.elapsed);
        let cancelled = sum(&|stripe| &stripe.cancelled);
        let started = sum(&|stripe| &stripe.started);
        let pending = started.saturating_sub(completed + elapsed + cancelled);
        LabelStats {
            name: self.name.clone(),
            started,
            completed,
            elapsed,
            cancelled,
            pending,
            headroom,
        }
    }
}

/// The place of a label among those of its wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabelId(u32);

/// The labels of a wheel, in the order in which they were first used.
#[derive(Default)]
pub(crate) struct Labels {
    /// One place for each label, [`OTHER`]'s included, so that a label is found without a lock or a search.
    places: OnceLock<Box<[OnceLock<Label>]>>,
    ids: Mutex<HashMap<Arc<str>, LabelId>>,
}

impl Labels {
    /// Finds or creates the label with this name. Returns its name, which is [`OTHER`] once there are
    /// [`NAMES`] others.
    pub(crate) fn find(&self, name: Arc<str>) -> (LabelId, Arc<str>) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        // Equal names are one label, wherever they were given.
        if let Some(id) = ids.get(&name) {
            return (*id, name);
        }
        // A name made of a request's content must not use up the memory.
        if ids.len() >= NAMES && *name != *OTHER {
            // Taken again below, once.
            drop(ids);
            return self.find(OTHER.into());
        }
        let id = LabelId(ids.len() as u32);
        self.place(id).get_or_init(|| Label::new(name.clone()));
        ids.insert(name.clone(), id);
        (id, name)
    }

    fn place(&self, id: LabelId) -> &OnceLock<Label> {
        let places = || (0..=NAMES).map(|_| OnceLock::new()).collect();
        &self.places.get_or_init(places)[id.0 as usize]
    }

    /// Counts the first poll of a timeout.
    pub(crate) fn count_start(&self, id: LabelId) {
        if let Some(label) = self.place(id).get() {
            label.stripe().started.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Out of line, it takes 50 instructions more of the 710 of a labelled timeout.
    #[inline]
    pub(crate) fn count(&self, id: LabelId, outcome: Outcome) {
        let Some(label) = self.place(id).get() else { return };
        let stripe = label.stripe();
        let counter = match outcome {
            Outcome::Completed(tenths) => &stripe.headroom[usize::from(tenths) % 10],
            Outcome::Elapsed => &stripe.elapsed,
            Outcome::Cancelled => &stripe.cancelled,
        };
        // A reader that sees the end of a timeout also sees its start.
        counter.fetch_add(1, Ordering::Release);
    }

    /// Returns the outcomes of each label of a wheel.
    pub(crate) fn stats(&self) -> Vec<LabelStats> {
        let places = self.places.get().into_iter().flatten();
        // Places are filled in their order, under the lock of the names.
        let labels = places.map_while(OnceLock::get);
        labels.map(|label| label.stats()).collect()
    }
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn tenths_of_any_time() {
        let tenths = |left, total| match Outcome::completed(left, total) {
            Outcome::Completed(tenths) => tenths,
            other => unreachable!("{other:?}"),
        };
        for (left, total, expected) in [(0, 0, 0), (1, 10, 1), (99, 100, 9), (100, 100, 9), (9, 100, 0)] {
            assert_eq!(tenths(left, total), expected);
        }
        assert_eq!(tenths(u64::MAX / 2, u64::MAX), 4, "a little less than half");
        assert_eq!(tenths(u64::MAX / 2 + 1, u64::MAX), 5);
    }

    #[test]
    fn what_several_threads_count_adds_up() {
        let labels = Labels::default();
        let (label, _) = labels.find("some".into());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    labels.count_start(label);
                    labels.count(label, Outcome::completed(3, 10));
                });
            }
        });
        labels.count_start(label);
        let stats = &labels.stats()[0];
        assert_eq!((stats.started, stats.completed, stats.pending), (5, 4, 1));
        assert_eq!(stats.headroom[3], 4);
    }

    #[test]
    fn further_names_share_a_label() {
        let labels = Labels::default();
        for number in 0..NAMES + 5 {
            labels.count_start(labels.find(number.to_string().into()).0);
        }
        let stats = labels.stats();
        assert_eq!(stats.len(), NAMES + 1);
        assert_eq!((&*stats[NAMES].name, stats[NAMES].started), (OTHER, 5));
        assert_eq!(labels.find("7".into()), labels.find("7".into()));
    }
}
