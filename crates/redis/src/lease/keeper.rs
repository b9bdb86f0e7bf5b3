//! `Keeper`: the one task that renews all leases of a [`Leases`](super::Leases), and releases those that were dropped.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tickwheel::TrySleep;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};

use super::{
    calls::Calls,
    state::{Answer, State, Step},
    waiters::Waiters,
};
use crate::{connection::Connection, error::Error, lost::Validity, nonce::random_part, script::Call};

/// A task that runs while there are leases to renew. Each lease is a future in it, with one entry in the wheel.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    futures: Mutex<Option<mpsc::UnboundedSender<BoxFuture<'static, ()>>>>,
}

impl Keeper {
    pub(super) fn adopt(
        self: &Arc<Keeper>,
        runtime: &Handle,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        self.adopt_boxed(runtime, Box::pin(future));
    }

    pub(super) fn adopt_boxed(self: &Arc<Keeper>, runtime: &Handle, mut future: BoxFuture<'static, ()>) {
        let mut open = self.futures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*open {
            match sender.send(future) {
                Ok(()) => return,
                // The task's runtime has been shut down.
                Err(refused) => future = refused.0,
            }
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = sender.send(future);
        *open = Some(sender);
        runtime.spawn(run(self.clone(), receiver));
    }
}

async fn run(keeper: Arc<Keeper>, mut new: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    let mut futures = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(future) = new.recv() => futures.push(future),
            Some(()) = futures.next(), if !futures.is_empty() => {}
        }
        if futures.is_empty() {
            // No other lease can be handed over while this is locked.
            let mut open = keeper.futures.lock().unwrap_or_else(PoisonError::into_inner);
            match new.try_recv() {
                Ok(future) => futures.push(future),
                Err(_) => {
                    *open = None;
                    return;
                }
            }
        }
    }
}

/// A lease that is held.
pub(super) struct Held<C> {
    pub(super) calls: Calls,
    pub(super) token: u64,
    pub(super) state: State,
    /// Its place in the wheel.
    pub(super) entry: TrySleep,
    pub(super) validity: LoseOnDrop,
    /// Receives a message when the holder releases the lease, and is closed when the lease is dropped.
    pub(super) given_up: oneshot::Receiver<()>,
    pub(super) releasing: Releasing<C>,
}

/// Tells the holder that the lease is lost, whatever ends the future, including a runtime that is shut down before the first poll.
pub(super) struct LoseOnDrop(pub(super) Validity);

impl Drop for LoseOnDrop {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl<C: Connection> Held<C> {
    /// Renews the lease until it is given up or lost, and releases it unless the holder does.
    pub(super) async fn keep(self) {
        let Held {
            calls,
            token,
            mut state,
            mut entry,
            validity,
            mut given_up,
            releasing,
        } = self;
        let renewal = calls.renew(token);
        let given_up = {
            let mut request = None;
            loop {
                match state.next(Instant::now()) {
                    Step::Renew => request = Some(Box::pin(renewal.send::<bool>(&releasing.connection))),
                    Step::Lose => {
                        drop(entry);
                        drop(request);
                        if state.has_run_out(Instant::now()) {
                            validity.0.run_out();
                        } else {
                            validity.0.lose();
                        }
                        break given_up.await;
                    }
                    Step::Wait(until) => {
                        entry.reset(until);
                        tokio::select! {
                            biased;
                            by = &mut given_up => {
                                drop(entry);
                                break by;
                            }
                            renewed = async { request.as_mut().unwrap().await }, if request.is_some() => {
                                request = None;
                                let answer = match renewed {
                                    Ok(true) => Answer::Renewed,
                                    Ok(false) => Answer::Refused,
                                    Err(error) => {
                                        tracing::debug!(%error, "a lease could not be renewed; it is tried again");
                                        Answer::Failed
                                    }
                                };
                                state.answered(Instant::now(), answer, random_part);
                                if answer == Answer::Renewed && !validity.0.extend(state.valid_until()) {
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
        drop(validity);
        // A holder that calls `release` waits for the answer and sends the request itself. Nobody waits for a lease that was dropped.
        if given_up.is_err() {
            releasing.run(calls.release(), None).await;
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
}

/// A task that waits for the outcome of a release.
pub(super) struct Asked {
    pub(super) answer: oneshot::Sender<Result<bool, Error>>,
    /// Until when the lease was valid, as far as its holder knew.
    pub(super) valid_until: Instant,
}

/// How long a caller waits at least for an answer, and how long an outage of Redis lasts before the caller gets its error.
const ANSWER: Duration = Duration::from_secs(1);

impl<C: Connection> Releasing<C> {
    /// Releases the lease, also through an outage, until it must have expired by itself. The caller gets the first answer, or the error
    /// once the outage has lasted for `ANSWER`, or `NoAnswer` at the end of the lease.
    pub(super) async fn run(self, call: Call, mut asked: Option<Asked>) {
        let start = Instant::now();
        let end = start + self.ttl.max(ANSWER);
        let held = asked.as_ref().is_some_and(|asked| start < asked.valid_until);
        let mut pause = Duration::from_millis(20);
        loop {
            let by = asked
                .as_ref()
                .map_or(end, |asked| asked.valid_until.max(start + ANSWER));
            let outcome = match timeout_at(by, call.send::<bool>(&self.connection)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::NoAnswer {
                    waited: start.elapsed(),
                }),
            };
            match outcome {
                Ok(was_held) => {
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
            sleep(pause - random_part(pause / 4)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
