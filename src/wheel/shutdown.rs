//! `Wheel::shutdown`, and the unprocessed tasks that it returns.

use crate::{
    engine::{sync::lock, turn::wake_all},
    wheel::{Wheel, roster::ScheduledTask},
};

impl Wheel {
    /// Ends, once and for all, what may be refused, in all runtimes, and hands back the tasks that have not
    /// started.
    ///
    /// Pending futures of `try_sleep` and `try_timeout` and series of `periodic` resolve to `Shutdown` at
    /// once, and later ones at their first poll, zero durations included. A timeout whose future is ready
    /// still succeeds, and a timer that was due before still elapses, though it is polled afterwards. Every
    /// other sleep, timeout and interval waits on and is not woken, and tasks that have started keep running.
    /// The returned tasks count as cancelled. A future that resolves to `Shutdown` counts as pending until it
    /// has been polled or dropped. A second call returns nothing.
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
        let mut wakers = Vec::new();
        let closing = lock(&self.0.closing);
        // Set before a roster is closed, so that whoever is told by a closed one finds it set.
        if !self.permits().shut_down() {
            return unprocessed;
        }
        for stripe in &self.0.stripes {
            wakers.extend(stripe.sleepers.close());
            for task in stripe.tasks.close() {
                unprocessed.tasks.extend(task.hand_back(&mut wakers));
            }
        }
        // No lock is held from here on, because a waker may shut the wheel down.
        drop(closing);
        wake_all(&mut wakers, self.shared());
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
/// assert!(unprocessed.tasks.is_empty());
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Unprocessed {
    /// The scheduled tasks that had not started.
    pub tasks: Vec<ScheduledTask>,
}
