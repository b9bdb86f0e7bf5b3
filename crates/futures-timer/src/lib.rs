//! [`Delay`] of the crate `futures-timer`, on a [`tickwheel`] timing wheel.
//!
//! It replaces that crate for a whole program, dependencies included:
//!
//! ```toml
//! [patch.crates-io]
//! futures-timer = { path = "../tickwheel/crates/futures-timer" }
//! ```
//!
//! Programs and their dependencies then use it as they used the original:
//!
//! ```
//! use futures_timer::Delay;
//! use std::time::Duration;
//!
//! # futures::executor::block_on(async {
//! Delay::new(Duration::from_millis(20)).await;
//! # });
//! ```
//!
//! A delay that is first polled in a Tokio runtime is on [`tickwheel::Wheel::global`], and driven by that
//! runtime. Any other is on one wheel that all such delays share, which a thread of its own drives. That
//! thread starts with the first of them and sleeps while none is pending. A delay moves to that wheel when it
//! is polled outside any runtime, whatever has become of its own.
//!
//! What differs from the original:
//!
//! - A delay is less than one tick late, 1 ms unless [`tickwheel::Builder::build_global`] says otherwise, and
//!   its slack of a thousandth of its duration. It is never early.
//! - In a runtime the delay goes by the runtime's clock, so `tokio::time::pause` and `advance` apply.
//! - In a runtime the timer is driven by that runtime, not by a helper thread. It must have its timers
//!   enabled (`enable_time`), and a task that blocks the only thread of a runtime on a delay, with
//!   `futures::executor::block_on` for example, waits forever.
//! - Creating a delay, dropping it and resetting it to a later instant wake no other thread. The first poll
//!   and a reset to an earlier instant wake the thread that drives the wheel if it would otherwise wake too
//!   late.
//!
//! `docs/migrating.md` in the repository says which programs it suits. Code of your own needs no replacement:
//! [`tickwheel::time::sleep`] is such a delay.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod own_thread;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tickwheel::Sleep;
use tokio::{runtime::Handle, time::Instant};

/// A future that completes when a duration has elapsed.
///
/// # Cancellation
///
/// Dropping it cancels its timer at once.
///
/// # Examples
///
/// ```
/// use futures_timer::Delay;
/// use std::time::Duration;
///
/// # futures::executor::block_on(async {
/// Delay::new(Duration::from_millis(20)).await;
/// # });
/// ```
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Delay {
    deadline: Instant,
    timer: Timer,
}

enum Timer {
    /// Not polled since it was made or elapsed: it is the first poll that says which wheel it is for.
    Idle,
    InRuntime(Sleep),
    Outside(Sleep),
    Elapsed,
}

impl Delay {
    /// Creates a delay that completes `dur` from now.
    ///
    /// It is never early, and less than one tick of its wheel late plus what the runtime adds. A duration
    /// that overflows the clock is taken as 30 years. Making it needs no runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_timer::Delay;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// Delay::new(Duration::from_millis(20)).await;
    /// # }
    /// ```
    #[inline]
    pub fn new(dur: Duration) -> Delay {
        Delay {
            deadline: from_now(dur),
            timer: Timer::Idle,
        }
    }

    /// Resets the delay to complete `dur` from now, also if it had completed.
    ///
    /// The task that polled it last is woken for the new deadline. If the delay had completed, it must be
    /// polled again.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_timer::Delay;
    /// use std::time::Duration;
    ///
    /// # futures::executor::block_on(async {
    /// let mut delay = Delay::new(Duration::from_millis(10));
    /// (&mut delay).await;
    /// delay.reset(Duration::from_millis(10));
    /// delay.await;
    /// # });
    /// ```
    #[inline]
    pub fn reset(&mut self, dur: Duration) {
        self.deadline = from_now(dur);
        match &mut self.timer {
            Timer::InRuntime(sleep) | Timer::Outside(sleep) => sleep.reset_at(self.deadline),
            Timer::Idle | Timer::Elapsed => self.timer = Timer::Idle,
        }
    }
}

/// As the original: 30 years if the clock would overflow.
fn from_now(dur: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
    let now = Instant::now();
    now.checked_add(dur).unwrap_or_else(|| now + FAR)
}

impl Future for Delay {
    type Output = ();

    /// Polls the delay. After it has completed, every poll is ready until it is [`reset`](Delay::reset).
    ///
    /// # Panics
    ///
    /// The first poll panics in a Tokio runtime whose timers are not enabled.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Timer::Idle | Timer::InRuntime(_) = self.timer {
            let is_outside = Handle::try_current().is_err();
            if is_outside {
                // Also for one that was polled in a runtime, which may have ended.
                self.timer = Timer::Outside(own_thread::wheel().sleep_until(self.deadline));
            } else if let Timer::Idle = self.timer {
                self.timer = Timer::InRuntime(tickwheel::time::sleep_until(self.deadline));
            }
        }
        match &mut self.timer {
            Timer::InRuntime(sleep) | Timer::Outside(sleep) => ready!(Pin::new(sleep).poll(cx)),
            Timer::Idle | Timer::Elapsed => {}
        }
        self.timer = Timer::Elapsed;
        Poll::Ready(())
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay").finish_non_exhaustive()
    }
}
