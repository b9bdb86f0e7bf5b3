//! What the scenes share.

use std::{
    fs,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tickwheel::Wheel;
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

pub(crate) use crate::support::{SECOND, ms};

/// Longer than a busy machine keeps a timer waiting. The watchdogs are Tokio's timers, or threads.
pub(crate) const PATIENCE: Duration = ms(15_000);

static OWN: LazyLock<Wheel> = LazyLock::new(Wheel::new);

/// Returns the two kinds of wheels that a program shares among its runtimes.
pub(crate) fn shared_wheels() -> [Wheel; 2] {
    [OWN.clone(), Wheel::global()]
}

pub(crate) fn multi(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().unwrap()
}

pub(crate) fn current() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Ends a runtime in one of the two ways.
pub(crate) fn end(runtime: Runtime, in_background: bool) {
    if in_background {
        runtime.shutdown_background();
    } else {
        drop(runtime);
    }
}

/// Awaits a future that is lost if it takes very long.
pub(crate) async fn found<F: Future>(what: &str, future: F) -> F::Output {
    // The watchdog comes first: a future that was never woken would be ready when this is.
    tokio::select! {
        biased;
        () = tokio::time::sleep(PATIENCE) => panic!("lost: {what}"),
        output = future => output,
    }
}

/// Polls a future once, for the task that awaits this.
pub(crate) async fn is_ready(future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_ready())).await
}

/// Polls a future once, for nobody. Returns `None` if that panics.
pub(crate) fn poll_for_nobody<F: Future + Unpin>(future: &mut F) -> Option<Poll<F::Output>> {
    let mut context = Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(&mut context))).ok()
}

#[track_caller]
pub(crate) fn assert_not_early(deadline: Instant) {
    let now = Instant::now();
    assert!(now >= deadline, "early by {:?}", deadline - now);
}

/// Waits until it has come to that.
#[track_caller]
pub(crate) fn wait_until(what: &str, has_come: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !has_come() {
        assert!(start.elapsed() < PATIENCE, "not {what}");
        thread::sleep(ms(1));
    }
}

/// A runtime that is shut down in the background takes a while.
#[track_caller]
pub(crate) fn assert_no_engine_is_left(wheel: &Wheel) {
    wait_until("without engines", || wheel.metrics().engines == 0);
}

/// The number of descriptors that this process has open.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
