//! The labels of a wheel, and the outcomes of the limits under each.
//!
//! Each shard has a [`Stripe`] of counters. A limit counts in the stripe of the shard in which its timer is, which is that of the thread
//! that polls it, so workers do not contend. A snapshot adds up the stripes.

mod stripe;

use std::{
    array,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub(crate) use stripe::{Count, Stripe};

use stripe::{COUNTERS, totals};

/// The number of names that a wheel keeps apart, and the number of static labels.
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
    /// pending at a shutdown, or at their first poll after it.
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

/// The names of the labels of one wheel, apart from static labels.
#[derive(Default)]
pub(crate) struct Labels(Mutex<HashMap<Arc<str>, Label>>);

/// The place of a label among the counters of a stripe. Names of the wheel have the even places, in the order in which they were first used,
/// and static labels the odd ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label(pub(crate) u32);

impl Label {
    fn of_wheel(index: usize) -> Label {
        Label(2 * index as u32)
    }

    /// Returns the static label with a number, of which all from [`NAMES`] on are one.
    fn of_process(number: usize) -> Label {
        Label(2 * number.min(NAMES) as u32 + 1)
    }
}

/// The names of static labels, in the order in which they were first used in the process.
static STATIC: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Returns the static label with this name, which is the same on every wheel.
#[cold]
pub(crate) fn of_process(name: &'static str) -> Label {
    let mut names = lock(&STATIC);
    let known = names.iter().position(|known| *known == name);
    Label::of_process(known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    }))
}

impl Labels {
    /// Finds or creates the label with this name. Returns the label and its name, which is [`OTHER`] once there are [`NAMES`]
    /// others.
    pub(in crate::engine) fn find(&self, name: Arc<str>) -> (Label, Arc<str>) {
        let mut names = lock(&self.0);
        let name = match names.len() >= NAMES && !names.contains_key(&name) {
            true => Arc::from(OTHER),
            false => name,
        };
        let next = Label::of_wheel(names.len());
        (*names.entry(name.clone()).or_insert(next), name)
    }
}

/// Adds up the outcomes of each label over the shards. A static label and one of the wheel with the same name are one. Once the wheel is
/// shut down, limits that were pending count as refused.
pub(crate) fn stats<'a>(
    stripes: impl Iterator<Item = &'a Stripe> + Clone,
    shutdown: bool,
) -> Vec<LabelStats> {
    let names = stripes
        .clone()
        .next()
        .map(|stripe| lock(&stripe.labels.0).clone());
    let mut names: Vec<_> = names.into_iter().flatten().collect();
    names.sort_unstable_by_key(|(_, label)| *label);
    let mut counted: Vec<_> = names
        .into_iter()
        .map(|(name, label)| (name, totals(label, stripes.clone())))
        .collect();
    let names = lock(&STATIC).clone();
    for (number, name) in names.into_iter().take(NAMES + 1).enumerate() {
        let name = if number < NAMES { name } else { OTHER };
        let totals = totals(Label::of_process(number), stripes.clone());
        match counted.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, sums)) => sums.iter_mut().zip(totals).for_each(|(sum, count)| *sum += count),
            None if totals[Count::BEGUN.0] > 0 => counted.push((name.into(), totals)),
            None => {}
        }
    }
    counted
        .into_iter()
        .map(|(name, totals)| LabelStats::new(name, &totals, shutdown))
        .collect()
}

/// Locks one of the mutexes of this file, which are the standard library's under loom too, because no model counts under labels.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
