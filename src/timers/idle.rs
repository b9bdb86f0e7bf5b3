//! `IdleTimer`: completes once it has not been touched for a given duration.
//!
//! Its entry in the wheel wakes the timer itself, not the task. If there was a touch meanwhile, the timer is
//! restarted there and then, so on the real clock traffic does not wake the task. The entry owns a reference
//! to the timer's state until the timer is dropped.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use crate::{
    engine::{
        clock::{Moment, Nanos},
        shard::{TimerShard, shared_of},
        sync::{AtomicU64, Mutex, Ordering, lock, try_lock},
    },
    timers::sleep::Sleep,
    wheel::Wheel,
};

impl Wheel {
    /// Waits until `duration` has passed without a [`touch`](IdleHandle::touch), as Netty's
    /// `IdleStateHandler` does.
    ///
    /// The duration counts from this call, and then from each [`touch`](IdleHandle::touch). The timer is
    /// never early, and less than one tick late plus its slack and the runtime's own delay. A touch costs a
    /// clock reading and an atomic maximum: the timer is restarted only when its old deadline comes, however
    /// many touches there were. Like a [`sleep`](Wheel::sleep), it is never refused.
    ///
    /// # Cancellation
    ///
    /// Dropping the timer cancels it at once, after which its handles have no effect on it.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`sleep`](Wheel::sleep).
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let idle = Wheel::new().idle_timer(Duration::from_millis(30));
    /// let traffic = idle.handle();
    /// tokio::spawn(async move { traffic.touch() });
    /// idle.await; // 30 ms after the touch
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn idle_timer(&self, duration: Duration) -> IdleTimer {
        let activity = Arc::new(Activity {
            wheel: self.unbound_shard_anywhere(),
            touched: AtomicU64::new(self.shared().now().0),
        });
        IdleHandle { activity }.timer(duration)
    }
}

/// The future returned by [`Wheel::idle_timer`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until
/// it is touched. It then waits until `duration` has passed since the last touch.
///
/// # Examples
///
/// ```
/// # use tokio::time::{Duration, Instant};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut idle = tickwheel::Wheel::new().idle_timer(Duration::from_millis(20));
/// let traffic = idle.handle();
/// (&mut idle).await;
/// (&mut idle).await; // at once
///
/// let touched = Instant::now();
/// traffic.touch();
/// (&mut idle).await;
/// assert!(touched.elapsed() >= Duration::from_millis(20));
/// # }
/// ```
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct IdleTimer {
    watch: Arc<Watch>,
}

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
struct Activity {
    wheel: TimerShard,
    /// The [`Moment`] of the last touch or, before the first touch, of the timer's creation.
    touched: AtomicU64,
}

impl Activity {
    fn last_touch(&self) -> Moment {
        Moment(self.touched.load(Ordering::Relaxed))
    }
}

impl IdleHandle {
    /// Creates another timer for the same touches, which waits until `duration` has passed without one.
    ///
    /// A touch of any handle counts for both timers. The duration counts from the last touch, or from the
    /// creation of the first timer if there has been none, so it may have passed already.
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
        let watch = Arc::new(Watch {
            duration,
            activity,
            sleep: Mutex::new(sleep),
            task: Mutex::new(None),
        });
        IdleTimer { watch }
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

/// The state that a timer shares with its entry in the wheel, whose waker it is.
struct Watch {
    duration: Duration,
    activity: Arc<Activity>,
    /// Locked during a poll, in which user code may run.
    sleep: Mutex<Sleep>,
    /// The waker of the waiting task. No user code runs under this lock, because it could wake the timer.
    task: Mutex<Option<Waker>>,
}

impl IdleTimer {
    /// Returns a handle that touches this timer.
    ///
    /// There can be any number of handles.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// let idle = tickwheel::Wheel::new().idle_timer(Duration::from_secs(30));
    /// idle.handle().touch();
    /// ```
    pub fn handle(&self) -> IdleHandle {
        let activity = self.watch.activity.clone();
        IdleHandle { activity }
    }
}

impl Watch {
    /// Returns the deadline that counts from the last touch.
    fn deadline(&self) -> Moment {
        self.activity.last_touch().after(Nanos::of(self.duration))
    }

    /// Takes the waker of the waiting task, for the caller to wake or drop with no lock held.
    fn take_task(&self) -> Option<Waker> {
        lock(&self.task).take()
    }
}

/// Called when the timer's entry has expired or its engine has ended.
impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        // If the timer is being polled, the task has to poll it again.
        if let Some(mut sleep) = try_lock(&self.sleep) {
            let (deadline, wait) = (self.deadline(), Nanos::of(self.duration));
            if sleep.timer.start_anew(deadline, wait, &Waker::from(self.clone())) {
                return;
            }
        }
        self.take_task().into_iter().for_each(Waker::wake);
    }
}

impl Future for IdleTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let watch = &self.watch;
        let is_known = |task: &Waker| task.will_wake(cx.waker());
        if !lock(&watch.task).as_ref().is_some_and(is_known) {
            let task = cx.waker().clone();
            let former = lock(&watch.task).replace(task);
            drop(former);
        }
        let mut sleep = lock(&watch.sleep);
        let deadline = watch.deadline();
        if deadline > sleep.timer.deadline() {
            sleep.reset(deadline.instant());
        }
        let polled = sleep.poll_for(&Waker::from(watch.clone()), cx);
        drop(sleep);
        if polled.is_ready() {
            // A timer that has completed keeps no task alive.
            drop(watch.take_task());
        }
        polled
    }
}

impl Drop for IdleTimer {
    fn drop(&mut self) {
        // The entry has this timer as its waker, and would keep it alive.
        let entry = lock(&self.watch.sleep).timer.cancel();
        drop(entry);
        drop(self.watch.take_task());
    }
}

impl fmt::Debug for IdleTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleTimer")
            .field("duration", &self.watch.duration)
            .field("activity", &self.watch.activity)
            .finish_non_exhaustive()
    }
}
