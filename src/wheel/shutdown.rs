//! `Wheel::shutdown`, and the unprocessed tasks that it returns.

use crate::{
    engine::{
        shard::{Drive, Wakers},
        sync::lock,
    },
    wheel::{Wheel, roster::ScheduledTask},
};

impl Wheel {
    /// Stops the wheel for good, and hands back the tasks that have not started.
    ///
    /// Pending futures of `try_sleep` and `try_timeout` resolve to `Shutdown` at once, and later ones as soon as they need a timer. Every
    /// other sleep, timeout and interval waits for the same instant on Tokio's timer. Tasks that have started keep running. The returned
    /// tasks and timers count as cancelled. A second call returns nothing.
    ///
    /// A returned task runs only if the caller awaits or spawns it, so a bare `wheel.shutdown();` silently drops every task that
    /// has not started.
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
        let mut wakers = Wakers::default();
        // Dropped when no lock is held, because dropping a task that finished meanwhile drops its result too.
        let added: Vec<_>;
        {
            let _closing = lock(&self.parts.closing);
            let rosters = &self.parts.rosters;
            added = rosters.iter().flat_map(|roster| roster.close()).collect();
            // The rosters are emptied before the shards, so that no shard counts a task as a pending timer.
            for task in &added {
                unprocessed.tasks.extend(task.hand_back(&mut wakers));
            }
            for shard in &self.parts.shards {
                unprocessed.timers += shard.shutdown(&mut wakers);
            }
        }
        self.parts.driver.wake(&mut wakers);
        self.parts.driver.wake_task();
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
    /// The number of sleeps, timeouts, intervals, idle timers and periodic series that were pending.
    pub timers: usize,
    /// The scheduled tasks that had not started.
    pub tasks: Vec<ScheduledTask>,
}
