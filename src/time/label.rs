//! `Label`: a static label, counted on the global wheel.

use std::sync::OnceLock;

use super::{Duration, Instant, require_runtime};
use crate::{
    observe::labelled::{Labelled, LabelledTimeout},
    wheel::Wheel,
};

/// The name of an operation, kept in a `static`, under which its timeouts and [deadlines](crate::deadline)
/// are counted on the global wheel.
///
/// It is [`Wheel::labelled`] with this name on [`Wheel::global`], whose label is found once, so equal names
/// are one label. [`Wheel::snapshot`] reports the outcomes, and how much of their time timeouts had left. The
/// wheel keeps 1,000 names apart, and all further ones share the label "other".
///
/// [`Wheel::labelled`]: crate::Wheel::labelled
/// [`Wheel::snapshot`]: crate::Wheel::snapshot
/// [`Wheel::global`]: crate::Wheel::global
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
/// let stats = &Wheel::global().snapshot().labels[0];
/// assert_eq!((&*stats.name, stats.completed), ("checkout", 1));
/// # }
/// ```
#[derive(Debug)]
pub struct Label {
    name: &'static str,
    /// Found at the first use.
    labelled: OnceLock<Labelled>,
}

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
            labelled: OnceLock::new(),
        }
    }

    /// Requires `future` to complete before `duration` has elapsed, as [`timeout`](super::timeout()) does,
    /// and counts the outcome.
    ///
    /// It is as precise as [`timeout`](super::timeout()). The time left at completion is exact, as for
    /// [`Labelled::timeout`](crate::Labelled::timeout).
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`timeout`](super::timeout()). A
    /// timeout that is dropped after its first poll counts as cancelled.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`timeout`](super::timeout()), except that in a task it is the first poll
    /// that panics, even if it would be ready.
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
    /// assert_eq!(Wheel::global().snapshot().labels[0].elapsed, 1);
    /// # }
    /// ```
    #[track_caller]
    #[inline]
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> LabelledTimeout<F::IntoFuture> {
        require_runtime();
        self.labelled().timeout(duration, future)
    }

    /// Requires `future` to complete before `deadline`, as [`timeout_at`](super::timeout_at) does, and counts
    /// the outcome.
    ///
    /// It is as precise as [`timeout_at`](super::timeout_at). The time left is counted in tenths of the time
    /// from the first poll to `deadline`.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`timeout`](Label::timeout).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`timeout`](Label::timeout).
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
    pub fn timeout_at<F: IntoFuture>(&self, deadline: Instant, future: F) -> LabelledTimeout<F::IntoFuture> {
        require_runtime();
        self.labelled().timeout_at(deadline, future)
    }

    #[inline]
    pub(crate) fn labelled(&self) -> &Labelled {
        self.labelled.get_or_init(|| Wheel::global().labelled(self.name))
    }
}
