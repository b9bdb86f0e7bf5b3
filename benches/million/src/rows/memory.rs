//! What memory do very many pending timers take, and how long does it take to arm and to drop all of them?
//! Each round in a process of its own, whose memory is nobody else's.

use std::{
    io,
    time::{Duration, Instant},
};

use super::pending::{arm, room};
use crate::{
    figures::{Row, Section, Unit},
    machine::resident,
    options::Options,
    peer::{Peer, tell},
    progress::Progress,
    report::text::grouped,
    timers::{Tickwheel, Timers, Tokio},
    turns::{ALTERNATIVE, COMPETITORS, in_turns, multi_thread_for},
};

const ROUNDS: usize = 5;
/// In the order of their turns.
const NAMES: [&str; 3] = ["tokio", "tickwheel", "alternative"];

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let timers = grouped(options.timers as f64);
    progress.begin(
        &format!("the memory of {timers} pending timers, and how long arming and dropping them takes"),
        options.lasting(Duration::from_secs(5)),
    );
    let count = options.timers.to_string();
    let rounds = in_turns::<COMPETITORS, _>(ROUNDS, progress, |competitor| {
        Peer::start(&["memory", NAMES[competitor], &count])?.numbers()
    })?;
    let row = |name: &str, unit, place: usize, scale: f64| {
        let figures = rounds.each_ref();
        let figures = figures.map(|rounds| rounds.iter().map(|round| round[place] * scale).collect());
        let [tokio, wheel, alternative @ ..] = figures;
        Row::new(name, unit, [tokio, wheel]).alternative(alternative.into_iter().next())
    };
    let each = 1.0 / options.timers as f64;
    Ok(Section {
        key: "memory",
        title: format!("{timers} pending timers"),
        about:
            "Sleeps in a box each, due at random instants within an hour, in a fresh process for each round."
                .to_owned(),
        rows: vec![
            row("resident memory of one", Unit::Bytes, 0, each).gain("memory of pending timers"),
            row("arming all of them", Unit::Millis, 1, 1e3),
            row("dropping all of them", Unit::Millis, 2, 1e3),
        ],
        others: None,
    })
}

pub(crate) fn child(timers: &str, count: usize) -> io::Result<()> {
    if timers == NAMES[1] {
        hold(Tickwheel, 1, count)
    } else if timers == NAMES[ALTERNATIVE] {
        hold(Tokio, ALTERNATIVE, count)
    } else {
        hold(Tokio, 0, count)
    }
}

fn hold<T: Timers>(timers: T, competitor: usize, count: usize) -> io::Result<()> {
    let runtime = multi_thread_for(competitor, 1)?;
    let task = runtime.spawn(async move {
        // Whatever begins with the first timer has begun before anything is measured.
        timers
            .sleep_until(tokio::time::Instant::now() + Duration::from_millis(1))
            .await;
        let mut held = room::<T>(count);
        let (before, start) = (resident()?, Instant::now());
        arm(timers, &mut held).await;
        let armed = start.elapsed();
        let bytes = resident()?.saturating_sub(before);
        let start = Instant::now();
        held.clear();
        let dropped = start.elapsed();
        tell(&[bytes as f64, armed.as_secs_f64(), dropped.as_secs_f64()]);
        Ok(())
    });
    runtime.block_on(task)?
}
