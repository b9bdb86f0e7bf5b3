//! `Wheel::shutdown`, and what it hands back.

use crate::{
    roster::{Roster, ScheduledTask},
    shard::{Drive, Wakers},
    wheel::Wheel,
};

impl Wheel {
    /// Stops the wheel once and for all, and hands back what it will not do.
    ///
    /// Every pending sleep, timeout and interval resolves to `Shutdown` at once, and every later one at its first poll. A
    /// task that has started runs on. Whatever is returned counts as cancelled. A second call returns nothing more.
    ///
    /// A task handed back runs only if the caller awaits or spawns it: a bare `wheel.shutdown();` drops them all, silently.
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
        // Dropped, like woken, with no lock held: with a task that started meanwhile may go its result.
        let added: Vec<_>;
        {
            let _closing = self.closing();
            added = self.rosters().flat_map(Roster::close).collect();
            // Before the shards: what they then count as pending is no task's.
            for task in &added {
                unprocessed.tasks.extend(task.hand_back(&mut wakers));
            }
            for shard in self.shard_list() {
                unprocessed.timers += shard.shutdown(&mut wakers);
            }
        }
        self.driver().wake(&mut wakers);
        self.driver().wake_now();
        unprocessed
    }
}

/// What [`Wheel::shutdown`] hands back.
///
/// Dropping it drops the tasks in it, which then never run.
///
/// # Examples
///
/// ```
/// let unprocessed = tickwheel::Wheel::new().shutdown();
/// assert_eq!((unprocessed.timers, unprocessed.tasks.len()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct Unprocessed {
    /// How many sleeps, timeouts, intervals, idle timers and periodic series were pending.
    pub timers: usize,
    /// Every scheduled task that had not started.
    pub tasks: Vec<ScheduledTask>,
}
