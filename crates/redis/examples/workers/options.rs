//! What the command line asks for.

use std::{env, process::exit};

pub(crate) struct Options {
    pub(crate) redis: Option<String>,
    pub(crate) jobs: usize,
    pub(crate) seconds: u64,
    pub(crate) workers: usize,
}

/// What this process is to do.
pub(crate) enum Task {
    Manage(Options),
    /// As a worker of this queue: how the program starts itself again.
    Work(String),
}

pub(crate) fn parse() -> Task {
    let mut arguments = env::args().skip(1);
    let mut options = Options {
        redis: None,
        jobs: 50_000,
        seconds: 20,
        workers: 3,
    };
    while let Some(option) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .unwrap_or_else(|| usage(&format!("{option} needs a value")))
        };
        match &*option {
            "--redis" => options.redis = Some(value()),
            "--jobs" => options.jobs = number(&option, &value()) as usize,
            "--seconds" => options.seconds = number(&option, &value()),
            "--workers" => options.workers = number(&option, &value()) as usize,
            // How this program starts itself again.
            "--work-for" => return Task::Work(value()),
            _ => usage(&format!("what is {option}?")),
        }
    }
    Task::Manage(options)
}

pub(crate) fn usage(problem: &str) -> ! {
    eprintln!("{problem}\nusage: workers [--redis URL] [--jobs 50000] [--seconds 20] [--workers 3]");
    exit(2);
}

fn number(option: &str, value: &str) -> u64 {
    match value.parse() {
        Ok(number) if number > 0 => number,
        _ => usage(&format!("{option} {value} is not allowed: a number above 0")),
    }
}
