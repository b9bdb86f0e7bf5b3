//! Futures that are polled by hand, so often that the code around them does not affect the count.

use std::{
    future::{Future, poll_fn},
    hint::black_box,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use tokio::task;

/// More than the default slack of a timer of 30 seconds.
pub const SLACK: Duration = Duration::from_millis(40);

/// Pending at its first poll, ready at its second: a request that has to wait once.
#[derive(Debug, Default)]
pub struct Once(bool);

impl Future for Once {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// A request with `N` bytes of state and a destructor, so that every move of it is a copy.
#[derive(Debug)]
pub struct Large<const N: usize> {
    once: Once,
    state: [u8; N],
}

impl<const N: usize> Default for Large<N> {
    fn default() -> Self {
        Large {
            once: Once::default(),
            state: [0; N],
        }
    }
}

impl<const N: usize> Future for Large<N> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.once).poll(cx)
    }
}

impl<const N: usize> Drop for Large<N> {
    fn drop(&mut self) {
        black_box(&self.state);
    }
}

/// Does `operation` so many times, in one poll.
pub async fn repeat(times: u64, mut operation: impl FnMut(&mut Context<'_>)) {
    poll_fn(|cx| {
        for _ in 0..times {
            operation(cx);
        }
        Poll::Ready(())
    })
    .await;
}

/// A timeout around a future that is ready at once.
#[inline(always)]
pub fn poll_ready(cx: &mut Context<'_>, timeout: impl Future) {
    assert!(black_box(pin!(timeout).poll(cx)).is_ready());
}

/// A timeout around a future that waits once: it registers a timer, and cancels it.
#[inline(always)]
pub fn poll_once(cx: &mut Context<'_>, timeout: impl Future) {
    let mut timeout = pin!(timeout);
    assert!(black_box(timeout.as_mut().poll(cx)).is_pending());
    assert!(black_box(timeout.as_mut().poll(cx)).is_ready());
}

/// A sleep that is given up: it registers a timer, and cancels it.
#[inline(always)]
pub fn poll_sleep(cx: &mut Context<'_>, sleep: impl Future) {
    assert!(black_box(pin!(sleep).poll(cx)).is_pending());
}

/// Timeouts that wait once.
///
/// The entry of the first is due later than it by its slack, and no timer takes it over that is due before.
/// That is over when the slack has passed, which would otherwise be a matter of how long the first thousands
/// of timeouts take.
pub async fn once<F: Future>(times: u64, mut timeout: impl FnMut() -> F) {
    repeat(1, |cx| poll_once(cx, timeout())).await;
    // A worker learns which runtime it works for.
    task::yield_now().await;
    thread::sleep(SLACK);
    repeat(times, |cx| poll_once(cx, timeout())).await;
}

/// Timeouts that wait once and find no spare, because their waker is not that of a task, as in a
/// `FuturesUnordered`.
pub fn fresh<F: Future>(times: u64, mut timeout: impl FnMut() -> F) {
    struct Nobody;
    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }
    let waker = Waker::from(Arc::new(Nobody));
    let mut cx = Context::from_waker(&waker);
    for _ in 0..times {
        poll_once(&mut cx, timeout());
    }
}
