//! What does a timeout cost that ends in time? In one task after the other, in new tasks; on one worker, on all of them at once.

use std::{
    future::{Future, poll_fn},
    hint::black_box,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::unconstrained};

use crate::{
    figures::{Row, Section, Unit},
    machine::cores,
    options::Options,
    progress::Progress,
    statistics::median,
    timers::{Tickwheel, Timers, Tokio},
    turns::{in_turns, multi_thread},
};

const TIMEOUT: Duration = Duration::from_secs(5);
const ROUNDS: usize = 9;
/// Of each competitor in a round: the median of a few short ones, so that a preemption spoils none of the figures.
const SLICES: usize = 5;
const SLICE: Duration = Duration::from_millis(8);
/// Timeouts between two looks at whether the slice is over.
const BATCH: usize = 64;
/// No timer takes less, whatever the subtraction of the work without one says.
const LEAST: f64 = 0.5;

#[derive(Clone, Copy)]
enum Tasks {
    /// One for each worker, which starts one timeout after the other.
    Same,
    /// One for each timeout.
    New,
}

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let all = cores();
    let slice = options.lasting(SLICE);
    let planned = 3 * slice * (ROUNDS * SLICES) as u32;
    let mut rows = Vec::new();
    for (tasks, does) in [
        (Tasks::Same, "one task, one timeout after the other"),
        (Tasks::New, "a new task for each timeout"),
    ] {
        for (workers, name) in [
            (1, "on one worker".to_owned()),
            (all, format!("on all {all} workers at once")),
        ] {
            let name = format!("{does}, {name}");
            progress.begin(format!("what a timeout costs that ends in time: {name}"), planned);
            let row = Row::new(name, Unit::Nanos, costs(tasks, workers, slice, progress)?);
            rows.push(if workers > 1 {
                row.gain(match tasks {
                    Tasks::Same => "timeouts set by all workers at once",
                    Tasks::New => "timeouts in new tasks on all workers",
                })
            } else {
                row
            });
        }
    }
    Ok(Section {
        key: "timeouts",
        title: "A timeout that ends in time".to_owned(),
        about: "CPU time on a worker of a timeout of 5 s around a future that is pending once; what the same work takes without a timer is \
                measured too, and subtracted"
            .to_owned(),
        rows,
        clock_reading: Some(clock_reading()),
        others: None,
    })
}

/// The nanoseconds of one timeout in each round, of Tokio and of the wheel.
fn costs(
    tasks: Tasks,
    workers: usize,
    slice: Duration,
    progress: &mut Progress,
) -> io::Result<[Vec<f64>; 2]> {
    let runtime = multi_thread(workers)?;
    // A server always has some timer that is due soon. Where there is none, each of Tokio's timers begins with a system call.
    runtime.spawn(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let competitors = |competitor| {
        Ok(match competitor {
            0 => one(&runtime, tasks, workers, slice, pending_once),
            1 => one(&runtime, tasks, workers, slice, || {
                Tokio.timeout(TIMEOUT, pending_once())
            }),
            _ => one(&runtime, tasks, workers, slice, || {
                Tickwheel.timeout(TIMEOUT, pending_once())
            }),
        })
    };
    let [without, tokio, wheel] = in_turns(ROUNDS * SLICES, progress, competitors)?;
    let of_rounds = |slices: Vec<f64>| slices.chunks(SLICES).map(median).collect::<Vec<_>>();
    let without = of_rounds(without);
    Ok([tokio, wheel].map(|slices| {
        let rounds = of_rounds(slices).into_iter().zip(&without);
        rounds
            .map(|(with, without)| (with - without).max(LEAST))
            .collect()
    }))
}

/// Pending once, as a read is that has to wait.
fn pending_once() -> impl Future<Output = ()> + Send {
    let mut was_polled = false;
    poll_fn(move |cx| {
        if was_polled {
            return Poll::Ready(());
        }
        was_polled = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Lets each worker do one after the other for the time of a slice. Returns the nanoseconds that one takes its worker.
fn one<F: Future<Output: Send> + Send + 'static>(
    runtime: &Runtime,
    tasks: Tasks,
    workers: usize,
    slice: Duration,
    make: impl Fn() -> F + Copy + Send + Sync + 'static,
) -> f64 {
    let is_over = Arc::new(AtomicBool::new(false));
    let spawned: Vec<_> = (0..workers)
        .map(|_| match tasks {
            Tasks::Same => runtime.spawn(in_same_task(make, is_over.clone())),
            Tasks::New => runtime.spawn(in_new_tasks(make, is_over.clone())),
        })
        .collect();
    thread::sleep(slice);
    is_over.store(true, Ordering::Relaxed);
    let (mut nanos, mut timeouts) = (0.0, 0);
    for task in spawned {
        let (took, count) = runtime.block_on(task).expect("nothing in it panics");
        nanos += took.as_nanos() as f64;
        timeouts += count;
    }
    nanos / timeouts as f64
}

/// Polls each by hand, with the task's own waker: the scheduler is not what is measured.
async fn in_same_task<F: Future>(make: impl Fn() -> F, is_over: Arc<AtomicBool>) -> (Duration, usize) {
    let (start, mut count) = (Instant::now(), 0);
    unconstrained(poll_fn(|cx| {
        while count == 0 || !is_over.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                let mut future = pin!(make());
                assert!(future.as_mut().poll(cx).is_pending());
                assert!(black_box(future.as_mut().poll(cx)).is_ready());
            }
            count += BATCH;
        }
        Poll::Ready(())
    }))
    .await;
    (start.elapsed(), count)
}

async fn in_new_tasks<F: Future<Output: Send> + Send + 'static>(
    make: impl Fn() -> F + Copy + Send + 'static,
    is_over: Arc<AtomicBool>,
) -> (Duration, usize) {
    let (start, mut count) = (Instant::now(), 0);
    while count == 0 || !is_over.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let task = tokio::spawn(async move { _ = black_box(make().await) });
            task.await.expect("nothing in it panics");
        }
        count += BATCH;
    }
    (start.elapsed(), count)
}

/// The nanoseconds that a reading of the machine's clock takes.
fn clock_reading() -> f64 {
    const READINGS: u32 = 20_000;
    let slices: Vec<_> = (0..9)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..READINGS {
                black_box(Instant::now());
            }
            start.elapsed().as_nanos() as f64 / f64::from(READINGS)
        })
        .collect();
    median(&slices)
}
