//! `IdleTimer`: completes once it has not been touched for a given duration.
//!
//! Its entry in the wheel wakes the timer itself, not the task. If there was a touch meanwhile, the timer is
//! restarted there and then, so on the real clock traffic does not wake the task. The entry owns a reference
//! to the timer's state until the timer is dropped. The handles own one too, because the last touch lies
//! there.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use crate::{
    engine::{
        clock::{Moment, Nanos},
        shared::WheelRef,
        sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock, try_lock},
        timer::Timer,
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
        let (wheel, now) = (self.reference(), self.shared().now());
        let sleep = Sleep::after(wheel.clone(), now, duration);
        let touches = Touches::Own(Activity {
            wheel,
            touched: AtomicU64::new(now.0),
            busy: AtomicUsize::new(0),
        });
        IdleTimer::new(duration, touches, sleep)
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
#[derive(Clone)]
pub struct IdleHandle {
    /// The timer by which the activity was created.
    first: Arc<Watch>,
}

/// A guard that keeps the timers of an [`IdleHandle`] from elapsing, created by [`IdleHandle::busy`].
///
/// Its drop is a [`touch`](IdleHandle::touch).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let wheel = tickwheel::Wheel::new();
/// let idle = wheel.idle_timer(Duration::from_secs(30));
/// let busy = idle.handle().busy();
/// let request = async {
///     wheel.sleep(Duration::from_secs(300)).await;
///     drop(busy);
/// };
/// tokio::select! {
///     () = idle => unreachable!("a request was in progress"),
///     () = request => {}
/// }
/// # }
/// ```
#[must_use = "the timer waits only while this lives"]
#[derive(Debug)]
pub struct Busy {
    handle: IdleHandle,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.handle.touch();
        // Whoever sees that nothing is busy any more sees the touch too.
        self.handle.first.activity().busy.fetch_sub(1, Ordering::Release);
    }
}

/// The last touch, which timers that wait for the same silence share with their handles.
struct Activity {
    wheel: WheelRef,
    /// The [`Moment`] of the last touch or, before the first touch, of the timer's creation.
    touched: AtomicU64,
    /// How many [`Busy`] guards live.
    busy: AtomicUsize,
}

impl Activity {
    fn last_touch(&self) -> Moment {
        Moment(self.touched.load(Ordering::Relaxed))
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
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
        let activity = self.first.activity();
        let sleep = Sleep::after(activity.wheel.clone(), activity.last_touch(), duration);
        IdleTimer::new(duration, Touches::Of(self.first.clone()), sleep)
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
        let activity = self.first.activity();
        let now = activity.wheel.now();
        // Two threads may get here in either order, and the later touch counts.
        activity.touched.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Keeps the handle's timers from elapsing until the returned guard is dropped, which is a
    /// [`touch`](IdleHandle::touch).
    ///
    /// For a connection on which the peer may be silent while a request is in progress. If there are several
    /// guards, the timers' durations count from the drop of the last. Meanwhile each timer is restarted once
    /// in its duration, or in a millisecond if that is longer, and its task is not woken. A guard costs one
    /// atomic addition and at its drop one more, and what a touch costs. It takes no lock.
    ///
    /// # Examples
    ///
    /// A server that closes connections on which it neither works nor receives anything for 30 s:
    ///
    /// ```
    /// use tickwheel::{IdleHandle, Wheel};
    /// use tokio::{io::{AsyncReadExt, AsyncWriteExt}, net::TcpStream};
    /// # use std::{io, time::Duration};
    ///
    /// async fn answer(wheel: &Wheel, idle: IdleHandle, stream: &mut TcpStream) -> io::Result<()> {
    ///     loop {
    ///         let question = stream.read_u8().await?;
    ///         let _busy = idle.busy();
    ///         wheel.sleep(Duration::from_secs(question.into())).await; // may take minutes
    ///         stream.write_u8(42).await?;
    ///     }
    /// }
    ///
    /// async fn serve(wheel: &Wheel, mut stream: TcpStream) -> io::Result<()> {
    ///     let idle = wheel.idle_timer(Duration::from_secs(30));
    ///     tokio::select! {
    ///         answered = answer(wheel, idle.handle(), &mut stream) => answered,
    ///         () = idle => Ok(()),
    ///     }
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> io::Result<()> {
    /// # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// # let mut client = TcpStream::connect(listener.local_addr()?).await?;
    /// # let stream = listener.accept().await?.0;
    /// # tokio::spawn(async move { serve(&Wheel::new(), stream).await });
    /// # client.write_u8(0).await?;
    /// # assert_eq!(client.read_u8().await?, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn busy(&self) -> Busy {
        self.first.activity().busy.fetch_add(1, Ordering::Relaxed);
        Busy { handle: self.clone() }
    }
}

impl fmt::Debug for IdleHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleHandle")
            .field("activity", self.first.activity())
            .finish()
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity")
            .field("last_touch", &self.last_touch().instant())
            .field("busy", &self.busy.load(Ordering::Relaxed))
            .finish()
    }
}

/// The state that a timer shares with its entry in the wheel, whose waker it is.
struct Watch {
    duration: Nanos,
    touches: Touches,
    /// Locked during a poll, in which user code may run.
    sleep: Mutex<Sleep>,
    /// The waker of the waiting task. No user code runs under this lock, because it could wake the timer.
    task: Mutex<Option<Waker>>,
}

/// The touches that a timer waits for to cease.
enum Touches {
    Own(Activity),
    /// Those of the timer by whose handle this one was created.
    Of(Arc<Watch>),
}

impl IdleTimer {
    fn new(duration: Duration, touches: Touches, sleep: Sleep) -> IdleTimer {
        let watch = Arc::new(Watch {
            duration: Nanos::of(duration),
            touches,
            sleep: Mutex::new(sleep),
            task: Mutex::new(None),
        });
        IdleTimer { watch }
    }

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
        let first = match &self.watch.touches {
            Touches::Own(_) => &self.watch,
            Touches::Of(first) => first,
        };
        IdleHandle { first: first.clone() }
    }
}

impl Watch {
    #[inline]
    fn activity(&self) -> &Activity {
        match &self.touches {
            Touches::Own(activity) => activity,
            Touches::Of(first) => first.activity(),
        }
    }

    /// Returns the deadline of `timer`. It counts from the last touch or, while something is busy, from now.
    fn deadline_of(&self, timer: &Timer) -> Moment {
        let activity = self.activity();
        if activity.is_busy() {
            timer.now().after(self.least_duration())
        } else {
            activity.last_touch().after(self.duration)
        }
    }

    /// Returns for how long the timer is restarted at least, which is not again and again within a tick.
    fn least_duration(&self) -> Nanos {
        self.duration.max(Nanos::MILLISECOND)
    }

    /// Returns the moment from which a deadline counts. It is not after now.
    fn start_of(&self, deadline: Moment) -> Moment {
        deadline.before(self.least_duration())
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
            let timer = &mut sleep.timer;
            // One that has completed or was dropped stays so, and without its engine, the task has to poll
            // it.
            if timer.is_waiting() && !timer.has_lost_engine() {
                let deadline = self.deadline_of(timer);
                let woken = timer.reset(deadline, Moment::ZERO);
                let polled = timer.poll_with(|| Waker::from(self.clone()), self.start_of(deadline));
                let waits_on = polled.is_pending() && timer.is_waiting();
                drop(sleep);
                woken.into_iter().for_each(Waker::wake);
                if waits_on {
                    return;
                }
            }
        }
        self.take_task().into_iter().for_each(Waker::wake);
    }
}

impl Future for IdleTimer {
    type Output = ();

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let watch = &self.watch;
        let mut sleep = lock(&watch.sleep);
        // Before the timer is polled, so that whoever finds it being polled wakes this task.
        let is_known = |task: &Waker| task.will_wake(cx.waker());
        if !lock(&watch.task).as_ref().is_some_and(is_known) {
            let task = cx.waker().clone();
            let former = lock(&watch.task).replace(task);
            drop(former);
        }
        let polled = loop {
            let deadline = watch.deadline_of(&sleep.timer);
            if deadline > sleep.timer.deadline() {
                sleep.reset_to(deadline, Moment::ZERO);
            }
            let polled = sleep.poll_with(|| Waker::from(watch.clone()), watch.start_of(deadline), cx);
            // Something may have become busy since, or the thread may have been held up until the deadline.
            if polled.is_pending() || !watch.activity().is_busy() {
                break polled;
            }
        };
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
        // A handle of the timer keeps its state, and is to keep no task alive.
        drop(self.watch.take_task());
    }
}

impl fmt::Debug for IdleTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleTimer")
            .field("duration", &self.watch.duration.to_duration())
            .field("activity", self.watch.activity())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use tokio::time::advance;
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_that_comes_after_the_timer_has_elapsed_leaves_the_next_wait_alone() {
        let duration = Duration::from_secs(5);
        let mut idle = task::spawn(Wheel::new().idle_timer(duration));
        assert_pending!(idle.poll());
        advance(duration).await;
        assert_ready!(idle.poll());
        idle.handle().touch();
        // The driver had taken the waker out before that poll.
        Arc::clone(&idle.watch).wake();
        assert_pending!(idle.poll());
        advance(duration).await;
        assert_ready!(idle.poll());
    }
}
