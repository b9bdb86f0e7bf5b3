//! How late are sleeps that end alone, on a wheel that waits on the kernel's timer?

use std::{
    io,
    sync::LazyLock,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tickwheel::Wheel;

use super::lateness::{all_late, rows, sleep_until_over};
use crate::{
    figures::Section,
    options::Options,
    progress::Progress,
    timers::{Timers, Tokio},
    turns::{COMPETITORS, in_turns, multi_thread_for},
};

const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_micros(100);

static WHEEL: LazyLock<Wheel> = LazyLock::new(|| {
    let wheel = Wheel::builder().tick_duration(TICK).build();
    wheel.expect("the feature allows this tick on Linux")
});

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let lasts = options.lasting(LASTS);
    progress.begin(
        "how late sleeps are on a wheel with ticks of 100 µs",
        2 * ROUNDS as u32 * lasts,
    );
    let turns = in_turns::<COMPETITORS, _>(ROUNDS, progress, |competitor| match competitor {
        1 => round(&*WHEEL, competitor, lasts),
        _ => round(Tokio, competitor, lasts),
    })?;
    let [tokio, wheel, alternative @ ..] = turns;
    Ok(Section {
        key: "precise",
        title: "How late sleeps are with ticks of 100 µs, which the feature `precise` allows on Linux".to_owned(),
        about: "A task sleeps for 0.2 to 5 ms over and over. The wheel waits on a timer of the kernel, and nothing else happens."
            .to_owned(),
        rows: rows([tokio, wheel], alternative.into_iter().next()),
        others: None,
    })
}

fn round<T: Timers>(timers: T, competitor: usize, lasts: Duration) -> io::Result<Vec<f64>> {
    let over = Instant::now() + lasts;
    multi_thread_for(competitor, 1)?.block_on(async {
        let sleeper = sleep_until_over(timers, Rng::with_seed(5), 200..5_000, over);
        all_late(vec![tokio::spawn(sleeper)]).await
    })
}
