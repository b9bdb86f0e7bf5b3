//! The driver's work: it visits the shards by turns, and wakes what expired with no lock held. And the task that stands for it.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant as MachineInstant},
};

use tokio::time::{Instant, Sleep};

use super::{alarm::Given, shared::Shared, waking};
use crate::{
    clock::{Clock, ROUNDING, Source},
    events,
    shard::{NEVER, Reading, Shard, Visited, Wakers},
    sync::lock,
    timing_wheel::{Nanos, Tick},
};

/// Timers that are dealt with under one lock.
const BATCH: usize = 256;

/// How long the driver works before it lets other tasks run. Only a burst, a cascade or a storm lasts so long. Tokio's own timer makes no
/// pause at all.
const SLICE: Duration = Duration::from_millis(5);

/// [`SLICE`] on a test's clock, in wake-ups: time does not pass there.
const WAKES: usize = 1024;

/// Lateness, in cadences, above which the driver says so.
const LATE_CADENCES: u32 = 4;

/// The driver.
pub(super) struct Driver {
    shared: Arc<Shared>,
    number: u64,
    shards: Box<[Arc<Shard>]>,
    clock: Clock,
    turn: Turn,
    /// The tick that the driver has come before: see [`Clock::approach`].
    approached: Option<Tick>,
    wakers: Wakers,
    slice: Slice,
}

/// How far the driver is with a turn.
struct Turn {
    /// The reading of the clock by which the turn goes.
    now: Nanos,
    /// Shards that the turn has not done with, by index.
    unfinished: VecDeque<usize>,
    /// So many of them have not been visited at all. They are the first.
    not_begun: usize,
    /// When those want to be visited again that it has done with. None of them does, if all are shut down.
    wake_at: Option<Tick>,
}

/// What the driver has done since it last let other tasks run.
struct Slice {
    began: MachineInstant,
    wakes: usize,
}

impl Slice {
    fn begin() -> Slice {
        Slice {
            began: MachineInstant::now(),
            wakes: 0,
        }
    }

    fn is_over(&self, real: bool) -> bool {
        match real {
            true => self.began.elapsed() >= SLICE,
            // Only wake-ups count: a test's `advance` must find everything else done.
            false => self.wakes >= WAKES,
        }
    }
}

/// How long a driver that nobody needs stays for the next timer, on the real clock. Starting one costs as much as fifty timers.
const LINGER: Duration = Duration::from_millis(100);

/// What the driver works on.
pub(super) enum Begin {
    /// It has waited, until an instant if it had a plan, and begins a turn.
    Turn { planned: Option<Instant> },
    /// It goes on with its turn, or begins its first.
    Rest,
}

/// How long the driver does not work, once it has done so.
pub(super) enum Rest {
    /// It waits for an instant, or for nothing at all.
    Until(Option<Instant>),
    /// It goes on with its turn once others have run.
    Pause,
}

/// Tells the wheel that its driver goes, whatever the reason.
pub(super) struct Guard {
    shared: Arc<Shared>,
    number: u64,
    ran: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ran {
            self.shared.never_ran(self.number);
        }
        self.shared.driver_has_gone(self.number);
        // A subscriber may panic here while the panic of another one unwinds.
        waking::panics(|| events::driver_stopped(&self.shared.name, self.number));
    }
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Guard {
        Guard {
            shared,
            number,
            ran: false,
        }
    }

    /// The driver's task. It lives as long as the driver, which works without it nearly always.
    pub(super) async fn run(mut self) {
        self.ran = true;
        let mut linger = None;
        poll_fn(|cx| {
            let (shared, number) = (&self.shared, self.number);
            shared.alarm.task_is(number, cx.waker());
            let goes_on = shared.work(number);
            if shared.alarm.is_over(number) || shared.has_lingered(&mut linger, cx) && shared.retire() {
                return Poll::Ready(());
            }
            if goes_on {
                // Others run first, and the driver's woken tasks too.
                let _ = pin!(tokio::task::yield_now()).poll(cx);
            }
            Poll::Pending
        })
        .await;
    }
}

impl Shared {
    /// Has driver number `number` work now, unless it is at work. Must be called in its runtime. Returns whether the driver wants to go on
    /// when others have run.
    pub(super) fn work(&self, number: u64) -> bool {
        let Some((mut driver, mut begin)) = self.alarm.take(number) else {
            return false;
        };
        let mut goes_on = false;
        // Tokio's time driver, which may have called, is not to hear of a panic.
        let panicked = waking::panics(|| {
            driver.slice = Slice::begin();
            while let Some(rest) = driver.work(begin) {
                match self.alarm.give_back(driver, rest) {
                    Given::Again(again, anew) => (driver, begin) = (again, anew),
                    given => {
                        goes_on = matches!(given, Given::Pauses);
                        return;
                    }
                }
            }
            self.alarm.end(number);
        });
        if panicked {
            self.alarm.end(number);
        }
        goes_on
    }
}

impl Shared {
    /// Whether no handle is left, and no timer has been pending for a while. On a test's clock there is no such while: it would move the
    /// clock.
    fn has_lingered(&self, linger: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> bool {
        if !self.may_retire() || !self.shards().all(|shard| shard.pending() == 0) {
            *linger = None;
            return false;
        }
        if !lock(&self.slot).clock.source.is_real() {
            return true;
        }
        let sleep = linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        pin!(tokio::task::unconstrained(sleep.as_mut()))
            .poll(cx)
            .is_ready()
    }
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, number: u64, shards: Box<[Arc<Shard>]>, clock: Clock) -> Driver {
        Driver {
            shared,
            number,
            turn: Turn {
                now: Nanos::ZERO,
                unfinished: VecDeque::with_capacity(shards.len()),
                not_begun: 0,
                wake_at: None,
            },
            shards,
            clock,
            approached: None,
            wakers: Wakers::default(),
            slice: Slice::begin(),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn source(&self) -> Source {
        self.clock.source
    }

    pub(super) fn has_worked_enough(&self) -> bool {
        self.slice.is_over(self.clock.source.is_real())
    }

    /// Visits every shard and wakes what is due, for a slice at most. `None` when there is nothing left to drive for.
    ///
    /// A turn is bounded: it goes by one reading of the clock and transfers what was incoming when it began. Shards take turns by
    /// the batch, so that none waits for another's storm.
    fn work(&mut self, begin: Begin) -> Option<Rest> {
        if self.turn.unfinished.is_empty() {
            self.begin_turn(begin);
        }
        let reading = Reading {
            now: self.turn.now,
            source: self.clock.source,
            driver: self.number,
        };
        while let Some(index) = self.turn.unfinished.pop_front() {
            let begins = self.turn.not_begun > 0;
            self.turn.not_begun -= usize::from(begins);
            match self.shards[index].visit(reading, begins, BATCH, &mut self.wakers) {
                Visited::Unfinished => self.turn.unfinished.push_back(index),
                Visited::Finished { next } => {
                    self.turn.wake_at = Some(next.min(self.turn.wake_at.unwrap_or(NEVER)));
                }
                Visited::Shutdown => {}
            }
            self.slice.wakes += self.wakers.due.len();
            self.shared.wake(&mut self.wakers);
            if self.has_worked_enough() && !self.turn.unfinished.is_empty() {
                return Some(Rest::Pause);
            }
        }
        self.turn.wake_at.map(|tick| Rest::Until(self.instant_for(tick)))
    }

    /// Reads the clock, for the whole turn, and tells how late the driver came.
    fn begin_turn(&mut self, begin: Begin) {
        let shared = &self.shared;
        let planned = match begin {
            Begin::Turn { planned } => {
                shared.stats.driver_woke();
                planned
            }
            Begin::Rest => None,
        };
        let source = self.clock.source.recheck();
        if source != self.clock.source {
            self.clock.source = source;
            shared.clock_reads(source);
        }
        let instant = Instant::now();
        let rounding = match source.is_real() {
            true => Duration::ZERO,
            false => ROUNDING,
        };
        if let Some(lag) = planned.and_then(|planned| instant.checked_duration_since(planned + rounding)) {
            shared.stats.driver_was_late(lag);
            let tick = self.clock.tick();
            if lag > tick.cadence().nanos(tick).to_duration() * LATE_CADENCES {
                events::driver_late(&shared.name, lag);
            }
        }
        let now = self.clock.wheel_time(instant);
        shared.stats.turned_to(now, &self.clock);
        let all = self.shards.len();
        self.turn.now = now;
        self.turn.unfinished.extend(0..all);
        self.turn.not_begun = all;
        self.turn.wake_at = None;
    }

    /// For which instant to set Tokio's timer, to come at tick `wake_at`.
    fn instant_for(&mut self, wake_at: Tick) -> Option<Instant> {
        (wake_at != NEVER).then(|| match self.approached.replace(wake_at) == Some(wake_at) {
            true => self.clock.instant_of(wake_at),
            false => self.clock.approach(wake_at),
        })
    }
}
