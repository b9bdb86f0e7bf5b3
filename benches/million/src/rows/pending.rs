//! Very many pending sleeps, each in a box, as a connection's state would hold its deadline.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use tokio::{task::unconstrained, time::Instant};

use crate::timers::Timers;

pub(crate) type Held<T> = Vec<Option<Pin<Box<<T as Timers>::Sleep>>>>;

/// Longer than any experiment.
pub(crate) const AHEAD: Duration = Duration::from_secs(3600);

/// Room for so many, already touched: its memory is not a timer's.
pub(crate) fn room<T: Timers>(count: usize) -> Held<T> {
    let mut held = Vec::new();
    held.resize_with(count, || None);
    held
}

/// Fills the room with sleeps that are due at random instants of an hour, from one hour on, and polls each
/// once.
pub(crate) async fn arm<T: Timers>(timers: T, held: &mut Held<T>) {
    let mut random = Rng::with_seed(1);
    let start = Instant::now() + AHEAD;
    unconstrained(poll_fn(|cx| {
        for place in held.iter_mut() {
            let within = Duration::from_micros(random.u64(..AHEAD.as_micros() as u64));
            let sleep = place.insert(Box::pin(timers.sleep_until(start + within)));
            assert!(sleep.as_mut().poll(cx).is_pending());
        }
        Poll::Ready(())
    }))
    .await;
}
