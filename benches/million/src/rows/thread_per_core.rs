//! How late are timers in a thread-per-core server, while another of its threads blocks now and then? Two
//! current-thread runtimes, which share one wheel in a static.

use std::{
    io,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use tickwheel::Wheel;

use super::lateness::{all_late, block_now_and_then, rows, start_sleepers};
use crate::{
    figures::Section,
    options::Options,
    progress::Progress,
    timers::{Timers, Tokio},
    turns::{current_thread, in_turns},
};

const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_millis(500);

static WHEEL: LazyLock<Wheel> = LazyLock::new(Wheel::new);

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let lasts = options.lasting(LASTS);
    progress.begin(
        "how late timers are on one of two current-thread runtimes, while the other one blocks now and then",
        2 * ROUNDS as u32 * lasts,
    );
    let rounds = in_turns(ROUNDS, progress, |competitor| match competitor {
        0 => round(Tokio, lasts),
        _ => round(&*WHEEL, lasts),
    })?;
    Ok(Section {
        key: "thread-per-core",
        title: "How late timers are in one thread per core, while another thread blocks".to_owned(),
        about: "Two current-thread runtimes share one wheel in a static, with 1,000 such tasks in each. One of the two is blocked for 50 ms of \
                 every 200, and the lateness is that in the other."
            .to_owned(),
        rows: rows(rounds, None),
        others: None,
    })
}

fn round<T: Timers>(timers: T, lasts: Duration) -> io::Result<Vec<f64>> {
    let over = Instant::now() + lasts;
    let blocked = thread::spawn(move || {
        current_thread()?.block_on(async {
            let sleepers = start_sleepers(timers, over);
            block_now_and_then(over).await;
            all_late(sleepers).await
        })
    });
    // The one that blocks is the first to use the wheel.
    thread::sleep(lasts / 10);
    let late = current_thread()?.block_on(async { all_late(start_sleepers(timers, over)).await });
    blocked.join().expect("nothing in it panics")?;
    late
}
