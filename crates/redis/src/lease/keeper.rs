//! `Keepers`: the tasks that renew the leases of a [`Leases`](super::Leases), and release those that were
//! dropped.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    runtime::{Handle, Id},
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    calls::{Calls, RenewedKeys},
    state::{self, Answer, Step},
    stats::{HeldLease, LeaseStats},
    waiters::Waiters,
    windows::Windows,
};
use crate::{
    connection::Connection,
    error::Error,
    local::{self, LocalEntry},
    nonce::random_part,
    script::Call,
};

/// The keepers of a [`Leases`](super::Leases): one task on each runtime that has acquired leases, for as long
/// as it has some. Each lease is a future in the task of its runtime, with one entry in the wheel. So no
/// runtime that ends or blocks concerns another's leases.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keepers: HashMap<Id, Keeper>,
    started: u64,
}

#[derive(Debug)]
struct Keeper {
    /// Tells it from the one that follows it on the same runtime.
    number: u64,
    work: mpsc::UnboundedSender<Work>,
}

/// What a keeper is to do: it makes a future, whose requests wait for their turn in the keeper's windows.
pub(super) type Work = Box<dyn FnOnce(Arc<Windows>) -> BoxFuture<'static, ()> + Send>;

impl Keepers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does work on the current runtime, or on `otherwise` if there is none. If that runtime has been shut
    /// down, another one that keeps leases does it.
    pub(super) fn adopt(self: &Arc<Keepers>, otherwise: &Handle, work: Work) {
        let runtime = Handle::try_current().unwrap_or_else(|_| otherwise.clone());
        let Err(work) = self.hand_over(&runtime.id(), work) else {
            return;
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let number = {
            let mut state = self.lock();
            state.started += 1;
            state.started
        };
        let task = KeeperTask {
            keepers: self.clone(),
            runtime: runtime.id(),
            number,
            new: receiver,
        };
        runtime.spawn(task.run());
        if sender.is_closed() {
            self.hand_over_to_any(work);
            return;
        }
        let mut state = self.lock();
        // Another thread of the runtime may have started a keeper meanwhile, whose leases it keeps until they
        // are over.
        let keeper = Keeper {
            number,
            work: sender.clone(),
        };
        state.keepers.insert(runtime.id(), keeper);
        drop(state);
        let _ = sender.send(work);
    }

    /// Hands work to the keeper of a runtime, or returns it if there is none.
    fn hand_over(&self, runtime: &Id, work: Work) -> Result<(), Work> {
        match self.lock().keepers.get(runtime) {
            Some(keeper) => keeper.work.send(work).map_err(|refused| refused.0),
            None => Err(work),
        }
    }

    fn hand_over_to_any(&self, mut work: Work) {
        for keeper in self.lock().keepers.values() {
            match keeper.work.send(work) {
                Ok(()) => return,
                Err(refused) => work = refused.0,
            }
        }
    }

    /// Removes a keeper if nothing was handed to it that it has not taken.
    fn end(&self, task: &mut KeeperTask) -> Option<Work> {
        // Nothing is handed over while this is locked.
        let mut state = self.lock();
        let left = task.new.try_recv().ok();
        if left.is_none() {
            state.remove(task);
        }
        left
    }
}

impl State {
    fn remove(&mut self, task: &KeeperTask) {
        let is_its = |keeper: &Keeper| keeper.number == task.number;
        if self.keepers.get(&task.runtime).is_some_and(is_its) {
            self.keepers.remove(&task.runtime);
        }
    }
}

/// The task of a keeper.
struct KeeperTask {
    keepers: Arc<Keepers>,
    runtime: Id,
    number: u64,
    new: mpsc::UnboundedReceiver<Work>,
}

impl KeeperTask {
    async fn run(mut self) {
        let windows = Arc::new(Windows::default());
        let mut futures = FuturesUnordered::new();
        let mut next = self.new.recv().await;
        while let Some(work) = next {
            // A panic of one ends no other.
            futures.push(AssertUnwindSafe(work(windows.clone())).catch_unwind());
            next = loop {
                tokio::select! {
                    Some(work) = self.new.recv() => break Some(work),
                    Some(_) = futures.next(), if !futures.is_empty() => {}
                    else => break None,
                }
                if futures.is_empty() {
                    let keepers = self.keepers.clone();
                    break keepers.end(&mut self);
                }
            };
        }
    }
}

impl Drop for KeeperTask {
    /// Removes the keeper of a runtime that was shut down.
    fn drop(&mut self) {
        self.keepers.lock().remove(self);
    }
}

/// A lease that is held.
pub(super) struct Held<C> {
    pub(super) calls: Calls,
    pub(super) token: u64,
    pub(super) state: state::State,
    /// Its place in the wheel.
    pub(super) entry: LocalEntry,
    pub(super) lease: HeldLease,
    pub(super) stats: Arc<LeaseStats>,
    /// Receives a message when the holder releases the lease, and is closed when the lease is dropped.
    pub(super) given_up: oneshot::Receiver<()>,
    pub(super) releasing: Releasing<C>,
}

impl<C: Connection> Held<C> {
    /// Renews the lease until it is given up or lost, and releases it unless the holder does.
    pub(super) async fn keep(self, windows: Arc<Windows>) {
        let Held {
            calls,
            token,
            mut state,
            mut entry,
            mut lease,
            stats,
            mut given_up,
            releasing,
        } = self;
        let given_up = {
            let (mut request, mut keys) = (None, RenewedKeys::Both);
            loop {
                match state.next(Instant::now()) {
                    Step::Renew => {
                        let renewal = calls.renew(keys, token, &releasing.connection);
                        request = Some(Box::pin(windows.send(calls.slot(), renewal)));
                    }
                    Step::Lose => {
                        drop(entry);
                        drop(request);
                        lease.lost();
                        if state.has_run_out(Instant::now()) {
                            lease.validity.run_out();
                        } else {
                            lease.validity.lose();
                        }
                        break given_up.await;
                    }
                    Step::Wait(until) => {
                        entry.reset(until);
                        tokio::select! {
                            biased;
                            by = &mut given_up => {
                                drop(entry);
                                // The holder may know before this future that it has run out.
                                if lease.validity.granted() <= Instant::now() {
                                    lease.lost();
                                }
                                break by;
                            }
                            (sent, renewed) = async { request.as_mut().unwrap().await }, if request.is_some() => {
                                request = None;
                                let answer = match renewed {
                                    Ok(true) => {
                                        stats.renewals.renewed.increment();
                                        keys = RenewedKeys::Both;
                                        Answer::Renewed { sent }
                                    }
                                    Ok(false) => Answer::Refused,
                                    Err(error) => {
                                        stats.renewals.failed.increment();
                                        tracing::debug!(%error, "a lease could not be renewed; it is tried again");
                                        keys = RenewedKeys::HolderAlone;
                                        Answer::Failed
                                    }
                                };
                                state.answered(Instant::now(), answer, random_part);
                                if matches!(answer, Answer::Renewed { .. })
                                    && !lease.validity.extend(state.valid_until())
                                {
                                    state.lose();
                                }
                            }
                            slept = &mut entry => {
                                if slept.is_err() {
                                    state.lose();
                                }
                            }
                        }
                    }
                }
            }
        };
        state.release();
        lease.given_up();
        drop(lease);
        // A holder that calls `release` waits for the answer and sends the request itself. Nobody waits for a
        // lease that was dropped.
        if given_up.is_err() {
            releasing.run_in_background(calls.release(), &windows).await;
        }
    }
}

/// Everything that is needed to release a lease.
#[derive(Clone)]
pub(super) struct Releasing<C> {
    pub(super) connection: C,
    pub(super) ttl: Duration,
    pub(super) waiters: Arc<Waiters>,
    /// The key under which the next tasks wait for it.
    pub(super) key: String,
    /// The slot of its keys.
    pub(super) slot: usize,
}

/// A task that waits for the outcome of a release.
pub(super) struct Asked {
    pub(super) answer: oneshot::Sender<Result<bool, Error>>,
    /// Until when the lease was valid, as far as its holder knew.
    pub(super) valid_until: Instant,
}

/// The answer of a release whose message could not be published.
const HELD_AND_UNTOLD: i64 = 2;
/// How long a caller waits at least for an answer, and how long an outage of Redis lasts before the caller
/// gets its error.
const ANSWER: Duration = Duration::from_secs(1);

impl<C: Connection> Releasing<C> {
    /// Releases the lease, also through an outage, until it must have expired by itself. The caller gets the
    /// first answer, or the error once the outage has lasted for `ANSWER`, or `NoAnswer` at the end of the
    /// lease.
    pub(super) async fn run(self, call: Call, asked: Asked) {
        let send = || call.send::<i64>(&self.connection);
        self.repeat(send, Some(asked)).await;
    }

    /// Does the same for nobody, in a keeper's task.
    pub(super) async fn run_in_background(self, call: Call, windows: &Windows) {
        let send = || {
            windows
                .send(self.slot, call.send::<i64>(&self.connection))
                .map(|(_, answer)| answer)
        };
        self.repeat(send, None).await;
    }

    /// Returns the release as work of a keeper.
    pub(super) fn work(self, call: Call) -> Work {
        Box::new(|windows| async move { self.run_in_background(call, &windows).await }.boxed())
    }

    async fn repeat<F>(&self, send: impl Fn() -> F, mut asked: Option<Asked>)
    where
        F: Future<Output = Result<i64, Error>>,
    {
        let start = Instant::now();
        let end = start + self.ttl.max(ANSWER);
        let held = asked.as_ref().is_some_and(|asked| start < asked.valid_until);
        let mut pause = Duration::from_millis(20);
        loop {
            let by = asked
                .as_ref()
                .map_or(end, |asked| asked.valid_until.max(start + ANSWER));
            let outcome = local::until(by, send()).await;
            let outcome = outcome.unwrap_or_else(|| {
                Err(Error::NoAnswer {
                    waited: start.elapsed(),
                })
            });
            match outcome {
                Ok(answer) => {
                    let was_held = answer != 0;
                    if answer == HELD_AND_UNTOLD {
                        self.waiters.warn_of_silence();
                    }
                    self.waiters.released(&self.key);
                    if let Some(Asked { answer, .. }) = asked {
                        let _ = answer.send(Ok(was_held && held));
                    }
                    return;
                }
                Err(error) => {
                    let now = Instant::now();
                    let over = !error.is_passing() || now >= end;
                    tracing::debug!(%error, over, "a lease could not be released");
                    // The client may have stopped waiting before the caller has.
                    let told_by = if error.is_unanswered() { by } else { start + ANSWER };
                    if (over || now >= told_by)
                        && let Some(Asked { answer, .. }) = asked.take()
                    {
                        let _ = answer.send(Err(error));
                    }
                    if over {
                        return;
                    }
                }
            }
            local::sleep(pause - random_part(pause / 4)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
