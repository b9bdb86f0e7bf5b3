//! Deadlines that travel: a time budget for a whole request, which every call inside can query and pass on.
//!
//! [`within`] and [`until`] create a scope. The future given to them, and all that it awaits, has until the
//! scope's deadline; in nested scopes, the soonest deadline holds. Code inside a scope asks for [`current`]
//! or [`remaining`], and a client writes the answer into its next call. A scope is what
//! `context.WithDeadline` is in Go and `Deadline` in grpc-java, without an argument to hand down.
//!
//! | | |
//! | --- | --- |
//! | [`within`], [`until`] | a scope: its future has to complete in time; those of a [`Label`](crate::time::Label) or [`Labelled`](crate::Labelled) are counted |
//! | [`current`], [`remaining`] | the deadline of the current scope, and the time until then |
//! | [`carry`] | takes the caller's scope along into a spawned task |
//! | [`shield`] | keeps the deadline from stopping a future, for clean-up that must complete |
//! | [`timeout`] | a timeout for one call, never longer than the remaining time, whose error tells which of the two elapsed |
//!
//! # Where a scope reaches
//!
//! A scope applies to whatever is polled, or dropped, while the scope itself is polled or dropped: the
//! branches of a `join!` or a `select!`, the tasks of a `LocalSet` that the future drives, a nested
//! `block_on`, and the destructors that run when the scope elapses. In those destructors [`remaining`] is
//! zero, just as a deferred function in Go still sees its expired context. A spawned task is polled by the
//! runtime and is in no scope, unless it was wrapped in [`carry`]. The same holds for a request that a
//! `tower::buffer` or an actor's channel hands to another task, and for bodies, which the HTTP library polls
//! after the response has been returned, unless a layer of [`tower`](crate::tower#bodies) keeps them in the
//! scope.
//!
//! A scope adds nothing to the timers inside it. It has one timer of its own, and swaps a thread-local at
//! each poll. A scope can be created anywhere, and needs a runtime with timers only at its first pending
//! poll.
//!
//! # Precision
//!
//! A scope elapses as [`time::timeout_at`](crate::time::timeout_at) does: never early, and less than one tick
//! of the wheel late plus its slack and the runtime's own delay. A scope is never refused.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::deadline;
//!
//! async fn query() -> Option<Duration> {
//!     deadline::remaining() // to be sent along with the next call
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let left = deadline::within(Duration::from_millis(300), query()).await.unwrap();
//! assert!(left.unwrap() <= Duration::from_millis(300));
//! assert_eq!(query().await, None, "there is no deadline out here");
//! # }
//! ```

mod scope;
mod scoped;
mod shield;
mod timeout;
mod within;

pub use scope::{current, remaining};
pub use shield::{Shield, shield};
pub use timeout::{LimitError, Limited, timeout};
pub use within::{Carried, Within, carry, until, within};

#[cfg(feature = "tower")]
pub(crate) use {scoped::Scoped, within::within_from_now};
