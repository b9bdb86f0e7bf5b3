//! `Label`: a static label, counted on the current wheel.

use std::{
    future::IntoFuture,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{Duration, Instant};
use crate::{
    observe::labelled::{LabelledTimeout, timer::LabelledTimer},
    timers::{console::Caller, sleep::Sleep},
    wheel::{Wheel, current::with_wheel},
};

/// The name of an operation, kept in a `static`, whose timeouts are counted under it on whichever wheel is current.
///
/// Each wheel counts on its own, as if by [`Wheel::labelled`] with this name, so equal names are one label.
/// [`Wheel::snapshot`] of [`Wheel::current`] reports the outcomes, and how much of their time timeouts had left.
///
/// # Examples
///
/// ```
/// use tickwheel::{Wheel, time::{Duration, Label}};
///
/// static CHECKOUT: Label = Label::new("checkout");
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let order = CHECKOUT.timeout(Duration::from_secs(1), async { "order" }).await;
/// assert_eq!(order, Ok("order"));
///
/// let stats = &Wheel::current().snapshot().labels[0];
/// assert_eq!((&*stats.name, stats.completed), ("checkout", 1));
/// # }
/// ```
#[derive(Debug)]
pub struct Label {
    name: &'static str,
    /// Unique in the process, and [`UNNUMBERED`] until the first use.
    number: AtomicUsize,
}

const UNNUMBERED: usize = usize::MAX;

impl Label {
    /// Creates a label with this name.
    ///
    /// # Examples
    ///
    /// ```
    /// static SEARCH: tickwheel::time::Label = tickwheel::time::Label::new("search");
    /// ```
    pub const fn new(name: &'static str) -> Label {
        Label {
            name,
            number: AtomicUsize::new(UNNUMBERED),
        }
    }

    /// Requires `future` to complete before `duration` has elapsed, as [`timeout`](super::timeout()) does, and counts the outcome.
    ///
    /// It is as precise as [`timeout`](super::timeout()). The time left at completion is exact.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`timeout`](super::timeout()). A timeout that is dropped
    /// after its first poll counts as cancelled.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`timeout`](super::timeout()).
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`timeout`](super::timeout()).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::pending;
    /// use tickwheel::{Wheel, time::{Duration, Label}};
    ///
    /// static NEVER: Label = Label::new("never");
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// assert!(NEVER.timeout(Duration::from_millis(10), pending::<()>()).await.is_err());
    /// assert_eq!(Wheel::current().snapshot().labels[0].elapsed, 1);
    /// # }
    /// ```
    #[track_caller]
    #[inline]
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> LabelledTimeout<F::IntoFuture> {
        let _caller = Caller::here();
        LabelledTimeout::new(
            self.limit(|wheel| wheel.limit(duration, "Label::timeout")),
            future,
        )
    }

    /// Requires `future` to complete before `deadline`, as [`timeout_at`](super::timeout_at) does, and counts the outcome.
    ///
    /// It is as precise as [`timeout_at`](super::timeout_at). The time left is counted in tenths of the time from the first poll to
    /// `deadline`.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`timeout`](Label::timeout).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`timeout`](super::timeout()).
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`timeout`](super::timeout()).
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::time::{Duration, Instant, Label};
    ///
    /// static REPORT: Label = Label::new("report");
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// assert_eq!(REPORT.timeout_at(deadline, async { 7 }).await, Ok(7));
    /// # }
    /// ```
    #[track_caller]
    #[inline]
    pub fn timeout_at<F: IntoFuture>(&self, deadline: Instant, future: F) -> LabelledTimeout<F::IntoFuture> {
        let _caller = Caller::here();
        LabelledTimeout::new(
            self.limit(|wheel| wheel.limit_at(deadline, "Label::timeout_at")),
            future,
        )
    }

    /// Creates the timer of a timeout on the current wheel.
    #[track_caller]
    #[inline]
    fn limit(&self, limit: impl FnOnce(&Wheel) -> Sleep) -> LabelledTimer {
        let number = self.number();
        let find = |wheel: &Wheel| wheel.parts.labels.find_numbered(number, self.name);
        let (sleep, label) = with_wheel(|wheel| (limit(wheel), find(wheel)));
        sleep.has_label(self.name);
        LabelledTimer::new(sleep, label)
    }

    #[inline]
    fn number(&self) -> usize {
        match self.number.load(Ordering::Relaxed) {
            UNNUMBERED => self.first_use(),
            number => number,
        }
    }

    #[cold]
    fn first_use(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        match self
            .number
            .compare_exchange(UNNUMBERED, next, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => next,
            Err(number) => number,
        }
    }
}
