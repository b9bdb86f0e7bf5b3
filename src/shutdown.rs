//! `Wheel::shutdown` and the unprocessed tasks that it returns.

use crate::{
    roster::{Roster, ScheduledTask},
    shard::{Drive, Wakers},
    wheel::Wheel,
};

impl Wheel {
    /// Stops the wheel for good, and hands back the tasks that have not started.
    ///
    /// Every pending sleep, timeout and interval resolves to `Shutdown` at once, and every later one at its first poll. Tasks that have
    /// started keep running. Tasks and timers that are returned count as cancelled. A second call returns nothing.
    ///
    /// A task handed back runs only if the caller awaits or spawns it. A bare `wheel.shutdown();` silently drops them all.
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
        // Dropped with no lock held: dropping a task that finished meanwhile drops its result too.
        let added: Vec<_>;
        {
            let _closing = self.closing();
            added = self.rosters().flat_map(Roster::close).collect();
            // The rosters come before the shards, so that the shards count no task as a pending timer.
            for task in &added {
                unprocessed.tasks.extend(task.hand_back(&mut wakers));
            }
            for shard in self.shard_list() {
                unprocessed.timers += shard.shutdown(&mut wakers);
            }
        }
        self.driver().wake(&mut wakers);
        self.driver().wake_task();
        unprocessed
    }
}

/// Unprocessed work that [`Wheel::shutdown`] returns.
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
    /// Number of sleeps, timeouts, intervals, idle timers and periodic series that were pending.
    pub timers: usize,
    /// Every scheduled task that had not started.
    pub tasks: Vec<ScheduledTask>,
}
