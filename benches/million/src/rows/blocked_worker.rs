//! How late are timers beside a worker that blocks now and then?

use std::{
    io,
    time::{Duration, Instant},
};

use super::lateness::{all_late, block_now_and_then, rows, start_sleepers};
use crate::{
    figures::Section,
    machine::cores,
    options::Options,
    progress::Progress,
    timers::{Tickwheel, Timers, Tokio},
    turns::{COMPETITORS, in_turns, multi_thread_for},
};

const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_millis(500);

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let lasts = options.lasting(LASTS);
    let workers = cores().max(2);
    progress.begin(
        &format!("how late timers are on {workers} workers, one of which blocks now and then"),
        2 * ROUNDS as u32 * lasts,
    );
    let turns = in_turns::<COMPETITORS, _>(ROUNDS, progress, |competitor| match competitor {
        1 => round(Tickwheel, competitor, workers, lasts),
        _ => round(Tokio, competitor, workers, lasts),
    })?;
    let [tokio, wheel, alternative @ ..] = turns;
    Ok(Section {
        key: "blocked-worker",
        title: format!("How late timers are while one of {workers} workers blocks"),
        about: "1,000 tasks sleep for 1 to 100 ms over and over, while another task blocks its worker for 50 ms of every 200.".to_owned(),
        rows: rows([tokio, wheel], alternative.into_iter().next()),
        others: None,
    })
}

fn round<T: Timers>(timers: T, competitor: usize, workers: usize, lasts: Duration) -> io::Result<Vec<f64>> {
    let over = Instant::now() + lasts;
    multi_thread_for(competitor, workers)?.block_on(async {
        tokio::spawn(block_now_and_then(over));
        all_late(start_sleepers(timers, over)).await
    })
}
