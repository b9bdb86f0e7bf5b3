//! How the experiments take turns, and the runtimes they run on.

use std::io;

use tokio::runtime::{Builder, Runtime};

use crate::progress::Progress;

/// Lets `N` competitors measure in turn, each once per round. Every round begins with another of them, so
/// that none always follows the same one. Returns the figures of each.
pub(crate) fn in_turns<const N: usize, T>(
    rounds: usize,
    progress: &mut Progress,
    mut measure: impl FnMut(usize) -> io::Result<T>,
) -> io::Result<[Vec<T>; N]> {
    let mut figures = [const { Vec::new() }; N];
    for round in 0..rounds {
        for place in 0..N {
            let competitor = (round + place) % N;
            figures[competitor].push(measure(competitor)?);
            progress.reach((round * N + place + 1) as f64 / (rounds * N) as f64);
        }
    }
    Ok(figures)
}

pub(crate) fn multi_thread(workers: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
}

pub(crate) fn current_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
