//! `Desk`: where a worker's stream, its engine and its jobs meet.
//!
//! The engine lays claims that have come due on the desk. A poll of the stream asks for a job: then claims are started, which
//! makes them deliveries, and the stream yields what was started.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    claim::{Claim, Grip, valid_until},
    demand::Demand,
    job::Job,
    lane::{Answer, Verb},
    queue::{Queue, micros, verb},
    worker::Settings,
};
use crate::error::Error;

/// How far apart errors are yielded.
const ERRORS_APART: Duration = Duration::from_secs(1);
/// How long a consumer that has room may take to fetch what was started for it.
const UNFETCHED: Duration = Duration::from_millis(2);

pub(super) struct Desk {
    pub(super) queue: Arc<Queue>,
    pub(super) settings: Settings,
    state: Mutex<State>,
    /// Rung when there is something for the engine to do.
    pub(super) bell: Notify,
}

#[derive(Default)]
struct State {
    /// Claims that have come due, in the order of that.
    due: BTreeMap<(u64, u64), Due>,
    laid: u64,
    starting: usize,
    started: VecDeque<Started>,
    /// Everything that is held, and so renewed: claims and jobs.
    held: HashSet<Held>,
    demand: Demand,
    /// Whether the consumer waits for a job.
    asked: bool,
    /// When the engine wants to hear of it.
    ring: Ring,
    waker: Option<Waker>,
    error: Option<Error>,
    last_error: Option<Instant>,
    /// The stream was dropped.
    closed: bool,
    /// The wheel was shut down.
    ended: bool,
}

struct Due {
    claim: Claim,
    since: Instant,
}

struct Started {
    claim: Claim,
    since: Instant,
}

/// A grip, by identity.
struct Held(Arc<Grip>);

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Held {}

impl Hash for Held {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Arc::as_ptr(&self.0).hash(hasher);
    }
}

/// When the engine is rung for: it need not hear of every job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    /// As soon as the consumer asks.
    pub(super) asked: bool,
    /// As soon as no more is laid than this.
    pub(super) low: Option<usize>,
    /// As soon as the consumer asks and nothing is laid.
    pub(super) starving: bool,
}

/// What the engine has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Whether the consumer waits for a job.
    pub(super) asked: bool,
    pub(super) closed: bool,
    /// Claims that have come due and are not at the consumer's.
    pub(super) laid: usize,
    /// Jobs at the consumer's.
    pub(super) out: usize,
    /// Since when the first of the due claims has been laid, and the first of the started ones has been started.
    pub(super) due_since: Option<Instant>,
    pub(super) started_since: Option<Instant>,
    /// Whether anything is left to renew.
    pub(super) holds: bool,
}

impl State {
    fn laid(&self) -> usize {
        self.due.len() + self.starting + self.started.len()
    }

    fn standing(&self) -> Standing {
        Standing {
            asked: self.asked,
            closed: self.closed,
            laid: self.laid(),
            out: self.demand.out(),
            due_since: self.due.values().next().map(|due| due.since),
            started_since: self.started.front().map(|started| started.since),
            holds: !self.held.is_empty(),
        }
    }

    /// Whether to ring for the engine, which then says anew what it wants to hear of.
    fn is_wanted(&mut self) -> bool {
        let laid = self.laid();
        let wanted = (self.ring.asked && self.asked)
            || self.ring.low.is_some_and(|low| laid <= low)
            || (self.ring.starving && self.asked && laid == 0);
        if wanted {
            self.ring = Ring::default();
        }
        wanted
    }
}

impl Desk {
    pub(super) fn new(queue: Arc<Queue>, settings: Settings) -> Arc<Desk> {
        Arc::new(Desk {
            queue,
            settings,
            state: Mutex::default(),
            bell: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The stream's side.

    pub(super) fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Job, Error>>> {
        let waker = cx.waker().clone();
        let mut lost = Vec::new();
        let mut state = self.lock();
        while let Some(Started { claim, .. }) = state.started.pop_front() {
            if claim.grip.validity.is_lost() {
                state.held.remove(&Held(claim.grip.clone()));
                lost.push(claim);
                continue;
            }
            state.asked = false;
            state.demand.fetched();
            drop(state);
            return Poll::Ready(Some(Ok(Job::new(claim, self.clone()))));
        }
        if let Some(error) = state.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        // Dropped with the lock released.
        let old = state.waker.replace(waker);
        state.asked = true;
        let on_their_way = state.starting + state.started.len();
        state.demand.asked(on_their_way);
        self.start(&mut state);
        let ring = state.is_wanted();
        drop(state);
        drop(old);
        if ring {
            self.bell.notify_one();
        }
        Poll::Pending
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_one();
    }

    // The jobs' side.

    /// A job is being settled, or was dropped: it is not renewed any more.
    pub(super) fn leave(&self, grip: &Arc<Grip>) {
        let mut state = self.lock();
        state.held.remove(&Held(grip.clone()));
        let last = state.closed && state.held.is_empty();
        drop(state);
        if last {
            self.bell.notify_one();
        }
    }

    /// The consumer has room for another: a job was settled or dropped.
    pub(super) fn finished(&self) {
        let mut state = self.lock();
        let others = state
            .started
            .front()
            .is_some_and(|first| first.since.elapsed() > UNFETCHED);
        state.demand.left(others);
    }

    // The engine's side.

    pub(super) fn standing(&self) -> Standing {
        self.lock().standing()
    }

    /// Says when the engine wants to be rung for.
    pub(super) fn attend(&self, ring: Ring) -> Standing {
        let mut state = self.lock();
        state.ring = ring;
        state.standing()
    }

    /// From now on the claim is renewed.
    pub(super) fn hold(&self, grip: &Arc<Grip>) {
        self.lock().held.insert(Held(grip.clone()));
    }

    pub(super) fn let_go(&self, grip: &Arc<Grip>) {
        self.lock().held.remove(&Held(grip.clone()));
    }

    /// All that is held: what is lost already is ended and left out.
    pub(super) fn grips(&self) -> Vec<Arc<Grip>> {
        let mut lost = Vec::new();
        let mut grips = Vec::new();
        self.lock().held.retain(|held| {
            let is_lost = held.0.validity.is_lost();
            if is_lost { &mut lost } else { &mut grips }.push(held.0.clone());
            !is_lost
        });
        for grip in lost {
            grip.validity.lose();
        }
        grips
    }

    /// A claim has come due.
    pub(super) fn lay(self: &Arc<Self>, claim: Claim) {
        let mut state = self.lock();
        if claim.grip.validity.is_lost() {
            state.held.remove(&Held(claim.grip));
            return;
        }
        state.laid += 1;
        let place = (claim.due, state.laid);
        let since = Instant::now();
        state.due.insert(place, Due { claim, since });
        self.start(&mut state);
    }

    /// Yields an error, unless another has just been.
    pub(super) fn report(&self, error: Error) {
        let mut state = self.lock();
        let now = Instant::now();
        if state.last_error.is_some_and(|last| now < last + ERRORS_APART) {
            return;
        }
        state.last_error = Some(now);
        state.error = Some(error);
        wake(state);
    }

    /// Takes off the desk what the consumer has not asked for: claims laid before one instant, and starts before another.
    pub(super) fn clear(
        &self,
        laid_before: Option<Instant>,
        started_before: Option<Instant>,
    ) -> (Vec<Claim>, Vec<Claim>) {
        let mut state = self.lock();
        let (mut claims, mut starts) = (Vec::new(), Vec::new());
        while state
            .due
            .first_key_value()
            .is_some_and(|(_, due)| Some(due.since) <= laid_before)
        {
            claims.extend(state.due.pop_first().map(|(_, due)| due.claim));
        }
        while state
            .started
            .front()
            .is_some_and(|started| Some(started.since) <= started_before)
        {
            starts.extend(state.started.pop_front().map(|started| started.claim));
        }
        if !starts.is_empty() {
            // The consumer has gone away without a word, or has less room than it had.
            state.demand.returned();
            state.asked = false;
        }
        for claim in claims.iter().chain(&starts) {
            state.held.remove(&Held(claim.grip.clone()));
        }
        (claims, starts)
    }

    /// The wheel was shut down: nothing is renewed from now on, and the stream ends.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let held: Vec<Held> = state.held.drain().collect();
        wake(state);
        for Held(grip) in held {
            grip.validity.lose();
        }
    }

    // Starting.

    fn start(self: &Arc<Self>, state: &mut State) {
        if !state.asked || state.ended || state.closed {
            return;
        }
        let lease = self.settings.lease;
        while state.demand.room(state.starting + state.started.len()) > 0 {
            let Some((_, Due { claim, .. })) = state.due.pop_first() else {
                return;
            };
            let grip = &claim.grip;
            if grip.validity.is_lost() {
                state.held.remove(&Held(grip.clone()));
                continue;
            }
            state.starting += 1;
            let arguments = verb("start", &grip.id, &grip.token, micros(lease), 0);
            let deadline = grip.validity.until();
            let lane = &self.queue.partitions[grip.partition].settle;
            let desk = self.clone();
            lane.push(Verb::new(arguments, deadline, move |answer| {
                desk.answered(claim, answer)
            }));
        }
    }

    fn answered(self: Arc<Self>, claim: Claim, answer: Result<Answer, Error>) {
        let (granted, error) = match answer {
            Ok(Answer { yes: true, sent }) => {
                let until = valid_until(&self.queue.wheel, sent, self.settings.lease);
                (claim.grip.validity.extend(until), None)
            }
            // Cancelled, rescheduled, or lost.
            Ok(Answer { yes: false, .. }) => (false, None),
            Err(error) => (false, Some(error)),
        };
        let mut state = self.lock();
        state.starting -= 1;
        if !granted {
            state.held.remove(&Held(claim.grip));
            if error.is_none() {
                self.start(&mut state);
            }
            // The engine may take others in its place, or be waiting for the last one.
            if state.is_wanted() || state.closed {
                self.bell.notify_one();
            }
            if let Some(error) = error {
                drop(state);
                self.report(error);
                // Nothing is started from here: it may be a runtime's end that brought the error. The next poll will.
                wake(self.lock());
            }
            return;
        }
        let since = Instant::now();
        state.started.push_back(Started { claim, since });
        let closed = state.closed;
        if closed {
            self.bell.notify_one();
        } else if state.started.len() == 1 {
            wake(state);
        }
    }
}

/// Wakes the stream, with the lock released.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
