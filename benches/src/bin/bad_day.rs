//! How late timers fire on a server in trouble, while its tasks storm, block and stall: `bad-day [--scene
//! NAME] [--rounds N]`.
//!
//! The scenes are those of `tests/faults/bad_day.rs`, here played on Tokio's timer too.

use std::{
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    thread,
    time::Duration,
};

use fastrand::Rng;
use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn_at},
    process,
    timers::{self, Timers},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::Instant,
};

#[path = "../../../tests/support/ready_tasks.rs"]
mod ready_tasks;

use ready_tasks::{ReadyTasks, work_for};

const SCENES: [&str; 15] = [
    "storm",
    "storm-two",
    "storm-timeouts",
    "storm-two-timeouts",
    "ready-tasks",
    "ready-tasks-two",
    "schedule",
    "timeout",
    "reset",
    "mass-wake",
    "cascade",
    "cascade-two",
    "stall",
    "busy",
    "quiet",
];

/// How long a task keeps its worker that does nothing else.
const BLOCKS: Duration = Duration::from_millis(600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The one thing that Tokio has another word for.
trait Clockwork: Timers {
    fn schedule(&self, delay: Duration);

    /// The lateness that the timer itself reports.
    fn max_lag(&self) -> Option<Duration>;
}

impl Clockwork for timers::Tokio {
    fn schedule(&self, delay: Duration) {
        drop(tokio::spawn(tokio::time::sleep(delay)));
    }

    fn max_lag(&self) -> Option<Duration> {
        None
    }
}

impl Clockwork for Wheel {
    fn schedule(&self, delay: Duration) {
        drop(Wheel::schedule(self, delay, async {}));
    }

    fn max_lag(&self) -> Option<Duration> {
        Some(self.metrics().max_lag)
    }
}

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        let only = arguments.text("scene");
        for scene in SCENES
            .into_iter()
            .filter(|scene| only.is_none_or(|only| only == *scene))
        {
            in_turn_at(&arguments, Some(("scene", scene)), &["tickwheel", "tokio"]);
        }
        return;
    };
    let scene = arguments.text("scene").expect("--scene");
    match peer.as_str() {
        // All that cascades is in one shard. From the second level, buckets come down in seconds only on
        // small rings.
        "tickwheel" if scene.starts_with("cascade") => {
            let small = scene == "cascade-two";
            let builder = Wheel::builder()
                .shards(1)
                .ticks_per_wheel(if small { 64 } else { 512 });
            play(peer, scene, builder.build().expect("the settings are allowed"));
        }
        "tickwheel" => play(peer, scene, Wheel::new()),
        "tokio" => play(peer, scene, timers::Tokio),
        peer => panic!("there is no {peer}"),
    }
}

fn play<T: Clockwork>(peer: &str, scene: &str, timers: T) {
    let lateness = Lateness::default();
    match scene {
        "storm" => storm(&timers, [&lateness, &Lateness::default()], current_thread()),
        "storm-two" => storm(&timers, [&lateness, &Lateness::default()], multi_thread(2)),
        "storm-timeouts" => storm(&timers, [&Lateness::default(), &lateness], current_thread()),
        "storm-two-timeouts" => storm(&timers, [&Lateness::default(), &lateness], multi_thread(2)),
        "ready-tasks" => play_ready_tasks(&timers, &lateness, current_thread(), false),
        "ready-tasks-two" => play_ready_tasks(&timers, &lateness, multi_thread(2), true),
        "schedule" => blocked(&timers, &lateness, |timers| {
            timers.schedule(ms(20));
            thread::sleep(BLOCKS);
            async {}
        }),
        "timeout" => blocked(&timers, &lateness, |timers| async move {
            let blocking = async { thread::sleep(BLOCKS) };
            let _ = tokio::join!(timers.timeout(ms(20), pending::<()>()), blocking);
        }),
        "reset" => blocked(&timers, &lateness, |timers| async move {
            let mut sleep = Box::pin(timers.sleep(Duration::from_secs(60)));
            let _ = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            T::restart(sleep.as_mut(), ms(20));
            thread::sleep(BLOCKS);
        }),
        "mass-wake" => mass_wake(&timers, &lateness),
        "cascade" => cascade(&timers, &lateness, ms(256)),
        "cascade-two" => cascade(&timers, &lateness, ms(1024)),
        "stall" => stall(&timers, &lateness),
        "busy" => busy(&timers, &lateness),
        "quiet" => quiet(&timers, &lateness),
        scene => panic!("there is no scene {scene}: there are {SCENES:?}"),
    }
    let line = Line::new("bad-day").with("peer", peer).with("scene", scene);
    let mut line = lateness.report(line);
    if let Some(lag) = timers.max_lag() {
        line = line.with_number("lag_ms", lag.as_secs_f64() * 1e3);
    }
    println!("{line}");
}

/// How late timers came, noted by whoever waited for them.
#[derive(Clone, Default)]
struct Lateness(Arc<std::sync::Mutex<Vec<Duration>>>);

impl Lateness {
    fn record(&self, due: Instant) {
        let now = Instant::now();
        assert!(now >= due, "a timer was early");
        self.0.lock().expect("nobody panics").push(now - due);
    }

    /// A task that waits until `due`.
    fn of<T: Timers>(&self, timers: &T, due: Instant) -> JoinHandle<()> {
        let (timers, lateness) = (timers.clone(), self.clone());
        tokio::spawn(async move {
            timers.sleep_until(due).await;
            lateness.record(due);
        })
    }

    fn report(&self, line: Line) -> Line {
        let mut late = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
        for noted in self.0.lock().expect("nobody panics").iter() {
            late.saturating_record((noted.as_nanos() as u64).max(1));
        }
        let ms = |nanos: u64| nanos as f64 / 1e6;
        line.with("timers", late.len())
            .with_number("p50_ms", ms(late.value_at_quantile(0.5)))
            .with_number("p99_ms", ms(late.value_at_quantile(0.99)))
            .with_number("max_ms", ms(late.max()))
    }
}

fn current_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("the runtime starts")
}

fn multi_thread(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(workers).enable_all().build();
    runtime.expect("the runtime starts")
}

/// A hundred tasks that work for 20 us at a time, without end.
fn a_hundred() -> ReadyTasks {
    ReadyTasks::new(100, Duration::from_micros(20), true)
}

async fn join(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no task panics");
    }
}

/// Four threads that sleep on the runtime's timers, again and again, from half a second after the start on.
fn sleepers<T: Timers>(
    timers: &T,
    lateness: &Lateness,
    runtime: &Runtime,
    over: &Arc<AtomicBool>,
) -> Vec<thread::JoinHandle<()>> {
    let sleeper = |()| {
        let (handle, timers) = (runtime.handle().clone(), timers.clone());
        let (lateness, over) = (lateness.clone(), over.clone());
        thread::spawn(move || {
            thread::sleep(ms(500));
            while !over.load(Ordering::Relaxed) {
                let due = Instant::now() + ms(50);
                handle.block_on(async { timers.sleep_until(due).await });
                lateness.record(due);
            }
        })
    };
    [(); 4].map(sleeper).into()
}

/// Waits for threads, while the runtime goes on.
async fn join_threads(threads: Vec<thread::JoinHandle<()>>) {
    let joined = tokio::task::spawn_blocking(|| threads.into_iter().try_for_each(thread::JoinHandle::join));
    joined.await.expect("it ends").expect("no thread panics");
}

/// 20,000 tasks that are always ready. They are spawned from outside, so those of one thread come by the
/// runtime's global queue. Sleeps of other threads meanwhile.
fn play_ready_tasks<T: Timers>(timers: &T, lateness: &Lateness, runtime: Runtime, yields: bool) {
    runtime.block_on(async { timers.sleep(ms(1)).await });
    let ready = ReadyTasks::new(20_000, Duration::from_micros(5), yields);
    let tasks = {
        let _entered = runtime.enter();
        ready.spawn()
    };
    let others = sleepers(timers, lateness, &runtime, &ready.over);
    let ends = thread::spawn(move || {
        thread::sleep(ms(4_500));
        ready.stop();
    });
    runtime.block_on(async {
        join_threads(others).await;
        join(tasks).await;
    });
    ends.join().expect("it does not panic");
}

/// 20,000 tasks of one thread, or of two workers, whose timeouts elapse all the time; sleeps of other threads
/// meanwhile.
fn storm<T: Timers>(timers: &T, [of_sleeps, of_timeouts]: [&Lateness; 2], runtime: Runtime) {
    const STORMING: usize = 20_000;
    let over = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let others = sleepers(timers, of_sleeps, &runtime, &over);
    runtime.block_on(async {
        let storm = (0..STORMING).map(|_| {
            let (timers, of_timeouts, over) = (timers.clone(), of_timeouts.clone(), over.clone());
            tokio::spawn(async move {
                while begun.elapsed() < Duration::from_secs(4) {
                    let due = Instant::now() + ms(50);
                    assert!(timers.timeout(ms(50), pending::<()>()).await.is_err());
                    of_timeouts.record(due);
                    work_for(Duration::from_micros(5));
                }
                over.store(true, Ordering::Relaxed);
            })
        });
        join(storm.collect::<Vec<_>>()).await;
        join_threads(others).await;
    });
}

/// One of four workers does something to the timer and then blocks; ten sleeps of the others come due
/// meanwhile.
fn blocked<T: Timers, F>(timers: &T, lateness: &Lateness, act: impl Fn(T) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = multi_thread(4);
    for _ in 0..5 {
        runtime.block_on(async {
            timers.sleep(ms(1)).await;
            let start = Instant::now();
            let sleeping: Vec<_> = (0..10)
                .map(|n| lateness.of(timers, start + ms(100 + 10 * n)))
                .collect();
            thread::sleep(ms(5));
            let (timers, act) = (timers.clone(), act.clone());
            let blocking = tokio::spawn(async move { act(timers).await });
            join(sleeping).await;
            blocking.await.expect("no task panics");
        });
    }
}

/// 5,000 tasks wake at one time and three of them block three of four workers; ten sleeps come due meanwhile.
fn mass_wake<T: Timers>(timers: &T, lateness: &Lateness) {
    let runtime = multi_thread(4);
    let mut random = Rng::with_seed(7);
    for _ in 0..10 {
        runtime.block_on(async {
            let due = Instant::now() + ms(100);
            let blocking = [(); 3].map(|()| random.u64(..5_000));
            let mut tasks: Vec<_> = (0..5_000)
                .map(|n| {
                    let timers = timers.clone();
                    let blocks = blocking.contains(&n);
                    tokio::spawn(async move {
                        timers.sleep_until(due).await;
                        if blocks {
                            thread::sleep(BLOCKS);
                        }
                    })
                })
                .collect();
            tasks.extend((1..=10).map(|n| lateness.of(timers, due + ms(20 + 10 * n))));
            join(tasks).await;
        });
    }
}

/// On two workers 300,000 sleeps come down from a coarse bucket of the wheel, which lasts for `bucket`, while
/// 100 tasks work for 20 us and yield. A sleep comes due every millisecond, from before the bucket is spread
/// until shortly before the 300,000 are due.
fn cascade<T: Timers>(timers: &T, lateness: &Lateness, bucket: Duration) {
    const CASCADING: usize = 300_000;
    multi_thread(2).block_on(async {
        let origin = Instant::now();
        timers.sleep(ms(1)).await;
        let begins = origin + ms(4 * 1024);
        let mut cx = Context::from_waker(Waker::noop());
        let mut cascading: Vec<_> = (0..CASCADING)
            .map(|_| Box::pin(timers.sleep_until(begins + bucket - ms(5))))
            .collect();
        for sleep in &mut cascading {
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
        }
        let first = begins - bucket - ms(20);
        let victims: Vec<_> = (0..2 * bucket.as_millis() as u64)
            .map(|n| lateness.of(timers, first + ms(n)))
            .collect();
        // They start before the others do.
        tokio::task::yield_now().await;
        assert!(Instant::now() < first - ms(50), "they are to be there in time");
        let others = a_hundred();
        let tasks = others.spawn();
        join(victims).await;
        others.stop();
        join(tasks).await;
    })
}

/// After 140 s without a timer, 3,000,000 sleeps of 10 to 40 s start, and twenty of about 2 s, which are the
/// first to come due.
fn quiet<T: Timers>(timers: &T, lateness: &Lateness) {
    const STARTING: u64 = 3_000_000;
    multi_thread(1).block_on(async {
        let (timers, lateness) = (timers.clone(), lateness.clone());
        let burst = tokio::spawn(async move {
            timers.sleep(ms(5)).await;
            tokio::time::sleep(Duration::from_secs(140)).await;
            // They start before the others do.
            let start = Instant::now();
            let victims: Vec<_> = (0..20)
                .map(|n| lateness.of(&timers, start + ms(2_000 + 10 * n)))
                .collect();
            tokio::task::yield_now().await;
            let mut starting: Vec<_> = (0..STARTING)
                .map(|n| Box::pin(timers.sleep(ms(10_000 + n.wrapping_mul(7_919) % 30_000))))
                .collect();
            for sleep in &mut starting {
                let polled = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
            }
            join(victims).await;
        });
        burst.await.expect("no task panics");
    })
}

/// Nobody drives the runtime for 600 ms: a sleep is as late on either timer, and what the wheel reports is to
/// say so.
fn stall<T: Timers>(timers: &T, lateness: &Lateness) {
    current_thread().block_on(async {
        timers.sleep(ms(1)).await;
        let sleeping = lateness.of(timers, Instant::now() + ms(100));
        tokio::task::yield_now().await;
        thread::sleep(BLOCKS);
        join([sleeping]).await;
    });
}

/// More tasks than cores work without end; 50,000 sleeps come due within two seconds.
fn busy<T: Timers>(timers: &T, lateness: &Lateness) {
    const SLEEPS: usize = 50_000;
    multi_thread(process::cores().max(2)).block_on(async {
        let mut random = Rng::with_seed(7);
        let start = Instant::now() + ms(500);
        let sleeping: Vec<_> = (0..SLEEPS)
            .map(|_| lateness.of(timers, start + Duration::from_micros(random.u64(..2_000_000))))
            .collect();
        let others = a_hundred();
        let tasks = others.spawn();
        join(sleeping).await;
        others.stop();
        join(tasks).await;
    });
}
