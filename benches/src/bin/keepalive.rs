//! What do the keepalives of 100,000 connections cost, each 30 s after the one before, and how late do they
//! come? `keepalive [--connections N] [--period-s N] [--seconds N] [--rounds N]`.
//!
//! A connection sends them by an interval, by a sleep in a loop, or when it has been idle for that long,
//! while a thread sees traffic on one connection after another, whose CPU time is left out. On Tokio's timer
//! an idle connection notes when it was used, and sleeps again when that was meanwhile.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn_at},
    process,
    timers::{Timers, Tokio},
};
use tokio::{
    runtime::Runtime,
    time::{Instant, interval_at, sleep_until},
};

/// The wheel without slack, with 16 and 300 ms of it and, where the feature is on, with 16 ms on the kernel's
/// timer.
const PEERS: &[&str] = &[
    "tokio",
    "tickwheel",
    "slack-16",
    "slack-300",
    #[cfg(feature = "precise")]
    "kernel-slack-16",
];

/// Between two connections with traffic.
const TRAFFIC: Duration = Duration::from_micros(250);

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        for by in ["interval", "sleep", "idle"] {
            in_turn_at(&arguments, Some(("by", by)), PEERS);
        }
        return;
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let builder = builder.worker_threads(process::cores().max(2)).enable_all();
    let runtime = builder.build().expect("the runtime starts");
    let wheel = Wheel::builder();
    let wheel = match peer.as_str() {
        "tokio" => None,
        "tickwheel" => Some(wheel),
        "slack-16" => Some(wheel.slack(Duration::from_millis(16))),
        "slack-300" => Some(wheel.slack(Duration::from_millis(300))),
        #[cfg(feature = "precise")]
        "kernel-slack-16" => Some(wheel.slack(Duration::from_millis(16)).kernel_timer(true)),
        peer => panic!("there is no {peer}"),
    };
    let wheel = wheel.map(|builder| builder.build().expect("the settings are allowed"));
    let line = Line::new("keepalive")
        .with("by", arguments.text("by").expect("--by"))
        .with("peer", peer);
    println!("{}", measure(line, &arguments, &runtime, wheel));
}

/// What all connections share.
struct Shared {
    by: String,
    period: Duration,
    start: Instant,
    late: Mutex<Histogram<u64>>,
    early: AtomicU64,
    over: AtomicBool,
    /// The CPU time of the thread that sees traffic, in nanoseconds.
    traffic: AtomicU64,
}

/// What a connection has in common with its peer: when it was last used, in nanoseconds since the start.
type Used = Arc<AtomicU64>;

impl Shared {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn sent(&self, due: Instant) {
        match Instant::now().checked_duration_since(due) {
            Some(late) => {
                let mut histogram = self.late.lock().expect("nobody panics");
                histogram.saturating_record((late.as_nanos() as u64).max(1));
            }
            None => _ = self.early.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Keepalives by a sleep in a loop, as it is written with either timer.
    async fn sleep<T: Timers>(&self, timers: T, first: Instant) {
        _ = timers.sleep_until(first).await;
        loop {
            let due = Instant::now() + self.period;
            _ = timers.sleep(self.period).await;
            self.sent(due);
        }
    }

    /// The instants of an interval.
    fn grid(&self, first: Instant) -> impl Iterator<Item = Instant> + use<> {
        let period = self.period;
        std::iter::successors(Some(first), move |due| Some(*due + period))
    }

    async fn on_tokio(&self, first: Instant, used: Used) {
        match &*self.by {
            "interval" => {
                let mut interval = interval_at(first, self.period);
                for due in self.grid(first) {
                    interval.tick().await;
                    self.sent(due);
                }
            }
            "sleep" => self.sleep(Tokio, first).await,
            "idle" => {
                sleep_until(first).await;
                used.fetch_max(self.now(), Ordering::Relaxed);
                loop {
                    let seen = used.load(Ordering::Relaxed);
                    let due = self.start + Duration::from_nanos(seen) + self.period;
                    sleep_until(due).await;
                    if used.load(Ordering::Relaxed) == seen {
                        self.sent(due);
                        used.fetch_max(self.now(), Ordering::Relaxed);
                    }
                }
            }
            by => panic!("there are no keepalives by {by}"),
        }
    }

    async fn on_wheel(&self, wheel: Wheel, first: Instant, used: Used, touch: Touch) {
        match &*self.by {
            "interval" => {
                let mut interval = wheel.interval_at(first, self.period);
                for due in self.grid(first) {
                    _ = interval.tick().await;
                    self.sent(due);
                }
            }
            "sleep" => self.sleep(wheel, first).await,
            "idle" => {
                _ = wheel.sleep_until(first).await;
                let mut idle = wheel.idle_timer(self.period);
                let handle = idle.handle();
                used.fetch_max(self.now(), Ordering::Relaxed);
                *touch.lock().expect("nobody panics") = Some(handle.clone());
                loop {
                    _ = (&mut idle).await;
                    let used_at = used.load(Ordering::Relaxed);
                    self.sent(self.start + Duration::from_nanos(used_at) + self.period);
                    used.fetch_max(self.now(), Ordering::Relaxed);
                    handle.touch();
                }
            }
            by => panic!("there are no keepalives by {by}"),
        }
    }
}

type Touch = Arc<Mutex<Option<tickwheel::IdleHandle>>>;

/// Sees traffic on one connection after another, at random.
fn see_traffic(shared: &Shared, connections: &[(Used, Touch)]) {
    let mut random = Rng::with_seed(11);
    let mut next = Instant::now();
    while !shared.over.load(Ordering::Relaxed) {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        // In bursts, so that the thread itself costs little.
        for _ in 0..40 {
            let (used, touch) = &connections[random.usize(..connections.len())];
            // Noted first: a thread that is preempted in between must not make a timer look early.
            used.fetch_max(shared.now(), Ordering::Relaxed);
            if let Some(handle) = &*touch.lock().expect("nobody panics") {
                handle.touch();
            }
        }
        let spent = process::thread_cpu_time().as_nanos() as u64;
        shared.traffic.store(spent, Ordering::Relaxed);
        next += 40 * TRAFFIC;
    }
}

fn measure(line: Line, arguments: &Arguments, runtime: &Runtime, wheel: Option<Wheel>) -> Line {
    let connections = arguments.number("connections", 100_000);
    let seconds = arguments.number("seconds", 10);
    let period = Duration::from_secs(arguments.number("period-s", 30));
    let shared = Arc::new(Shared {
        by: arguments.text("by").expect("--by").to_owned(),
        period,
        start: Instant::now() + Duration::from_secs(1),
        late: Mutex::new(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane")),
        early: AtomicU64::new(0),
        over: AtomicBool::new(false),
        traffic: AtomicU64::new(0),
    });
    let mut random = Rng::with_seed(7);
    let connections: Vec<_> = (0..connections)
        .map(|_| {
            let first = shared.start + Duration::from_nanos(random.u64(..period.as_nanos() as u64));
            let (used, touch) = (Used::default(), Touch::default());
            let (shared, wheel) = (shared.clone(), wheel.clone());
            let given = (used.clone(), touch.clone());
            runtime.spawn(async move {
                match wheel {
                    Some(wheel) => shared.on_wheel(wheel, first, used, touch).await,
                    None => shared.on_tokio(first, used).await,
                }
            });
            given
        })
        .collect();
    let traffic = (shared.by == "idle").then(|| {
        let shared = shared.clone();
        thread::spawn(move || see_traffic(&shared, &connections))
    });
    // From here on, every timer is one of a whole period.
    thread::sleep((shared.start + period).saturating_duration_since(Instant::now()));
    let counted = || {
        let metrics = runtime.metrics();
        let parks: u64 = (0..metrics.num_workers())
            .map(|worker| metrics.worker_park_count(worker))
            .sum();
        let turns = wheel.as_ref().map_or(0, |wheel| wheel.metrics().turns);
        let traffic = Duration::from_nanos(shared.traffic.load(Ordering::Relaxed));
        (process::cpu_time() - traffic, parks, turns)
    };
    shared.late.lock().expect("nobody panics").reset();
    let before = counted();
    thread::sleep(Duration::from_secs(seconds));
    let after = counted();
    let late = shared.late.lock().expect("nobody panics").clone();
    shared.over.store(true, Ordering::Relaxed);
    if let Some(traffic) = traffic {
        traffic.join().expect("it does not panic");
    }
    let ms = |quantile| late.value_at_quantile(quantile) as f64 / 1e6;
    let each_second = |count: u64| count as f64 / seconds as f64;
    line.with_number("sent_per_s", each_second(late.len()))
        .with_number(
            "cpu_us_each",
            (after.0 - before.0).as_secs_f64() * 1e6 / late.len() as f64,
        )
        .with_number("turns_per_s", each_second(after.2 - before.2))
        .with_number("parks_per_s", each_second(after.1 - before.1))
        .with_number("p50_ms", ms(0.5))
        .with_number("p99_ms", ms(0.99))
        .with("early", shared.early.load(Ordering::Relaxed))
}
