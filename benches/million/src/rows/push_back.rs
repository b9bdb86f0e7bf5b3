//! What does it cost to push the idle deadline of a connection back, as each of its requests does? The
//! connections have traffic in random order, so the processor has to fetch each one's timer from memory.

use std::{
    io,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tokio::runtime::Runtime;

use super::pending::{AHEAD, Held, arm, room};
use crate::{
    figures::{Row, Section, Unit},
    options::Options,
    progress::Progress,
    report::text::grouped,
    timers::{Tickwheel, Timers, Tokio},
    turns::{ALTERNATIVE, COMPETITORS, in_turns, multi_thread_for},
};

const ROUNDS: usize = 9;
const SLICE: Duration = Duration::from_millis(60);
/// Deadlines between two looks at the clock.
const BATCH: usize = 256;

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Section> {
    let slice = options.lasting(SLICE);
    let connections = grouped(options.timers as f64);
    progress.begin(
        &format!(
            "what it costs to push a deadline back, for each of {connections} connections in random order"
        ),
        options.lasting(Duration::from_secs(2)),
    );
    let mut wheel = Connections::arm(Tickwheel, 1, options.timers)?;
    // Tokio's timer and, where it is measured, its alternative one.
    let mut tokios = [0, ALTERNATIVE]
        .into_iter()
        .filter(|competitor| *competitor < COMPETITORS)
        .map(|competitor| Connections::arm(Tokio, competitor, options.timers))
        .collect::<io::Result<Vec<_>>>()?;
    let turns = in_turns::<COMPETITORS, _>(ROUNDS, progress, |competitor| match competitor {
        1 => wheel.push_back(slice),
        tokio => tokios[tokio / 2].push_back(slice),
    })?;
    let [tokio, wheel, alternative @ ..] = turns;
    Ok(Section {
        key: "push-back",
        title: "A deadline pushed back".to_owned(),
        about: format!(
            "One `reset` of a pending sleep to a later instant, for {connections} connections in random order on one worker. The clock \
                 reading that gives the instant is not counted."
        ),
        rows: vec![
            Row::new("one of them", Unit::Nanos, [tokio, wheel])
                .alternative(alternative.into_iter().next())
                .gain("pushing a connection's deadline back"),
        ],
        others: None,
    })
}

struct Connections<T: Timers> {
    runtime: Runtime,
    held: Held<T>,
    order: Vec<u32>,
    next: usize,
    pushed: u64,
    start: tokio::time::Instant,
}

impl<T: Timers> Connections<T> {
    fn arm(timers: T, competitor: usize, count: usize) -> io::Result<Connections<T>> {
        let runtime = multi_thread_for(competitor, 1)?;
        let mut held = room::<T>(count);
        let task = runtime.spawn(async move {
            arm(timers, &mut held).await;
            held
        });
        let held = runtime.block_on(task)?;
        let mut order: Vec<_> = (0..count as u32).collect();
        Rng::with_seed(2).shuffle(&mut order);
        Ok(Connections {
            runtime,
            held,
            order,
            next: 0,
            pushed: 0,
            start: tokio::time::Instant::now() + 2 * AHEAD,
        })
    }

    /// Returns the nanoseconds of one.
    fn push_back(&mut self, slice: Duration) -> io::Result<f64> {
        self.runtime.block_on(async {
            let begun = Instant::now();
            let before = self.pushed;
            while before == self.pushed || begun.elapsed() < slice {
                for _ in 0..BATCH {
                    // Later than all deadlines so far.
                    let deadline = self.start + Duration::from_micros(self.pushed);
                    let connection = self.order[self.next] as usize;
                    if let Some(sleep) = &mut self.held[connection] {
                        T::reset(sleep.as_mut(), deadline);
                    }
                    self.pushed += 1;
                    self.next = (self.next + 1) % self.order.len();
                }
            }
            Ok(begun.elapsed().as_nanos() as f64 / (self.pushed - before) as f64)
        })
    }
}
