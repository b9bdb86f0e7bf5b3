//! Timeouts on the wheel.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::time::Duration;

use crate::{Delay, Timeout, ToTimeout, TokioTimeout, timer::TimerManager};

static TIMER_MANAGER: TimerManager = TimerManager::unpaused();

/// The duration above which [`fast_timeout()`] uses Tokio's timer, unless it is set: 15 minutes.
pub const DEFAULT_FAST_TIMEOUT_TO_TOKIO_THRESHOLD: Duration = Duration::from_secs(15 * 60);

/// In seconds. Never, if it is [`DISABLED`].
static THRESHOLD: AtomicU64 = AtomicU64::new(DEFAULT_FAST_TIMEOUT_TO_TOKIO_THRESHOLD.as_secs());
const DISABLED: u64 = u64::MAX;

/// Sets the duration above which [`fast_timeout()`] uses Tokio's timer, in whole seconds, rounded down: a
/// timeout of as many whole seconds still uses the wheel. `None` means never.
///
/// A dropped timer leaves the wheel at once, however far away it is, so `None` costs nothing here.
///
/// # Examples
///
/// ```
/// use pingora_timeout::fast_timeout::{fast_timeout_to_tokio_threshold, set_fast_timeout_to_tokio_threshold};
///
/// set_fast_timeout_to_tokio_threshold(None);
/// assert_eq!(fast_timeout_to_tokio_threshold(), None);
/// ```
pub fn set_fast_timeout_to_tokio_threshold(threshold: Option<Duration>) {
    THRESHOLD.store(threshold.map_or(DISABLED, |it| it.as_secs()), Ordering::Relaxed);
}

/// Returns the duration above which [`fast_timeout()`] uses Tokio's timer.
pub fn fast_timeout_to_tokio_threshold() -> Option<Duration> {
    match THRESHOLD.load(Ordering::Relaxed) {
        DISABLED => None,
        seconds => Some(Duration::from_secs(seconds)),
    }
}

/// A timer on the wheel.
#[derive(Debug)]
pub struct FastTimeout(Duration);

impl ToTimeout for FastTimeout {
    fn timeout(&self) -> Pin<Box<dyn Future<Output = ()> + Send + Sync>> {
        Box::pin(self.delay())
    }

    fn create(d: Duration) -> FastTimeout {
        FastTimeout(d)
    }

    fn delay(&self) -> Delay {
        TIMER_MANAGER.delay(self.0)
    }
}

/// The timer of a [`fast_timeout()`]: on the wheel, or Tokio's above the threshold.
#[derive(Debug)]
pub struct FastOrTokioTimeout {
    duration: Duration,
    tokio: bool,
}

impl ToTimeout for FastOrTokioTimeout {
    fn timeout(&self) -> Pin<Box<dyn Future<Output = ()> + Send + Sync>> {
        if self.tokio {
            TokioTimeout::create(self.duration).timeout()
        } else {
            FastTimeout::create(self.duration).timeout()
        }
    }

    fn create(duration: Duration) -> FastOrTokioTimeout {
        let threshold = fast_timeout_to_tokio_threshold();
        FastOrTokioTimeout {
            duration,
            tokio: threshold.is_some_and(|threshold| duration.as_secs() > threshold.as_secs()),
        }
    }

    fn delay(&self) -> Delay {
        if self.tokio {
            TokioTimeout::create(self.duration).delay()
        } else {
            FastTimeout::create(self.duration).delay()
        }
    }
}

/// Limits a future to a duration.
///
/// The timer starts at the first poll that finds the future pending. It is never early, and less than one
/// tick of its wheel late.
///
/// # Examples
///
/// ```
/// use pingora_timeout::timeout;
/// use std::{future::pending, time::Duration};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert_eq!(timeout(Duration::from_secs(1), async { 7 }).await.unwrap(), 7);
/// assert!(timeout(Duration::from_millis(10), pending::<()>()).await.is_err());
/// # }
/// ```
pub fn fast_timeout<T>(duration: Duration, future: T) -> Timeout<T, FastOrTokioTimeout>
where
    T: Future,
{
    Timeout::new(future, FastOrTokioTimeout::create(duration))
}

/// Waits until a duration has elapsed since the first poll.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// pingora_timeout::sleep(std::time::Duration::from_millis(10)).await;
/// # }
/// ```
pub async fn fast_sleep(duration: Duration) {
    TIMER_MANAGER.delay(duration).await
}

/// Holds timers back from the wheel before a `fork`: [`TimerManager::pause_for_fork`] of the one that
/// everything here uses.
pub fn pause_for_fork() {
    TIMER_MANAGER.pause_for_fork();
}

/// Lets timers on the wheel again after a `fork`.
pub fn unpause() {
    TIMER_MANAGER.unpause();
}
