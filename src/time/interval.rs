//! `interval` and `interval_at` on the current wheel.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use super::{Duration, Instant, MissedTickBehavior};
use crate::{current, fallback_sleep::Fallback, interval};

/// Creates an interval that ticks every `period`, on the wheel of the current runtime.
///
/// The first tick completes at once. Each later tick completes at the first tick of the wheel that begins at or after its
/// instant: never early, and less than one tick of the wheel late plus the runtime's own delay. It counts as missed if it is later
/// than both 5 ms and one tick of the wheel. In every other respect the interval behaves as `tokio::time::interval`.
///
/// An interval cannot fail: if the wheel is full or has been shut down, the interval ticks on Tokio's timer.
///
/// # Cancellation
///
/// Dropping the interval cancels its timer at once.
///
/// # Panics
///
/// Panics if `period` is zero. Panics outside a Tokio runtime, and on one without timers, with Tokio's message.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, interval};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut interval = interval(Duration::from_millis(10));
/// interval.tick().await; // at once
/// interval.tick().await; // 10 ms later
/// # }
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    assert!(period > Duration::ZERO, "`period` must be non-zero.");
    Interval::new(current::with_wheel(|wheel| wheel.interval(period)))
}

/// Creates an interval that first ticks at `start` and then every `period`, on the wheel of the current runtime.
///
/// Ticks are as precise as those of [`interval`]. If `start` is in the past, the first tick completes by the next tick of the
/// wheel.
///
/// # Cancellation
///
/// Dropping the interval cancels its timer at once.
///
/// # Panics
///
/// Panics in the same cases as [`interval`].
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, interval_at};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let start = Instant::now() + Duration::from_millis(20);
/// let mut interval = interval_at(start, Duration::from_millis(10));
/// assert_eq!(interval.tick().await, start);
/// # }
/// ```
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(period > Duration::ZERO, "`period` must be non-zero.");
    Interval::new(current::with_wheel(|wheel| wheel.interval_at(start, period)))
}

/// The interval returned by [`interval`] and [`interval_at`].
///
/// It is used like Tokio's. Unlike Tokio's it is also a [`Stream`], which yields the instants of its ticks and never ends.
///
/// # Examples
///
/// ```
/// use futures::StreamExt;
/// use tickwheel::time::{Duration, interval};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let ticks = interval(Duration::from_millis(10)).take(3);
/// assert_eq!(ticks.count().await, 3);
/// # }
/// ```
pub struct Interval {
    interval: interval::Interval,
    fallback: Fallback,
}

impl Interval {
    fn new(interval: interval::Interval) -> Interval {
        Interval {
            interval,
            fallback: Fallback::Unused,
        }
    }

    /// Waits for the next tick and returns its instant.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. If it is dropped before it completes, no tick is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(std::time::Duration::from_millis(10));
    /// let first = interval.tick().await;
    /// let second = interval.tick().await;
    /// assert_eq!(second - first, interval.period());
    /// # }
    /// ```
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick.
    ///
    /// While the tick is pending, the task that polled last is woken for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(std::time::Duration::from_millis(10));
    /// std::future::poll_fn(|cx| interval.poll_tick(cx)).await;
    /// # }
    /// ```
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        if self.fallback.is_unused() {
            if let Ok(tick) = ready!(self.interval.poll_tick(cx)) {
                return Poll::Ready(tick);
            }
            self.fallback.begin(self.interval.refused_until());
        }
        ready!(Pin::new(&mut self.fallback).poll(cx));
        // By the next tick, the wheel may have room again.
        self.fallback = Fallback::Unused;
        Poll::Ready(self.interval.take_tick())
    }

    /// Resets the interval to tick one period from now.
    ///
    /// A task that awaits a tick is woken at the new instant.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(std::time::Duration::from_millis(10));
    /// interval.reset();
    /// interval.tick().await; // 10 ms later
    /// # }
    /// ```
    pub fn reset(&mut self) {
        self.reset_after(self.period());
    }

    /// Resets the interval to tick at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(std::time::Duration::from_secs(60));
    /// interval.tick().await;
    /// interval.reset_immediately();
    /// interval.tick().await; // at once
    /// # }
    /// ```
    pub fn reset_immediately(&mut self) {
        self.reset_after(Duration::ZERO);
    }

    /// Resets the interval to tick `after` from now, and then every period.
    ///
    /// A task that awaits a tick is woken at the new instant.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(Duration::from_secs(60));
    /// interval.reset_after(Duration::from_millis(10));
    /// interval.tick().await; // 10 ms later
    /// # }
    /// ```
    pub fn reset_after(&mut self, after: Duration) {
        self.interval.reset_after(after);
        self.fallback.reset(|| self.interval.refused_until());
    }

    /// Resets the interval to tick at `deadline`, and then every period.
    ///
    /// A task that awaits a tick is woken at the new instant.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::time::{Duration, Instant};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(Duration::from_secs(60));
    /// let deadline = Instant::now() + Duration::from_millis(10);
    /// interval.reset_at(deadline);
    /// assert_eq!(interval.tick().await, deadline);
    /// # }
    /// ```
    pub fn reset_at(&mut self, deadline: Instant) {
        self.interval.reset_at(deadline);
        self.fallback.reset(|| self.interval.refused_until());
    }

    /// Returns the period of the interval.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let interval = tickwheel::time::interval(Duration::from_secs(1));
    /// assert_eq!(interval.period(), Duration::from_secs(1));
    /// # }
    /// ```
    pub fn period(&self) -> Duration {
        self.interval.period()
    }

    /// Returns the behaviour for the ticks after a missed one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::time::{Duration, MissedTickBehavior};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let interval = tickwheel::time::interval(Duration::from_secs(1));
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
    /// # }
    /// ```
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.interval.missed_tick_behavior()
    }

    /// Sets the behaviour for the ticks after a missed one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::time::{Duration, MissedTickBehavior};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::time::interval(Duration::from_secs(1));
    /// interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    /// # }
    /// ```
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.interval.set_missed_tick_behavior(behavior);
    }
}

impl Stream for Interval {
    type Item = Instant;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.get_mut().poll_tick(cx).map(Some)
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.interval.fmt(f)
    }
}
