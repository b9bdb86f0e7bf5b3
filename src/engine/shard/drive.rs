//! What a shard asks of the driver.

use std::sync::Arc;

use tokio::time::Instant;

use super::Shard;
use crate::error::SleepError;

/// The operations of the driver that a shard needs.
pub(crate) trait Drive: Send + Sync {
    /// Makes the driver run at `at` or earlier. It never runs on the calling thread. Returns `true` if the instant is known to have
    /// come already.
    fn wake_by(&self, at: Instant) -> bool;

    /// Makes the driver check whether it is still needed.
    fn wake_task(&self);

    /// Starts a driver if there is none. Returns `Err` if its runtime has ended too.
    fn start(self: Arc<Self>) -> Result<(), SleepError>;

    /// Reads the clock of the driver's runtime.
    fn now(&self) -> Instant;

    /// Returns whether an instant that is no later than now has come: on the machine's clock always, and on a test's clock if its
    /// millisecond has.
    fn has_come(&self, instant: Instant) -> bool;

    /// Converts an instant of the clock that the wheel uses into one of the caller's clock, the same time away.
    fn instant_here(&self, instant: Instant) -> Instant;

    /// Returns the shard of the same wheel for the thread with this number.
    fn sibling(&self, number: usize) -> Option<Arc<Shard>>;
}
