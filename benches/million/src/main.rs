//! What do timers cost? A million of them in this process, on Tokio's own timer and on tickwheel's wheel in
//! turns; then what that means for a server with real connections.
//!
//! ```sh
//! cargo run --release -p million
//! ```
//!
//! In a build with `--cfg tokio_unstable`, Tokio's alternative timer is measured too, and with the feature
//! `precise` a wheel that waits on the kernel's timer. `benches/million/publish` writes the tables and pictures
//! of README and docs/performance.md with both.

#![forbid(unsafe_code)]

use std::{env, io, process::ExitCode, time::Duration};

use crate::{options::Options, progress::Progress};

mod figures;
mod machine;
mod options;
mod peer;
mod progress;
mod report;
mod rows;
mod server;
mod statistics;
mod timers;
mod turns;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let Some("child") = arguments.first().map(String::as_str) {
        return outcome(child(&arguments[1..]));
    }
    match Options::parse(arguments.into_iter()) {
        Ok(Some(options)) => outcome(run(&options)),
        Ok(None) => {
            println!("{}", Options::HELP);
            ExitCode::SUCCESS
        }
        Err(mistake) => {
            eprintln!("{mistake}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("This program has been built without --release, so its figures say nothing.");
    }
    let mut progress = Progress::new(options);
    let figures = figures::measure(options, &mut progress)?;
    progress.finish();
    report::write(options, &figures)
}

/// The part of an experiment that needs a process of its own, so that its memory and its CPU time can be told
/// apart.
fn child(arguments: &[String]) -> io::Result<()> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["keepalives", timers, connections, millis] => {
            let ahead = Duration::from_millis(peer::number(millis)? as u64);
            rows::keepalives::child(timers, peer::number(connections)? as u64, ahead)
        }
        ["memory", timers, count] => rows::memory::child(timers, peer::number(count)? as usize),
        ["server"] => server::child(),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn outcome(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("million: {error}");
            ExitCode::FAILURE
        }
    }
}
