//! `Exported`: one value, with its name, unit, kind and labels.

/// One value to be exported, with its name and labels.
///
/// [`exported`](crate::exported) lists those of a wheel, and a [`Source`](crate::Source) those of anything
/// else. All values of one `name` have the same `help`, `unit` and `kind`, and differ in their `labels`.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use tickwheel_exported::exported;
///
/// let list = exported(&Wheel::global());
/// assert!(list.iter().any(|exported| exported.name == "tickwheel_pending"));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Exported {
    /// The name, which ends in `_total` for a counter, and in the unit if that is not
    /// [`Count`](ExportedUnit::Count).
    pub name: &'static str,
    /// A description of the value in one sentence.
    pub help: &'static str,
    /// The unit of the value, or of the values that a histogram counts.
    pub unit: ExportedUnit,
    /// How the value changes.
    pub kind: ExportedKind,
    /// The keys and values of the labels, which tell the value from others of the same name. Of the values of
    /// a wheel, the first label is the name of the wheel.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: ExportedValue,
}

/// The unit of an [`Exported`] value.
///
/// # Examples
///
/// ```
/// use tickwheel_exported::{ExportedUnit, exported};
///
/// let list = exported(&tickwheel::Wheel::global());
/// let tick = list.iter().find(|exported| exported.name == "tickwheel_tick_seconds").unwrap();
/// assert_eq!(tick.unit, ExportedUnit::Seconds);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportedUnit {
    /// A number of things, such as timers or turns.
    Count,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A fraction of 1.
    Ratio,
}

/// The kind of an [`Exported`] value, which says how it changes.
///
/// # Examples
///
/// ```
/// use tickwheel_exported::{ExportedKind, exported};
///
/// let list = exported(&tickwheel::Wheel::global());
/// let turns = list.iter().find(|exported| exported.name == "tickwheel_turns_total").unwrap();
/// assert_eq!(turns.kind, ExportedKind::Counter);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportedKind {
    /// A number that only grows.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A histogram, whose counts only grow.
    Histogram,
}

/// An [`Exported`] value.
///
/// Where several sources report the same name and labels, [`Sources`](crate::Sources) makes one value of them:
/// it adds up counts and histograms, and takes the greatest of numbers.
///
/// # Examples
///
/// ```
/// use tickwheel_exported::{ExportedValue, exported};
///
/// let list = exported(&tickwheel::Wheel::new());
/// let tick = list.iter().find(|exported| exported.name == "tickwheel_tick_seconds").unwrap();
/// assert_eq!(tick.value, ExportedValue::Number(0.001));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ExportedValue {
    /// A count of what only this source has, such as its timers: the value of a counter, or of a gauge.
    Count(u64),
    /// A measurement, which may have a fraction and which other sources may take of the same thing, such as an
    /// age, or the length of a queue that several processes share: the value of a gauge.
    Number(f64),
    /// The counts of a histogram.
    Histogram {
        /// The buckets in order, each as its upper bound, which is included, and the number of values above
        /// the bound before. There are at most twelve of them, always the same ones, and the last bound is
        /// infinite.
        buckets: Vec<(f64, u64)>,
        /// The sum of all values.
        sum: f64,
    },
}

impl Exported {
    /// Creates a value of a [`Source`](crate::Source).
    ///
    /// Choose a `name` as the [field](Exported::name) describes, and give all values of one name the same
    /// `help`, `unit` and `kind`. The buckets of a histogram are to be the same ones each time, and the last
    /// bound infinite.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue};
    ///
    /// let waiting = Exported::new(
    ///     "shop_orders_waiting",
    ///     "Orders that wait.",
    ///     ExportedUnit::Count,
    ///     ExportedKind::Gauge,
    ///     vec![("region", "north".to_owned())],
    ///     ExportedValue::Count(17),
    /// );
    /// assert_eq!(waiting.name, "shop_orders_waiting");
    /// ```
    pub fn new(
        name: &'static str,
        help: &'static str,
        unit: ExportedUnit,
        kind: ExportedKind,
        labels: Vec<(&'static str, String)>,
        value: ExportedValue,
    ) -> Exported {
        Exported {
            name,
            help,
            unit,
            kind,
            labels,
            value,
        }
    }
}
