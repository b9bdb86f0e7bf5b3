//! `IdleTimer`: completes once it has not been touched for a given duration.
//!
//! Its entry in the wheel wakes the timer itself, not the task. If there was a touch meanwhile, the timer is re-armed there and then, so
//! on the real clock traffic does not wake the task. The entry owns a reference to the timer's state until the timer is dropped.

mod activity;

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use crate::{
    engine::{
        moment::{Moment, Nanos},
        sync::{Mutex, lock},
    },
    timers::sleep::Sleep,
    wheel::Wheel,
};
use activity::Activity;

pub use activity::IdleHandle;

impl Wheel {
    /// Waits until the timer has not been touched for `duration`, as Netty's `IdleStateHandler` does.
    ///
    /// The duration counts from this call, and then from each [`touch`](IdleHandle::touch). The timer is never early, and less
    /// than one tick late plus its slack and the runtime's own delay. A touch costs a clock reading and an atomic maximum: the timer is started anew
    /// only when its old deadline comes, however many touches there were. Like a [`sleep`](Wheel::sleep), it is never refused.
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
        let start = self.shared().now();
        let sleep = Sleep::after(self.home(), start, duration);
        let activity = Activity::new(self.unbound(), start);
        IdleTimer::new(sleep, duration, Arc::new(activity))
    }
}

/// The future returned by [`Wheel::idle_timer`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until it is touched. It
/// then waits until `duration` has passed since the last touch.
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

/// The state that a timer shares with its entry in the wheel, which has it as its waker.
struct Watch {
    duration: Duration,
    activity: Arc<Activity>,
    waiting: Mutex<Waiting>,
}

/// No user code runs under this lock, because it could wake the timer.
struct Waiting {
    /// `None` while it is polled.
    sleep: Option<Sleep>,
    /// Whether the timer was woken while it was polled.
    woken: bool,
    /// The waker of the task that waits.
    task: Option<Waker>,
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
        IdleHandle::new(self.watch.activity.clone())
    }

    fn new(sleep: Sleep, duration: Duration, activity: Arc<Activity>) -> IdleTimer {
        let waiting = Waiting {
            sleep: Some(sleep),
            woken: false,
            task: None,
        };
        let watch = Watch {
            duration,
            activity,
            waiting: Mutex::new(waiting),
        };
        IdleTimer {
            watch: Arc::new(watch),
        }
    }
}

impl Watch {
    /// Returns the deadline that counts from a touch.
    fn deadline(&self, touched: Moment) -> Moment {
        touched.after(Nanos::of(self.duration))
    }
}

/// Puts the sleep back after a poll, even if that has panicked.
struct Polling<'a> {
    watch: &'a Watch,
    sleep: Option<Sleep>,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            lock(&self.watch.waiting).sleep = Some(sleep);
        }
    }
}

/// The timer's entry has expired, or its engine has ended.
impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        let mut waiting = lock(&self.waiting);
        let Some(sleep) = &mut waiting.sleep else {
            waiting.woken = true;
            return;
        };
        let deadline = self.deadline(self.activity.last_touch());
        let wait = Nanos::of(self.duration);
        if sleep.timer.start_anew(deadline, wait, &Waker::from(self.clone())) {
            return;
        }
        let task = waiting.task.take();
        drop(waiting);
        task.into_iter().for_each(Waker::wake);
    }
}

impl Future for IdleTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let watch = &self.watch;
        let (sleep, is_known) = {
            let mut waiting = lock(&watch.waiting);
            let task = waiting.task.as_ref();
            let is_known = task.is_some_and(|task| task.will_wake(cx.waker()));
            waiting.woken = false;
            (waiting.sleep.take(), is_known)
        };
        let mut polling = Polling { watch, sleep };
        let Some(sleep) = &mut polling.sleep else {
            unreachable!("only a poll takes the sleep, and puts it back");
        };
        let mut task = (!is_known).then(|| cx.waker().clone());
        let deadline = watch.deadline(watch.activity.last_touch());
        if deadline > sleep.timer.deadline() {
            sleep.reset_ahead(deadline);
        }
        let polled = sleep.poll_for(&Waker::from(watch.clone()), cx);
        if polled.is_ready() {
            // A timer that has completed keeps no task alive.
            task = None;
        }
        let mut waiting = lock(&watch.waiting);
        waiting.sleep = polling.sleep.take();
        let woken = waiting.woken && polled.is_pending();
        if polled.is_ready() || !is_known {
            mem::swap(&mut waiting.task, &mut task);
        }
        drop(waiting);
        drop(task);
        if woken {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

impl Drop for IdleTimer {
    fn drop(&mut self) {
        let (sleep, task) = {
            let mut waiting = lock(&self.watch.waiting);
            (waiting.sleep.take(), waiting.task.take())
        };
        // With no lock held, because its entry has this timer as its waker.
        drop(sleep);
        drop(task);
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
