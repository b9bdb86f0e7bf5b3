//! The engine: a wheel's part in one runtime, with its shards, its driver and its clock. It knows nothing of
//! futures.
//!
//! **The life of a timeout.**
//!
//! ```text
//! first pending poll   timer     reads the clock; takes over a spare of the thread, or:
//!                      thread    finds the runtime, and this thread's shard there
//!                      registry  finds the runtime's engine, which begins if there is none
//!                      shard     puts the waker into the timing wheel, under the lock; moves the alarm if the next visit would be too late
//! next polls           timer     one load: is the entry due after the horizon?
//! it completes         thread    keeps the entry as a spare
//! it elapses           engine    Tokio's timer fires, and its waker makes a turn
//!                      turn      visits the shards that have something due
//!                      shard     publishes the horizon, takes the due wakers out of the timing wheel
//!                      timer     polled again: elapses if the horizon has reached its deadline, and otherwise starts again for the rest
//! the runtime ends     engine    its tasks are dropped, the engine's among them: the engine is closing, and goes on until Tokio's timers end
//!                      engine    Tokio fires all of its timers: every waker is woken, and its timer is bound elsewhere
//! ```
//!
//! Locks are taken in this order: the list of engines, the alarm's seat, a shard, the wheel's tally of ended
//! engines, the alarm's runtime, Tokio's own locks.

pub(crate) mod clock;
pub(crate) mod driver;
#[expect(clippy::module_inception, reason = "an engine is what the module is about")]
pub(crate) mod engine;
pub(crate) mod events;
pub(crate) mod labels;
pub(crate) mod lag;
pub(crate) mod number;
pub(crate) mod registry;
pub(crate) mod shard;
pub(crate) mod shared;
pub(crate) mod spare;
pub(crate) mod spare_counts;
#[cfg_attr(tickwheel_loom, path = "../../tests/loom/src/engine_sync.rs")]
pub(crate) mod sync;
pub(crate) mod test_clock;
pub(crate) mod thread;
pub(crate) mod timer;
pub(crate) mod timing_wheel;
pub(crate) mod turn;
pub(crate) mod waker_id;
