//! `tokio::time`. Time goes on when a model lets it, or when the next timer of a runtime fires.

use std::{
    cell::Cell,
    collections::BTreeMap,
    future::{Future, poll_fn},
    ops::{Add, Sub},
    panic::resume_unwind,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration as StdDuration,
};

use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use super::runtime::Handle;

pub use std::time::Duration;

const MILLISECOND: u64 = 1_000_000;

/// When a model begins. Before that, there is time enough to look for the beginning of a millisecond.
const START: u64 = 1_000_000 * MILLISECOND;

/// An engine's first step back in search of that, so that it finds it exactly, and ticks begin with the
/// model's milliseconds.
const STEP: u64 = 7_812;

/// Later than this, nothing happens in a model.
const END: u64 = START + 1_000_000 * MILLISECOND;

loom::lazy_static! {
    /// One of loom's, or loom would not try the orders in which it is set and read.
    static ref NOW: AtomicU64 = AtomicU64::new(START + STEP);
}

/// Reads the clock. A load might return what was there before, but no thread of a machine sees the clock go
/// back.
fn now() -> u64 {
    NOW.fetch_add(0, SeqCst)
}

/// Sets the clock to `millis` after the beginning of the model, unless it is later.
pub(crate) fn go_on_to(millis: u64) {
    NOW.fetch_max(START + millis * MILLISECOND, SeqCst);
}

/// Returns the milliseconds since the model began.
pub(crate) fn elapsed() -> u64 {
    (now() - START) / MILLISECOND
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(StdDuration);

impl Instant {
    pub fn now() -> Instant {
        Instant(StdDuration::from_nanos(now()))
    }

    /// The machine's clock is the model's.
    pub fn from_std(_: std::time::Instant) -> Instant {
        Instant::now()
    }

    pub(crate) fn at(millis: u64) -> Instant {
        Instant(StdDuration::from_nanos(START + millis * MILLISECOND))
    }

    pub fn checked_add(self, duration: StdDuration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    pub fn checked_sub(self, duration: StdDuration) -> Option<Instant> {
        self.0.checked_sub(duration).map(Instant)
    }

    pub fn saturating_duration_since(self, earlier: Instant) -> StdDuration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the first millisecond that begins at the instant or later.
    fn millis(self) -> u64 {
        u64::try_from(self.0.as_nanos().div_ceil(MILLISECOND.into())).unwrap_or(u64::MAX)
    }
}

impl Add<StdDuration> for Instant {
    type Output = Instant;

    fn add(self, duration: StdDuration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl Sub for Instant {
    type Output = StdDuration;

    fn sub(self, earlier: Instant) -> StdDuration {
        self.saturating_duration_since(earlier)
    }
}

impl Sub<StdDuration> for Instant {
    type Output = Instant;

    fn sub(self, duration: StdDuration) -> Instant {
        Instant(self.0 - duration)
    }
}

loom::thread_local! {
    /// Whether this thread has looked whether the timers have ended, since it last reset an interval.
    static HAS_LOOKED: Cell<bool> = Cell::new(false);
}

/// The timers of a runtime.
pub(crate) struct Timers {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The last millisecond that was processed.
    processed: u64,
    entries: BTreeMap<usize, Entry>,
    /// How many entries there have been.
    made: usize,
    has_ended: bool,
    /// Whether an interval was polled after that, by a thread that had not looked.
    has_panicked: bool,
    /// Whether nothing is to be waited for any more.
    is_over: bool,
}

#[derive(Default)]
struct Entry {
    /// The millisecond at which it fires, if it is to.
    at: Option<u64>,
    has_fired: bool,
    waker: Option<Waker>,
    /// Whether the timers have lost it, as Tokio's have done: it does not fire, and goes on once it is reset
    /// to a millisecond that has been processed.
    is_lost: bool,
}

/// What befalls the wake-up of a timer that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Comes,
    IsLost,
    /// By so many milliseconds.
    IsDelayed(u64),
    ComesTwice,
}

impl Entry {
    fn fire(&mut self) -> Option<Waker> {
        (self.at, self.is_lost) = (None, false);
        self.has_fired = true;
        self.waker.take()
    }
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            state: Mutex::new(State {
                processed: START / MILLISECOND,
                entries: BTreeMap::new(),
                made: 0,
                has_ended: false,
                has_panicked: false,
                is_over: false,
            }),
            changed: Condvar::new(),
        }
    }
}

impl Timers {
    pub(crate) fn add(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.made += 1;
        let id = state.made;
        state.entries.insert(id, Entry::default());
        id
    }

    pub(crate) fn remove(&self, id: usize) {
        let entry = self.state.lock().unwrap().entries.remove(&id);
        drop(entry);
    }

    /// Resets a timer. If its millisecond has been processed, it fires at once, on this thread.
    fn reset(&self, id: usize, at: Instant) {
        let mut state = self.state.lock().unwrap();
        let fires = state.has_ended || at.millis() <= state.processed;
        let Some(entry) = state.entries.get_mut(&id) else {
            return;
        };
        let waker = if fires {
            entry.fire()
        } else {
            entry.has_fired = false;
            entry.at = Some(at.millis()).filter(|_| !entry.is_lost);
            None
        };
        drop(state);
        self.changed.notify_one();
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, id: usize, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut state = self.state.lock().unwrap();
        if state.has_ended {
            // They may end after a thread has looked, which nobody can help.
            state.has_panicked |= !HAS_LOOKED.with(Cell::get);
            drop(state);
            panic_as_ended();
        }
        let Some(entry) = state.entries.get_mut(&id) else {
            return Poll::Pending;
        };
        if entry.has_fired {
            entry.has_fired = false;
            return Poll::Ready(());
        }
        let former = entry.waker.replace(waker);
        drop(state);
        drop(former);
        Poll::Pending
    }

    /// Returns whether a thread polled an interval after the timers had ended, and had not looked whether they
    /// had. An engine catches the panic, but a process may abort at it.
    pub(crate) fn has_panicked(&self) -> bool {
        self.state.lock().unwrap().has_panicked
    }

    /// Fires the timers of the next millisecond that has some, once there is one. Returns `false` when
    /// nothing is to be waited for any more.
    pub(crate) fn turn(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let next = loop {
            if state.is_over {
                return false;
            }
            let next = state.entries.values().filter_map(|entry| entry.at).min();
            if let Some(next) = next.filter(|next| *next < END / MILLISECOND) {
                break next;
            }
            state = self.changed.wait(state).unwrap();
        };
        let now = NOW.fetch_max(next * MILLISECOND, SeqCst) / MILLISECOND;
        let wakers = state.process(now.max(next));
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// Processes a millisecond, because the runtime had something else to do then.
    pub(crate) fn process(&self, millis: u64) {
        go_on_to(millis);
        let wakers = self.state.lock().unwrap().process(now() / MILLISECOND);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Processes a millisecond, in which `fate` says what befalls each timer that is due. If `is_early` says
    /// so, one that is not due fires, too.
    pub(crate) fn process_at_random(
        &self,
        millis: u64,
        mut fate: impl FnMut() -> Fate,
        mut is_early: impl FnMut() -> bool,
    ) {
        go_on_to(millis);
        let now = now() / MILLISECOND;
        let mut wakers = Vec::new();
        let mut state = self.state.lock().unwrap();
        state.processed = state.processed.max(now);
        for entry in state.entries.values_mut().filter(|entry| entry.waker.is_some()) {
            let is_due = entry.at.is_some_and(|at| at <= now);
            let fate = match entry.at {
                Some(_) if is_due => fate(),
                Some(_) if is_early() => Fate::Comes,
                _ => continue,
            };
            match fate {
                Fate::Comes => wakers.extend(entry.fire()),
                Fate::IsLost => (entry.at, entry.is_lost) = (None, true),
                Fate::IsDelayed(by) => entry.at = Some(now + by),
                Fate::ComesTwice => {
                    let waker = entry.fire();
                    wakers.extend(waker.clone());
                    wakers.extend(waker);
                }
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Makes turns until nothing is to be waited for any more.
    pub(crate) fn run(&self) {
        while self.turn() {}
    }

    /// Says that nothing is to be waited for any more.
    pub(crate) fn be_over(&self) {
        self.state.lock().unwrap().is_over = true;
        self.changed.notify_one();
    }

    /// Ends the timers, as a runtime does that shuts down: fires all of them.
    pub(crate) fn end(&self) {
        self.state.lock().unwrap().has_ended = true;
        let wakers = self.state.lock().unwrap().process(u64::MAX);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A timer of the kernel: an entry of [`Timers`] whose expiry stays until it is cleared.
pub(crate) mod readiness {
    use super::*;

    /// Returns `false` if the runtime shuts down.
    pub(crate) fn poll(timers: &Timers, id: usize, waker: &Waker) -> Poll<bool> {
        let mut state = timers.state.lock().unwrap();
        let has_ended = state.has_ended;
        let entry = state.entries.get_mut(&id).expect("it is there");
        if has_ended || entry.has_fired {
            return Poll::Ready(!has_ended);
        }
        let former = entry.waker.replace(waker.clone());
        drop(state);
        drop(former);
        Poll::Pending
    }

    pub(crate) fn clear(timers: &Timers, id: usize) {
        let mut state = timers.state.lock().unwrap();
        state.entries.get_mut(&id).expect("it is there").has_fired = false;
    }

    /// Also to an instant that has come: it expires in the next turn.
    pub(crate) fn set(timers: &Timers, id: usize, at: Instant) {
        let mut state = timers.state.lock().unwrap();
        state.entries.get_mut(&id).expect("it is there").at = Some(at.millis());
        drop(state);
        timers.changed.notify_one();
    }
}

/// What a panic says after the timers have ended.
pub(crate) const ENDED: &str = "A Tokio 1.x context was found, but it is being shutdown.";

fn panic_as_ended() -> ! {
    // Without a message on the console.
    resume_unwind(Box::new(ENDED))
}

impl State {
    fn process(&mut self, now: u64) -> Vec<Waker> {
        self.processed = self.processed.max(now);
        let due = self
            .entries
            .values_mut()
            .filter(|entry| entry.at.is_some_and(|at| at <= now));
        due.filter_map(Entry::fire).collect()
    }
}

#[derive(Clone, Copy)]
pub enum MissedTickBehavior {
    Skip,
}

pub struct Interval {
    timers: Arc<Timers>,
    id: usize,
}

pub fn interval_at(_: Instant, _period: StdDuration) -> Interval {
    let timers = Handle::current().timers().clone();
    Interval {
        id: timers.add(),
        timers,
    }
}

impl Interval {
    pub fn set_missed_tick_behavior(&mut self, _: MissedTickBehavior) {}

    pub fn reset_at(&mut self, at: Instant) {
        HAS_LOOKED.with(|has_looked| has_looked.set(false));
        self.timers.reset(self.id, at);
    }

    /// Once it has fired, the interval is not set, which Tokio's is at the next poll.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        self.timers.poll(self.id, cx.waker()).map(|()| Instant::now())
    }
}

impl Drop for Interval {
    fn drop(&mut self) {
        self.timers.remove(self.id);
    }
}

/// A sleep that wakes nobody, and thus is not registered.
pub struct Sleep {
    timers: Arc<Timers>,
    deadline: Instant,
    is_elapsed: bool,
}

pub fn sleep(duration: StdDuration) -> Sleep {
    sleep_until(Instant::now() + duration)
}

pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        timers: Handle::current().timers().clone(),
        deadline,
        is_elapsed: false,
    }
}

/// Wakes nobody when the time has passed, as the sleep.
pub async fn timeout<F: Future>(duration: StdDuration, future: F) -> Result<F::Output, ()> {
    let (mut sleep, mut future) = (pin!(sleep(duration)), pin!(future));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| Err(())),
        ready => ready.map(Ok),
    })
    .await
}

impl Sleep {
    pub fn reset(mut self: Pin<&mut Self>, at: Instant) {
        HAS_LOOKED.with(|has_looked| has_looked.set(true));
        let state = self.timers.state.lock().unwrap();
        let is_elapsed = state.has_ended || at.millis() <= state.processed;
        drop(state);
        self.deadline = at;
        self.is_elapsed = is_elapsed;
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    pub fn is_elapsed(&self) -> bool {
        self.is_elapsed
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let state = self.timers.state.lock().unwrap();
        let (processed, has_ended) = (state.processed, state.has_ended);
        drop(state);
        if has_ended {
            panic_as_ended();
        }
        if self.is_elapsed || self.deadline.millis() <= processed {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
