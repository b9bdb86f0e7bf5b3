//! A deep backlog, worked off by two versions of tickwheel-redis in turns.
//!
//!     cargo run --release -p tickwheel-redis-benches --bin backlog [-- --against PROGRAM] [--rounds 10] [--seconds 2]
//!
//! PROGRAM is this program, built from another version, such as one whose workers claim all that `prefetch`
//! allows. Both take turns, and the median of the ratios of the rounds counts: what else the machine does
//! weighs on both of a round. Without PROGRAM, one version is measured. Jobs do nothing, so that what is
//! measured is how many of them a worker is given in a second. With `--once`, prints one rate for each line
//! of the table, which is how the other version is asked.

use std::{
    env,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use measure::{runtime, spread};
use support::server::Server;
use tokio::{task::JoinSet, time::sleep};

#[path = "../measure.rs"]
#[expect(dead_code, reason = "CPU times are measured by the other programs")]
mod measure;
#[path = "../../../tests/support/mod.rs"]
mod support;

/// Workers, and jobs that each of them works on at once.
const LOADS: [(usize, usize); 6] = [(1, 1), (1, 8), (1, 64), (4, 1), (4, 8), (4, 64)];

struct Options {
    against: Option<String>,
    rounds: usize,
    seconds: f64,
    once: bool,
}

/// The rates of both versions, for each load.
struct Round {
    own: Vec<f64>,
    other: Vec<f64>,
}

fn options() -> Option<Options> {
    let mut options = Options {
        against: None,
        rounds: 10,
        seconds: 2.0,
        once: false,
    };
    let mut arguments = env::args().skip(1);
    while let Some(option) = arguments.next() {
        match &*option {
            "--once" => options.once = true,
            "--against" => options.against = Some(arguments.next()?),
            "--rounds" => options.rounds = arguments.next()?.parse().ok()?,
            "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

/// Jobs per second out of a backlog that is not worked off within that time.
async fn rate(workers: usize, places: usize, time: Duration) -> f64 {
    let server = Server::start();
    let jobs = server.queue().await;
    // More than any version has done.
    let deep = if places == 1 { 15_000 } else { 60_000 };
    stream::iter(0..(deep as f64 * time.as_secs_f64()) as u64)
        .for_each_concurrent(400, |n| {
            let jobs = &jobs;
            async move {
                let scheduled = jobs.schedule(&n.to_string(), Duration::ZERO, b"payload").await;
                assert!(scheduled.unwrap());
            }
        })
        .await;
    let left = async || {
        let counts = jobs.counts().await.unwrap();
        counts.waiting + counts.running
    };
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let worker = server.queue().await.worker().concurrency(places).start();
        running.spawn(worker.for_each_concurrent(places, |job| async {
            assert!(job.unwrap().done().await.unwrap());
        }));
    }
    sleep(Duration::from_millis(100)).await;
    let (began, before) = (Instant::now(), left().await);
    sleep(time).await;
    let done = before - left().await;
    assert!(done < before, "the backlog is too small");
    done as f64 / began.elapsed().as_secs_f64()
}

fn rates(time: Duration) -> Vec<f64> {
    let each = |&(workers, places): &(usize, usize)| runtime().block_on(rate(workers, places, time));
    LOADS.iter().map(each).collect()
}

/// Asks the other version.
fn rates_of(program: &str, seconds: f64) -> Vec<f64> {
    let output = Command::new(program)
        .args(["--once", "--seconds", &seconds.to_string()])
        .output()
        .expect("the other version of this program");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("rates");
    text.lines().map(|line| line.parse().expect("a rate")).collect()
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: backlog [--against PROGRAM] [--rounds 10] [--seconds 2] [--once]");
        return ExitCode::from(2);
    };
    let time = Duration::from_secs_f64(options.seconds);
    if options.once {
        rates(time).iter().for_each(|rate| println!("{rate}"));
        return ExitCode::SUCCESS;
    }
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let others = |is_turn: bool| {
            let program = options.against.as_deref().filter(|_| is_turn)?;
            Some(rates_of(program, options.seconds))
        };
        let first = round % 2 == 0;
        let before = others(first);
        let own = rates(time);
        let other = before.or_else(|| others(true)).unwrap_or_else(|| own.clone());
        eprintln!("round {}: {own:.0?} against {other:.0?}", round + 1);
        rounds.push(Round { own, other });
    }
    println!("workers  at once   jobs per second   against   ratio of the rounds: median (least to most)");
    for (place, (workers, places)) in LOADS.iter().enumerate() {
        let of = |pick: fn(&Round, usize) -> f64| spread(rounds.iter().map(|round| pick(round, place)));
        let (own, ..) = of(|round, place| round.own[place]);
        let (other, ..) = of(|round, place| round.other[place]);
        let (ratio, least, most) = of(|round, place| round.own[place] / round.other[place]);
        println!("{workers:>7} {places:>8} {own:>17.0} {other:>9.0}   {ratio:.2} ({least:.2} to {most:.2})");
    }
    ExitCode::SUCCESS
}
