//! `Wheel::shutdown`, and the unprocessed tasks that it returns.

use crate::{
    engine::{
        engines::{self, wake_all},
        sync::lock,
    },
    wheel::{Wheel, roster::ScheduledTask},
};

impl Wheel {
    /// Ends, once and for all, the timers that may be refused, in all runtimes, and hands back the tasks that
    /// have not started.
    ///
    /// Pending futures of `try_sleep` and `try_timeout` and series of `periodic` resolve to `Shutdown` at
    /// once, and later ones at their first poll, zero durations included. A timeout whose future is ready
    /// still succeeds, and a timer that has expired still elapses, though it is polled afterwards. Every
    /// other sleep, timeout and interval waits on, and tasks that have started keep running. The returned
    /// tasks and timers count as cancelled. A second call returns nothing.
    ///
    /// A returned task runs only if the caller awaits or spawns it, so a bare `wheel.shutdown();` silently
    /// drops every task that has not started.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{ScheduleError, Wheel};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let flush = wheel.schedule(Duration::from_secs(60), async { println!("flushed") });
    ///
    /// for task in wheel.shutdown().tasks {
    ///     task.await; // run it now, or drop it
    /// }
    /// assert_eq!(flush.await, Err(ScheduleError::Shutdown));
    /// # }
    /// ```
    pub fn shutdown(&self) -> Unprocessed {
        let mut unprocessed = Unprocessed::default();
        let (mut joiners, mut wakers) = (Vec::new(), Vec::new());
        let closing = lock(&self.0.closing);
        if !self.shared().limit.shut_down() {
            return unprocessed;
        }
        // The rosters are emptied before the shards, so that no task counts as a pending timer.
        let rosters = self.0.rosters.iter();
        let added: Vec<_> = rosters.flat_map(|roster| roster.close()).collect();
        for task in &added {
            unprocessed.tasks.extend(task.hand_back(&mut joiners));
        }
        for engine in engines::of_wheel(self.shared()) {
            unprocessed.timers += engine.shut_down(&mut wakers);
        }
        // No lock is held from here on, because a waker may shut the wheel down, and to drop a task that
        // finished meanwhile drops its result too.
        drop(closing);
        wake_all(&mut wakers, self.shared());
        wake_all(&mut joiners, self.shared());
        unprocessed
    }
}

/// The unprocessed work returned by [`Wheel::shutdown`].
///
/// Dropping it drops its tasks, which then never run.
///
/// # Examples
///
/// ```
/// let unprocessed = tickwheel::Wheel::new().shutdown();
/// assert_eq!((unprocessed.timers, unprocessed.tasks.len()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct Unprocessed {
    /// The number of pending timers that were ended: those of `try_sleep`, `try_timeout` and `periodic`. That
    /// of a task which another thread is just scheduling may be among them.
    pub timers: usize,
    /// The scheduled tasks that had not started.
    pub tasks: Vec<ScheduledTask>,
}
