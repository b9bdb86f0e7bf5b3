//! How late random timers of up to 40 ms fire, each beside a twin on Tokio's timer in the same runtime: `twins [--runtime
//! current|threads|local|alternative] [--tasks N] [--seconds N]`.
//!
//! The timers are sleeps, timeouts that elapse and the ticks of intervals. `alternative` needs `--cfg tokio_unstable`.

use std::{
    future::{Future, pending},
    time::Duration,
};

use fastrand::Rng;
use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tickwheel_benches::children::{Arguments, Line};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinSet, LocalSet},
    time::{self, Instant},
};

fn main() {
    let arguments = Arguments::read();
    let only = arguments.text("runtime");
    let tasks = arguments.number("tasks", 400);
    let seconds = Duration::from_secs(arguments.number("seconds", 5));
    for name in ["current", "threads", "local", "alternative"] {
        let Some(runtime) = runtime(name).filter(|_| only.is_none_or(|only| only == name)) else {
            continue;
        };
        let measured = measure(tasks, seconds);
        let lates = match name {
            "local" => LocalSet::new().block_on(&runtime, measured),
            _ => runtime.block_on(async { tokio::spawn(measured).await.expect("it does not panic") }),
        };
        for (peer, (late, early)) in ["tickwheel", "tokio"].into_iter().zip(lates) {
            let ms = |quantile| late.value_at_quantile(quantile) as f64 / 1e6;
            let line = Line::new("twins")
                .with("runtime", name)
                .with("peer", peer)
                .with("timers", late.len());
            let line = line
                .with_number("p50_ms", ms(0.5))
                .with_number("p99_ms", ms(0.99))
                .with_number("max_ms", late.max() as f64 / 1e6);
            println!("{}", line.with("early", early));
        }
    }
}

fn runtime(name: &str) -> Option<Runtime> {
    let mut builder = match name {
        "current" | "local" => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if name == "alternative" {
        #[cfg(tokio_unstable)]
        builder.enable_alt_timer();
        #[cfg(not(tokio_unstable))]
        return None;
    }
    let runtime = builder.worker_threads(2).enable_time().build();
    Some(runtime.expect("the runtime starts"))
}

/// How late the timers of a peer were, and how many were early.
type Lates = (Histogram<u64>, u64);

/// The wheel's and Tokio's.
async fn measure(tasks: u64, seconds: Duration) -> [Lates; 2] {
    let wheel = Wheel::new();
    let end = Instant::now() + seconds;
    let mut playing = JoinSet::new();
    for seed in 0..tasks {
        macro_rules! play {
            ($peer:expr, $timers:ident) => {
                playing.spawn(async move {
                    let mut random = Rng::with_seed(seed);
                    let mut lates = Vec::new();
                    while Instant::now() < end {
                        let duration = Duration::from_micros(random.u64(1..40_000));
                        match random.u8(0..3) {
                            0 => lates.push(late(duration, $timers.sleep(duration)).await),
                            1 => lates.push(late(duration, $timers.timeout(duration, pending::<()>())).await),
                            _ => {
                                let start = Instant::now() + duration;
                                let mut interval = $timers.interval_at(start, Duration::from_millis(7));
                                lates.push(late(duration, interval.tick()).await);
                            }
                        }
                    }
                    ($peer, lates)
                })
            };
        }
        let wheel = wheel.clone();
        play!(0, wheel);
        play!(1, Tokio);
    }
    let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
    let mut lates = [(histogram.clone(), 0), (histogram, 0)];
    while let Some(played) = playing.join_next().await {
        let (peer, played): (usize, Vec<_>) = played.expect("it does not panic");
        let (late, early) = &mut lates[peer];
        for by in played {
            match by {
                Some(by) => late.saturating_record((by.as_nanos() as u64).max(1)),
                None => *early += 1,
            }
        }
    }
    lates
}

/// How much later than after `duration` a timer ends, unless that is early.
async fn late<T>(duration: Duration, timer: impl Future<Output = T>) -> Option<Duration> {
    let due = Instant::now() + duration;
    timer.await;
    Instant::now().checked_duration_since(due)
}

#[derive(Clone, Copy)]
struct Tokio;

impl Tokio {
    fn sleep(self, duration: Duration) -> time::Sleep {
        time::sleep(duration)
    }

    fn timeout<F: Future>(self, duration: Duration, future: F) -> time::Timeout<F> {
        time::timeout(duration, future)
    }

    fn interval_at(self, start: Instant, period: Duration) -> time::Interval {
        time::interval_at(start, period)
    }
}
