//! What do timers cost that do fire: the keepalives of very many connections, every 30 s each? On Tokio's
//! timer, and on a wheel that may let them be late together by nothing, by its default and by 300 ms. They
//! run at the same time, in a process each, so that whatever disturbs one disturbs all.

use std::{
    io,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use fastrand::Rng;
use tickwheel::Wheel;
use tokio::{runtime::Runtime, sync::Notify, time::Instant};

use crate::{
    figures::{Row, Section, Unit},
    machine::{Used, Watch, cores},
    options::Options,
    peer::{Peer, answer, tell},
    progress::Progress,
    report::text::grouped,
    timers::{Timers, Tokio},
    turns::{ALTERNATIVE, multi_thread_for},
};

const PERIOD: Duration = Duration::from_secs(30);
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1200);
const SLACK: Duration = Duration::from_millis(300);
/// Tokio's first, then the wheels.
const NAMES: [&str; 5] = [
    "tokio",
    "wheel without slack",
    "wheel by default",
    "wheel with 300 ms of slack",
    ALTERNATIVE_NAME,
];
const ALTERNATIVE_NAME: &str = "alternative";
/// The alternative timer is last, because not every build has it.
const STARTED: usize = if cfg!(tokio_unstable) { 5 } else { 4 };

/// How long before it is due the first keepalive is set. Nothing fires meanwhile, so that other experiments
/// can be done. The last one that is measured has been set for less than 32 s: a wheel's slack depends on
/// that, and so all are like those that are set for 30 s.
const AHEAD: Duration = Duration::from_secs(25);

/// The processes, whose keepalives have been set and are not due yet.
pub(crate) struct Keepalives {
    peers: Vec<Peer>,
    due_from: Instant,
}

impl Keepalives {
    pub(crate) fn start(options: &Options) -> io::Result<Keepalives> {
        let ahead = options.lasting(AHEAD).min(AHEAD);
        let (count, millis) = (options.keepalives().to_string(), ahead.as_millis().to_string());
        let mut peers = Vec::new();
        for competitor in &NAMES[..STARTED] {
            peers.push(Peer::start(&["keepalives", competitor, &count, &millis])?);
        }
        for peer in &mut peers {
            // Says so when all of them are set.
            peer.numbers()?;
        }
        Ok(Keepalives {
            peers,
            due_from: Instant::now() + ahead,
        })
    }
}

pub(crate) fn measure(
    options: &Options,
    progress: &mut Progress,
    mut keepalives: Keepalives,
) -> io::Result<Section> {
    let connections = grouped(options.keepalives() as f64);
    let round = options.lasting(ROUND);
    progress.begin(
        &format!("{connections} keepalives that fire every 30 s, with and without slack"),
        (ROUNDS + 1) as u32 * round,
    );
    thread::sleep((keepalives.due_from - round).saturating_duration_since(Instant::now()));
    for peer in &mut keepalives.peers {
        peer.ask("traffic")?;
    }
    thread::sleep(
        keepalives
            .due_from
            .saturating_duration_since(Instant::now())
            .max(round / 2),
    );
    let watch = Watch::start()?;
    let mut seen = [const { Vec::new() }; STARTED];
    for number in 0..=ROUNDS {
        for (peer, seen) in keepalives.peers.iter_mut().zip(&mut seen) {
            seen.push(Seen::from(peer.ask("so far?")?));
        }
        if number < ROUNDS {
            thread::sleep(round);
        }
        progress.reach((number + 1) as f64 / (ROUNDS + 1) as f64);
    }
    let by_peers = seen.iter().map(|seen| seen[ROUNDS].cpu - seen[0].cpu).sum();
    let others = watch.others(Duration::from_secs_f64(by_peers))?;
    let figures = |competitor: usize, figure: fn(&Seen, &Seen) -> f64| -> Vec<f64> {
        seen[competitor]
            .windows(2)
            .map(|pair| figure(&pair[0], &pair[1]))
            .collect()
    };
    let rows = |what: &str, unit, figure: fn(&Seen, &Seen) -> f64| {
        [1, 2, 3].map(|wheel| {
            let name = format!("{what}, {}", NAMES[wheel]);
            let alternative = (STARTED > 4).then(|| figures(4, figure));
            Row::new(name, unit, [figures(0, figure), figures(wheel, figure)]).alternative(alternative)
        })
    };
    let [cpu_without, cpu, cpu_with] = rows("CPU of a firing", Unit::Micros, Seen::cpu_until);
    let [woken_without, woken, woken_with] =
        rows("wake-ups of the process", Unit::PerSecond, Seen::wakeups_until);
    Ok(Section {
        key: "keepalives",
        title: format!("{connections} keepalives that do fire"),
        about: "An interval of 30 s for each connection, at a phase of its own, in a process that does nothing else. Slack is how late the \
                 wheel may let a timer be so that it fires together with others."
            .to_owned(),
        rows: vec![
            cpu_without,
            cpu.gain("CPU for timers that do fire"),
            cpu_with,
            woken_without,
            woken,
            woken_with,
        ],
        others,
    })
}

/// What a process has done since it began.
struct Seen {
    seconds: f64,
    cpu: f64,
    wakeups: f64,
    fired: f64,
}

impl From<Vec<f64>> for Seen {
    fn from(numbers: Vec<f64>) -> Seen {
        let number = |place: usize| numbers.get(place).copied().unwrap_or(f64::NAN);
        Seen {
            seconds: number(0),
            cpu: number(1),
            wakeups: number(2),
            fired: number(3),
        }
    }
}

impl Seen {
    /// Microseconds of CPU time for each that fired.
    fn cpu_until(&self, later: &Seen) -> f64 {
        1e6 * (later.cpu - self.cpu) / (later.fired - self.fired).max(1.0)
    }

    fn wakeups_until(&self, later: &Seen) -> f64 {
        (later.wakeups - self.wakeups) / (later.seconds - self.seconds)
    }
}

/// Wakes all connections once, as traffic does. Otherwise the first access to the memory of each is measured
/// with its timer, and on a virtual machine whose host had other plans for pages that lay idle, that took 14
/// µs.
static TRAFFIC: Notify = Notify::const_new();

static FIRED: AtomicU64 = AtomicU64::new(0);

fn fired() {
    FIRED.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn child(timers: &str, connections: u64, ahead: Duration) -> io::Result<()> {
    let is_alternative = timers == ALTERNATIVE_NAME;
    let runtime = multi_thread_for(if is_alternative { ALTERNATIVE } else { 0 }, cores())?;
    let start = Instant::now();
    let due_from = start + ahead;
    let builder = match timers {
        "tokio" | ALTERNATIVE_NAME => None,
        "wheel without slack" => Some(Wheel::builder().slack(Duration::ZERO)),
        "wheel by default" => Some(Wheel::builder()),
        _ => Some(Wheel::builder().slack(SLACK)),
    };
    if let Some(builder) = builder {
        let wheel: &'static Wheel = Box::leak(Box::new(builder.build().map_err(io::Error::other)?));
        connect(&runtime, wheel, due_from, connections);
    } else {
        connect(&runtime, Tokio, due_from, connections);
    }
    tell(&[]);
    answer(|question| {
        if question == "traffic" {
            TRAFFIC.notify_waiters();
        }
        let used = Used::by_this_process()?;
        Ok(vec![
            start.elapsed().as_secs_f64(),
            used.cpu().as_secs_f64(),
            used.wakeups as f64,
            FIRED.load(Ordering::Relaxed) as f64,
        ])
    })
}

fn connect<T: Timers>(runtime: &Runtime, timers: T, due_from: Instant, connections: u64) {
    let mut random = Rng::with_seed(3);
    for _ in 0..connections {
        let phase = Duration::from_micros(random.u64(..PERIOD.as_micros() as u64));
        runtime.spawn(async move {
            let mut beats = pin!(timers.beat(due_from + phase, PERIOD, fired));
            tokio::select! {
                biased;
                () = &mut beats => {}
                () = TRAFFIC.notified() => {}
            }
            beats.await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_happened_between_two_looks() {
        let first = Seen::from(vec![1.0, 0.5, 100.0, 1000.0]);
        let later = Seen::from(vec![3.0, 0.52, 700.0, 3000.0]);
        assert!((first.cpu_until(&later) - 10.0).abs() < 1e-9);
        assert_eq!(first.wakeups_until(&later), 300.0);
    }
}
