//! The timers that are compared, behind one trait, so that each experiment is written once.

use std::{future::Future, pin::Pin, time::Duration};

use tickwheel::Wheel;
use tokio::time::Instant;

/// What an experiment needs of a timer. Each method forwards to the one of the same name.
pub(crate) trait Timers: Copy + Send + Sync + 'static {
    type Sleep: Future<Output = ()> + Send + 'static;
    /// The error of a timeout.
    type Elapsed: Send;

    fn sleep_until(self, deadline: Instant) -> Self::Sleep;
    fn reset(sleep: Pin<&mut Self::Sleep>, deadline: Instant);
    fn timeout<F: Future<Output: Send> + Send>(
        self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Elapsed>> + Send;
    /// Calls `beat` at `first` and once per period after it.
    fn beat(self, first: Instant, period: Duration, beat: fn()) -> impl Future<Output = ()> + Send;
}

/// `tokio::time`.
#[derive(Clone, Copy)]
pub(crate) struct Tokio;

impl Timers for Tokio {
    type Sleep = tokio::time::Sleep;
    type Elapsed = tokio::time::error::Elapsed;

    fn sleep_until(self, deadline: Instant) -> tokio::time::Sleep {
        tokio::time::sleep_until(deadline)
    }

    fn reset(sleep: Pin<&mut tokio::time::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }

    fn timeout<F: Future<Output: Send> + Send>(
        self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Elapsed>> + Send {
        tokio::time::timeout(duration, future)
    }

    async fn beat(self, first: Instant, period: Duration, beat: fn()) {
        let mut interval = tokio::time::interval_at(first, period);
        loop {
            interval.tick().await;
            beat();
        }
    }
}

/// `tickwheel::time`, which is what a program gets when it changes its imports.
#[derive(Clone, Copy)]
pub(crate) struct Tickwheel;

impl Timers for Tickwheel {
    type Sleep = tickwheel::time::Sleep;
    type Elapsed = tickwheel::time::error::Elapsed;

    fn sleep_until(self, deadline: Instant) -> tickwheel::time::Sleep {
        tickwheel::time::sleep_until(deadline)
    }

    fn reset(mut sleep: Pin<&mut tickwheel::time::Sleep>, deadline: Instant) {
        sleep.as_mut().reset(deadline);
    }

    fn timeout<F: Future<Output: Send> + Send>(
        self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Elapsed>> + Send {
        tickwheel::time::timeout(duration, future)
    }

    async fn beat(self, first: Instant, period: Duration, beat: fn()) {
        let mut interval = tickwheel::time::interval_at(first, period);
        loop {
            interval.tick().await;
            beat();
        }
    }
}

/// A wheel of the program's own, in a static or leaked.
impl Timers for &'static Wheel {
    type Sleep = tickwheel::Sleep;
    type Elapsed = tickwheel::time::error::Elapsed;

    fn sleep_until(self, deadline: Instant) -> tickwheel::Sleep {
        Wheel::sleep_until(self, deadline)
    }

    fn reset(mut sleep: Pin<&mut tickwheel::Sleep>, deadline: Instant) {
        sleep.as_mut().reset(deadline);
    }

    fn timeout<F: Future<Output: Send> + Send>(
        self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Elapsed>> + Send {
        Wheel::timeout(self, duration, future)
    }

    async fn beat(self, first: Instant, period: Duration, beat: fn()) {
        let mut interval = self.interval_at(first, period);
        loop {
            interval.tick().await;
            beat();
        }
    }
}
