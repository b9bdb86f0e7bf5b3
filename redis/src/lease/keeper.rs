//! `Keeper`: the one task that renews all leases of a [`Leases`](super::Leases), and releases them.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tickwheel::Sleep;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};

use super::{
    calls::Calls,
    gate::Gates,
    state::{Answer, State, Step},
};
use crate::{connection::Connection, error::Error, lost::Validity, nonce::random_part, script::Call};

type Charge = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Its task runs while there is a lease to look after, and each lease is a future in it, with one entry in the wheel.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    charges: Mutex<Option<mpsc::UnboundedSender<Charge>>>,
}

impl Keeper {
    pub(super) fn adopt(
        self: &Arc<Keeper>,
        runtime: &Handle,
        charge: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut charge: Charge = Box::pin(charge);
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*charges {
            match sender.send(charge) {
                Ok(()) => return,
                // The runtime of the task has gone.
                Err(refused) => charge = refused.0,
            }
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = sender.send(charge);
        *charges = Some(sender);
        runtime.spawn(run(self.clone(), receiver));
    }
}

async fn run(keeper: Arc<Keeper>, mut new: mpsc::UnboundedReceiver<Charge>) {
    let mut charges = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(charge) = new.recv() => charges.push(charge),
            Some(()) = charges.next(), if !charges.is_empty() => {}
        }
        if charges.is_empty() {
            // Nobody can hand over another while this is locked.
            let mut open = keeper.charges.lock().unwrap_or_else(PoisonError::into_inner);
            match new.try_recv() {
                Ok(charge) => charges.push(charge),
                Err(_) => {
                    *open = None;
                    return;
                }
            }
        }
    }
}

/// By what the holder says that it gives up: with a place for the answer, or without one when it is dropped.
pub(super) type Verdict = oneshot::Sender<Result<bool, Error>>;

/// A lease that is held.
pub(super) struct Held<C> {
    pub(super) calls: Calls,
    pub(super) token: u64,
    pub(super) state: State,
    /// Its place in the wheel.
    pub(super) entry: Sleep,
    pub(super) told: Told,
    pub(super) given_up: oneshot::Receiver<Verdict>,
    pub(super) releasing: Releasing<C>,
}

/// Whatever ends the keeping, the holder hears: also when the runtime goes before it began.
pub(super) struct Told(pub(super) Validity);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl<C: Connection> Held<C> {
    /// Renews until the lease is lost or given up, then releases it.
    pub(super) async fn keep(self) {
        let Held {
            calls,
            token,
            mut state,
            mut entry,
            told,
            mut given_up,
            releasing,
        } = self;
        let renewal = calls.renew(token);
        let answer = {
            let mut request = None;
            loop {
                match state.next(Instant::now()) {
                    Step::Renew => request = Some(Box::pin(renewal.send::<bool>(&releasing.connection))),
                    Step::Lose => {
                        drop(entry);
                        drop(request);
                        told.0.lose();
                        break given_up.await;
                    }
                    Step::Wait(until) => {
                        entry.reset(until);
                        tokio::select! {
                            biased;
                            answer = &mut given_up => {
                                drop(entry);
                                break answer;
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
                                if answer == Answer::Renewed && !told.0.extend(state.valid_until()) {
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
        let held = !state.has_run_out(Instant::now());
        state.release();
        drop(told);
        let asked = answer.ok().map(|verdict| Asked {
            verdict,
            held,
            by: state.valid_until(),
        });
        releasing.run(calls.release(), asked).await;
    }
}

/// What it takes to release a lease.
#[derive(Clone)]
pub(super) struct Releasing<C> {
    pub(super) connection: C,
    pub(super) ttl: Duration,
    pub(super) gates: Arc<Gates>,
    /// The key by which those wait who want it next.
    pub(super) key: String,
}

/// Somebody who waits to hear how a release went.
pub(super) struct Asked {
    verdict: Verdict,
    /// Whether the holder could still believe that it held when it released.
    held: bool,
    by: Instant,
}

/// How long whoever asks waits at least for an answer, and how long Redis has to come back before it is told of an outage.
const ANSWER: Duration = Duration::from_secs(1);

impl<C: Connection> Releasing<C> {
    /// Releases, also through an outage, until the lease must have run out by itself. Who asked for it hears the first answer; or
    /// the error, when that has gone on for a while; by the end of the lease, if Redis says nothing.
    pub(super) async fn run(self, call: Call, mut asked: Option<Asked>) {
        let start = Instant::now();
        let end = start + self.ttl.max(ANSWER);
        let mut pause = Duration::from_millis(20);
        loop {
            let by = asked.as_ref().map_or(end, |asked| asked.by.max(start + ANSWER));
            let outcome = match timeout_at(by, call.send::<bool>(&self.connection)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::NoAnswer {
                    waited: start.elapsed(),
                }),
            };
            match outcome {
                Ok(was_held) => {
                    self.gates.released(&self.key);
                    if let Some(Asked { verdict, held, .. }) = asked {
                        let _ = verdict.send(Ok(was_held && held));
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
                        && let Some(Asked { verdict, .. }) = asked.take()
                    {
                        let _ = verdict.send(Err(error));
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
