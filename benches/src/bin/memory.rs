//! Resident bytes per pending boxed sleep, measured with a million of them: `memory [--timers N] [--rounds N]`.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use fastrand::Rng;
use tickwheel::Wheel;
use tickwheel_benches::{
    Peer,
    children::{Arguments, Line, in_turn},
    process,
    stage::{Stage, quiesce},
    work::Durations,
};

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, &["tickwheel", "tokio"]);
    };
    let timers = arguments.number("timers", 1_000_000) as usize;
    let stage = Stage::new(1);
    let _entered = stage.runtime(Peer::Tokio).enter();
    let bytes = match peer.as_str() {
        "tickwheel" => {
            let wheel = Wheel::new();
            resident(timers, |duration| wheel.sleep(duration))
        }
        "tokio" => resident(timers, tokio::time::sleep),
        peer => panic!("there is no {peer}"),
    };
    let per_timer = bytes as f64 / timers as f64;
    println!(
        "{}",
        Line::new("memory")
            .with("peer", peer)
            .with("timers", timers)
            .with_number("bytes", per_timer)
    );
}

fn resident<F: Future>(timers: usize, mut make: impl FnMut(Duration) -> F) -> u64 {
    let mut random = Rng::with_seed(7);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut start = |duration| {
        let mut sleep = Box::pin(make(duration));
        assert!(sleep.as_mut().poll(cx).is_pending());
        sleep
    };
    // What the timer needs whatever the number of timers.
    drop(start(Duration::from_secs(600)));
    quiesce();
    let before = process::resident_bytes();
    let mut sleeps: Vec<Pin<Box<F>>> = Vec::with_capacity(timers);
    for _ in 0..timers {
        sleeps.push(start(Durations::Random.draw(&mut random)));
    }
    quiesce();
    let after = process::resident_bytes();
    // The boxes count; the list that this program keeps of them does not.
    let list = (sleeps.len() * size_of::<Pin<Box<F>>>()) as u64;
    after - before - list
}
