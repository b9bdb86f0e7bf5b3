//! `Sources`: what an exporter reports, read into one list.

use std::{
    collections::BTreeMap,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
};

use tickwheel::{WeakWheel, Wheel};

use crate::{Exported, ExportedValue, Source, exported};

/// The wheels and other sources that an exporter reports, read into one list in which no series occurs twice.
///
/// It keeps no wheel alive. A clone has the same sources, and takes further ones for itself.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use tickwheel_exported::Sources;
///
/// let requests = Wheel::builder().name("requests").build()?;
/// let mut sources = Sources::default();
/// sources.add_wheel(&Wheel::global());
/// sources.add_wheel(&requests);
///
/// let list = sources.exported();
/// assert_eq!(list.iter().filter(|exported| exported.name == "tickwheel_pending").count(), 2);
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Default)]
pub struct Sources {
    /// Each wheel once.
    wheels: Vec<WeakWheel>,
    others: Vec<Arc<dyn Source>>,
}

// A panic of a source interrupts a report, of which nothing is kept here.
impl UnwindSafe for Sources {}
impl RefUnwindSafe for Sources {}

/// A value, and the identities of the sources that it has been taken from.
struct Series {
    value: Exported,
    seen: Vec<usize>,
}

impl Sources {
    /// Adds a wheel, unless it was added before.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::{Sources, exported};
    ///
    /// let wheel = Wheel::new();
    /// let mut sources = Sources::default();
    /// sources.add_wheel(&wheel);
    /// sources.add_wheel(&wheel.clone());
    /// assert_eq!(sources.exported().len(), exported(&wheel).len());
    /// ```
    pub fn add_wheel(&mut self, wheel: &Wheel) {
        let wheel = wheel.downgrade();
        if !self.wheels.iter().any(|other| other.ptr_eq(&wheel)) {
            self.wheels.push(wheel);
        }
    }

    /// Adds another source.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel_exported::Sources;
    ///
    /// let mut sources = Sources::default();
    /// sources.add(|| Some(Vec::new()));
    /// assert!(sources.exported().is_empty());
    /// ```
    pub fn add(&mut self, source: impl Source + 'static) {
        self.others.push(Arc::new(source));
    }

    /// Returns the wheels that have not been dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::Sources;
    ///
    /// let mut sources = Sources::default();
    /// sources.add_wheel(&Wheel::new());
    /// assert_eq!(sources.wheels().count(), 0);
    /// ```
    pub fn wheels(&self) -> impl Iterator<Item = Wheel> + '_ {
        self.wheels.iter().filter_map(WeakWheel::upgrade)
    }

    /// Returns the present values of all sources, in order of name and labels.
    ///
    /// Values with the same name and labels, from wheels of the same name for example, become one: counts and
    /// histograms are added up, and of numbers the greatest is taken. Sources with the same
    /// [identity](Source::identity) count once. A source that is gone is left out.
    ///
    /// Like a [`snapshot`](Wheel::snapshot), this walks all pending timers with bounded work under each lock.
    /// Call it about once a second at most.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::{ExportedValue, Sources};
    ///
    /// let wheels = [Wheel::new(), Wheel::new()];
    /// let mut sources = Sources::default();
    /// wheels.iter().for_each(|wheel| sources.add_wheel(wheel));
    ///
    /// let list = sources.exported();
    /// let ticks: Vec<_> = list.iter().filter(|exported| exported.name == "tickwheel_tick_seconds").collect();
    /// assert_eq!(ticks.len(), 1, "both wheels have no name");
    /// assert_eq!(ticks[0].value, ExportedValue::Number(0.001));
    /// ```
    pub fn exported(&self) -> Vec<Exported> {
        let wheels = self
            .wheels()
            .map(|wheel| (wheel.downgrade().identity(), exported(&wheel)));
        let others = self.others.iter().filter_map(|source| {
            let list = source.exported()?;
            Some((source.identity(), list))
        });
        let mut series: BTreeMap<_, Series> = BTreeMap::new();
        for (identity, list) in wheels.chain(others) {
            for value in list {
                let key = (value.name, value.labels.clone());
                match series.get_mut(&key) {
                    Some(series) if identity.is_some_and(|identity| series.seen.contains(&identity)) => {}
                    Some(series) => {
                        series.value.value.merge(&value.value);
                        series.seen.extend(identity);
                    }
                    None => {
                        let seen = identity.into_iter().collect();
                        series.insert(key, Series { value, seen });
                    }
                }
            }
        }
        series.into_values().map(|series| series.value).collect()
    }
}

impl ExportedValue {
    /// Makes one value of this and that of another source. Values of different variants, which are a mistake of
    /// a source, leave the first.
    fn merge(&mut self, other: &ExportedValue) {
        match (self, other) {
            (ExportedValue::Count(sum), ExportedValue::Count(count)) => *sum += count,
            (ExportedValue::Number(greatest), ExportedValue::Number(number)) => {
                *greatest = greatest.max(*number);
            }
            (
                ExportedValue::Histogram { buckets, sum },
                ExportedValue::Histogram {
                    buckets: others,
                    sum: other,
                },
            ) => {
                *sum += other;
                for (bucket, (_, count)) in buckets.iter_mut().zip(others) {
                    bucket.1 += count;
                }
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("wheels", &self.wheels)
            .field("others", &self.others.len())
            .finish()
    }
}
