//! The pause of all timers around a `fork`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tokio::time::{Duration, Instant};

use crate::Delay;

/// Long enough for every thread that is within a call of the wheel to return from it.
const WITHIN_A_CALL: Duration = Duration::from_millis(20);

/// Waits for a timer of a [`TimerManager`].
#[derive(Debug)]
pub struct TimerStub {
    /// `None` if the timer was registered during a pause.
    deadline: Option<Instant>,
}

impl TimerStub {
    /// Waits until the timer expires.
    pub async fn poll(self) {
        if let Some(deadline) = self.deadline {
            Delay::until(deadline).await;
        }
    }
}

/// Registers timers, unless it is paused.
///
/// # Examples
///
/// ```
/// use pingora_timeout::timer::TimerManager;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let timers = TimerManager::new();
/// timers.register_timer(Duration::from_millis(10)).poll().await;
/// # }
/// ```
#[derive(Debug, Default)]
pub struct TimerManager {
    paused: AtomicBool,
}

impl TimerManager {
    /// Creates a manager of timers.
    pub fn new() -> TimerManager {
        TimerManager::unpaused()
    }

    pub(crate) const fn unpaused() -> TimerManager {
        TimerManager {
            paused: AtomicBool::new(false),
        }
    }

    /// Registers a timer that expires `duration` from now, whether or not anybody waits for it. During a
    /// pause it has expired at once.
    ///
    /// A duration that overflows the clock is taken as 30 years.
    pub fn register_timer(&self, duration: Duration) -> TimerStub {
        const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
        let now = Instant::now();
        let deadline = now.checked_add(duration).unwrap_or_else(|| now + FAR);
        TimerStub {
            deadline: (!self.is_paused()).then_some(deadline),
        }
    }

    pub(crate) fn delay(&self, duration: Duration) -> Delay {
        if self.is_paused() {
            Delay::ready()
        } else {
            Delay::from_now(duration)
        }
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Holds new timers back from the wheel, and waits for 20 ms until none is being registered. Call it
    /// right before `fork`.
    ///
    /// A lock that another thread holds during a `fork` stays locked in the child for ever. Runtimes, like
    /// all threads, do not survive a `fork`: start them after it.
    pub fn pause_for_fork(&self) {
        self.paused.store(true, Ordering::SeqCst);
        thread::sleep(WITHIN_A_CALL);
    }

    /// Lets timers on the wheel again. Call it right after `fork`.
    pub fn unpause(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }
}
