//! Ten thousand peers, each with a heartbeat, and an idle timer that notices when the beats stop.
//!
//! Without jitter, peers that start together beat together forever, and all the work of a period falls on one
//! or two ticks. With jitter it spreads over the period. A bar chart shows both, tick by tick.
//!
//!     cargo run --release -p examples --bin heartbeats

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tickwheel::{Periodic, Wheel};
use tokio::{task::JoinSet, time::Instant};

const PEERS: usize = 10_000;
const PERIOD: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);
const TICKS: usize = (PERIOD.as_millis() / TICK.as_millis()) as usize;
/// More than a peer takes to its first beat: a period, and up to another of jitter.
const SILENCE: Duration = Duration::from_millis(2500);
const FAILING: usize = 3;

#[tokio::main]
async fn main() {
    let wheel = Wheel::builder()
        .tick_duration(TICK)
        .build()
        .expect("20 ms are within a tick's limits");
    println!("{PEERS} peers that start together, a heartbeat every {PERIOD:?}, a tick of {TICK:?}");

    let peers = Peers::start(&wheel, Duration::ZERO);
    let beats = peers.beats_of_a_period(&wheel).await;
    chart("\nBeats on each tick of a period, without jitter:", &beats);
    peers.stop().await;

    let mut peers = Peers::start(&wheel, PERIOD);
    let beats = peers.beats_of_a_period(&wheel).await;
    chart("\nThe same, with a jitter of one period:", &beats);

    println!("\n{FAILING} peers stop beating; the others go on.");
    for heartbeat in &peers.heartbeats[..FAILING] {
        heartbeat.stop();
    }
    for _ in 0..FAILING {
        let peer = peers.silent().await;
        println!("Peer {peer} has been silent for {SILENCE:?}.");
    }

    let beats: u64 = peers.heartbeats.iter().map(Periodic::runs).sum();
    println!("\n{beats} beats; {} timers wait in the wheel.", wheel.pending());
    peers.stop().await;
    println!("All stopped: {} wait.", wheel.pending());
}

struct Peers {
    started: Instant,
    heartbeats: Vec<Periodic>,
    /// Each ends with its peer's number, once that has been silent for too long.
    watches: JoinSet<usize>,
    /// Beats, by their tick within the period.
    beats: Arc<[AtomicUsize; TICKS]>,
}

impl Peers {
    fn start(wheel: &Wheel, jitter: Duration) -> Peers {
        let mut peers = Peers {
            started: Instant::now(),
            heartbeats: Vec::with_capacity(PEERS),
            watches: JoinSet::new(),
            beats: Arc::new(array::from_fn(|_| AtomicUsize::new(0))),
        };
        for peer in 0..PEERS {
            let silence = wheel.idle_timer(SILENCE);
            let heard = silence.handle();
            peers.watches.spawn(async move {
                silence.await;
                peer
            });

            let (started, beats) = (peers.started, peers.beats.clone());
            let heartbeat = wheel
                .periodic(PERIOD)
                .jitter(jitter)
                .spawn_at_fixed_rate(move || {
                    heard.touch();
                    let tick = started.elapsed().as_millis() / TICK.as_millis();
                    beats[tick as usize % TICKS].fetch_add(1, Ordering::Relaxed);
                    async {}
                });
            peers.heartbeats.push(heartbeat);
        }
        peers
    }

    /// Counts for one period, when all peers have started to beat; from the middle of one to the middle of
    /// the next, so that beats without jitter, at its start, are not cut in two.
    async fn beats_of_a_period(&self, wheel: &Wheel) -> [usize; TICKS] {
        wheel.sleep_until(self.started + PERIOD * 5 / 2).await;
        self.beats
            .iter()
            .for_each(|beats| beats.store(0, Ordering::Relaxed));
        wheel.sleep_until(self.started + PERIOD * 7 / 2).await;
        array::from_fn(|tick| self.beats[tick].load(Ordering::Relaxed))
    }

    async fn silent(&mut self) -> usize {
        let silent = self.watches.join_next().await.expect("every peer is watched");
        silent.expect("a watch does not panic")
    }

    async fn stop(mut self) {
        self.heartbeats.iter().for_each(Periodic::stop);
        for heartbeat in self.heartbeats {
            heartbeat
                .await
                .expect("no heartbeat panics, and this wheel refuses none");
        }
        // The idle timers are cancelled when the tasks that wait for them are.
        self.watches.shutdown().await;
    }
}

/// A column for each tick.
fn chart(title: &str, beats: &[usize]) {
    const ROWS: usize = 6;
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

    let most = beats.iter().copied().max().unwrap_or(0).max(1);
    println!("{title}");
    for row in (0..ROWS).rev() {
        let column = |&beats: &usize| {
            let eighths = (beats * ROWS * 8).div_ceil(most);
            EIGHTHS[eighths.saturating_sub(row * 8).min(8)]
        };
        let bars: String = beats.iter().map(column).collect();
        let scale = if row + 1 == ROWS {
            most.to_string()
        } else {
            String::new()
        };
        println!("{scale:>8} |{bars}|");
    }
    println!("{:>8} |{:<width$}| {PERIOD:?}", "", "0", width = beats.len());
}
