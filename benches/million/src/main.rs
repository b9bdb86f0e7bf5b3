//! The main experiment: what the timers of a server cost, a million of them, on `tickwheel` and on `tokio::time`.
//!
//! A client process sends requests at a fixed rate, found by a short calibration, which keeps the machine at about half of its CPU. The
//! server process exists in three versions: without timers, with the wheel's and with Tokio's. They run in short alternating rounds, each
//! in a process of its own. The cost of the timers is the difference from the version without timers.
//!
//!     cargo run --release -p million -- --connections 2000 --timers 1000000 --seconds 2

use std::{env, io, process::ExitCode, time::Duration};

use tickwheel::Wheel;

use crate::{
    clockwork::{Clockwork, NoTimers, TokioTime},
    experiment::Version,
    options::Options,
};

mod client;
mod clockwork;
mod contention;
mod experiment;
mod machine;
mod options;
mod report;
mod server;
mod spread;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("child") => child(&arguments[1..]),
        _ => match Options::parse(arguments.into_iter()) {
            Ok(Some(options)) => experiment::run(options).map(|figures| report::print(&options, &figures)),
            Ok(None) => {
                println!("{}", Options::HELP);
                Ok(())
            }
            Err(mistake) => {
                eprintln!("{mistake}");
                return ExitCode::from(2);
            }
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("million: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One of the processes that the experiment starts: `child client PORT RATE CONNECTIONS`, `child server VERSION TICK TIMERS`
/// or `child contention VERSION TICK`.
fn child(arguments: &[String]) -> io::Result<()> {
    let number = |place: usize| -> io::Result<u64> {
        let argument = arguments.get(place).ok_or(io::ErrorKind::InvalidInput)?;
        argument.parse().map_err(io::Error::other)
    };
    if arguments.first().is_some_and(|role| role == "client") {
        return client::run(number(1)? as u16, number(2)?, number(3)? as usize);
    }
    let tick = Duration::from_millis(number(2)?);
    match arguments.get(1).and_then(|name| Version::named(name)) {
        Some(Version::None) => serve_or_contend(arguments, NoTimers),
        Some(Version::Tokio) => serve_or_contend(arguments, TokioTime),
        Some(Version::Wheel) => {
            let wheel = Wheel::builder().tick_duration(tick).build();
            serve_or_contend(arguments, wheel.map_err(io::Error::other)?)
        }
        None => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn serve_or_contend<C: Clockwork>(arguments: &[String], clock: C) -> io::Result<()> {
    match arguments.get(3) {
        Some(timers) => server::run(clock, timers.parse().map_err(io::Error::other)?),
        None => contention::run(clock),
    }
}
