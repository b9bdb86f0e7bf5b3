//! Helpers that the tests share.
#![allow(dead_code)]

pub(crate) mod own_process;
pub(crate) mod random;
pub(crate) mod ready_tasks;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use tickwheel::{TrySleep, Wheel};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::Instant,
};
use tokio_test::task::{self, Spawn};

/// A tick of `Wheel::new()`.
pub(crate) const TICK: Duration = ms(1);
pub(crate) const SECOND: Duration = ms(1_000);
pub(crate) const DAY: Duration = ms(86_400_000);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Lets every task that is ready run.
pub(crate) async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// Moves the paused clock, and lets every task run that has become ready by it.
pub(crate) async fn advance(duration: Duration) {
    tokio::time::advance(duration).await;
    settle().await;
}

pub(crate) fn real_runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

pub(crate) fn paused_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// What `scene` returns, on a runtime whose paused clock is so far ahead, and which ends with it.
pub(crate) fn on_a_clock_ahead_by<R>(ahead: Duration, scene: impl AsyncFnOnce() -> R) -> R {
    paused_runtime().block_on(async {
        tokio::time::advance(ahead).await;
        scene().await
    })
}

pub(crate) fn threaded_runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_time()
        .build()
        .unwrap()
}

/// A wheel whose timers wait on `runtime`, wherever they are polled.
pub(crate) fn wheel_on(runtime: &Runtime) -> Wheel {
    Wheel::builder().handle(runtime.handle().clone()).build().unwrap()
}

/// How many tasks the runtime has, a wheel's driver included.
pub(crate) fn alive_tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Polls once, with a waker that nobody listens to; it has to wait.
#[track_caller]
pub(crate) fn register(future: &mut (impl Future + Unpin)) {
    register_for(Waker::noop(), future);
}

/// Polls once, for `waker`; it has to wait.
#[track_caller]
pub(crate) fn register_for(waker: &Waker, future: &mut (impl Future + Unpin)) {
    let mut cx = Context::from_waker(waker);
    assert!(Pin::new(future).poll(&mut cx).is_pending());
}

/// A future that waits for `waker`. On a busy machine one may be over before it is polled.
pub(crate) fn waiting<F: Future + Unpin>(waker: &Waker, make: impl Fn() -> F) -> F {
    loop {
        let mut future = make();
        if Pin::new(&mut future)
            .poll(&mut Context::from_waker(waker))
            .is_pending()
        {
            return future;
        }
    }
}

/// The same, as a task of the test's own.
pub(crate) fn waiting_task<F: Future>(make: impl Fn() -> F) -> Spawn<F> {
    loop {
        let mut task = task::spawn(make());
        if task.poll().is_pending() {
            return task;
        }
    }
}

/// A wheel whose one place is taken for as long as the sleep lives.
pub(crate) fn full_wheel() -> (Wheel, TrySleep) {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let mut occupant = wheel.try_sleep(DAY);
    register(&mut occupant);
    (wheel, occupant)
}

/// Runs a scene that may hang on a thread of its own, and waits no longer than `limit` for it.
#[track_caller]
pub(crate) fn within<R: Send + 'static>(limit: Duration, scene: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    let playing = thread::spawn(move || sender.send(scene()));
    match receiver.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it was not over after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match playing.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("it ends by sending or by panicking"),
        },
    }
}

/// `duration` has passed since `start`, to within a tick of `Wheel::new()`, and not early.
#[track_caller]
pub(crate) fn assert_due(start: Instant, duration: Duration) {
    let elapsed = start.elapsed();
    assert!(
        elapsed >= duration && elapsed < duration + TICK,
        "{elapsed:?} for {duration:?}"
    );
}

/// A waker that calls `action`.
pub(crate) fn waker_of(action: impl Fn() + Send + Sync + 'static) -> Waker {
    // Of one kind, whatever it calls: a wheel knows only the first few kinds of wakers in a process.
    struct Action(Box<dyn Fn() + Send + Sync>);
    impl Wake for Action {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Action(Box::new(action))))
}

/// A waker, and how often it was woken.
pub(crate) fn counting_waker() -> (Waker, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    let waker = waker_of(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    (waker, woken)
}

/// At a quiet point every timer ever registered has expired, was cancelled or is pending.
#[track_caller]
pub(crate) fn assert_adds_up(wheel: &Wheel) {
    let metrics = wheel.metrics();
    assert_eq!(
        metrics.registered,
        metrics.expired + metrics.cancelled + metrics.pending as u64,
        "{metrics:?}"
    );
    assert_eq!(metrics.pending, wheel.pending());
}

/// Nothing waits, and the counters add up.
#[track_caller]
pub(crate) fn assert_at_rest(wheel: &Wheel) {
    assert_eq!(wheel.pending(), 0);
    assert_adds_up(wheel);
}

/// No shard holds a cell: one that did could not have given back the arena that a burst of timers left.
#[track_caller]
pub(crate) fn assert_arena_given_back(wheel: &Wheel) {
    const RETAINED: usize = 1024;
    const CELL: usize = 40;
    let held = wheel.metrics().arena_bytes;
    assert!(
        held <= wheel.snapshot().shards.len() * RETAINED * CELL,
        "{held} bytes are still held"
    );
}

/// Blocks the thread until the real clock says so.
pub(crate) fn block_until(deadline: Instant) {
    while std::time::Instant::now() < deadline.into_std() {
        thread::yield_now();
    }
}

/// Asserts that a runtime is left with so many tasks. Whoever joins a task is told a moment before the
/// runtime has counted it out.
#[track_caller]
pub(crate) fn assert_left_with(runtime: &Runtime, tasks: usize) {
    let start = std::time::Instant::now();
    while runtime.metrics().num_alive_tasks() != tasks {
        let alive = runtime.metrics().num_alive_tasks();
        assert!(
            start.elapsed().as_secs() < 20,
            "{alive} tasks are left, not {tasks}"
        );
        thread::yield_now();
    }
}
