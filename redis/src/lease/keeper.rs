//! `Keeper`: the one task that renews all leases of a [`Leases`](super::Leases), and releases those that were dropped.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tickwheel::Sleep;
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

/// Its task runs while there is a lease to look after, and each lease is a future in it, with one entry in the wheel.
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
                // The runtime of the task has gone.
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
            // Nobody can hand over another while this is locked.
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
    pub(super) entry: Sleep,
    pub(super) validity: LoseOnDrop,
    /// Told when the holder releases it by itself; closed when it was dropped.
    pub(super) given_up: oneshot::Receiver<()>,
    pub(super) releasing: Releasing<C>,
}

/// Whatever ends the keeping, the holder hears: also when the runtime goes before it began.
pub(super) struct LoseOnDrop(pub(super) Validity);

impl Drop for LoseOnDrop {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl<C: Connection> Held<C> {
    /// Renews until the lease is given up, or lost. Releases it where the holder does not.
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
        // Whoever releases waits for the answer, and so sends the request; nobody waits where the lease was dropped.
        if given_up.is_err() {
            releasing.run(calls.release(), None).await;
        }
    }
}

/// What it takes to release a lease.
#[derive(Clone)]
pub(super) struct Releasing<C> {
    pub(super) connection: C,
    pub(super) ttl: Duration,
    pub(super) waiters: Arc<Waiters>,
    /// The key by which those wait who want it next.
    pub(super) key: String,
}

/// Somebody who waits to hear how a release went.
pub(super) struct Asked {
    pub(super) answer: oneshot::Sender<Result<bool, Error>>,
    /// Until when the lease held, as far as its holder knew.
    pub(super) valid_until: Instant,
}

/// How long whoever asks waits at least for an answer, and how long Redis has to come back before it is told of an outage.
const ANSWER: Duration = Duration::from_secs(1);

impl<C: Connection> Releasing<C> {
    /// Releases, also through an outage, until the lease must have run out by itself. Who asked for it hears the first answer; or
    /// the error, when that has gone on for a while; by the end of the lease, if Redis says nothing.
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
                    // Where the client has stopped waiting, whoever asked has not.
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
