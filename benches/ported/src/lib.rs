//! What the programs share: rounds in which the peers take turns, and a line for each result.

use std::time::Instant;

/// Rounds of most rows. The peers take turns, so that a machine that slows down slows all of them.
pub const ROUNDS: usize = 9;

/// One peer's way to do the work of a row: it does so once, and returns the nanoseconds for one operation.
pub type Work<'a> = (&'a str, Box<dyn FnMut() -> f64 + 'a>);

/// Measures a row in [`ROUNDS`] rounds.
pub fn row(name: &str, peers: Vec<Work<'_>>) {
    row_in(ROUNDS, name, peers);
}

/// Measures a row, and prints for each peer the median of its rounds as `row|peer|nanoseconds`.
pub fn row_in(rounds: usize, name: &str, peers: Vec<Work<'_>>) {
    let mut peers: Vec<_> = peers.into_iter().map(|peer| (peer, Vec::new())).collect();
    for round in 0..=rounds {
        for ((_, work), taken) in &mut peers {
            let nanos = work();
            // The first round warms up.
            if round > 0 {
                taken.push(nanos);
            }
        }
    }
    for ((peer, _), mut taken) in peers {
        taken.sort_by(f64::total_cmp);
        println!("{name}|{peer}|{:.1}", taken[taken.len() / 2]);
    }
}

/// Returns the nanoseconds that each of `operations` takes, which `work` does together.
pub fn each(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / operations as f64
}

/// Returns the time in nanoseconds below which 999 of a thousand samples are.
pub fn most(mut samples: Vec<u64>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() * 999 / 1_000] as f64
}
