//! What a shard asks of the driver.

use std::{any::Any, sync::Arc};

use tokio::time::Instant;

use super::Shard;
use crate::error::Refusal;

/// What a shard needs of its driver.
pub(crate) trait Drive: Send + Sync {
    /// Makes the driver come at `at`, unless it comes earlier anyway. It never wakes the driver on the calling thread.
    fn wake_by(&self, at: Instant);

    /// Makes the driver look whether it is still needed.
    fn wake_task(&self);

    /// Starts a driver if there is none. Returns `Err` if its runtime has gone too.
    fn start(self: Arc<Self>) -> Result<(), Refusal>;

    /// Reads the clock of the driver's runtime.
    fn now(&self) -> Instant;

    /// An instant of the clock that the wheel goes by, as one of the clock here, where that is another: as far away.
    fn instant_here(&self, instant: Instant) -> Instant;

    /// The shard of the same wheel for the thread with this number.
    fn sibling(&self, number: usize) -> Option<Arc<Shard>>;

    /// The driver itself, for those that know more of it than a shard does.
    fn as_any(&self) -> &dyn Any;
}
