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

/// Tokio's timer and the wheel, and Tokio's alternative timer in a build with `--cfg tokio_unstable`.
pub(crate) const COMPETITORS: usize = if cfg!(tokio_unstable) { 3 } else { 2 };
/// Of those, the third.
pub(crate) const ALTERNATIVE: usize = 2;

/// The runtime for a competitor.
pub(crate) fn multi_thread_for(competitor: usize, workers: usize) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    #[cfg(tokio_unstable)]
    if competitor == ALTERNATIVE {
        builder.enable_alt_timer();
    }
    #[cfg(not(tokio_unstable))]
    assert!(competitor < COMPETITORS);
    builder.worker_threads(workers).enable_all().build()
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
