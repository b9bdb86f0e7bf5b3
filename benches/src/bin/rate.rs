//! CPU time under a steady rate of timeouts, each around a future that is pending once, and what the wheel's ticking adds to it:
//! `rate [--batch N] [--every-ticks N] [--seconds N] [--rounds N]`, where a tick is 10 ms.
//!
//! The timeouts come in a batch every so many ticks, to one worker of a runtime that sleeps in between. `none` is the same load without
//! timeouts, and `current` the timeouts of `tickwheel::time`.

use std::{
    thread,
    time::{Duration, Instant},
};

use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process, stage,
    work::{Once, poll_once, repeat},
};
use tokio::sync::mpsc;

const TICK: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, &["none", "current", "tickwheel", "tokio"]);
    };
    let batch = arguments.number("batch", 100);
    let every = arguments.number("every-ticks", 1);
    let ticks = arguments.number("seconds", 2) * 100;
    let runtime = stage::quiet(1);
    let wheel = Wheel::new();
    let (requests, mut taken) = mpsc::unbounded_channel::<u64>();
    let (chosen, turned) = (peer.clone(), wheel.clone());
    let server = runtime.spawn(async move {
        while let Some(batch) = taken.recv().await {
            match chosen.as_str() {
                "none" => repeat(batch, |cx| poll_once(cx, Once::default())).await,
                "current" => {
                    repeat(batch, |cx| {
                        poll_once(cx, tickwheel::time::timeout(TIMEOUT, Once::default()))
                    })
                    .await
                }
                "tickwheel" => {
                    repeat(batch, |cx| {
                        poll_once(cx, turned.timeout(TIMEOUT, Once::default()))
                    })
                    .await
                }
                "tokio" => {
                    repeat(batch, |cx| {
                        poll_once(cx, tokio::time::timeout(TIMEOUT, Once::default()))
                    })
                    .await
                }
                peer => panic!("there is no {peer}"),
            }
        }
    });
    let (cpu, began) = (process::cpu_time(), Instant::now());
    for tick in (0..ticks as u32).step_by(every as usize) {
        thread::sleep((began + TICK * tick).saturating_duration_since(Instant::now()));
        requests.send(batch).expect("the server runs");
    }
    drop(requests);
    runtime.block_on(server).expect("the server does not panic");
    let cpu = process::cpu_time() - cpu;
    let line = Line::new("rate")
        .with("peer", peer)
        .with("batch", batch)
        .with("every_ticks", every);
    let line = line.with_number("cpu_ms_per_s", cpu.as_secs_f64() * 1e5 / ticks as f64);
    println!("{}", line.with("turns", wheel.metrics().turns));
}
