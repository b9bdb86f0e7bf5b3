//! What pending timers cost while nothing else happens: `idle [--timers N] [--seconds N] [--rounds N]`. A single timer is an hour away.

use std::{
    future::Future,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use fastrand::Rng;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process,
    work::Durations,
};

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, &["tickwheel", "tokio"]);
    };
    let timers = arguments.number("timers", 100_000) as usize;
    let seconds = arguments.number("seconds", 5);
    // Not a `Stage`, which has a timer of its own that comes and goes.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime starts");
    let _entered = runtime.enter();
    let (cpu, switches, turns) = match peer.as_str() {
        "tickwheel" => {
            let wheel = Wheel::new();
            let before = || wheel.metrics().turns;
            idle(timers, seconds, |duration| wheel.sleep(duration), before)
        }
        "tokio" => idle(timers, seconds, tokio::time::sleep, || 0),
        peer => panic!("there is no {peer}"),
    };
    let line = Line::new("idle")
        .with("peer", peer)
        .with("timers", timers)
        .with("seconds", seconds);
    let line = line
        .with_number("cpu_ms", cpu.as_secs_f64() * 1e3)
        .with("switches", switches);
    println!("{}", line.with("turns", turns));
}

fn idle<F: Future>(
    timers: usize,
    seconds: u64,
    mut make: impl FnMut(Duration) -> F,
    turns: impl Fn() -> u64,
) -> (Duration, u64, u64) {
    let mut random = Rng::with_seed(7);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut sleeps = Vec::with_capacity(timers);
    for _ in 0..timers {
        let duration = match timers {
            1 => Duration::from_secs(3_600),
            _ => Durations::Random.draw(&mut random),
        };
        let mut sleep = Box::pin(make(duration));
        assert!(sleep.as_mut().poll(cx).is_pending());
        sleeps.push(sleep);
    }
    // A busy shard takes a while to notice that it is idle.
    thread::sleep(Duration::from_secs(2));
    let before = (process::cpu_time(), process::context_switches(), turns());
    thread::sleep(Duration::from_secs(seconds));
    let after = (process::cpu_time(), process::context_switches(), turns());
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}
