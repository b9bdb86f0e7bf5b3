//! `Timeout`: limits the time that a future may take.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{task::coop, time::Instant};

use crate::{budget, console::Resource, error::TimeoutError, shard::Timer, wheel::Wheel};

impl Wheel {
    /// Requires `future` to complete before `duration` has elapsed, as `tokio::time::timeout` does.
    ///
    /// The future is polled first. If it is ready at once, the timeout succeeds whatever the duration, and costs neither a lock
    /// nor a clock reading. The duration counts from the first pending poll. The timeout is never early, and less than one tick
    /// late plus the runtime's own delay; a shard that is busy with timeouts adds up to 10 ms (or a tick if that is longer) to
    /// durations of 100 times as much. A zero duration elapses at the first pending poll. A duration that overflows the clock is taken as 30 years.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer at once. The timer that a thread cancelled last may stay in
    /// the wheel for the next timer of its task, until its deadline at the latest. While it stays, it keeps a clone of the task's
    /// waker, and no metric counts it.
    ///
    /// # Panics
    ///
    /// The first pending poll panics outside a Tokio runtime, unless the wheel is already driven or was given a
    /// [`handle`](crate::Builder::handle). Creating the timeout needs no runtime.
    ///
    /// # Errors
    ///
    /// The timeout resolves to [`TimeoutError::Elapsed`] when the time runs out. It resolves to another [`TimeoutError`] when the
    /// future is pending and the wheel is full or has been shut down.
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
    /// let (sender, receiver) = tokio::sync::oneshot::channel::<&str>();
    ///
    /// if let Err(error) = wheel.timeout(Duration::from_millis(10), receiver).await {
    ///     assert!(error.is_elapsed());
    /// }
    /// # drop(sender);
    /// # }
    /// ```
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Timeout<F::IntoFuture> {
        let resource = Resource::new("Timeout", "Wheel::timeout");
        resource.lasts(|| duration);
        Timeout::new(Timer::counting(self.shard(), duration), resource, future)
    }

    /// Requires `future` to complete before `deadline`, as `tokio::time::timeout_at` does.
    ///
    /// The future is polled first, and succeeds if it is ready, even past the deadline. The timeout is never early, and less than
    /// one tick late plus the runtime's own delay.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer at once.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`timeout`](Wheel::timeout).
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`timeout`](Wheel::timeout).
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let deadline = Instant::now() + Duration::from_millis(20);
    /// assert!(wheel.timeout_at(deadline, std::future::pending::<()>()).await.is_err());
    /// assert!(Instant::now() >= deadline);
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn timeout_at<F: IntoFuture>(&self, deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
        let shard = self.shard();
        let resource = Resource::new("Timeout", "Wheel::timeout_at");
        resource.lasts(|| deadline.saturating_duration_since(Instant::now()));
        Timeout::new(Timer::at(shard, shard.moment_of(deadline)), resource, future)
    }
}

pin_project! {
    /// The future returned by [`Wheel::timeout`] and [`Wheel::timeout_at`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels the timeout.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Timeout, Wheel};
    /// use std::{future::{Ready, ready}, time::Duration};
    ///
    /// let timeout: Timeout<Ready<u8>> = Wheel::new().timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(timeout.into_inner().into_inner(), 7);
    /// ```
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        timer: Timer,
        resource: Resource,
    }
}

impl<F> Timeout<F> {
    #[inline]
    fn new(timer: Timer, resource: Resource, future: impl IntoFuture<IntoFuture = F>) -> Timeout<F>
    where
        F: Future,
    {
        Timeout {
            future: future.into_future(),
            timer,
            resource,
        }
    }

    /// Returns the wrapped future, to be polled without its timer.
    pub(crate) fn future(self: Pin<&mut Self>) -> Pin<&mut F> {
        self.project().future
    }

    /// Returns when a refused timeout would have elapsed. If its duration had not begun to count, it counts from now.
    pub(crate) fn refused_until(&self) -> Instant {
        self.timer.refused_until()
    }

    /// Returns a reference to the wrapped future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{future::ready, time::Duration};
    /// let timeout = tickwheel::Wheel::new().timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(format!("{:?}", timeout.get_ref()), "Ready(Some(7))");
    /// ```
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// Returns a mutable reference to the wrapped future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{future::ready, time::Duration};
    /// let mut timeout = tickwheel::Wheel::new().timeout(Duration::from_secs(1), ready(7));
    /// *timeout.get_mut() = ready(8);
    /// ```
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// Consumes the timeout, cancels its timer, and returns the wrapped future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{future::ready, time::Duration};
    /// let timeout = tickwheel::Wheel::new().timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(timeout.into_inner().into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let had_budget = coop::has_budget_remaining();
        if let Poll::Ready(output) = this.future.poll(cx) {
            this.timer.cancel();
            return Poll::Ready(Ok(output));
        }
        let timer = this.timer;
        this.resource.poll(|| poll_timer(timer, had_budget, cx)).map(Err)
    }
}

/// Polls the timer, after the future has been polled. Being independent of the future's type, it is compiled once.
#[inline(never)]
pub(crate) fn poll_timer(timer: &mut Timer, had_budget: bool, cx: &mut Context<'_>) -> Poll<TimeoutError> {
    // A poll that leaves the timer pending spends no budget.
    match timer.waits(cx.waker()) || timer.takes_over(cx.waker()) {
        true => Poll::Pending,
        false => poll_timer_locked(timer, had_budget, cx),
    }
}

fn poll_timer_locked(timer: &mut Timer, had_budget: bool, cx: &mut Context<'_>) -> Poll<TimeoutError> {
    let has_budget = coop::has_budget_remaining();
    if !has_budget && !had_budget {
        ready!(budget::poll_left(cx));
    }
    let outcome = ready!(timer.poll_locked(cx.waker()));
    // A future that always uses up the budget must not keep its own timeout from elapsing.
    if has_budget {
        ready!(budget::poll_spend(cx));
    }
    Poll::Ready(outcome.map_or_else(TimeoutError::from, |()| TimeoutError::Elapsed))
}

impl<F: fmt::Debug> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("future", &self.future)
            .field("timer", &self.timer)
            .finish()
    }
}
