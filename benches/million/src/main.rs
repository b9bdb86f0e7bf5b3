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
    clockwork::{NoTimers, TokioTime},
    experiment::Version,
    options::Options,
};

mod client;
mod clockwork;
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

/// One of the processes that the experiment starts: `child client PORT RATE CONNECTIONS` or `child server VERSION TICK TIMERS`.
fn child(arguments: &[String]) -> io::Result<()> {
    let number = |place: usize| -> io::Result<u64> {
        let argument = arguments.get(place).ok_or(io::ErrorKind::InvalidInput)?;
        argument.parse().map_err(io::Error::other)
    };
    if arguments.first().is_some_and(|role| role == "client") {
        return client::run(number(1)? as u16, number(2)?, number(3)? as usize);
    }
    let (tick, timers) = (Duration::from_millis(number(2)?), number(3)? as usize);
    match arguments.get(1).and_then(|name| Version::named(name)) {
        Some(Version::None) => server::run(NoTimers, timers),
        Some(Version::Tokio) => server::run(TokioTime, timers),
        Some(Version::Wheel) => {
            let wheel = Wheel::builder().tick_duration(tick).build();
            server::run(wheel.map_err(io::Error::other)?, timers)
        }
        None => Err(io::ErrorKind::InvalidInput.into()),
    }
}
