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

    /// Starts a driver if there is none. Returns `Err` if its runtime has ended too, or in the destructors of thread-locals if
    /// Tokio's own have gone.
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

/// A shard for unit tests, and the stand-in for its driver.
#[cfg(all(test, not(loom)))]
pub(super) mod fixture {
    use std::{sync::Arc, task::Waker, time::Duration};

    use tokio::time::Instant;

    use super::Drive;
    use crate::{
        engine::{
            clock::{Clock, MILLISECOND, Source},
            labels::Stripe,
            shard::Shard,
            timing_wheel::{Nanos, TickDuration, TimingWheel},
        },
        error::SleepError,
    };

    /// Starts nothing, because the test itself attaches, visits and detaches.
    pub(in crate::engine::shard) struct StandIn<W> {
        /// How far its clock is ahead of the machine's.
        pub(in crate::engine::shard) ahead: Duration,
        /// Called in place of [`Drive::wake_by`].
        pub(in crate::engine::shard) wake: W,
    }

    impl<W: Fn() -> bool + Send + Sync> Drive for StandIn<W> {
        fn wake_by(&self, _: Instant) -> bool {
            (self.wake)()
        }

        fn wake_task(&self) {}

        fn start(self: Arc<Self>) -> Result<(), SleepError> {
            Err(SleepError::Shutdown)
        }

        fn now(&self) -> Instant {
            Instant::now() + self.ahead
        }

        fn has_come(&self, _: Instant) -> bool {
            true
        }

        fn instant_here(&self, instant: Instant) -> Instant {
            instant
        }

        fn sibling(&self, _: usize) -> Option<Arc<Shard>> {
            None
        }
    }

    /// Creates a shard that has no driver, and the clock of one.
    pub(in crate::engine::shard) fn driverless_shard(
        ticks_per_wheel: usize,
        levels: usize,
    ) -> (Shard, Clock) {
        let tick = TickDuration::new(MILLISECOND);
        let clock = Clock::new(Instant::now(), Nanos::ZERO, tick, Source::Machine);
        let wheel = TimingWheel::new(ticks_per_wheel, levels);
        (shard_of(clock, wheel, no_driver()), clock)
    }

    pub(in crate::engine::shard) fn no_driver() -> Arc<dyn Drive> {
        Arc::new(StandIn {
            ahead: Duration::ZERO,
            wake: || false,
        })
    }

    /// Creates a shard that has no driver yet, and waits for one with this clock.
    pub(in crate::engine::shard) fn shard_of(
        clock: Clock,
        wheel: TimingWheel<Waker>,
        driver: Arc<dyn Drive>,
    ) -> Shard {
        Shard::new(wheel, clock, 0, None, Stripe::new(Arc::default()), driver, (0, 0))
    }
}
