//! The two clocks, behind one trait.

use std::{future::Future, pin::Pin, time::Duration};

use tickwheel::Wheel;
use tokio::time::Instant;

use crate::machine::grouped;

/// What the work needs of a clock. Both implementations forward, line by line, to the same names.
pub(crate) trait Clockwork: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type Sleep: Future + Send;
    type Interval: Send;

    fn sleep_until(&self, deadline: Instant) -> Self::Sleep;
    fn reset(sleep: Pin<&mut Self::Sleep>, deadline: Instant);
    /// `None` when the duration has elapsed.
    fn timeout<F: Future + Send>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
    fn interval_at(&self, start: Instant, period: Duration) -> Self::Interval;
    fn tick(interval: &mut Self::Interval) -> impl Future<Output = Instant> + Send;
    /// What the clock says of itself.
    fn remark(&self) -> String;
}

impl Clockwork for Wheel {
    const NAME: &'static str = "tickwheel";
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

    async fn tick(interval: &mut tickwheel::Interval) -> Instant {
        let tick = interval.tick().await;
        tick.expect("this wheel has no limit, and is never shut down")
    }

    fn remark(&self) -> String {
        let metrics = self.metrics();
        format!(
            "The wheel's own count, in which a deadline pushed back expires and registers anew when its old time comes:\n\
             {} registered = {} expired + {} cancelled + {} pending.",
            grouped(metrics.registered),
            grouped(metrics.expired),
            grouped(metrics.cancelled),
            grouped(metrics.pending as u64),
        )
    }
}

#[derive(Clone)]
pub(crate) struct TokioTime;

impl Clockwork for TokioTime {
    const NAME: &'static str = "tokio::time";
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

    async fn tick(interval: &mut tokio::time::Interval) -> Instant {
        interval.tick().await
    }

    fn remark(&self) -> String {
        String::new()
    }
}
