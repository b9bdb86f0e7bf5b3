//! The current scope of a thread, and the shields that are pending in a scope.
//!
//! While a scope is polled, its deadline is in a thread-local, and so are its [`Shields`] once it has some. A scope without a shield
//! allocates nothing.

use std::{
    cell::Cell,
    future::Future,
    mem::{self, ManuallyDrop},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use crate::engine::sync::{Mutex, lock};

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// `ManuallyDrop`, so that the thread-local has no destructor: with one, every access would check whether it has run. Nothing
    /// leaks, because no scope is left open on a thread that ends.
    static SHIELDS: Cell<Option<ManuallyDrop<Arc<Shields>>>> = const { Cell::new(None) };
}

/// Returns the deadline of the current scope, or `None` outside a scope and inside a [`shield`](super::shield()).
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
#[inline]
pub fn current() -> Option<Instant> {
    DEADLINE.get()
}

/// Returns the time until the deadline of the current scope: zero if the deadline has passed, and `None` outside a scope.
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
        _ => one.or(other),
    }
}

/// Calls `act` inside a scope whose pending shields are `shields`. Without a deadline, `act` runs outside all scopes.
pub(super) fn inside<R>(
    deadline: Option<Instant>,
    shields: &mut Option<Arc<Shields>>,
    act: impl FnOnce() -> R,
) -> R {
    let _inside = Inside {
        outer: DEADLINE.replace(deadline),
        outer_shields: SHIELDS.replace(shields.take().map(ManuallyDrop::new)),
        shields,
    };
    act()
}

/// Polls a future inside a scope, and drops it there if it has completed.
pub(super) fn poll_inside<F: Future>(
    deadline: Option<Instant>,
    shields: &mut Option<Arc<Shields>>,
    mut future: Pin<&mut Option<F>>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    inside(deadline, shields, || {
        let polled = future
            .as_mut()
            .as_pin_mut()
            .expect("polled after completion")
            .poll(cx);
        if polled.is_ready() {
            future.set(None);
        }
        polled
    })
}

/// Restores the enclosing scope when dropped, also during a panic.
struct Inside<'a> {
    outer: Option<Instant>,
    outer_shields: Option<ManuallyDrop<Arc<Shields>>>,
    shields: &'a mut Option<Arc<Shields>>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        DEADLINE.set(self.outer);
        let shields = SHIELDS.replace(self.outer_shields.take());
        *self.shields = shields.map(ManuallyDrop::into_inner);
        if let Some(shields) = self.shields {
            shields.hold_outer();
        }
    }
}

/// The pending shields of a scope.
#[derive(Debug, Default)]
pub(super) struct Shields(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    count: usize,
    /// Makes the enclosing scope wait as well. It is set only while shields are pending.
    outer: Option<Hold>,
    /// Wakes the task of a scope that has elapsed and waits for its shields. This is needed because a shield may have been moved
    /// to another task and end there.
    elapsed: Option<Waker>,
}

/// The hold of a pending shield on its scope, which does not end before the shield does.
#[derive(Debug)]
pub(super) struct Hold(Arc<Shields>);

impl Hold {
    /// Creates a hold on the current scope, if there is one.
    pub(super) fn current() -> Option<Hold> {
        current()?;
        let shields = SHIELDS.take().map_or_else(Arc::default, ManuallyDrop::into_inner);
        SHIELDS.set(Some(ManuallyDrop::new(shields.clone())));
        lock(&shields.0).count += 1;
        Some(Hold(shields))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut pending = lock(&self.0.0);
        pending.count -= 1;
        if pending.count == 0 {
            let (outer, elapsed) = (pending.outer.take(), pending.elapsed.take());
            drop(pending);
            drop(outer);
            if let Some(waker) = elapsed {
                waker.wake();
            }
        }
    }
}

impl Shields {
    /// Makes the current scope, which encloses the one of these shields, wait for them too.
    fn hold_outer(&self) {
        // The previous hold is dropped last, when the lock has been released.
        let mut outer = Hold::current();
        let mut pending = lock(&self.0);
        if pending.count > 0 {
            mem::swap(&mut pending.outer, &mut outer);
        }
    }

    /// Returns whether shields are pending. If so, `waker` is woken when the last of them ends.
    pub(super) fn are_pending(&self, waker: &Waker) -> bool {
        let mut elapsed = Some(waker.clone());
        let mut pending = lock(&self.0);
        if pending.count > 0 {
            mem::swap(&mut pending.elapsed, &mut elapsed);
        }
        pending.count > 0
    }
}
