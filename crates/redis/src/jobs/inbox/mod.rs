//! `Inbox`: the state that a worker's stream, its engine and its jobs share.
//!
//! The engine adds claims that have become due. A poll of the stream asks for a job, whereupon claims are
//! started (`start`), which makes them deliveries, and the stream yields the started jobs.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    INTERVAL,
    change::Change,
    claim::{Claim, JobLease},
    queue::Queue,
    settings::Settings,
};
use crate::error::Error;

mod held;
mod start;
mod state;

use held::HeldLeases;
use state::{Ready, State};

pub(super) use state::{NotifyEngine, Status};

/// The shortest interval between two errors that the stream yields.
const ERRORS_APART: Duration = Duration::from_secs(1);
/// If a job is finished while a started one has been unfetched for longer than this, too many are started.
const SURPLUS_AFTER: Duration = Duration::from_millis(2);

pub(super) struct Inbox {
    pub(super) queue: Arc<Queue>,
    pub(super) settings: Settings,
    /// The runtime of the engine, on which claims are started too: whoever polls the stream may stop at any
    /// time.
    pub(super) runtime: Handle,
    state: Mutex<State>,
    /// Notified when the engine has work to do.
    pub(super) engine: Notify,
    /// Whether a worker that has ended has given back everything that it could.
    pub(super) given_back: CancellationToken,
}

impl Inbox {
    pub(super) fn new(queue: Arc<Queue>, settings: Settings, runtime: Handle) -> Arc<Inbox> {
        let state = State::new(HeldLeases::new(&queue.wheel, queue.workers.stats.clone()));
        Arc::new(Inbox {
            queue,
            settings,
            runtime,
            state: Mutex::new(state),
            engine: Notify::new(),
            given_back: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The stream's side.

    pub(super) fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Claim, Error>>> {
        let waker = cx.waker().clone();
        let mut lost = Vec::new();
        let mut state = self.lock();
        while let Some(Ready { claim, .. }) = state.started.pop_front() {
            if claim.lease.validity.is_lost() {
                state.held.remove(&claim.lease);
                lost.push(claim);
                continue;
            }
            state.asked = false;
            state.demand.fetched();
            let now = Instant::now();
            state.pace.fetched(now);
            let limit = self.settings.time_limit.and_then(|limit| now.checked_add(limit));
            if let Some(limit) = limit {
                state.held.limit(&claim.lease, limit);
            }
            let notify = limit.is_some() || mem::take(&mut state.engine_waits_for.fetched);
            drop(state);
            if notify {
                self.engine.notify_one();
            }
            let stats = &self.queue.workers.stats;
            stats.delivered(claim.lateness(now), claim.attempts);
            return Poll::Ready(Some(Ok(claim)));
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
        state.demand.asked();
        if state.starting == 0 && !state.due.is_empty() {
            state.demand.starved();
        }
        let starts = self.start(&mut state);
        let notify = state.take_engine_notification();
        drop(state);
        drop(old);
        self.queue.update_all(&self.runtime, starts);
        if notify {
            self.engine.notify_one();
        }
        Poll::Pending
    }

    // The schedulers' side.

    /// Records that a job of the partition is due at that time, unless the worker is told of such jobs by
    /// Redis.
    pub(super) fn expect_job(&self, partition: usize, due: Instant) {
        let mut state = self.lock();
        let claimable = due.checked_sub(self.settings.look_ahead).unwrap_or(due);
        let is_known = state
            .expected
            .get(&partition)
            .is_some_and(|known| *known <= claimable);
        if state.listens || state.closed || is_known || claimable > Instant::now() + INTERVAL {
            return;
        }
        state.expected.insert(partition, claimable);
        drop(state);
        self.engine.notify_one();
    }

    /// Takes the partitions of which jobs become due, each with when the first may be claimed.
    pub(super) fn take_expected(&self) -> BTreeMap<usize, Instant> {
        mem::take(&mut self.lock().expected)
    }

    /// Records whether Redis tells the worker of jobs that are due.
    pub(super) fn set_listens(&self, listens: bool) {
        self.lock().listens = listens;
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.engine.notify_one();
    }

    // The jobs' side.

    /// Stops renewing a job that is being finished or was dropped. Returns whether it was renewed and not
    /// lost until now.
    pub(super) fn leave(&self, lease: &Arc<JobLease>) -> bool {
        let mut state = self.lock();
        let was_held = state.held.remove(lease);
        let last = state.closed && state.held.is_empty();
        drop(state);
        if last {
            self.engine.notify_one();
        }
        was_held
    }

    /// Records that a job was finished or dropped, so that the consumer has room for another.
    pub(super) fn finished(&self) {
        let mut state = self.lock();
        let others = state
            .started
            .front()
            .is_some_and(|first| first.since.elapsed() > SURPLUS_AFTER);
        state.demand.left(others);
    }

    // The engine's side.

    /// Returns the status, with how many jobs the consumer starts within `soon`.
    pub(super) fn status(&self, soon: Duration) -> Status {
        self.lock().status(soon)
    }

    /// Whether the stream has ended, with its runtime or its wheel.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Whether the stream was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether any lease is left to renew.
    pub(super) fn holds(&self) -> bool {
        !self.lock().held.is_empty()
    }

    /// Whether a start is under way, whose job has to be given back.
    pub(super) fn is_starting(&self) -> bool {
        self.lock().starting > 0
    }

    /// Sets when the engine is notified.
    pub(super) fn notify_engine_when(&self, when: NotifyEngine, soon: Duration) -> Status {
        let mut state = self.lock();
        state.engine_waits_for = when;
        state.status(soon)
    }

    /// Starts renewing a claim.
    pub(super) fn hold(&self, lease: &Arc<JobLease>) {
        self.lock().held.insert(lease);
    }

    pub(super) fn let_go(&self, lease: &Arc<JobLease>) {
        self.lock().held.remove(lease);
    }

    /// Ends the leases of jobs that have taken as long as they may. Returns when the next one will have.
    pub(super) fn end_overdue(&self) -> Option<Instant> {
        let (overdue, next) = self.lock().held.take_overdue();
        for lease in overdue {
            lease.validity.lose();
        }
        next
    }

    /// Returns all held leases, after ending those that are lost.
    pub(super) fn held(&self) -> Vec<Arc<JobLease>> {
        let (lasting, lost) = self.lock().held.split_lost();
        for lease in lost {
            lease.validity.lose();
        }
        lasting
    }

    /// Adds claims that have become due.
    pub(super) fn add(self: &Arc<Self>, claims: impl IntoIterator<Item = Claim>) {
        let mut state = self.lock();
        let since = Instant::now();
        for claim in claims {
            if claim.lease.validity.is_lost() {
                state.held.remove(&claim.lease);
                continue;
            }
            state.added += 1;
            let place = (claim.due, state.added);
            state.due.insert(place, Ready { claim, since });
        }
        let starts = self.start(&mut state);
        drop(state);
        self.queue.update_all(&self.runtime, starts);
    }

    /// Lets the stream yield an error, unless it has yielded another within `ERRORS_APART`.
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

    /// Removes the claims that were added before one instant and the jobs that were started before another.
    pub(super) fn take_back(
        &self,
        added_before: Option<Instant>,
        started_before: Option<Instant>,
    ) -> (Vec<Claim>, Vec<Claim>) {
        let mut state = self.lock();
        let (mut claims, mut starts) = (Vec::new(), Vec::new());
        while state
            .due
            .first_key_value()
            .is_some_and(|(_, due)| Some(due.since) <= added_before)
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
            // The consumer has stopped polling, or has less room than before.
            state.demand.returned();
            state.asked = false;
        }
        for claim in claims.iter().chain(&starts) {
            state.held.remove(&claim.lease);
        }
        (claims, starts)
    }

    /// Returns claims to the queue when the runtime of the engine has ended, by the runtime of another
    /// worker. Without another one, they wait until their leases have expired.
    pub(super) fn give_back_elsewhere(&self, how: fn(&JobLease) -> Change<'_>, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        if let Some(runtime) = self.queue.workers.another_runtime(self) {
            self.queue.give_back(&runtime, how, claims, &());
        }
    }

    /// Ends the stream and all leases, because the wheel was shut down.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let held = state.held.drain();
        wake(state);
        self.queue.workers.stats.lost.add(held.len() as u64);
        for lease in held {
            lease.validity.lose();
        }
    }
}

/// Ends the stream with an error if the engine's task does not end by itself.
pub(super) struct EngineGuard {
    inbox: Arc<Inbox>,
    has_ended: bool,
}

impl EngineGuard {
    pub(super) fn new(inbox: Arc<Inbox>) -> EngineGuard {
        EngineGuard {
            inbox,
            has_ended: false,
        }
    }

    pub(super) fn ended(mut self) {
        self.inbox.given_back.cancel();
        self.has_ended = true;
    }
}

impl Drop for EngineGuard {
    /// The engine's runtime was shut down, or the engine panicked. Leases that are held last until they
    /// expire, because nobody renews them any more.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut state = self.inbox.lock();
        state.ended = true;
        state.error = Some(Error::NoRuntime);
        let (due, started) = (mem::take(&mut state.due), mem::take(&mut state.started));
        let held = state.held.drain();
        wake(state);
        drop(held);
        let due = due.into_values().map(|due| due.claim).collect();
        self.inbox
            .give_back_elsewhere(|job| Change::GiveBack { job }, due);
        let started = started.into_iter().map(|started| started.claim).collect();
        self.inbox
            .give_back_elsewhere(|job| Change::UndoStart { job }, started);
        self.inbox.given_back.cancel();
    }
}

/// Wakes the stream after releasing the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
