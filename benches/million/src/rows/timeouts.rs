//! What does a timeout cost that ends in time? In one task after the other, in new tasks; on one worker, on
//! all of them at once.

use std::{
    future::{Future, poll_fn},
    hint::black_box,
    io, iter,
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
    turns::{COMPETITORS, in_turns, multi_thread_for},
};

const TIMEOUT: Duration = Duration::from_secs(5);
const ROUNDS: usize = 9;
/// Of each competitor in a round. They are short, so that some of them are not preempted.
const SLICES: usize = 9;
const SLICE: Duration = Duration::from_millis(4);
/// Timeouts between two looks at whether the slice is over.
const BATCH: usize = 64;

#[derive(Clone, Copy)]
enum Tasks {
    /// One for each worker, which starts one timeout after the other.
    Same,
    /// One for each timeout.
    New,
}

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let all = cores();
    let reading = clock_reading();
    let slice = options.lasting(SLICE);
    let planned = 3 * slice * (ROUNDS * SLICES) as u32;
    let mut row = |tasks, workers, name: String| -> io::Result<Row> {
        progress.begin(
            &format!("what a timeout costs that ends in time: {name}"),
            planned,
        );
        let [tokio, wheel, alternative @ ..] = costs(tasks, workers, slice, reading, progress)?;
        Ok(Row::new(name, Unit::Nanos, [tokio, wheel]).alternative(alternative.into_iter().next()))
    };
    let mut rows = vec![row(Tasks::Same, 1, "one after the other, on one worker".to_owned())?.on(1)];
    for workers in iter::successors(Some(2), |workers| Some(2 * workers)).take_while(|workers| *workers < all)
    {
        let name = format!("one after the other, on {workers} workers at once");
        rows.push(row(Tasks::Same, workers, name)?.on(workers));
    }
    if all > 1 {
        let name = format!("one after the other, on all {all} workers at once");
        let row = row(Tasks::Same, all, name)?.on(all);
        rows.push(row.gain("timeouts set by all workers at once"));
    }
    rows.push(row(
        Tasks::New,
        1,
        "each in a new task, on one worker".to_owned(),
    )?);
    if all > 1 {
        let name = format!("each in a new task, on all {all} workers at once");
        rows.push(row(Tasks::New, all, name)?.gain("the same in new tasks"));
    }
    Ok(Section {
        key: "timeouts",
        title: "A timeout that ends in time".to_owned(),
        about: "What a timeout of 5 s, around a future that is pending once, takes of its worker's time. The same work without a timer is \
                 measured too, and subtracted."
            .to_owned(),
        rows,
        others: None,
    })
}

/// The nanoseconds of one timeout in each round, of Tokio and of the wheel, and of Tokio's alternative timer.
fn costs(
    tasks: Tasks,
    workers: usize,
    slice: Duration,
    reading: f64,
    progress: &mut Progress,
) -> io::Result<[Vec<f64>; COMPETITORS]> {
    let runtimes: Vec<_> = (0..COMPETITORS)
        .map(|competitor| runtime(competitor, workers))
        .collect::<io::Result<_>>()?;
    let competitors = |competitor| {
        Ok(match competitor {
            0 => one(&runtimes[0], tasks, workers, slice, pending_once),
            2 => one(&runtimes[1], tasks, workers, slice, || {
                Tickwheel.timeout(TIMEOUT, pending_once())
            }),
            tokio => one(&runtimes[tokio - 1], tasks, workers, slice, || {
                Tokio.timeout(TIMEOUT, pending_once())
            }),
        })
    };
    let [without, timers @ ..] = in_turns::<{ 1 + COMPETITORS }, _>(ROUNDS * SLICES, progress, competitors)?;
    // On one worker, whatever disturbs a slice makes it longer. On several, a worker that is preempted leaves
    // the lock to the others, so the shortest slice is that in which they were not at it at once.
    let of_round = if workers == 1 { least } else { median };
    let of_rounds = |slices: Vec<f64>| slices.chunks(SLICES).map(of_round).collect::<Vec<_>>();
    let without = of_rounds(without);
    Ok(timers.map(|slices| {
        let rounds = of_rounds(slices).into_iter().zip(&without);
        rounds
            // Each reads the clock once at least, whatever the subtraction of the noisy work without a timer
            // says.
            .map(|(with, without)| (with - without).max(reading))
            .collect()
    }))
}

/// A server always has some timers that are due sooner. Where there is none, each of Tokio's timers begins
/// with a system call.
fn runtime(competitor: usize, workers: usize) -> io::Result<Runtime> {
    let runtime = multi_thread_for(competitor, workers)?;
    for number in 0..10 {
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1000 + 37 * number)).await;
            }
        });
    }
    Ok(runtime)
}

fn least(slices: &[f64]) -> f64 {
    slices.iter().copied().fold(f64::INFINITY, f64::min)
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

/// Lets each worker do one after the other for the time of a slice. Returns the nanoseconds that one takes
/// its worker.
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
