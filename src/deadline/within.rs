//! `within`, `until` and `carry`: scopes, which give a future and all that it awaits until a deadline.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{
    scope::{current, sooner},
    scoped::Scoped,
};
use crate::{
    engine::clock::{Moment, after},
    error::Elapsed,
    observe::labelled::{Labelled, counted::Counted},
    time::Label,
};

/// Requires `future`, with all that it awaits, to complete before `duration` has passed since its first poll,
/// on the [global wheel](crate::Wheel::global).
///
/// Inside another scope, the sooner of the two deadlines holds. The future is polled first, and succeeds if
/// it is ready, even with no time remaining. `Duration::MAX` is taken as 30 years.
///
/// # Cancellation
///
/// Dropping the scope drops the future and cancels the timer at once. A scope that elapses drops the future
/// before it returns, after all pending [`shield`](super::shield())s inside have completed. Either way, the
/// destructors run inside the scope, if it has been polled.
///
/// # Panics
///
/// A poll that has to wait for the deadline panics outside a Tokio runtime, and on one without timers, with
/// Tokio's message.
///
/// # Errors
///
/// The scope resolves to [`Elapsed`] when its time runs out.
///
/// # Examples
///
/// ```
/// use std::{future::pending, time::Duration};
/// use tickwheel::deadline;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let request = deadline::within(Duration::from_millis(20), async {
///     assert!(deadline::remaining() <= Some(Duration::from_millis(20)));
///     pending::<()>().await
/// });
/// assert!(request.await.is_err());
/// # }
/// ```
pub fn within<F: IntoFuture>(duration: Duration, future: F) -> Within<F::IntoFuture> {
    let mut scope = Within::new(None, Some(future.into_future()));
    scope.after = Some(duration);
    scope
}

/// Requires `future`, with all that it awaits, to complete before `deadline`, on the [global
/// wheel](crate::Wheel::global).
///
/// This is [`within`] with an instant instead of a duration. If the deadline has passed, the scope elapses at
/// its first pending poll, and [`current`] inside still returns that deadline.
///
/// # Cancellation
///
/// Dropping the scope drops the future and cancels the timer, as for [`within`].
///
/// # Panics
///
/// Panics in the same cases as [`within`].
///
/// # Errors
///
/// Fails in the same cases as [`within`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{deadline, time::Instant};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let deadline = Instant::now() + Duration::from_secs(1);
/// assert_eq!(deadline::until(deadline, async { deadline::current() }).await, Ok(Some(deadline)));
/// # }
/// ```
pub fn until<F: IntoFuture>(deadline: Instant, future: F) -> Within<F::IntoFuture> {
    Within::new(Some(deadline), Some(future.into_future()))
}

/// Wraps `future` in the caller's scope, for a task that is to be spawned.
///
/// The future has until the deadline that is [`current`] at the call, and keeps that deadline after the
/// caller's scope has ended, so a task ends when its parent would. Outside a scope there is no deadline. If
/// the future is polled inside another scope, the sooner of the two deadlines holds. In every other respect
/// it is a scope like that of [`until`]. The caller's scope does not wait for a [`shield`](super::shield())
/// inside the carried future, unless it awaits that future itself.
///
/// # Cancellation
///
/// Dropping the future drops the wrapped future inside its scope, as for [`within`].
///
/// # Panics
///
/// Panics in the same cases as [`within`].
///
/// # Errors
///
/// The future resolves to [`Elapsed`] at the deadline.
///
/// # Examples
///
/// ```
/// use std::{future::pending, time::Duration};
/// use tickwheel::deadline;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let task = deadline::within(Duration::from_millis(20), async {
///     tokio::spawn(deadline::carry(pending::<()>()))
/// });
/// let outcome = task.await.unwrap().await.unwrap();
/// assert!(outcome.is_err(), "the task ends 20 ms after the start, though its parent has ended before");
/// # }
/// ```
pub fn carry<F: IntoFuture>(future: F) -> Carried<F::IntoFuture> {
    Within::new(current(), Some(future.into_future()))
}

impl Labelled {
    /// Requires `future`, with all that it awaits, to complete before `duration` has passed since its first
    /// poll, as [`deadline::within`](within) does, and counts the outcome under the label.
    ///
    /// The scope is on the label's wheel, and counts like a [`timeout`](Labelled::timeout) of it. Inside
    /// another scope, the time left is counted with respect to the sooner of the two deadlines.
    ///
    /// # Cancellation
    ///
    /// Dropping the scope drops the future and cancels the timer, as for [`within`]. A scope that is dropped
    /// after its first poll counts as cancelled.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`within`].
    ///
    /// # Errors
    ///
    /// The scope resolves to [`Elapsed`] when its time runs out.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Wheel;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.labelled("checkout").within(Duration::from_secs(1), async { 7 }).await.unwrap();
    /// assert_eq!(wheel.snapshot().labels[0].completed, 1);
    /// # }
    /// ```
    pub fn within<F: IntoFuture>(&self, duration: Duration, future: F) -> Within<F::IntoFuture> {
        within(duration, future).counted(self)
    }

    /// Requires `future`, with all that it awaits, to complete before `deadline`, as
    /// [`deadline::until`](until) does, and counts the outcome under the label.
    ///
    /// The scope is on the label's wheel, and counts like a [`timeout_at`](Labelled::timeout_at) of it.
    ///
    /// # Cancellation
    ///
    /// Dropping the scope drops the future and cancels the timer, as for [`Labelled::within`].
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`within`].
    ///
    /// # Errors
    ///
    /// The scope resolves to [`Elapsed`] when its time runs out.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::pending, time::Duration};
    /// use tickwheel::{Wheel, time::Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let soon = Instant::now() + Duration::from_millis(10);
    /// wheel.labelled("report").until(soon, pending::<()>()).await.unwrap_err();
    /// assert_eq!(wheel.snapshot().labels[0].elapsed, 1);
    /// # }
    /// ```
    pub fn until<F: IntoFuture>(&self, deadline: Instant, future: F) -> Within<F::IntoFuture> {
        until(deadline, future).counted(self)
    }
}

impl Label {
    /// Requires `future`, with all that it awaits, to complete before `duration` has passed since its first
    /// poll, as [`deadline::within`](within) does, and counts the outcome.
    ///
    /// The scope counts like a [`timeout`](Label::timeout) of this label. Inside another scope, the time left
    /// is counted with respect to the sooner of the two deadlines.
    ///
    /// # Cancellation
    ///
    /// Dropping the scope drops the future and cancels the timer, as for [`within`]. A scope that is dropped
    /// after its first poll counts as cancelled.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`within`].
    ///
    /// # Errors
    ///
    /// The scope resolves to [`Elapsed`] when its time runs out.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Wheel, deadline, time::{Duration, Label}};
    ///
    /// static CHECKOUT: Label = Label::new("checkout");
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let left = CHECKOUT.within(Duration::from_secs(1), async { deadline::remaining() }).await;
    /// assert!(left.unwrap().is_some());
    /// assert_eq!(Wheel::global().snapshot().labels[0].completed, 1);
    /// # }
    /// ```
    pub fn within<F: IntoFuture>(&self, duration: Duration, future: F) -> Within<F::IntoFuture> {
        self.labelled().within(duration, future)
    }

    /// Requires `future`, with all that it awaits, to complete before `deadline`, as
    /// [`deadline::until`](until) does, and counts the outcome.
    ///
    /// The scope counts like a [`timeout_at`](Label::timeout_at) of this label.
    ///
    /// # Cancellation
    ///
    /// Dropping the scope drops the future and cancels the timer, as for [`Label::within`].
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`within`].
    ///
    /// # Errors
    ///
    /// The scope resolves to [`Elapsed`] when its time runs out.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::pending;
    /// use tickwheel::{Wheel, time::{Duration, Instant, Label}};
    ///
    /// static REPORT: Label = Label::new("report");
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let soon = Instant::now() + Duration::from_millis(10);
    /// assert!(REPORT.until(soon, pending::<()>()).await.is_err());
    /// assert_eq!(Wheel::global().snapshot().labels[0].elapsed, 1);
    /// # }
    /// ```
    pub fn until<F: IntoFuture>(&self, deadline: Instant, future: F) -> Within<F::IntoFuture> {
        self.labelled().until(deadline, future)
    }
}

/// Creates a scope that ends `left` from now, for the future that `make` creates inside it, given the instant
/// from which `left` counts. With nothing left, no future is created, and the scope has elapsed.
#[cfg(feature = "tower")]
pub(crate) fn within_from_now<F: Future>(
    left: Option<Duration>,
    make: impl FnOnce(Option<Instant>) -> F,
) -> Within<F> {
    let start = left.map(|_| Instant::now());
    let deadline = start.zip(left).map(|(start, left)| after(start, left));
    let make = || {
        super::scope::inside(sooner(deadline, current()), &mut std::sync::Weak::new(), || {
            make(start)
        })
    };
    let future = (left != Some(Duration::ZERO)).then(make);
    Within::new(deadline, future)
}

pin_project! {
    /// The future returned by [`within`] and [`until`], and by the methods of these names of [`Labelled`] and
    /// [`Label`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::{Ready, ready}, time::Duration};
    /// use tickwheel::deadline::{Within, within};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let answer: Within<Ready<u8>> = within(Duration::from_secs(1), ready(7));
    /// assert_eq!(answer.await, Ok(7));
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Within<F> {
        // The count of a labelled scope, which is dropped first, because the destructor of the future may
        // panic.
        counted: Option<Counted>,
        // Ended if there was no time from the start.
        #[pin]
        pub(super) scoped: Scoped<F>,
        // The duration that counts from the first poll, which is still to come.
        after: Option<Duration>,
    }
}

impl<F: Future> Within<F> {
    fn new(deadline: Option<Instant>, future: Option<F>) -> Within<F> {
        Within {
            counted: None,
            scoped: Scoped::new(future, deadline),
            after: None,
        }
    }

    fn counted(mut self, label: &Labelled) -> Within<F> {
        self.scoped.wheel = label.wheel.reference();
        self.counted = Some(label.counted());
        self
    }
}

impl<F: Future> Future for Within<F> {
    type Output = Result<F::Output, Elapsed>;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.scoped.get().is_none() {
            return Poll::Ready(Err(Elapsed(())));
        }
        if let Some(duration) = this.after.take() {
            *this.scoped.as_mut().project().deadline = Some(after(Instant::now(), duration));
        }
        if let Some(counted) = this.counted {
            counted.begin_poll();
        }
        // One that was carried from outside all scopes has the deadline of the scope that it is polled in.
        let deadline = this.scoped.deadline.or_else(current);
        let last = |output| (output, true);
        let scoped = this.scoped.as_mut();
        let polled = scoped.poll_with(cx, deadline, |future, cx| future.poll(cx).map(last));
        if let Some((counted, deadline)) = this.counted.as_mut().zip(sooner(deadline, current())) {
            let left = || Moment::of(deadline).since(Moment::now());
            match polled {
                Poll::Pending => counted.wait(left),
                Poll::Ready(Ok(_)) => counted.complete(left),
                Poll::Ready(Err(_)) => counted.elapse(),
            }
        }
        polled.map_err(|_| Elapsed(()))
    }
}

/// The future returned by [`carry`].
///
/// It is `Unpin` if the wrapped future is, and dropping it cancels it.
///
/// # Examples
///
/// ```
/// use std::future::{Ready, ready};
/// use tickwheel::deadline::{Carried, carry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let carried: Carried<Ready<u8>> = carry(ready(7));
/// assert_eq!(carried.await, Ok(7), "there is no scope here, and so no deadline");
/// # }
/// ```
pub type Carried<F> = Within<F>;
