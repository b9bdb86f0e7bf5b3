//! The timers of a program that is written once and run without timers, on Tokio's timer and on the wheel.

use std::{
    convert::Infallible,
    future::{Future, Pending, pending},
    pin::Pin,
    time::Duration,
};

use futures_util::{FutureExt, future::NeverError};
use tickwheel::Wheel;
use tokio::time::{Instant, error::Elapsed};

/// Whose timers a program uses.
pub trait Timers: Clone + Send + Sync + 'static {
    type Sleep: Future<Output: Send> + Send;
    type Timeout<F: Future + Send>: Future<Output = Result<F::Output, Self::Error>> + Send;
    type Error: Send;

    /// `future`, unless `duration` passes first.
    fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> Self::Timeout<F>;

    fn sleep(&self, duration: Duration) -> Self::Sleep;

    fn sleep_until(&self, deadline: Instant) -> Self::Sleep;

    /// Moves a sleep to `deadline`.
    fn reset(sleep: Pin<&mut Self::Sleep>, deadline: Instant);

    /// Moves a sleep to `duration` from now.
    #[inline]
    fn restart(sleep: Pin<&mut Self::Sleep>, duration: Duration) {
        Self::reset(sleep, Instant::now() + duration);
    }
}

/// A version without timers: what a program costs beside them.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Timers for Nothing {
    type Sleep = Pending<()>;
    type Timeout<F: Future + Send> = NeverError<F>;
    type Error = Infallible;

    #[inline]
    fn timeout<F: Future + Send>(&self, _: Duration, future: F) -> NeverError<F> {
        future.never_error()
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
    fn reset(_: Pin<&mut Pending<()>>, _: Instant) {}

    #[inline]
    fn restart(_: Pin<&mut Pending<()>>, _: Duration) {}
}

/// `tokio::time`.
#[derive(Clone, Copy, Debug)]
pub struct Tokio;

impl Timers for Tokio {
    type Sleep = tokio::time::Sleep;
    type Timeout<F: Future + Send> = tokio::time::Timeout<F>;
    type Error = Elapsed;

    #[inline]
    fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> tokio::time::Timeout<F> {
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
    fn reset(sleep: Pin<&mut tokio::time::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }
}

/// `tickwheel::time`.
#[derive(Clone, Copy, Debug)]
pub struct Global;

impl Timers for Global {
    type Sleep = tickwheel::time::Sleep;
    type Timeout<F: Future + Send> = tickwheel::time::Timeout<F>;
    type Error = tickwheel::time::error::Elapsed;

    #[inline]
    fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> tickwheel::time::Timeout<F> {
        tickwheel::time::timeout(duration, future)
    }

    #[inline]
    fn sleep(&self, duration: Duration) -> tickwheel::time::Sleep {
        tickwheel::time::sleep(duration)
    }

    #[inline]
    fn sleep_until(&self, deadline: Instant) -> tickwheel::time::Sleep {
        tickwheel::time::sleep_until(deadline)
    }

    #[inline]
    fn reset(sleep: Pin<&mut tickwheel::time::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }
}

impl Timers for Wheel {
    type Sleep = tickwheel::Sleep;
    type Timeout<F: Future + Send> = tickwheel::Timeout<F>;
    type Error = tickwheel::time::error::Elapsed;

    #[inline]
    fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> tickwheel::Timeout<F> {
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
    fn reset(sleep: Pin<&mut tickwheel::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }
}
