//! Deadlines that travel: a time budget for a whole request, which every call inside can ask for and pass on.
//!
//! [`within`] and [`until`] make a scope. The future given to them, and all that it awaits, has until the scope's deadline; a scope
//! inside a scope has until the sooner of the two. Code inside asks for [`current`] or [`remaining`], and a client writes the answer
//! into its next call. It is what `context.WithDeadline` is in Go and `Deadline` in grpc-java, without an argument to hand down.
//!
//! | | |
//! | --- | --- |
//! | [`within`], [`until`] | a scope: its future has to complete in time |
//! | [`current`], [`remaining`] | the deadline of the scope that one is in, and how long until then |
//! | [`carry`] | takes the caller's scope along into a spawned task |
//! | [`shield`] | keeps the deadline out, for clean-up that must end |
//! | [`timeout`] | a limit for one call, never longer than what is left, which says which of the two it was |
//!
//! # Where a scope reaches
//!
//! A scope holds for whatever is polled, or dropped, while the scope itself is polled or dropped: the branches of a `join!` or a
//! `select!`, the tasks of a `LocalSet` that the future drives, a nested `block_on`, and the destructors of what an elapsed scope
//! drops. As in Go, where a deferred function still sees its context, [`remaining`] is then zero. A task that is spawned is polled
//! by the runtime and is in no scope, unless it was wrapped in [`carry`]. So is a request that a `tower::buffer` or an actor's
//! channel hands to another task.
//!
//! A scope adds nothing to the timers inside it. It has one timer of its own and swaps a thread-local at each poll. Scopes can be made
//! anywhere. They need a runtime with timers only at their first pending poll.
//!
//! # Precision
//!
//! A scope elapses as [`time::timeout_at`](crate::time::timeout_at) does: never early, and less than one tick of the wheel late plus
//! what the runtime adds. Nothing can refuse it: if the wheel is full or has been shut down, it waits on Tokio's timer.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::deadline;
//!
//! async fn query() -> Option<Duration> {
//!     deadline::remaining() // to be sent along
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let left = deadline::within(Duration::from_millis(300), query()).await.unwrap();
//! assert!(left.unwrap() <= Duration::from_millis(300));
//! assert_eq!(query().await, None, "there is no deadline out here");
//! # }
//! ```

mod carry;
mod counted;
mod scope;
mod shield;
mod timeout;
mod within;

pub use carry::{Carried, carry};
pub use scope::{current, remaining};
pub use shield::{Shield, shield};
pub use timeout::{LimitError, Limited, timeout};
pub use within::{Within, until, within};

#[cfg(feature = "tower")]
pub(crate) use within::within_from_now;
