//! How late sleeps are that end alone: Tokio's, a wheel's, those of wheels that wait on the kernel's timer, and
//! a bare `timerfd`. Then as many as asked for at once, with their CPU time: `precise [--rounds N] [--workers
//! N] [--ready N] [--at-once N]`. Without `--workers` the runtime is a current-thread one, and `--ready` tasks
//! are always ready beside the sleeps, and work for 20 µs in each poll.
//!
//! Kinds take turns, so that all have the same machine. An idle one, or `chrt -f 1`, shows what the timers do,
//! and any other mostly its scheduler.

use std::{
    hint::spin_loop,
    os::unix::net,
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
    runtime::{Builder, Runtime},
    task::{JoinSet, yield_now},
};

const SLEEPS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
];

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

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane")
}

fn with_quantiles(line: Line, late: &Histogram<u64>) -> Line {
    let micros = |quantile| late.value_at_quantile(quantile) as f64 / 1e3;
    line.with_number("p50_us", micros(0.5))
        .with_number("p99_us", micros(0.99))
        .with_number("max_us", late.max() as f64 / 1e3)
}

fn work_for(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        spin_loop();
    }
}

async fn alone(rounds: u64) {
    let (kinds, mut random) = (Kind::all(), Rng::with_seed(1));
    for duration in SLEEPS {
        let mut late = vec![histogram(); kinds.len()];
        for _ in 0..rounds {
            for ((_, kind), late) in kinds.iter().zip(&mut late) {
                // So that no sleep begins just after a tick.
                work_for(Duration::from_nanos(random.u64(..1_000_000)));
                late.saturating_record(lateness(kind, duration).await.max(1));
            }
        }
        for ((name, _), late) in kinds.iter().zip(&late) {
            let line = Line::new("precise-alone")
                .with("kind", name)
                .with("sleep_us", duration.as_micros());
            println!("{}", with_quantiles(line, late));
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
        let line = Line::new("precise-at-once")
            .with("kind", name)
            .with("sleeps", sleeps)
            .with_number("cpu_us_each", cpu.as_secs_f64() * 1e6 / sleeps as f64);
        println!("{}", with_quantiles(line, &late));
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
    let sleeps = arguments.number("at-once", 10_000);
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
        alone(rounds).await;
        at_once(sleeps).await;
    });
    runtime.block_on(main).expect("it does not panic");
    // The tasks that are always ready never end.
    runtime.shutdown_background();
}
