//! `List`: the values that a queue, leases or notifications export, in the form that exporters of a wheel
//! read. `WeakSource`: a source of such values that keeps nothing.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source};

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A source that lists the values of an object for as long as somebody else keeps that.
pub(crate) struct WeakSource<T, F> {
    object: Weak<T>,
    list: F,
}

impl<T, F: Fn(&T) -> Vec<Exported>> WeakSource<T, F> {
    pub(crate) fn new(object: &Arc<T>, list: F) -> WeakSource<T, F> {
        WeakSource {
            object: Arc::downgrade(object),
            list,
        }
    }
}

// Derived, it would ask `T` to be `Clone`.
impl<T, F: Clone> Clone for WeakSource<T, F> {
    fn clone(&self) -> WeakSource<T, F> {
        WeakSource {
            object: self.object.clone(),
            list: self.list.clone(),
        }
    }
}

impl<T: Send + Sync, F: Fn(&T) -> Vec<Exported> + Send + Sync> Source for WeakSource<T, F> {
    fn exported(&self) -> Option<Vec<Exported>> {
        let object = self.object.upgrade()?;
        Some((self.list)(&object))
    }

    fn identity(&self) -> Option<usize> {
        Some(self.object.as_ptr().addr())
    }
}

/// Values that share their first labels.
pub(crate) struct List {
    labels: Vec<(&'static str, String)>,
    exported: Vec<Exported>,
}

impl List {
    pub(crate) fn new(labels: Vec<(&'static str, String)>) -> List {
        List {
            labels,
            exported: Vec::new(),
        }
    }

    pub(crate) fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: Option<(&'static str, &str)>,
        count: u64,
    ) {
        self.add(
            name,
            help,
            ExportedKind::Counter,
            label,
            ExportedValue::Count(count),
        );
    }

    pub(crate) fn gauge(&mut self, name: &'static str, help: &'static str, count: u64) {
        self.add(name, help, ExportedKind::Gauge, None, ExportedValue::Count(count));
    }

    /// Adds a gauge of what other sources may look at too, so that exporters do not add it up.
    pub(crate) fn measured(&mut self, name: &'static str, help: &'static str, number: f64) {
        self.add(
            name,
            help,
            ExportedKind::Gauge,
            None,
            ExportedValue::Number(number),
        );
    }

    /// Adds a histogram of seconds.
    pub(crate) fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: Vec<(f64, u64)>,
        sum: f64,
    ) {
        let value = ExportedValue::Histogram { buckets, sum };
        self.add(name, help, ExportedKind::Histogram, None, value);
    }

    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: ExportedKind,
        label: Option<(&'static str, &str)>,
        value: ExportedValue,
    ) {
        let unit = if name.ends_with("_seconds") {
            ExportedUnit::Seconds
        } else {
            ExportedUnit::Count
        };
        let mut labels = self.labels.clone();
        labels.extend(label.map(|(key, word)| (key, word.to_owned())));
        self.exported
            .push(Exported::new(name, help, unit, kind, labels, value));
    }

    /// Returns the values, sorted by name.
    pub(crate) fn sorted(mut self) -> Vec<Exported> {
        self.exported.sort_by_key(|exported| exported.name);
        self.exported
    }
}

/// How the renewals of leases ended, for a metric whose label `outcome` says so. A renewal that Redis refuses
/// is a loss.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    pub(crate) renewed: Counter,
    pub(crate) failed: Counter,
}

impl Renewals {
    pub(crate) fn list(&self, list: &mut List, name: &'static str, help: &'static str) {
        for (outcome, count) in [("renewed", &self.renewed), ("failed", &self.failed)] {
            list.counter(name, help, Some(("outcome", outcome)), count.get());
        }
    }
}
