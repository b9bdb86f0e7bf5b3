//! The task: it waits, visits the shards by turns, and wakes what expired with no lock held.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant as MachineInstant},
};

use tokio::{runtime::Handle, time::Instant};

use super::{overtaking::Overtaking, shared::Shared, waking};
use crate::{
    clock::{Clock, ROUNDING},
    events,
    shard::{NEVER, Shard, Visited, Wakers},
    timing_wheel::{Nanos, Tick},
};

/// Timers that are dealt with under one lock.
const BATCH: usize = 256;

/// How long the driver works before it lets other tasks run. Only a burst, a cascade or a storm lasts so long. Each pause puts the driver
/// behind every ready task. With a pause after every thousand wake-ups, the last timer of a storm would wait many times for all the
/// tasks woken before it. Tokio's own timer makes no pause at all.
const SLICE: Duration = Duration::from_millis(5);

/// How long it then waits, at the least, where every worker is busy.
const PAUSE: Duration = Duration::from_millis(1);

/// [`SLICE`] on a test's clock, in wake-ups: time does not pass there.
const WAKES: usize = 1024;

/// Lateness, in ticks, above which the driver says so.
const LATE_TICKS: u32 = 4;

/// The driver.
pub(super) struct Driver {
    guard: Guard,
    shards: Box<[Arc<Shard>]>,
    clock: Clock,
    /// Shards that the turn has not done with, by index.
    unfinished: VecDeque<usize>,
    /// The tick that the driver has come before: see [`Clock::approach`].
    approached: Option<Tick>,
    wakers: Wakers,
    slice: Slice,
    overtaking: Overtaking,
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

/// Tells the wheel that its driver goes, whatever the reason.
struct Guard {
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
        events::driver_stopped(&self.shared.name, self.number);
    }
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, number: u64, shards: Box<[Arc<Shard>]>, clock: Clock) -> Driver {
        Driver {
            guard: Guard {
                shared,
                number,
                ran: false,
            },
            unfinished: VecDeque::with_capacity(shards.len()),
            shards,
            clock,
            approached: None,
            wakers: Wakers::default(),
            slice: Slice::begin(),
            overtaking: Overtaking::default(),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.guard.number
    }

    pub(super) async fn run(mut self) {
        self.guard.ran = true;
        self.overtaking = Overtaking::new();
        let mut planned = None;
        while let Some(wake_at) = self.turn(planned).await {
            planned = self.wait(wake_at).await;
        }
    }

    /// Visits every shard and wakes what is due. Returns when to come back; `None` when there is nothing left to drive for.
    ///
    /// A turn is bounded: it goes by one reading of the clock and transfers what was incoming when it began. Shards take turns by
    /// the batch, so that none waits for another's storm.
    async fn turn(&mut self, planned: Option<Instant>) -> Option<Tick> {
        let now = self.begin_turn(planned);
        let source = self.clock.source;
        let mut wake_at = None;
        let mut not_begun = self.shards.len();
        self.unfinished.extend(0..not_begun);
        while let Some(index) = self.unfinished.pop_front() {
            let begins = not_begun > 0;
            not_begun -= usize::from(begins);
            match self.shards[index].visit(now, source, begins, BATCH, &mut self.wakers) {
                Visited::Unfinished => self.unfinished.push_back(index),
                Visited::Finished { next } => wake_at = Some(next.min(wake_at.unwrap_or(NEVER))),
                Visited::Shutdown => {}
            }
            self.slice.wakes += self.wakers.due.len();
            waking::share(&self.guard.shared, &mut self.wakers.due);
            self.guard.shared.wake(&mut self.wakers);
            if self.slice.is_over(source.is_real()) {
                self.yield_to_others().await;
            }
        }
        wake_at.filter(|_| !self.guard.shared.retire(&self.shards, &mut self.wakers))
    }

    /// Reads the clock, for the whole turn, and tells how late the driver came.
    fn begin_turn(&mut self, planned: Option<Instant>) -> Nanos {
        let shared = &self.guard.shared;
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
        let lag = planned.and_then(|planned| instant.checked_duration_since(planned + rounding));
        self.overtaking
            .came(lag.filter(|_| source.is_real()), shared.tick);
        if let Some(lag) = lag {
            shared.stats.driver_was_late(lag);
            if lag > shared.tick * LATE_TICKS {
                events::driver_late(&shared.name, lag);
            }
        }
        let now = self.clock.nanos_of(instant);
        shared.stats.turned_to(now, &self.clock);
        now
    }

    /// Waits for the beginning of tick `wake_at`, or for a shard that wants to be visited earlier.
    async fn wait(&mut self, wake_at: Tick) -> Option<Instant> {
        if self.slice.is_over(self.clock.source.is_real()) {
            self.yield_to_others().await;
        }
        self.look_ahead();
        let at = (wake_at != NEVER).then(|| match self.approached.replace(wake_at) == Some(wake_at) {
            true => self.clock.instant_of(wake_at),
            false => self.clock.approach(wake_at),
        });
        let mut slept = false;
        let mut wait = pin!(self.guard.shared.alarm.wait(at, &self.overtaking));
        let planned = poll_fn(|cx| {
            let came = wait.as_mut().poll(cx);
            slept |= came.is_pending();
            came
        })
        .await;
        if slept {
            self.slice = Slice::begin();
        }
        self.guard.shared.stats.driver_woke();
        planned
    }

    /// Lets other tasks run.
    ///
    /// Tokio's own `yield_now` keeps a task on its worker, where a task that blocks would hold up the driver. A task that wakes
    /// itself goes to the end of the worker's queue, from which an idle worker takes it. If none is idle, that end may be very far
    /// away, but Tokio's timer nearly always wakes a task ahead of the queue. Where there is one worker only, `yield_now` comes back
    /// soonest, unless the driver overtakes.
    async fn yield_to_others(&mut self) {
        self.look_ahead();
        if self.overtaking.is_needed() || waking::a_worker_is_idle() {
            let mut yielded = false;
            poll_fn(|cx| {
                if mem::replace(&mut yielded, true) {
                    return Poll::Ready(());
                }
                self.overtaking.waker(cx.waker()).wake();
                Poll::Pending
            })
            .await;
        } else if Handle::current().metrics().num_workers() == 1 {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
        self.slice = Slice::begin();
    }

    /// Before the driver stops: will it have to overtake the tasks that it has woken?
    fn look_ahead(&mut self) {
        if self.clock.source.is_real() {
            self.overtaking.woke(self.slice.wakes);
        }
    }
}
