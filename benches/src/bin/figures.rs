//! What single operations cost, relative to other timers. The peers run in turn, slice by slice, so that a
//! change in the machine's speed affects all of them: `figures [--rounds N] [--slice-ms N] [--most N]`.
//!
//! `cores_had` is how many cores a slice really had. If that is less than one, or less than two for the rows
//! on two workers, something else was running. With `--cfg tokio_unstable`, the program measures Tokio's
//! alternative timer instead.

use std::time::Duration;

use tickwheel_benches::{
    Peer, Stage,
    children::{Arguments, Line, median},
    process,
    work::Durations,
};

fn main() {
    let arguments = Arguments::read();
    let table = Table {
        rounds: arguments.number("rounds", 21),
        slice: Duration::from_millis(arguments.number("slice-ms", 50)),
    };
    let most = arguments.number("most", 10_000_000) as usize;
    let stage = &Stage::new(2);
    use Peer::*;

    if cfg!(tokio_unstable) {
        return table.measure_alternative(stage);
    }
    let shared = [Tickwheel, Handle, Tokio, Pingora];
    table.measure(
        "ready",
        shared.map(|peer| (peer, move |times| stage.ready(peer, times))),
    );
    table.measure(
        "one",
        hold(
            stage,
            [Tickwheel, Handle, Tokio, Pingora, DelayQueue],
            0,
            Durations::Equal,
        ),
    );
    for (work, workers) in [("one-task", 1), ("two-tasks", 2)] {
        let tasks = shared.map(|peer| (peer, move |times| stage.churn(peer, workers, times)));
        table.measure(work, tasks);
    }

    let million = most.min(1_000_000);
    table.measure(
        "million",
        hold(stage, [Tickwheel, Tokio], million, Durations::Random),
    );
    table.measure("reset-hot", reset(stage, 1, false));
    table.measure("reset-random", reset(stage, million, true));
    let earlier = [Tickwheel, Tokio].map(|peer| {
        let mut held = stage.hold(peer, million, Durations::Random);
        (peer, move |times| held.reset_earlier(times))
    });
    table.measure("reset-earlier", earlier);

    let sleeps = shared.map(|peer| {
        let held = stage.hold(peer, 1_000, Durations::Random);
        (peer, move |times| held.sleeps(times))
    });
    table.measure("sleep", sleeps);

    let mut flat = Vec::new();
    for pending in [1_000, 100_000, 1_000_000, 10_000_000]
        .into_iter()
        .filter(|pending| *pending <= most)
    {
        let held = stage.hold(Tickwheel, pending, Durations::Random);
        flat.push((pending, move |times| held.churn(times, Durations::Random)));
    }
    table.measure("flat", flat);
}

fn hold<'a, const N: usize>(
    stage: &'a Stage,
    peers: [Peer; N],
    pending: usize,
    durations: Durations,
) -> [(Peer, impl FnMut(u64) -> Duration + 'a); N] {
    peers.map(|peer| {
        let held = stage.hold(peer, pending, durations);
        (peer, move |times| held.churn(times, durations))
    })
}

fn reset(stage: &Stage, timers: usize, at_random: bool) -> [(Peer, impl FnMut(u64) -> Duration + '_); 2] {
    [Peer::Tickwheel, Peer::Tokio].map(|peer| {
        let mut held = stage.hold(peer, timers, Durations::Random);
        (peer, move |times| held.reset(times, at_random))
    })
}

struct Table {
    rounds: u64,
    slice: Duration,
}

impl Table {
    /// What runs on workers, with Tokio's alternative timer too: on any other thread that hands its timers
    /// over to a worker.
    fn measure_alternative(&self, stage: &Stage) {
        let peers = [Peer::Tickwheel, Peer::Tokio, Peer::TokioAlt];
        for (work, workers) in [("one", 1), ("two", 2)] {
            self.measure(
                work,
                peers.map(|peer| (peer, move |times| stage.churn(peer, workers, times))),
            );
        }
    }

    /// Measures each in turn, and prints a line for each with its cost and the ratio to the first: the median
    /// over the rounds of the ratio within a round.
    fn measure<P: ToString, R: FnMut(u64) -> Duration>(
        &self,
        work: &str,
        runs: impl IntoIterator<Item = (P, R)>,
    ) {
        let mut runs: Vec<_> = runs
            .into_iter()
            .map(|(peer, mut run)| {
                let few = 20_000;
                run(few);
                let took = run(few);
                let times = (few as f64 * self.slice.as_secs_f64() / took.as_secs_f64()) as u64;
                (peer, run, times, Vec::new(), Vec::new())
            })
            .collect();
        for _ in 0..self.rounds {
            for (_, run, times, costs, had) in &mut runs {
                let before = process::cpu_time();
                let took = run(*times).as_secs_f64();
                costs.push(took * 1e9 / *times as f64);
                had.push((process::cpu_time() - before).as_secs_f64() / took);
            }
        }
        let first = runs[0].3.clone();
        for (peer, _, _, costs, had) in runs {
            let ratios = costs
                .iter()
                .zip(&first)
                .map(|(cost, first)| cost / first)
                .collect();
            let spread = quartiles(&costs);
            let line = Line::new("figures")
                .with("work", work)
                .with("peer", peer.to_string());
            let line = line
                .with_number("ns", median(costs))
                .with_number("low", spread.0)
                .with_number("high", spread.1);
            println!(
                "{}",
                line.with_number("ratio", median(ratios))
                    .with_number("cores_had", median(had))
                    .with("rounds", self.rounds)
            );
        }
    }
}

fn quartiles(costs: &[f64]) -> (f64, f64) {
    let mut costs = costs.to_vec();
    costs.sort_by(f64::total_cmp);
    (costs[costs.len() / 4], costs[costs.len() * 3 / 4])
}
