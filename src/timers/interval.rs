//! `Interval`: ticks at a fixed period.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::time::{Instant, MissedTickBehavior};

use crate::{
    engine::clock::{Moment, Nanos},
    timers::sleep::Sleep,
    wheel::Wheel,
};

/// A tick that is late by no more than this never counts as missed, as in Tokio.
const PUNCTUAL: Nanos = Nanos(5_000_000);

impl Wheel {
    /// Creates an interval that ticks every `period`, as `tokio::time::interval` does.
    ///
    /// The first tick completes at the next tick of the wheel, as a zero duration of [`sleep`](Wheel::sleep)
    /// does. A tick is never early, and less than one tick of the wheel late plus its slack and the runtime's
    /// own delay. With a period shorter than a tick of the wheel the rate is kept: all ticks of the interval
    /// that are due complete at once. Like a [`sleep`](Wheel::sleep), an interval is never refused.
    ///
    /// # Cancellation
    ///
    /// Dropping the interval cancels its timer at once.
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero. The first tick that has to wait panics outside a runtime, as
    /// [`sleep`](Wheel::sleep) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = Wheel::new().interval(Duration::from_millis(10));
    /// interval.tick().await; // at once
    /// interval.tick().await; // 10 ms later
    /// # }
    /// ```
    #[track_caller]
    pub fn interval(&self, period: Duration) -> Interval {
        assert!(period > Duration::ZERO, "`period` must be non-zero.");
        Interval::new(self.sleep(Duration::ZERO), period)
    }

    /// Creates an interval that first ticks at `start` and then every `period`, as `tokio::time::interval_at`
    /// does.
    ///
    /// Ticks are as precise as those of [`interval`](Wheel::interval). If `start` is in the past, the first
    /// tick completes at the first poll.
    ///
    /// # Cancellation
    ///
    /// Dropping the interval cancels its timer at once.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`interval`](Wheel::interval).
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let start = Instant::now() + Duration::from_millis(20);
    /// let mut interval = Wheel::new().interval_at(start, Duration::from_millis(10));
    /// assert_eq!(interval.tick().await, start);
    /// # }
    /// ```
    #[track_caller]
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        assert!(period > Duration::ZERO, "`period` must be non-zero.");
        Interval::new(self.sleep_until(start), period)
    }
}

/// The interval returned by [`Wheel::interval`] and [`Wheel::interval_at`], which ticks at a steady rate.
///
/// A tick counts as missed if it completes more than 5 ms, and more than one tick of the wheel, after it was
/// due; its slack is allowed in addition. The [`MissedTickBehavior`] decides when the following ticks come.
/// Here the period is 100 ms, and the second tick is taken only at 350 ms:
///
/// ```text
/// Burst    expected  |  0  | 100 | 200 | 300 | 400 | 500 |
/// (default)  actual  |  0  |            350 350 350 400 500      missed ticks come at once, then the old rate
///
/// Delay    expected  |  0  | 100 | 200 | 300 | 400 | 500 |
///            actual  |  0  |            350      450      550    one period after the late one, and so on
///
/// Skip     expected  |  0  | 100 | 200 | 300 | 400 | 500 |
///            actual  |  0  |            350   400      500       the other missed ticks are dropped
/// ```
///
/// As a [`Stream`], it yields the instants of its ticks, and never ends.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use futures::StreamExt;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let ticks = Wheel::new().interval(Duration::from_millis(10)).take(3);
/// assert_eq!(ticks.count().await, 3);
/// # }
/// ```
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed_tick_behavior: MissedTickBehavior,
    /// To what the last tick that waited was rounded up.
    rounded_up_to: Moment,
    /// The instant from which the period to the next tick counts: that of the last tick or
    /// [`reset`](Interval::reset), if any.
    counts_from: Option<Moment>,
}

impl Interval {
    pub(crate) fn new(sleep: Sleep, period: Duration) -> Interval {
        Interval {
            sleep,
            period,
            missed_tick_behavior: MissedTickBehavior::default(),
            rounded_up_to: Moment::ZERO,
            counts_from: None,
        }
    }

    /// Waits for the next tick and returns its instant.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. If it is dropped before it completes, no tick is lost.
    ///
    /// # Panics
    ///
    /// A call that has to wait panics outside a Tokio runtime, as the first poll of [`Wheel::sleep`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::Wheel::new().interval(std::time::Duration::from_millis(10));
    /// let first = interval.tick().await;
    /// let second = interval.tick().await;
    /// assert_eq!(second - first, interval.period());
    /// # }
    /// ```
    // Not an `async fn`, in which a panic would not name the caller.
    pub fn tick(&mut self) -> impl Future<Output = Instant> {
        Tick(self)
    }

    /// Polls for the next tick.
    ///
    /// While the tick is pending, the task that polled last is woken for it.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`tick`](Interval::tick).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::Wheel::new().interval(std::time::Duration::from_millis(10));
    /// std::future::poll_fn(|cx| interval.poll_tick(cx)).await;
    /// # }
    /// ```
    #[track_caller]
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        Poll::Ready(self.take_tick())
    }

    /// Takes the tick that is due, and moves on to the next.
    fn take_tick(&mut self) -> Instant {
        let timer = &self.sleep.timer;
        let (tick, now) = (timer.deadline(), timer.now());
        let late = now.since(tick);
        let wheel_tick = Nanos::of(timer.shared().settings.tick_duration);
        // The time by which the deadline was rounded up, to a longer tick or for its slack, does not count as
        // late. Nor does it for the following ticks, until they are on time. Tokio rounds up to a
        // millisecond, and counts that time.
        self.rounded_up_to = self.rounded_up_to.max(tick.after(timer.rounded_up_by()));
        let rounding = self.rounded_up_to.since(tick);
        let rounding = if wheel_tick > Nanos::MILLISECOND {
            rounding
        } else {
            rounding.to_multiple_of(wheel_tick)
        };
        let is_missed = late > PUNCTUAL.max(wheel_tick) && late.saturating_sub(rounding) > PUNCTUAL;
        let period = Nanos::of(self.period);
        let next = match self.missed_tick_behavior {
            MissedTickBehavior::Delay if is_missed => now.after(period),
            MissedTickBehavior::Skip if is_missed => now.after(Nanos(period.0 - late.0 % period.0)),
            _ => tick.after(period),
        };
        self.counts_from = Some(next.before(period));
        self.sleep.reset_to(next, now);
        tick.instant()
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
    /// let mut interval = tickwheel::Wheel::new().interval(std::time::Duration::from_millis(10));
    /// interval.reset();
    /// interval.tick().await; // 10 ms later
    /// # }
    /// ```
    pub fn reset(&mut self) {
        let now = self.sleep.timer.now();
        self.sleep.reset_to(now.after(Nanos::of(self.period)), now);
        self.counts_from = Some(now);
    }

    /// Resets the interval to tick at the next tick of the wheel, as a zero duration of [`Wheel::sleep`]
    /// completes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::Wheel::new().interval(std::time::Duration::from_secs(60));
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
    /// let mut interval = tickwheel::Wheel::new().interval(Duration::from_secs(60));
    /// interval.reset_after(Duration::from_millis(10));
    /// interval.tick().await; // 10 ms later
    /// # }
    /// ```
    pub fn reset_after(&mut self, after: Duration) {
        self.sleep.reset_after(after);
        self.rounded_up_to = Moment::ZERO;
        self.counts_from = None;
    }

    /// Resets the interval to tick at `deadline`, and then every period.
    ///
    /// A task that awaits a tick is woken at the new instant.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tokio::time::{Duration, Instant};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut interval = tickwheel::Wheel::new().interval(Duration::from_secs(60));
    /// let deadline = Instant::now() + Duration::from_millis(10);
    /// interval.reset_at(deadline);
    /// assert_eq!(interval.tick().await, deadline);
    /// # }
    /// ```
    pub fn reset_at(&mut self, deadline: Instant) {
        self.sleep.reset_at(deadline);
        self.rounded_up_to = Moment::ZERO;
        self.counts_from = None;
    }

    /// Returns the period of the interval.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// let interval = tickwheel::Wheel::new().interval(Duration::from_secs(1));
    /// assert_eq!(interval.period(), Duration::from_secs(1));
    /// ```
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Changes the period.
    ///
    /// The next tick comes one new period after the last tick or, if there has been a
    /// [`reset`](Interval::reset) since, after the reset.
    ///
    /// If there was no tick yet, or the next one was given an instant by [`reset_at`](Interval::reset_at),
    /// [`reset_after`](Interval::reset_after) or [`reset_immediately`](Interval::reset_immediately), the next
    /// tick comes when it would have, and the new period counts from it. A task that awaits a tick is woken
    /// at the new instant.
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let mut interval = tickwheel::Wheel::new().interval(Duration::from_secs(60));
    /// let first = interval.tick().await;
    /// interval.set_period(Duration::from_secs(10));
    /// assert_eq!(interval.tick().await - first, Duration::from_secs(10));
    /// # }
    /// ```
    #[track_caller]
    pub fn set_period(&mut self, period: Duration) {
        assert!(period > Duration::ZERO, "`period` must be non-zero.");
        self.period = period;
        if let Some(from) = self.counts_from {
            let now = self.sleep.timer.now();
            self.sleep.reset_to(from.after(Nanos::of(period)), now);
        }
    }

    /// Returns the behaviour for the ticks after a missed one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tokio::time::MissedTickBehavior;
    ///
    /// let interval = tickwheel::Wheel::new().interval(Duration::from_secs(1));
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
    /// ```
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed_tick_behavior
    }

    /// Sets the behaviour for the ticks after a missed one.
    ///
    /// [`Interval`] shows the effect of each behaviour.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tokio::time::MissedTickBehavior;
    ///
    /// let mut interval = tickwheel::Wheel::new().interval(Duration::from_secs(1));
    /// interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    /// ```
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed_tick_behavior = behavior;
    }
}

/// The future returned by [`Interval::tick`].
struct Tick<'a>(&'a mut Interval);

impl Future for Tick<'_> {
    type Output = Instant;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Instant> {
        self.0.poll_tick(cx)
    }
}

impl Stream for Interval {
    type Item = Instant;

    #[track_caller]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.get_mut().poll_tick(cx).map(Some)
    }
}
