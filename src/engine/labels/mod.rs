//! The labels of a wheel, and the outcomes of the limits under each.
//!
//! Each shard has a [`Stripe`] of counters. A limit counts in the stripe of the shard in which its timer is, which is that of the thread
//! that polls it, so workers do not contend. A snapshot adds up the stripes.

mod stripe;

use std::{
    array,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

pub(crate) use stripe::{Count, Stripe};

use stripe::{COUNTERS, totals};

/// The number of names that a wheel keeps apart.
const NAMES: usize = 1_000;
/// Stands for the label of a name that has not been used with a wheel.
const UNUSED: u16 = u16::MAX;
/// From this on, labels are numbers of names.
const NUMBERED: u32 = 1 << 16;
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
    /// their time left are in the last element. The time left is that until the deadline at which the timeout would elapse.
    ///
    /// If many timeouts are in the first element, the timeout is too tight. If all are in the last, it protects from nothing.
    pub headroom: [u64; 10],
}

impl LabelStats {
    fn new(name: Arc<str>, totals: &[u64; COUNTERS], shutdown: bool) -> LabelStats {
        let headroom = array::from_fn(|tenths| totals[tenths]);
        let [started, elapsed, refused, cancelled] =
            [Count::BEGUN, Count::ELAPSED, Count::REFUSED, Count::CANCELLED].map(|count| totals[count.0]);
        let completed: u64 = headroom.iter().sum();
        let pending = started.saturating_sub(completed + elapsed + refused + cancelled);
        let (pending, refused) = match shutdown {
            true => (0, refused + pending),
            false => (pending, refused),
        };
        LabelStats {
            name,
            started,
            completed,
            elapsed,
            refused,
            cancelled,
            pending,
            headroom,
        }
    }
}

/// The names of the labels of one wheel.
pub(crate) struct Labels {
    names: Mutex<HashMap<Arc<str>, Label>>,
    /// The label of each numbered name, or [`UNUSED`].
    numbered: [AtomicU16; NAMES],
}

/// A label of a wheel by its index in the order of names or, from [`NUMBERED`] on, the number of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u32);

/// The names of static labels. A name's index is its number.
static NUMBERS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Returns the label with the number of a name, which is the same in the whole process.
#[cold]
pub(crate) fn numbered(name: &'static str) -> Label {
    let mut names = lock(&NUMBERS);
    let known = names.iter().position(|known| *known == name);
    let number = known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    Label(NUMBERED + number as u32)
}

impl Default for Labels {
    fn default() -> Labels {
        Labels {
            names: Mutex::default(),
            numbered: array::from_fn(|_| AtomicU16::new(UNUSED)),
        }
    }
}

impl Labels {
    /// Finds or creates the label with this name. Returns the label and its name, which is [`OTHER`] once there are [`NAMES`]
    /// others.
    pub(in crate::engine) fn find(&self, name: Arc<str>) -> (Label, Arc<str>) {
        let mut names = lock(&self.names);
        let name = match names.len() >= NAMES && !names.contains_key(&name) {
            true => Arc::from(OTHER),
            false => name,
        };
        let next = Label(names.len() as u32);
        (*names.entry(name.clone()).or_insert(next), name)
    }

    /// Returns the index of a label. Takes no lock, unless a numbered name is used for the first time with this wheel or there are
    /// more than [`NAMES`] numbers.
    #[inline]
    fn index(&self, label: Label) -> Label {
        let number = label.0.wrapping_sub(NUMBERED) as usize;
        let place = self.numbered.get(number);
        // The label is all that is read by it, so no order is needed.
        match place.map(|place| place.load(Ordering::Relaxed)) {
            Some(label) if label != UNUSED => Label(label.into()),
            None if label.0 < NUMBERED => label,
            _ => self.first_index(number),
        }
    }

    #[cold]
    fn first_index(&self, number: usize) -> Label {
        let name = lock(&NUMBERS)[number];
        let (label, _) = self.find(name.into());
        if let Some(place) = self.numbered.get(number) {
            place.store(label.0 as u16, Ordering::Relaxed);
        }
        label
    }
}

/// Adds up the outcomes of each label over the shards. Once the wheel is shut down, limits that were pending count as refused.
pub(crate) fn stats<'a>(
    stripes: impl Iterator<Item = &'a Stripe> + Clone,
    shutdown: bool,
) -> Vec<LabelStats> {
    let labels = stripes
        .clone()
        .next()
        .map(|stripe| lock(&stripe.labels.names).clone());
    let mut labels: Vec<_> = labels.into_iter().flatten().collect();
    labels.sort_unstable_by_key(|(_, label)| label.0);
    let stats = |(name, label)| LabelStats::new(name, &totals(label, stripes.clone()), shutdown);
    labels.into_iter().map(stats).collect()
}

/// Locks one of the mutexes of this file, which are the standard library's under loom too, because no model counts under labels.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
