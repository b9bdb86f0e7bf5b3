//! The current scope of a thread, and the shields that are pending in a scope.
//!
//! While a scope is polled, its deadline is in a thread-local, and so are its [`Shields`] once it has some. A
//! scope without a shield allocates nothing.

use std::{
    cell::Cell,
    mem::{self, ManuallyDrop},
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use crate::engine::sync::{Mutex, lock};

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// `ManuallyDrop`, so that the thread-local has no destructor: with one, every access would check whether
    /// it has run. Nothing leaks, because no scope is left open on a thread that ends.
    static SHIELDS: Cell<ManuallyDrop<Weak<Shields>>> = const { Cell::new(ManuallyDrop::new(Weak::new())) };
}

/// Returns the deadline of the current scope, or `None` outside a scope and inside a
/// [`shield`](super::shield()).
///
/// In nested scopes it is the soonest deadline. A deadline that has passed is still returned.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{deadline, time::Instant};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let soon = Instant::now() + Duration::from_secs(1);
/// deadline::until(soon, async move {
///     assert_eq!(deadline::current(), Some(soon));
///     let longer = deadline::within(Duration::from_secs(60), async { deadline::current() });
///     assert_eq!(longer.await, Ok(Some(soon)));
/// })
/// .await
/// .unwrap();
/// assert_eq!(deadline::current(), None);
/// # }
/// ```
pub fn current() -> Option<Instant> {
    DEADLINE.get()
}

/// Returns the time until the deadline of the current scope: zero if the deadline has passed, and `None`
/// outside a scope.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::deadline;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// deadline::within(Duration::from_secs(3), async {
///     tokio::time::sleep(Duration::from_secs(1)).await;
///     assert_eq!(deadline::remaining(), Some(Duration::from_secs(2)));
/// })
/// .await
/// .unwrap();
/// # }
/// ```
pub fn remaining() -> Option<Duration> {
    current().map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Returns the sooner of two deadlines, either of which may be missing.
pub(super) fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Calls `act` inside a scope whose pending shields are `shields`. Without a deadline, `act` runs outside all
/// scopes.
pub(super) fn inside<R>(
    deadline: Option<Instant>,
    shields: &mut Weak<Shields>,
    act: impl FnOnce() -> R,
) -> R {
    let _inside = Inside {
        outer: DEADLINE.replace(deadline),
        outer_shields: SHIELDS.replace(ManuallyDrop::new(mem::take(shields))),
        shields,
    };
    act()
}

/// Restores the enclosing scope when dropped, also during a panic.
struct Inside<'a> {
    outer: Option<Instant>,
    outer_shields: ManuallyDrop<Weak<Shields>>,
    shields: &'a mut Weak<Shields>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        DEADLINE.set(self.outer);
        let shields = SHIELDS.replace(mem::take(&mut self.outer_shields));
        *self.shields = ManuallyDrop::into_inner(shields);
        if let Some(shields) = self.shields.upgrade() {
            // The previous hold is dropped last, when the lock has been released.
            let outer = Shields::hold_current();
            let _previous = mem::replace(&mut *lock(&shields.outer), outer);
        }
    }
}

/// What the pending shields of a scope share. Each of them owns it, and the last one that ends drops it; the
/// scope has a weak reference.
#[derive(Debug, Default)]
pub(super) struct Shields {
    /// Makes the enclosing scope wait as well.
    outer: Mutex<Option<Arc<Shields>>>,
    /// Wakes the task of a scope that has elapsed and waits for its shields. This is needed because a shield
    /// may have been moved to another task and end there.
    elapsed: Mutex<Option<Waker>>,
}

impl Shields {
    /// Makes the current scope, if there is one, wait until the returned value is dropped.
    pub(super) fn hold_current() -> Option<Arc<Shields>> {
        current()?;
        let known = ManuallyDrop::into_inner(SHIELDS.take());
        let shields = known.upgrade().unwrap_or_default();
        SHIELDS.set(ManuallyDrop::new(Arc::downgrade(&shields)));
        Some(shields)
    }

    /// Waits until a scope has no pending shields.
    pub(super) fn poll_ended(shields: &Weak<Shields>, cx: &Context<'_>) -> Poll<()> {
        let Some(shields) = shields.upgrade() else {
            return Poll::Ready(());
        };
        let waker = cx.waker().clone();
        // Dropped after the lock has been released.
        let _previous = lock(&shields.elapsed).replace(waker);
        Poll::Pending
    }
}

impl Drop for Shields {
    fn drop(&mut self) {
        let waker = lock(&self.elapsed).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
