//! Tasks that sleep over and over, and how late their sleeps end.

use std::{
    io,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tokio::task::JoinHandle;

use crate::{
    figures::{Row, Unit},
    statistics::quantile,
    timers::Timers,
};

const SLEEPERS: u64 = 1_000;
const BLOCKED: Duration = Duration::from_millis(50);
/// From the end of a time that something is blocked to the next.
const UNBLOCKED: Duration = Duration::from_millis(150);

/// Starts the sleepers on the runtime that the caller is in. Each sleeps for 1 to 100 ms until it is over.
pub(crate) fn start_sleepers<T: Timers>(timers: T, over: Instant) -> Vec<JoinHandle<Vec<f64>>> {
    (0..SLEEPERS)
        .map(|number| {
            tokio::spawn(sleep_until_over(
                timers,
                Rng::with_seed(number),
                1_000..100_000,
                over,
            ))
        })
        .collect()
}

/// Sleeps for so many microseconds at random until it is over. Returns by how many milliseconds each sleep was
/// late, or early if that is negative. There is one at least, however busy the machine.
pub(super) async fn sleep_until_over<T: Timers>(
    timers: T,
    mut random: Rng,
    micros: Range<u64>,
    over: Instant,
) -> Vec<f64> {
    let mut late = Vec::new();
    loop {
        let deadline = Instant::now() + Duration::from_micros(random.u64(micros.clone()));
        timers.sleep_until(deadline.into()).await;
        let now = Instant::now();
        let difference = now.max(deadline) - now.min(deadline);
        let sign = if now < deadline { -1e3 } else { 1e3 };
        late.push(sign * difference.as_secs_f64());
        if now >= over {
            return late;
        }
    }
}

/// The lateness of all sleeps, sorted.
pub(crate) async fn all_late(sleepers: Vec<JoinHandle<Vec<f64>>>) -> io::Result<Vec<f64>> {
    let mut all = Vec::new();
    for sleeper in sleepers {
        all.extend(sleeper.await?);
    }
    all.sort_by(f64::total_cmp);
    if all[0] < 0.0 {
        return Err(io::Error::other(format!("a sleep ended {} ms early", -all[0])));
    }
    Ok(all)
}

/// Blocks the thread that polls it, now and then.
pub(crate) async fn block_now_and_then(over: Instant) {
    while Instant::now() < over {
        tokio::time::sleep(UNBLOCKED).await;
        thread::sleep(BLOCKED);
    }
}

/// Of each round of both, and of the alternative timer where it was measured, all lateness, sorted.
pub(crate) fn rows(rounds: [Vec<Vec<f64>>; 2], alternative: Option<Vec<Vec<f64>>>) -> Vec<Row> {
    [
        ("half of the sleeps are late by up to", 0.5),
        ("99 % of them by up to", 0.99),
        ("all of them by up to", 1.0),
    ]
    .map(|(name, share)| {
        let of = |rounds: &Vec<Vec<f64>>| rounds.iter().map(|late| quantile(late, share)).collect();
        Row::new(name, Unit::Millis, rounds.each_ref().map(of)).alternative(alternative.as_ref().map(of))
    })
    .into()
}
