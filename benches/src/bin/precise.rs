//! How late sleeps are that end alone: Tokio's, a wheel's, those of wheels that wait on the kernel's timer, and
//! a bare `timerfd`. Then as many as asked for at once, with their CPU time: `precise [--rounds N] [--sleep-us
//! N] [--workers N] [--ready N] [--at-once N]`. Without `--sleep-us` there are sleeps of four durations, and
//! without `--workers` the runtime is a current-thread one. `--ready` tasks are always ready beside the
//! sleeps, and work for 20 µs in each poll.
//!
//! Kinds take turns, so that all have the same machine. On one that others use, most of the lateness at p99 is
//! the time for which the thread that was woken waited for a core. Linux counts that time, so on a
//! current-thread runtime each line also has the quantiles of the `prompt` sleeps, whose thread got a core at
//! once, as on an idle machine.

use std::{
    fs,
    hint::spin_loop,
    os::unix::net,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use hdrhistogram::Histogram;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line},
    process,
};
use tokio::{
    io::Interest,
    net::UnixStream,
    runtime::{Builder, Handle, Runtime, RuntimeFlavor},
    task::{JoinSet, yield_now},
};

const SLEEPS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
];

/// How long the thread of a prompt sleep waits for a core at most. An idle core takes some microseconds.
const AT_ONCE: Duration = Duration::from_micros(20);

/// What sleeps.
enum Kind {
    Tokio,
    Wheel(Wheel),
    Bare(UnixStream),
}

impl Kind {
    /// All kinds, each with its name.
    fn all() -> Vec<(&'static str, Kind)> {
        let wheel = |tick, kernel_timer| {
            let builder = Wheel::builder().tick_duration(Duration::from_micros(tick));
            Kind::Wheel(
                builder
                    .kernel_timer(kernel_timer)
                    .build()
                    .expect("the settings are allowed"),
            )
        };
        vec![
            ("tokio", Kind::Tokio),
            ("wheel-1ms", wheel(1_000, false)),
            ("kernel-1ms", wheel(1_000, true)),
            ("kernel-100us", wheel(100, true)),
            ("kernel-50us", wheel(50, true)),
            ("timerfd", Kind::Bare(bare())),
        ]
    }

    async fn sleep(&self, duration: Duration) {
        match self {
            Kind::Tokio => tokio::time::sleep(duration).await,
            Kind::Wheel(wheel) => wheel.sleep(duration).await,
            Kind::Bare(timer) => sleep_on(timer, duration).await,
        }
    }
}

fn bare() -> UnixStream {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).expect("there is a descriptor left");
    UnixStream::from_std(net::UnixStream::from(timer)).expect("the runtime takes it")
}

async fn sleep_on(timer: &UnixStream, duration: Duration) {
    let it_value = Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    };
    let it_interval = Timespec::default();
    let time = Itimerspec {
        it_interval,
        it_value,
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &time).expect("it is a timer");
    timer.readable().await.expect("the runtime lives");
    let nothing = || Err::<(), _>(std::io::ErrorKind::WouldBlock.into());
    timer
        .try_io(Interest::READABLE, nothing)
        .expect_err("it is not read");
}

/// Sleeps, and returns by how many nanoseconds that was late.
async fn lateness(kind: &Kind, duration: Duration) -> u64 {
    let start = Instant::now();
    kind.sleep(duration).await;
    let taken = start.elapsed();
    assert!(taken >= duration, "early");
    (taken - duration).as_nanos() as u64
}

/// Returns how long this thread has waited for a core so far, though it could have run.
fn waited_for_core() -> Duration {
    let counts = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let waited = counts.split_whitespace().nth(1).map(str::parse);
    Duration::from_nanos(waited.expect("the second number").expect("a number"))
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane")
}

/// Adds quantiles of the lateness, each under its name behind the prefix.
fn with_quantiles(line: Line, prefix: &str, late: &Histogram<u64>) -> Line {
    [("p50_us", 0.5), ("p99_us", 0.99), ("max_us", 1.0)]
        .into_iter()
        .fold(line, |line, (name, quantile)| {
            let micros = late.value_at_quantile(quantile) as f64 / 1e3;
            line.with_number(&format!("{prefix}{name}"), micros)
        })
}

fn work_for(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        spin_loop();
    }
}

/// How late the sleeps of one kind were.
struct Lateness {
    all: Histogram<u64>,
    prompt: Histogram<u64>,
}

async fn alone(sleeps: &[Duration], rounds: u64) {
    let (kinds, mut random) = (Kind::all(), Rng::with_seed(1));
    for &duration in sleeps {
        let new = || Lateness {
            all: histogram(),
            prompt: histogram(),
        };
        let mut late: Vec<_> = kinds.iter().map(|_| new()).collect();
        for _ in 0..rounds {
            for ((_, kind), late) in kinds.iter().zip(&mut late) {
                // So that no sleep begins just after a tick.
                thread::sleep(Duration::from_nanos(random.u64(..1_000_000)));
                let before = waited_for_core();
                let nanos = lateness(kind, duration).await.max(1);
                late.all.saturating_record(nanos);
                if waited_for_core().saturating_sub(before) <= AT_ONCE {
                    late.prompt.saturating_record(nanos);
                }
            }
        }
        let is_current_thread = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        for ((name, _), late) in kinds.iter().zip(&late) {
            let line = Line::new("precise-alone")
                .with("kind", name)
                .with("sleep_us", duration.as_micros());
            let mut line = with_quantiles(line, "", &late.all);
            // Elsewhere, the thread that reads its time may not be the one that has waited.
            if is_current_thread {
                let share = late.prompt.len() as f64 / late.all.len() as f64;
                line = with_quantiles(line.with_number("prompt", share), "prompt_", &late.prompt);
            }
            println!("{line}");
        }
    }
}

async fn at_once(sleeps: u64) {
    for (name, kind) in Kind::all() {
        // One descriptor cannot have several times.
        if matches!(kind, Kind::Bare(_)) {
            continue;
        }
        let kind = std::sync::Arc::new(kind);
        let (mut random, before) = (Rng::with_seed(1), process::cpu_time());
        let mut tasks = JoinSet::new();
        for _ in 0..sleeps {
            let (kind, duration) = (kind.clone(), Duration::from_micros(random.u64(20_000..70_000)));
            tasks.spawn(async move { lateness(&kind, duration).await });
        }
        let mut late = histogram();
        while let Some(nanos) = tasks.join_next().await {
            late.saturating_record(nanos.expect("it does not panic").max(1));
        }
        let cpu = process::cpu_time() - before;
        let turns = match &*kind {
            Kind::Wheel(wheel) => wheel.metrics().turns,
            _ => 0,
        };
        let line = Line::new("precise-at-once")
            .with("kind", name)
            .with("sleeps", sleeps)
            .with_number("cpu_us_each", cpu.as_secs_f64() * 1e6 / sleeps as f64)
            .with("turns", turns);
        println!("{}", with_quantiles(line, "", &late));
    }
}

fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        workers => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(workers);
            builder
        }
    };
    builder.enable_all().build().expect("the runtime starts")
}

fn main() {
    let arguments = Arguments::read();
    let rounds = arguments.number("rounds", 300);
    let ready = arguments.number("ready", 0);
    let at_once_sleeps = arguments.number("at-once", 10_000);
    let sleeps = match arguments.number("sleep-us", 0) {
        0 => SLEEPS.to_vec(),
        micros => vec![Duration::from_micros(micros)],
    };
    let runtime = runtime(arguments.number("workers", 0) as usize);
    for _ in 0..ready {
        runtime.spawn(async {
            loop {
                work_for(Duration::from_micros(20));
                yield_now().await;
            }
        });
    }
    let main = runtime.spawn(async move {
        alone(&sleeps, rounds).await;
        if at_once_sleeps > 0 {
            at_once(at_once_sleeps).await;
        }
    });
    runtime.block_on(main).expect("it does not panic");
    // The tasks that are always ready never end.
    runtime.shutdown_background();
}
