//! `Source`: what returns values to be exported.

use tickwheel::WeakWheel;

use crate::{Exported, exported};

/// What returns values to be exported, each time that an exporter asks.
///
/// A source does not keep what it looks at: it is a weak handle, such as the [`WeakWheel`] of a wheel, or
/// `source()` of a queue of `tickwheel-redis`. A closure that returns `Option<Vec<Exported>>` is a source too.
///
/// Give each value labels that tell it from those of other sources of the same type. Where the source's own do
/// not, [`with_label`](Source::with_label) adds one.
///
/// # Examples
///
/// ```
/// use std::sync::{Weak, atomic::{AtomicU64, Ordering}};
/// use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source};
///
/// struct Orders(Weak<AtomicU64>);
///
/// impl Source for Orders {
///     fn exported(&self) -> Option<Vec<Exported>> {
///         let waiting = self.0.upgrade()?.load(Ordering::Relaxed);
///         let (unit, kind) = (ExportedUnit::Count, ExportedKind::Gauge);
///         let value = ExportedValue::Count(waiting);
///         Some(vec![Exported::new("shop_orders_waiting", "Orders that wait.", unit, kind, Vec::new(), value)])
///     }
/// }
///
/// let waiting = std::sync::Arc::new(AtomicU64::new(17));
/// let orders = Orders(std::sync::Arc::downgrade(&waiting));
/// assert_eq!(orders.exported().unwrap()[0].value, ExportedValue::Count(17));
/// drop(waiting);
/// assert!(orders.exported().is_none());
/// ```
pub trait Source: Send + Sync {
    /// Returns the present values, or `None` once what the source looks at is gone.
    ///
    /// Exporters call it for each report, so it must not block.
    fn exported(&self) -> Option<Vec<Exported>>;

    /// Returns what tells the object that this source looks at from all others, such as its address, which
    /// [`Weak::as_ptr`](std::sync::Weak::as_ptr) returns.
    ///
    /// Two sources with the same identity report the same values, so [`Sources`](crate::Sources) takes each
    /// series from only one of them. A source without an identity, which is the default, is counted as often as
    /// it is added.
    fn identity(&self) -> Option<usize> {
        None
    }

    /// Returns a source that adds a label to each value, to tell the source from another one with the same
    /// names and labels.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::Source;
    ///
    /// let wheel = Wheel::new();
    /// let source = wheel.downgrade().with_label("server", "north");
    /// assert_eq!(source.exported().unwrap()[0].labels[1], ("server", "north".to_owned()));
    /// ```
    fn with_label(self, key: &'static str, value: impl Into<String>) -> WithLabel<Self>
    where
        Self: Sized,
    {
        WithLabel {
            source: self,
            key,
            value: value.into(),
        }
    }
}

impl<F: Fn() -> Option<Vec<Exported>> + Send + Sync> Source for F {
    fn exported(&self) -> Option<Vec<Exported>> {
        self()
    }
}

/// What [`exported`] lists, until the wheel has been dropped. However often it is added, also by
/// [`Sources::add_wheel`](crate::Sources::add_wheel), a wheel counts once.
impl Source for WeakWheel {
    fn exported(&self) -> Option<Vec<Exported>> {
        self.upgrade().map(|wheel| exported(&wheel))
    }

    fn identity(&self) -> Option<usize> {
        Some(self.address())
    }
}

/// A source that adds a label to each value of another one, created by [`Source::with_label`].
///
/// # Examples
///
/// ```
/// use tickwheel::{WeakWheel, Wheel};
/// use tickwheel_exported::{Source, WithLabel};
///
/// let wheel = Wheel::new();
/// let source: WithLabel<WeakWheel> = wheel.downgrade().with_label("server", "north");
/// assert!(source.exported().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct WithLabel<S> {
    source: S,
    key: &'static str,
    value: String,
}

impl<S: Source> Source for WithLabel<S> {
    fn exported(&self) -> Option<Vec<Exported>> {
        let mut list = self.source.exported()?;
        for exported in &mut list {
            exported.labels.push((self.key, self.value.clone()));
        }
        Some(list)
    }

    fn identity(&self) -> Option<usize> {
        self.source.identity()
    }
}
