//! `Timeout` and `TryTimeout`: a future that has to complete in time.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{task::coop, time::Instant};

use crate::{
    error::{Elapsed, TimeoutError},
    timers::{limit::TrySleep, sleep::Sleep},
    wheel::Wheel,
};

impl Wheel {
    /// Requires `future` to complete before `duration` has elapsed, as `tokio::time::timeout` does.
    ///
    /// The future is polled first. If it is ready at once, the timeout succeeds whatever the duration, and
    /// costs neither a lock nor a clock reading. The duration counts from the first pending poll. The timeout
    /// is never early, and less than one tick late plus the runtime's own delay and, as for a
    /// [`sleep`](Wheel::sleep), its slack. A zero duration elapses at the next tick. A duration of
    /// more than 30 years is taken as 30 years. One that overflows the clock makes no timer, needs no runtime
    /// and never elapses. Like a [`sleep`](Wheel::sleep), a timeout is never refused;
    /// [`try_timeout`](Wheel::try_timeout) may be.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer at once. The entries of two cancelled
    /// timers of a task may stay in the wheel on each thread for the task's next timers, until they are due
    /// at the latest. While they stay, they keep a clone of the task's waker, and they do not count as
    /// pending.
    ///
    /// # Panics
    ///
    /// The first pending poll panics outside a Tokio runtime and in one without timers, with Tokio's message,
    /// unless the wheel was given a [`handle`](crate::Builder::handle). Creating the timeout needs no
    /// runtime.
    ///
    /// # Errors
    ///
    /// The timeout resolves to [`Elapsed`](crate::time::error::Elapsed) when the time runs out.
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
    /// if let Err(elapsed) = wheel.timeout(Duration::from_millis(10), receiver).await {
    ///     println!("no message: {elapsed}");
    /// }
    /// # drop(sender);
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Timeout<F::IntoFuture> {
        let sleep = Sleep::of_timeout(self.reference(), duration, "Wheel::timeout");
        Timeout::new(sleep, future)
    }

    /// Requires `future` to complete before `deadline`, as `tokio::time::timeout_at` does.
    ///
    /// The future is polled first, and succeeds if it is ready, even past the deadline. The timeout is never
    /// early, and less than one tick late plus its slack and the runtime's own delay.
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
        let sleep = Sleep::of_timeout_at(self.reference(), deadline, "Wheel::timeout_at");
        Timeout::new(sleep, future)
    }

    /// Requires `future` to complete before `duration` has elapsed, or fails if the wheel refuses to wait.
    ///
    /// This is [`timeout`](Wheel::timeout) for code that sheds load at
    /// [`max_pending`](crate::Builder::max_pending) or ends with the wheel. It is as precise.
    ///
    /// # Cancellation
    ///
    /// Dropping the timeout drops the future and cancels the timer, as for [`timeout`](Wheel::timeout).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`timeout`](Wheel::timeout).
    ///
    /// # Errors
    ///
    /// The timeout resolves to [`TimeoutError::Elapsed`] when the time runs out. It resolves to another
    /// [`TimeoutError`] when the future is pending and the wheel is full or has been shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{TimeoutError, Wheel};
    /// use std::{future::pending, time::Duration};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.shutdown();
    /// let refused = wheel.try_timeout(Duration::from_secs(60), pending::<()>()).await;
    /// assert_eq!(refused, Err(TimeoutError::Shutdown));
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn try_timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> TryTimeout<F::IntoFuture> {
        let sleep = Sleep::of_timeout(self.reference(), duration, "Wheel::try_timeout");
        TryTimeout::new(TrySleep::new(self, sleep), future)
    }
}

/// Defines the future of a timeout, with a constructor and the methods of Tokio's timeout. It has a timer of
/// type `Sleep`, `TrySleep` or `LabelledTimer`, and fails with the error that `$Error::after` makes of the
/// timer's outcome. `$made` is the expression that creates a timeout in the examples. `$begin_poll` is the
/// path from the timer to a method that has to be called before the future is polled, because it counts polls.
macro_rules! wraps_a_future {
    ($(#[$docs:meta])* $timeout:ident, $Timer:ty => $Error:ty, $made:literal $(, $($begin_poll:ident).+)?) => {
        pin_project_lite::pin_project! {
            $(#[$docs])*
            #[derive(Debug)]
            #[must_use = "futures do nothing unless you `.await` or poll them"]
            pub struct $timeout<F> {
                #[pin]
                future: F,
                timer: $Timer,
            }
        }

        impl<F: Future> Future for $timeout<F> {
            type Output = Result<F::Output, $Error>;

            // Without this, a timeout in a task takes 56 instructions more.
            #[inline(always)]
            #[track_caller]
            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let this = self.project();
                let had_budget = $crate::timers::sleep::HadBudget(coop::has_budget_remaining());
                $(this.timer.$($begin_poll).+();)?
                if let Poll::Ready(output) = this.future.poll(cx) {
                    this.timer.complete();
                    return Poll::Ready(Ok(output));
                }
                let polled = this.timer.poll_after(had_budget, cx);
                polled.map(|waited| Err(<$Error>::after(waited)))
            }
        }

        impl<F> $timeout<F> {
            #[inline]
            pub(crate) fn new(timer: $Timer, future: impl IntoFuture<IntoFuture = F>) -> $timeout<F>
            where
                F: Future,
            {
                let future = future.into_future();
                $timeout { future, timer }
            }

            /// Returns a reference to the wrapped future.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::{future::ready, time::Duration};
            #[doc = concat!("let timeout = ", $made, "(Duration::from_secs(1), ready(7));")]
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
            #[doc = concat!("let mut timeout = ", $made, "(Duration::from_secs(1), ready(7));")]
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
            #[doc = concat!("let timeout = ", $made, "(Duration::from_secs(1), ready(7));")]
            /// assert_eq!(timeout.into_inner().into_inner(), 7);
            /// ```
            pub fn into_inner(self) -> F {
                self.future
            }

            /// Returns the instant at which the timeout is due.
            ///
            /// Before its first pending poll, a timeout of a duration is due that long after now, because
            /// that is what a poll now would make of it.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::{future::pending, time::Duration};
            /// # use tokio::time::Instant;
            /// let start = Instant::now();
            #[doc = concat!("let timeout = ", $made, "(Duration::from_secs(1), pending::<()>());")]
            /// assert!(timeout.deadline() >= start + Duration::from_secs(1));
            /// ```
            pub fn deadline(&self) -> Instant {
                self.timer.deadline()
            }
        }
    };
}
pub(crate) use wraps_a_future;

/// Defines the methods that move a timeout whose time is not counted.
macro_rules! can_be_moved {
    ($timeout:ident, $made:literal) => {
        impl<F> $timeout<F> {
            /// Moves the timeout to another deadline, whether or not it has been polled.
            ///
            /// This is what [`Sleep::reset_at`](crate::Sleep::reset_at) does for a sleep: a later deadline
            /// costs one store, and an earlier one moves the timer at once. The task that last polled the
            /// timeout is woken at the new deadline, or within this call if that has passed. One that has
            /// elapsed, or whose duration overflowed the clock, waits for the new deadline once it is polled.
            ///
            /// # Examples
            ///
            /// A deadline that each sign of progress pushes back:
            ///
            /// ```
            /// use std::pin::pin;
            /// use tokio::{sync::mpsc, time::{Duration, Instant}};
            ///
            /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
            /// # async fn main() {
            /// let (progress, mut parts) = mpsc::channel(1);
            /// let download = async move {
            ///     for part in 1..=3 {
            ///         tokio::time::sleep(Duration::from_secs(4)).await;
            ///         progress.send(part).await.unwrap();
            ///     }
            ///     "all of it"
            /// };
            #[doc = concat!("let mut download = pin!(", $made, "(Duration::from_secs(5), download));")]
            /// let file = loop {
            ///     tokio::select! {
            ///         file = &mut download => break file,
            ///         Some(_) = parts.recv() => {
            ///             let deadline = Instant::now() + Duration::from_secs(5);
            ///             download.as_mut().reset_at(deadline);
            ///         }
            ///     }
            /// };
            /// assert_eq!(file, Ok("all of it"));
            /// # }
            /// ```
            pub fn reset_at(self: Pin<&mut Self>, deadline: Instant) {
                self.project().timer.reset_at(deadline);
            }

            /// Moves the timeout to `duration` from now, as
            #[doc = concat!("[`reset_at`](", stringify!($timeout), "::reset_at) does.")]
            ///
            /// # Examples
            ///
            /// ```
            /// use std::{future::pending, pin::pin, time::Duration};
            ///
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() {
            #[doc = concat!("let mut timeout = pin!(", $made, "(Duration::from_secs(3600), pending::<()>()));")]
            /// timeout.as_mut().reset_after(Duration::from_millis(10));
            /// assert!(timeout.await.is_err());
            /// # }
            /// ```
            pub fn reset_after(self: Pin<&mut Self>, duration: Duration) {
                self.project().timer.reset_after(duration);
            }
        }
    };
}

wraps_a_future! {
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
    Timeout, Sleep => Elapsed, "tickwheel::Wheel::new().timeout"
}

can_be_moved!(Timeout, "tickwheel::Wheel::new().timeout");

wraps_a_future! {
    /// The future returned by [`Wheel::try_timeout`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels the timeout.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{TryTimeout, Wheel};
    /// use std::{future::{Ready, ready}, time::Duration};
    ///
    /// let timeout: TryTimeout<Ready<u8>> = Wheel::new().try_timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(timeout.into_inner().into_inner(), 7);
    /// ```
    TryTimeout, TrySleep => TimeoutError, "tickwheel::Wheel::new().try_timeout"
}

can_be_moved!(TryTimeout, "tickwheel::Wheel::new().try_timeout");
