//! `Activity`: when an idle timer was touched last, and `IdleHandle`, which touches it.

use std::{fmt, sync::Arc, time::Duration};

use super::IdleTimer;
use crate::{
    engine::{
        moment::Moment,
        shard::{Home, shared_of},
        sync::{AtomicU64, Ordering},
    },
    timers::sleep::Sleep,
};

/// A handle that touches an [`IdleTimer`] from any task.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// let idle = tickwheel::Wheel::new().idle_timer(Duration::from_secs(30));
/// let handle = idle.handle();
/// handle.clone().touch();
/// ```
#[derive(Clone, Debug)]
pub struct IdleHandle {
    activity: Arc<Activity>,
}

/// The last touch, which is shared by the timers that wait for the same silence and by their handles.
pub(super) struct Activity {
    wheel: Home,
    /// The [`Moment`] of the last touch or, before the first touch, of the timer's creation.
    touched: AtomicU64,
}

impl Activity {
    pub(super) fn new(wheel: Home, start: Moment) -> Activity {
        Activity {
            wheel,
            touched: AtomicU64::new(start.0),
        }
    }

    pub(super) fn last_touch(&self) -> Moment {
        Moment(self.touched.load(Ordering::Relaxed))
    }
}

impl IdleHandle {
    pub(super) fn new(activity: Arc<Activity>) -> IdleHandle {
        IdleHandle { activity }
    }

    /// Creates another timer that waits for the same activity to cease, until it has not been touched for `duration`.
    ///
    /// A touch of any handle counts for both timers. The duration counts from the last touch, or from the creation of the first
    /// timer if there has been none, so it may have passed already.
    ///
    /// # Cancellation
    ///
    /// Dropping the timer cancels it at once, and leaves the others as they are.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`Wheel::idle_timer`](crate::Wheel::idle_timer).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let closes = tickwheel::Wheel::new().idle_timer(Duration::from_secs(30));
    /// let warns = closes.handle().timer(Duration::from_secs(20));
    /// warns.await;
    /// println!("closing in ten seconds");
    /// closes.await;
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn timer(&self, duration: Duration) -> IdleTimer {
        let activity = self.activity.clone();
        let sleep = Sleep::after(activity.wheel.clone(), activity.last_touch(), duration);
        IdleTimer::new(sleep, duration, activity)
    }

    /// Restarts the duration of the handle's timers from now.
    ///
    /// A touch costs one clock reading and one atomic maximum. It takes no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let idle = tickwheel::Wheel::new().idle_timer(Duration::from_secs(30));
    /// let handle = idle.handle();
    /// tokio::spawn(async move { handle.touch() }).await.unwrap();
    /// # }
    /// ```
    pub fn touch(&self) {
        // Two threads may get here in either order, and the later touch counts.
        let now = shared_of(&self.activity.wheel).now();
        self.activity.touched.fetch_max(now.0, Ordering::Relaxed);
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity")
            .field("last_touch", &self.last_touch().instant())
            .finish()
    }
}
