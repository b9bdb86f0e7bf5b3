//! Timers that fire, on the real clock: tasks that wait for the same instants, one after the other.
//!
//! A round leaves the tasks time enough to wait for the next one, under callgrind too, so that all of them
//! fire in company in every round.

use std::{
    future::{Future, pending},
    time::Duration,
};

use tickwheel::Wheel;
use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior},
};

use crate::timers::{Global, Timers, Tokio};

/// What the tasks wait with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    Sleeps,
    Timeouts,
    Intervals,
}

/// Timers that fire at given instants.
pub trait Fires: Timers {
    /// A timeout around a future that is never ready.
    fn elapse(&self, deadline: Instant) -> impl Future + Send;

    /// Waits for so many ticks of an interval.
    fn ticks(&self, start: Instant, period: Duration, times: u64) -> impl Future<Output = ()> + Send;
}

macro_rules! fires {
    ($timers:ty, |$self:ident| $timeout_at:expr, $interval_at:expr) => {
        impl Fires for $timers {
            fn elapse(&$self, deadline: Instant) -> impl Future + Send {
                $timeout_at(deadline, pending::<()>())
            }

            async fn ticks(&$self, start: Instant, period: Duration, times: u64) {
                let mut interval = $interval_at(start, period);
                interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
                for _ in 0..times {
                    _ = interval.tick().await;
                }
            }
        }
    };
}

fires!(Tokio, |self| tokio::time::timeout_at, tokio::time::interval_at);
fires!(
    Global,
    |self| tickwheel::time::timeout_at,
    tickwheel::time::interval_at
);
fires!(
    Wheel,
    |self| |at, future| self.timeout_at(at, future),
    |start, period| self.interval_at(start, period)
);

/// How far apart the instants are for which so many tasks wait.
fn period(tasks: u64) -> Duration {
    Duration::from_millis(6 + tasks / 4)
}

/// Has so many series run at the same instants until `times` timers have fired.
pub async fn fire_series(wheel: &Wheel, series: u64, times: u64) {
    let start = Instant::now() + period(series);
    let rounds = times / series;
    let running = (0..series).map(|_| {
        let (ended, end) = oneshot::channel();
        let (mut left, mut ended) = (rounds, Some(ended));
        let run = move || {
            left = left.saturating_sub(1);
            let ended = if left == 0 { ended.take() } else { None };
            async move { _ = ended.map(|ended| ended.send(())) }
        };
        let periodic = wheel.periodic(period(series));
        let first = start.saturating_duration_since(wheel.now());
        (periodic.first_after(first).spawn_at_fixed_rate(run), end)
    });
    for (series, end) in running.collect::<Vec<_>>() {
        end.await.expect("a run does not panic");
        series.stop();
    }
}

/// Has `tasks` tasks wait for the same instants until `times` timers have fired.
pub async fn fire<T: Fires>(timers: &T, with: With, tasks: u64, times: u64) {
    let period = period(tasks);
    let start = Instant::now() + period;
    let rounds = times / tasks;
    let waiting = (0..tasks).map(|_| {
        let timers = timers.clone();
        tokio::spawn(async move {
            if with == With::Intervals {
                timers.ticks(start, period, rounds).await;
                return;
            }
            let mut deadline = start;
            for _ in 0..rounds {
                match with {
                    With::Timeouts => _ = timers.elapse(deadline).await,
                    _ => _ = timers.sleep_until(deadline).await,
                }
                // As an interval does: one that is late stays with the others.
                let now = Instant::now();
                while deadline <= now {
                    deadline += period;
                }
            }
        })
    });
    for task in waiting.collect::<Vec<_>>() {
        task.await.expect("a task does not panic");
    }
}
