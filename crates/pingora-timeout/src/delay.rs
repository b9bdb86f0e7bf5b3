//! The timer of a future: on the wheel of the current runtime, or on the shared one outside any runtime.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tickwheel::Sleep;
use tokio::{
    runtime::Handle,
    time::{Duration, Instant},
};

use crate::own_thread;

/// Completes when its time has come. Polled outside any runtime, it moves to the wheel of its own thread,
/// whatever has become of the runtime in which it was made.
#[doc(hidden)]
pub struct Delay(Timer);

enum Timer {
    /// Its time has come already.
    Ready,
    InRuntime(Sleep),
    Outside(Sleep),
    Boxed(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
}

impl Delay {
    pub(crate) fn ready() -> Delay {
        Delay(Timer::Ready)
    }

    pub(crate) fn boxed(future: Pin<Box<dyn Future<Output = ()> + Send + Sync>>) -> Delay {
        Delay(Timer::Boxed(future))
    }

    pub(crate) fn from_now(duration: Duration) -> Delay {
        Delay(match Handle::try_current() {
            Ok(_) => Timer::InRuntime(tickwheel::time::sleep(duration)),
            Err(_) => Timer::Outside(own_thread::wheel().sleep(duration)),
        })
    }

    pub(crate) fn until(deadline: Instant) -> Delay {
        Delay(match Handle::try_current() {
            Ok(_) => Timer::InRuntime(tickwheel::time::sleep_until(deadline)),
            Err(_) => Timer::Outside(own_thread::wheel().sleep_until(deadline)),
        })
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Timer::Ready => Poll::Ready(()),
            // Its runtime may have ended.
            Timer::InRuntime(sleep) if Handle::try_current().is_err() => {
                let mut outside = own_thread::wheel().sleep_until(sleep.deadline());
                let outcome = Pin::new(&mut outside).poll(cx);
                self.0 = Timer::Outside(outside);
                outcome
            }
            Timer::InRuntime(sleep) => Pin::new(sleep).poll(cx),
            Timer::Outside(sleep) => Pin::new(sleep).poll(cx),
            Timer::Boxed(future) => future.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay").finish_non_exhaustive()
    }
}
