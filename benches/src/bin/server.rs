//! The server in memory, 50 connections in turn on one thread: `server [--traffic busy|quiet] [--seconds N] [--rounds N]`.

use std::time::{Duration, Instant};

use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn_at},
    process,
    server::{Server, Traffic},
    timers::{Nothing, Timers, Tokio},
};
use tokio::runtime::Builder;

fn main() {
    let arguments = Arguments::read();
    let traffic = arguments.text("traffic");
    let Some(peer) = arguments.rest.first() else {
        for kind in ["busy", "quiet"] {
            if traffic.is_none_or(|only| only == kind) {
                in_turn_at(
                    &arguments,
                    Some(("traffic", kind)),
                    &["none", "tickwheel", "tokio"],
                );
            }
        }
        return;
    };
    let (name, traffic) = match traffic {
        Some("busy") => ("server-busy", Traffic::Busy),
        Some("quiet") => ("server-quiet", Traffic::Quiet),
        traffic => panic!("there is no traffic {traffic:?}"),
    };
    let seconds = Duration::from_secs(arguments.number("seconds", 2));
    let (requests, took, cpu) = match peer.as_str() {
        "none" => serve(Nothing, traffic, seconds),
        "tickwheel" => serve(Wheel::new(), traffic, seconds),
        "tokio" => serve(Tokio, traffic, seconds),
        peer => panic!("there is no {peer}"),
    };
    let line = Line::new("program").with("peer", peer).with("program", name);
    let line = line.with_number("requests_per_s", requests as f64 / took.as_secs_f64());
    println!(
        "{}",
        line.with_number("cpu_us", cpu.as_secs_f64() * 1e6 / requests as f64)
    );
}

fn serve<T: Timers>(timers: T, traffic: Traffic, seconds: Duration) -> (u64, Duration, Duration) {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("the runtime starts");
    runtime.block_on(async {
        let mut server = Server::start(50, &timers);
        server.ask(2_000, traffic).await;
        let (began, cpu) = (Instant::now(), process::cpu_time());
        let mut requests = 0;
        while began.elapsed() < seconds {
            server.ask(500, traffic).await;
            requests += 500;
        }
        (requests, began.elapsed(), process::cpu_time() - cpu)
    })
}
