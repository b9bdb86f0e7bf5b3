//! The timers of a program that is written once and run without any, on Tokio's and on the wheel's.

use std::{
    convert::Infallible,
    future::{Future, Pending, pending},
    pin::Pin,
    time::Duration,
};

use tickwheel::{TimeoutError, Wheel};
use tokio::time::{Instant, error::Elapsed};

/// Whose timers a program uses.
pub trait Timers: Clone + Send + Sync + 'static {
    type Sleep: Future<Output: Send> + Send;
    type Error: Send;

    /// `future`, unless `duration` passes first.
    fn timeout<F: Future + Send>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Error>> + Send;

    fn sleep(&self, duration: Duration) -> Self::Sleep;

    fn sleep_until(&self, deadline: Instant) -> Self::Sleep;

    /// Moves a sleep to `duration` from now.
    fn restart(sleep: Pin<&mut Self::Sleep>, duration: Duration);
}

/// A version without timers: what a program costs beside them.
#[derive(Clone, Copy, Debug)]
pub struct None;

impl Timers for None {
    type Sleep = Pending<()>;
    type Error = Infallible;

    #[inline]
    async fn timeout<F: Future + Send>(&self, _: Duration, future: F) -> Result<F::Output, Infallible> {
        Ok(future.await)
    }

    #[inline]
    fn sleep(&self, _: Duration) -> Pending<()> {
        pending()
    }

    #[inline]
    fn sleep_until(&self, _: Instant) -> Pending<()> {
        pending()
    }

    #[inline]
    fn restart(_: Pin<&mut Pending<()>>, _: Duration) {}
}

/// `tokio::time`.
#[derive(Clone, Copy, Debug)]
pub struct Tokio;

impl Timers for Tokio {
    type Sleep = tokio::time::Sleep;
    type Error = Elapsed;

    #[inline]
    fn timeout<F: Future + Send>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> + Send {
        tokio::time::timeout(duration, future)
    }

    #[inline]
    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        tokio::time::sleep(duration)
    }

    #[inline]
    fn sleep_until(&self, deadline: Instant) -> tokio::time::Sleep {
        tokio::time::sleep_until(deadline)
    }

    #[inline]
    fn restart(sleep: Pin<&mut tokio::time::Sleep>, duration: Duration) {
        sleep.reset(Instant::now() + duration);
    }
}

impl Timers for Wheel {
    type Sleep = tickwheel::Sleep;
    type Error = TimeoutError;

    #[inline]
    fn timeout<F: Future + Send>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + Send {
        Wheel::timeout(self, duration, future)
    }

    #[inline]
    fn sleep(&self, duration: Duration) -> tickwheel::Sleep {
        Wheel::sleep(self, duration)
    }

    #[inline]
    fn sleep_until(&self, deadline: Instant) -> tickwheel::Sleep {
        Wheel::sleep_until(self, deadline)
    }

    #[inline]
    fn restart(mut sleep: Pin<&mut tickwheel::Sleep>, duration: Duration) {
        sleep.reset(Instant::now() + duration);
    }
}
