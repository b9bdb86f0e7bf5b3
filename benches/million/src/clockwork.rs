//! The three versions of the server's timers, behind one trait.

use std::{
    future::{Future, Pending, pending},
    pin::Pin,
    time::Duration,
};

use tickwheel::Wheel;
use tokio::time::Instant;

/// What the server needs of a clock. Each implementation forwards, line by line, to the same names.
pub(crate) trait Clockwork: Clone + Send + Sync + 'static {
    type Sleep: Future<Output: Send> + Send;
    type Interval: Send;
    /// Whether there are timers at all.
    const TIMES: bool = true;

    fn sleep_until(&self, deadline: Instant) -> Self::Sleep;
    fn reset(sleep: Pin<&mut Self::Sleep>, deadline: Instant);
    /// `None` when the duration has elapsed.
    fn timeout<F: Future + Send>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
    fn interval_at(&self, start: Instant, period: Duration) -> Self::Interval;
    fn tick(interval: &mut Self::Interval) -> impl Future<Output = ()> + Send;
}

impl Clockwork for Wheel {
    type Sleep = tickwheel::Sleep;
    type Interval = tickwheel::Interval;

    fn sleep_until(&self, deadline: Instant) -> tickwheel::Sleep {
        self.sleep_until(deadline)
    }

    fn reset(mut sleep: Pin<&mut tickwheel::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }

    async fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> Option<F::Output> {
        self.timeout(duration, future).await.ok()
    }

    fn interval_at(&self, start: Instant, period: Duration) -> tickwheel::Interval {
        self.interval_at(start, period)
    }

    async fn tick(interval: &mut tickwheel::Interval) {
        interval.tick().await;
    }
}

#[derive(Clone)]
pub(crate) struct TokioTime;

impl Clockwork for TokioTime {
    type Sleep = tokio::time::Sleep;
    type Interval = tokio::time::Interval;

    fn sleep_until(&self, deadline: Instant) -> tokio::time::Sleep {
        tokio::time::sleep_until(deadline)
    }

    fn reset(sleep: Pin<&mut tokio::time::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }

    async fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(duration, future).await.ok()
    }

    fn interval_at(&self, start: Instant, period: Duration) -> tokio::time::Interval {
        tokio::time::interval_at(start, period)
    }

    async fn tick(interval: &mut tokio::time::Interval) {
        interval.tick().await;
    }
}

/// The same server without any timer: what is left is the cost of the requests themselves.
#[derive(Clone)]
pub(crate) struct NoTimers;

impl Clockwork for NoTimers {
    type Sleep = Pending<()>;
    type Interval = ();
    const TIMES: bool = false;

    fn sleep_until(&self, _: Instant) -> Pending<()> {
        pending()
    }

    fn reset(_: Pin<&mut Pending<()>>, _: Instant) {}

    async fn timeout<F: Future + Send>(&self, _: Duration, future: F) -> Option<F::Output> {
        Some(future.await)
    }

    fn interval_at(&self, _: Instant, _: Duration) {}

    async fn tick((): &mut ()) {
        pending().await
    }
}
