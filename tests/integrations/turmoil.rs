//! A simulated network, driven by a seed: hosts with wheels of their own, latency, a partition, a crash. The
//! same seed gives the same trace, to the millisecond.

use std::{
    cell::RefCell,
    fmt::Display,
    io,
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    time::Duration,
};

use tickwheel::Wheel;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::{
    Builder,
    net::{TcpListener, TcpStream},
};

const PORT: u16 = 7;
const TICK: Duration = Duration::from_millis(10);
/// What turmoil moves its hosts on by, and how far their clocks may be apart.
const STEP: Duration = Duration::from_millis(1);

const REQUEST: Duration = Duration::from_millis(250);
const IDLE: Duration = Duration::from_millis(700);
const PARTITION: std::ops::Range<Duration> = Duration::from_millis(2_000)..Duration::from_millis(4_000);
const CRASH: Duration = Duration::from_millis(6_000);
const BOUNCE: Duration = Duration::from_millis(7_000);
/// Messages are held back; none is lost.
const HOLD: std::ops::Range<Duration> = Duration::from_millis(8_000)..Duration::from_millis(9_000);
const END: Duration = Duration::from_millis(10_000);

/// What happened, and when by the simulation's clock.
#[derive(Clone, Default)]
struct Trace(Rc<RefCell<Vec<(Duration, String)>>>);

impl Trace {
    fn record(&self, what: impl Display) {
        let at = turmoil::sim_elapsed().unwrap();
        self.0.borrow_mut().push((at, what.to_string()));
    }
}

/// Echoes numbers, and closes connections on which none has come for a while.
async fn serve(wheel: Wheel, mut stream: TcpStream, trace: Trace) -> io::Result<()> {
    let mut idle = wheel.idle_timer(IDLE);
    let activity = idle.handle();
    loop {
        tokio::select! {
            biased;
            number = stream.read_u64() => {
                activity.touch();
                stream.write_u64(number?).await?;
            }
            _ = &mut idle => {
                trace.record("server: idle");
                return Ok(());
            }
        }
    }
}

async fn server(wheel: Wheel, trace: Trace) -> turmoil::Result {
    trace.record("server: starts");
    let heartbeat = trace.clone();
    let mut interval = wheel.interval(Duration::from_secs(1));
    tokio::task::spawn_local(async move {
        loop {
            interval.tick().await;
            heartbeat.record("server: heartbeat");
        }
    });
    let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = serve(wheel.clone(), stream, trace.clone());
        tokio::task::spawn_local(connection);
    }
}

/// Sends a number and waits for its echo, over a connection made where there is none.
async fn request(stream: &mut Option<TcpStream>, number: u64) -> io::Result<u64> {
    let stream = match stream {
        Some(stream) => stream,
        None => stream.insert(TcpStream::connect(("server", PORT)).await?),
    };
    stream.write_u64(number).await?;
    stream.read_u64().await
}

async fn client(trace: Trace) -> turmoil::Result {
    let wheel = Wheel::new();
    let mut stream = None;
    let mut number = 0;
    while turmoil::elapsed() < END {
        number += 1;
        let start = turmoil::elapsed();
        let outcome = wheel.timeout(REQUEST, request(&mut stream, number)).await;
        let took = turmoil::elapsed() - start;
        match outcome {
            Ok(Ok(echo)) => {
                assert_eq!(echo, number);
                trace.record(format_args!("client: {number} echoed"));
            }
            Ok(Err(error)) => {
                trace.record(format_args!("client: {number} failed: {}", error.kind()));
                stream = None;
            }
            Err(_) => {
                assert!(
                    took >= REQUEST && took < REQUEST + 2 * TICK + 2 * STEP,
                    "{took:?}"
                );
                trace.record(format_args!("client: {number} timed out"));
                stream = None;
            }
        }
        wheel.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(wheel.pending(), 0);
    Ok(())
}

fn simulate(seed: u64) -> Vec<(Duration, String)> {
    let trace = Trace::default();
    let mut sim = Builder::new()
        .rng_seed(seed)
        .tick_duration(STEP)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(60))
        .simulation_duration(Duration::from_secs(60))
        .build();
    // One wheel for the server's process in all its lives: each has a runtime of its own, and the wheel a
    // driver on it.
    let wheel = Wheel::new();
    let lives = (wheel.clone(), trace.clone());
    sim.host("server", move || {
        let (wheel, trace) = lives.clone();
        server(wheel, trace)
    });
    sim.client("client", client(trace.clone()));

    let at = |sim: &turmoil::Sim<'_>, when: Duration| sim.elapsed() >= when && sim.elapsed() < when + STEP;
    while !sim.step().unwrap() {
        if at(&sim, PARTITION.start) {
            sim.partition("client", "server");
        } else if at(&sim, PARTITION.end) {
            sim.repair("client", "server");
        } else if at(&sim, CRASH) {
            sim.crash("server");
        } else if at(&sim, BOUNCE) {
            sim.bounce("server");
        } else if at(&sim, HOLD.start) {
            sim.hold("client", "server");
        } else if at(&sim, HOLD.end) {
            sim.release("client", "server");
        }
    }
    drop(sim);
    assert_eq!(wheel.pending(), 0, "a runtime that is gone leaves nothing behind");
    trace.0.take()
}

fn count(trace: &[(Duration, String)], what: &str, when: std::ops::Range<Duration>) -> usize {
    trace
        .iter()
        .filter(|(at, event)| when.contains(at) && event.contains(what))
        .count()
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let first = simulate(42);
    for _ in 0..3 {
        assert_eq!(simulate(42), first);
    }
    assert_ne!(simulate(43), first, "and another seed another");
}

#[test]
fn requests_time_out_when_the_network_fails_and_not_when_it_is_slow() {
    for seed in 0..8 {
        let trace = simulate(seed);
        let count = |what, when| count(&trace, what, when);
        let (start, end) = (Duration::ZERO, Duration::MAX);
        assert!(count("echoed", start..PARTITION.start) > 5, "{trace:#?}");
        let cut = PARTITION.start + REQUEST..PARTITION.end;
        assert_eq!(count("echoed", cut.clone()), 0, "{trace:#?}");
        // What was under way is lost without a word; connections asked for later are refused.
        assert_eq!(count("timed out", PARTITION), 1, "{trace:#?}");
        assert!(count("failed", cut) > 20, "{trace:#?}");

        assert!(count("echoed", PARTITION.end + REQUEST..CRASH) > 5, "{trace:#?}");
        let down = CRASH + REQUEST..BOUNCE;
        assert_eq!(count("echoed", down.clone()), 0, "{trace:#?}");
        assert!(count("timed out", down) >= 2, "{trace:#?}");

        assert!(count("echoed", BOUNCE + REQUEST..HOLD.start) > 2, "{trace:#?}");
        let held = HOLD.start + REQUEST..HOLD.end;
        assert_eq!(count("echoed", held.clone()), 0, "{trace:#?}");
        assert!(count("timed out", held) >= 2, "{trace:#?}");
        assert!(count("echoed", HOLD.end + REQUEST..end) > 2, "{trace:#?}");

        // The server noticed by itself that nobody spoke any more, and its wheel went on after the crash.
        assert!(count("server: idle", PARTITION) >= 1, "{trace:#?}");
        assert_eq!(count("server: starts", start..end), 2);
        assert_eq!(count("server: heartbeat", start..CRASH), 6, "{trace:#?}");
        assert_eq!(count("server: heartbeat", CRASH..BOUNCE), 0, "{trace:#?}");
        assert!(count("server: heartbeat", BOUNCE..end) >= 3, "{trace:#?}");
    }
}
