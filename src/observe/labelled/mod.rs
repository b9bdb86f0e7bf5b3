//! `Labelled`, and its timeouts.

pub(crate) mod counted;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{task::coop, time::Instant};

use crate::{
    engine::labels::LabelId,
    error::Elapsed,
    timers::{sleep::Sleep, timeout::wraps_a_future},
    wheel::Wheel,
};
use counted::{Counted, LabelledTimer};

impl Wheel {
    /// Returns a handle whose timeouts are counted under a label.
    ///
    /// [`snapshot`](Wheel::snapshot) reports the number of timeouts, their outcomes, and how much of their
    /// time was left when they completed. Equal names denote the same label. A wheel keeps 1,000 names apart,
    /// and all further names share one label, "other". Therefore use the name of an operation, such as
    /// `"orders: insert"`, and never text that comes from outside.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let database = wheel.labelled("database");
    /// let row = database.timeout(Duration::from_secs(1), async { "row" }).await;
    /// assert_eq!(row, Ok("row"));
    ///
    /// let stats = &wheel.snapshot().labels[0];
    /// assert_eq!(stats.completed, 1);
    /// assert_eq!(stats.headroom[9], 1, "all of the second was left");
    /// # }
    /// ```
    pub fn labelled(&self, name: impl Into<Arc<str>>) -> Labelled {
        let (label, name) = self.shared().labels.find(name.into());
        Labelled {
            wheel: self.clone(),
            label,
            name,
        }
    }
}

/// A handle to a [`Wheel`], created by [`Wheel::labelled`], whose timeouts are counted under a label.
///
/// Cloning a handle is cheap, and every clone has the same label.
///
/// # Examples
///
/// ```
/// use tickwheel::{Labelled, Wheel};
/// use std::time::Duration;
///
/// async fn ask(timers: Labelled) -> &'static str {
///     timers.timeout(Duration::from_secs(1), async { "answer" }).await.unwrap_or("none")
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert_eq!(ask(Wheel::new().labelled("ask")).await, "answer");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Labelled {
    name: Arc<str>,
    label: LabelId,
    pub(crate) wheel: Wheel,
}

impl Labelled {
    /// Returns the name under which timeouts are counted, which is "other" if the wheel had 1,000 other names
    /// already.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().labelled("database").name(), "database");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requires `future` to complete before `duration` has elapsed, as [`Wheel::timeout`] does, and counts
    /// the outcome.
    ///
    /// It is as precise as [`Wheel::timeout`]. The time left at completion is exact, which takes one more
    /// reading of the clock.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`Wheel::timeout`]. A timeout that
    /// is dropped after its first poll counts as cancelled.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`Wheel::timeout`].
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Wheel::timeout`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let labelled = Wheel::new().labelled("never");
    /// let elapsed = labelled.timeout(Duration::from_millis(10), std::future::pending::<()>()).await;
    /// assert!(elapsed.is_err());
    /// # }
    /// ```
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> LabelledTimeout<F::IntoFuture> {
        let wheel = self.wheel.reference();
        let sleep = Sleep::of_timeout(wheel.clone(), duration, "Labelled::timeout");
        let counted = Counted::new(wheel, self.label, Some(duration));
        LabelledTimeout::new(self.timer(sleep, counted), future)
    }

    /// Requires `future` to complete before `deadline`, as [`Wheel::timeout_at`] does, and counts the
    /// outcome.
    ///
    /// It is as precise as [`Wheel::timeout_at`]. The time left is counted in tenths of the time from the
    /// first poll to `deadline`.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`Wheel::timeout_at`]. A timeout
    /// that is dropped after its first poll counts as cancelled.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`Wheel::timeout`].
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Wheel::timeout`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let labelled = Wheel::new().labelled("report");
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// assert_eq!(labelled.timeout_at(deadline, async { 7 }).await, Ok(7));
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn timeout_at<F: IntoFuture>(&self, deadline: Instant, future: F) -> LabelledTimeout<F::IntoFuture> {
        let sleep = Sleep::of_timeout_at(self.wheel.reference(), deadline, "Labelled::timeout_at");
        LabelledTimeout::new(self.timer(sleep, self.counted()), future)
    }

    /// Returns the count of a timeout or scope that has a deadline, and not a duration.
    pub(crate) fn counted(&self) -> Counted {
        Counted::new(self.wheel.reference(), self.label, None)
    }

    fn timer(&self, sleep: Sleep, counted: Counted) -> LabelledTimer {
        sleep.resource.has_label(&self.name);
        LabelledTimer { sleep, counted }
    }
}

wraps_a_future! {
    /// The future returned by [`Labelled::timeout`] and [`Labelled::timeout_at`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels the timeout.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{LabelledTimeout, Wheel};
    /// use std::{future::{Ready, ready}, time::Duration};
    ///
    /// let labelled = Wheel::new().labelled("ready");
    /// let timeout: LabelledTimeout<Ready<u8>> = labelled.timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(timeout.into_inner().into_inner(), 7);
    /// ```
    LabelledTimeout, LabelledTimer => Elapsed, "tickwheel::Wheel::new().labelled(\"ready\").timeout", counted.begin_poll
}
