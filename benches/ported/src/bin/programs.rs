//! The loops of the JDK's `DelayedTasks`, of Go's timer benchmarks, and of Tokio's `time_timeout`, with
//! Tokio's timers and with the wheel's.

use std::{
    future::{Future, poll_fn, ready},
    hint::black_box,
    pin::pin,
    sync::{Arc, Barrier},
    task::Poll,
    thread,
    time::Duration,
};

use tickwheel::Wheel;
use tickwheel_ported::{Work, each, row};
use tokio::{
    runtime::{self, Runtime},
    task::JoinHandle,
    time::Instant,
};

const HALF_HOUR: Duration = Duration::from_secs(1_800);
const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

fn workers(workers: usize) -> Runtime {
    let mut builder = match workers {
        1 => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    let builder = builder.worker_threads(workers).enable_all();
    builder.build().expect("the runtime starts")
}

fn cores() -> usize {
    thread::available_parallelism().map_or(2, usize::from).max(2)
}

/// What the loops use of a timer.
trait Timers: Clone + Send + 'static {
    const NAME: &str;
    type Scheduled: Send + 'static;

    fn schedule(&self, delay: Duration) -> Self::Scheduled;
    fn cancel(task: Self::Scheduled) -> impl Future<Output = ()> + Send;
    fn finish(task: Self::Scheduled) -> impl Future<Output = ()> + Send;
    fn sleep(&self, duration: Duration) -> impl Future + Send;
    fn timeout(
        &self,
        duration: Duration,
        job: impl Future<Output = usize> + Send,
    ) -> impl Future<Output = usize> + Send;
}

#[derive(Clone)]
struct Tokio;

impl Timers for Tokio {
    const NAME: &str = "tokio";
    type Scheduled = JoinHandle<()>;

    fn schedule(&self, delay: Duration) -> JoinHandle<()> {
        tokio::spawn(tokio::time::sleep(delay))
    }

    async fn cancel(task: JoinHandle<()>) {
        task.abort();
        _ = task.await;
    }

    async fn finish(task: JoinHandle<()>) {
        task.await.expect("it does not panic");
    }

    fn sleep(&self, duration: Duration) -> impl Future + Send {
        tokio::time::sleep(duration)
    }

    async fn timeout(&self, duration: Duration, job: impl Future<Output = usize> + Send) -> usize {
        tokio::time::timeout(duration, job).await.expect("it is in time")
    }
}

impl Timers for Wheel {
    const NAME: &str = "tickwheel";
    type Scheduled = tickwheel::Scheduled<()>;

    fn schedule(&self, delay: Duration) -> tickwheel::Scheduled<()> {
        Wheel::schedule(self, delay, async {})
    }

    async fn cancel(task: tickwheel::Scheduled<()>) {
        task.cancel();
    }

    async fn finish(task: tickwheel::Scheduled<()>) {
        task.await.expect("it runs");
    }

    fn sleep(&self, duration: Duration) -> impl Future + Send {
        tickwheel::time::sleep(duration)
    }

    async fn timeout(&self, duration: Duration, job: impl Future<Output = usize> + Send) -> usize {
        tickwheel::time::timeout(duration, job)
            .await
            .expect("it is in time")
    }
}

/// `MainThreadCancels`: schedules all, then cancels all.
fn cancels<T: Timers>(timers: T, tasks: usize) -> Work<'static> {
    let runtime = workers(cores());
    let work = move || {
        let timers = timers.clone();
        let loops = async move {
            let scheduled: Vec<_> = (0..tasks).map(|_| timers.schedule(HALF_HOUR)).collect();
            for task in scheduled {
                T::cancel(task).await;
            }
        };
        each(tasks, || {
            runtime.block_on(runtime.spawn(loops)).expect("it does not panic")
        })
    };
    (T::NAME, Box::new(work))
}

/// `VirtualThreadCancels`: each is cancelled by a task of its own.
fn tasks_cancel<T: Timers>(timers: T, tasks: usize) -> Work<'static> {
    let runtime = workers(cores());
    let work = move || {
        let timers = timers.clone();
        let loops = async move {
            let cancel = |_| tokio::spawn(T::cancel(timers.schedule(HALF_HOUR)));
            for task in (0..tasks).map(cancel).collect::<Vec<_>>() {
                task.await.expect("it does not panic");
            }
        };
        each(tasks, || {
            runtime.block_on(runtime.spawn(loops)).expect("it does not panic")
        })
    };
    (T::NAME, Box::new(work))
}

/// `DelayedTaskExecutes`: all run after 10 ms, which are part of the result.
fn executes<T: Timers>(timers: T, tasks: usize) -> Work<'static> {
    let runtime = workers(cores());
    let work = move || {
        let timers = timers.clone();
        let loops = async move {
            let after = Duration::from_millis(10);
            let scheduled: Vec<_> = (0..tasks).map(|_| timers.schedule(after)).collect();
            for task in scheduled {
                T::finish(task).await;
            }
        };
        each(tasks, || {
            runtime.block_on(runtime.spawn(loops)).expect("it does not panic")
        })
    };
    (T::NAME, Box::new(work))
}

/// Tasks that are due at once, from their instant until all have run; or as many tasks that are spawned.
fn due_at_once(wheel: Option<Wheel>, tasks: usize, threads: usize) -> Work<'static> {
    let runtime = workers(threads);
    let name = if wheel.is_some() {
        "tickwheel"
    } else {
        "tokio's spawn"
    };
    let work = move || {
        let all_blocked = Arc::new(Barrier::new(threads));
        for _ in 1..threads {
            let all_blocked = all_blocked.clone();
            runtime.spawn(async move {
                all_blocked.wait();
                all_blocked.wait();
            });
        }
        let run = run_at_once(wheel.clone(), tasks, all_blocked);
        runtime.block_on(runtime.spawn(run)).expect("it does not panic")
    };
    (name, Box::new(work))
}

async fn run_at_once(wheel: Option<Wheel>, tasks: usize, all_blocked: Arc<Barrier>) -> f64 {
    all_blocked.wait();
    let due = Instant::now() + Duration::from_millis(100);
    let scheduled = wheel.map(|wheel| {
        let tasks = (0..tasks).map(|_| wheel.schedule_at(due, async {}));
        tasks.collect::<Vec<_>>()
    });
    // Each worker is blocked until they are due, and the runtime's timers with them.
    thread::sleep(due.saturating_duration_since(Instant::now()) + Duration::from_millis(2));
    let start = Instant::now();
    all_blocked.wait();
    if let Some(scheduled) = scheduled {
        for task in scheduled {
            task.await.expect("it runs");
        }
    } else {
        let spawned: Vec<_> = (0..tasks).map(|_| tokio::spawn(async {})).collect();
        for task in spawned {
            task.await.expect("it runs");
        }
    }
    start.elapsed().as_nanos() as f64 / tasks as f64
}

/// Starts a timer, which is all that a poll does here.
fn start(timer: std::pin::Pin<&mut impl Future>, cx: &mut std::task::Context<'_>) {
    assert!(timer.poll(cx).is_pending());
}

/// Go's `benchmark`: on each worker 32,768 timers of an hour, and then the loop.
fn on_each_worker<T: Timers>(
    timers: T,
    times: usize,
    work: fn(&T, usize, &mut std::task::Context<'_>),
) -> Work<'static> {
    let runtime = workers(cores());
    let garbage = runtime.block_on(async {
        let mut garbage = Vec::new();
        for _ in 0..cores() {
            let timers = timers.clone();
            garbage.push(tokio::spawn(async move {
                let mut garbage: Vec<_> = (0..1 << 15).map(|_| Box::pin(timers.sleep(HOUR))).collect();
                poll_fn(|cx| {
                    garbage.iter_mut().for_each(|timer| start(timer.as_mut(), cx));
                    Poll::Ready(())
                })
                .await;
                std::future::pending::<()>().await;
                drop(garbage);
            }));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        garbage
    });
    let work = move || {
        assert!(garbage.iter().all(|task| !task.is_finished()));
        let loops = (0..cores()).map(|_| {
            let timers = timers.clone();
            runtime.spawn(poll_fn(move |cx| {
                work(&timers, times, cx);
                Poll::Ready(())
            }))
        });
        let loops: Vec<_> = loops.collect();
        // As Go counts: the time for one operation of all workers together.
        each(times * cores(), || {
            runtime.block_on(async {
                for task in loops {
                    task.await.expect("it does not panic");
                }
            })
        })
    };
    (T::NAME, Box::new(work))
}

fn stop<T: Timers>(timers: &T, times: usize, cx: &mut std::task::Context<'_>) {
    for _ in 0..times {
        start(pin!(timers.sleep(black_box(SECOND))), cx);
    }
}

fn start_stop<T: Timers>(timers: &T, times: usize, cx: &mut std::task::Context<'_>) {
    for _ in 0..times / 1_000 {
        let mut sleeps: Vec<_> = (0..1_000).map(|_| Box::pin(timers.sleep(HOUR))).collect();
        sleeps.iter_mut().for_each(|timer| start(timer.as_mut(), cx));
    }
}

/// Tokio's `time_timeout`: a timeout around a job that is ready, or a sleep that is never polled.
fn jobs<T: Timers>(timers: T, threads: usize, sleeps: bool) -> Work<'static> {
    const TIMES: usize = 1_000_000;
    let runtime = workers(threads);
    let work = move || {
        let each_task = |timers: T| async move {
            for _ in 0..TIMES / threads {
                if sleeps {
                    drop(black_box(timers.sleep(SECOND)));
                } else {
                    assert_eq!(black_box(timers.timeout(SECOND, ready(1)).await), 1);
                }
            }
        };
        each(TIMES, || {
            runtime.block_on(async {
                let tasks = (0..threads).map(|_| tokio::spawn(each_task(timers.clone())));
                for task in tasks.collect::<Vec<_>>() {
                    task.await.expect("it does not panic");
                }
            })
        })
    };
    (T::NAME, Box::new(work))
}

fn main() {
    let wheel = Wheel::new;
    let tasks = 10_000;
    row(
        "jdk: cancelled by the thread",
        vec![cancels(wheel(), tasks), cancels(Tokio, tasks)],
    );
    row(
        "jdk: cancelled by a task each",
        vec![tasks_cancel(wheel(), tasks), tasks_cancel(Tokio, tasks)],
    );
    row(
        "jdk: executed after 10 ms",
        vec![executes(wheel(), tasks), executes(Tokio, tasks)],
    );
    for (name, threads) in [
        ("10,000 tasks that are due at once, each", 1),
        ("10,000 tasks that are due at once, each, on all workers", cores()),
    ] {
        row(
            name,
            vec![
                due_at_once(Some(wheel()), tasks, threads),
                due_at_once(None, tasks, threads),
            ],
        );
    }
    let times = 100_000;
    row(
        "go: Stop",
        vec![
            on_each_worker(wheel(), times, stop),
            on_each_worker(Tokio, times, stop),
        ],
    );
    row(
        "go: StartStop1000, for one timer",
        vec![
            on_each_worker(wheel(), times, start_stop),
            on_each_worker(Tokio, times, start_stop),
        ],
    );
    for (name, threads, sleeps) in [
        ("tokio: single_thread_timeout", 1, false),
        ("tokio: multi_thread_timeout-8", 8, false),
        ("tokio: single_thread_sleep", 1, true),
        ("tokio: multi_thread_sleep-8", 8, true),
    ] {
        row(
            name,
            vec![jobs(wheel(), threads, sleeps), jobs(Tokio, threads, sleeps)],
        );
    }
}
