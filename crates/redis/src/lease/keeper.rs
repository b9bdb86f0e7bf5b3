//! `Keepers`: the tasks that renew the leases of a [`Leases`](super::Leases), and release those that were
//! dropped.

use std::{
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::unconstrained,
    time::Instant,
};

use super::{
    calls::{Calls, RenewedKeys, send},
    lease_stats::{HeldLease, LeaseStats},
    line::Waiters,
    state::{self, Outcome, Step},
    windows::Windows,
};
use crate::{
    error::Error,
    per_runtime::{Guard, PerRuntime, Running},
    server::{erased::AnyConnection, nonce::random_part, retry::Backoff, script::Call},
    timers::{self, LocalEntry},
};

/// The keepers of a [`Leases`](super::Leases): one task on each runtime that has acquired leases, for as long
/// as it has some. Each lease is a future in the task of its runtime, with one entry in the wheel. So no
/// runtime that ends or blocks concerns another's leases.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    by_runtime: PerRuntime<mpsc::UnboundedSender<Work>>,
}

/// What a keeper is to do: it makes a future, whose requests wait for their turn in the keeper's windows.
pub(super) type Work = Box<dyn FnOnce(Arc<Windows>) -> BoxFuture<'static, ()> + Send>;

/// How often work is handed over to a keeper that may have ended by then, because it had nothing to do.
const ATTEMPTS: usize = 3;

impl Keepers {
    /// Does work on the current runtime, or on `otherwise` if there is none. If that runtime has been shut
    /// down, another one that keeps leases does it.
    pub(super) fn adopt(self: &Arc<Keepers>, otherwise: &Handle, work: Work) {
        let runtime = Handle::try_current().unwrap_or_else(|_| otherwise.clone());
        let mut work = Some(work);
        let mut hand_over = |keeper: &mut mpsc::UnboundedSender<Work>| {
            work = work.take().and_then(|work| Some(keeper.send(work).err()?.0));
            work.is_none()
        };
        if self.by_runtime.get(runtime.id(), &mut hand_over) == Some(true) {
            return;
        }
        for _ in 0..ATTEMPTS {
            if self.keeper(&runtime).get(&mut hand_over) == Some(true) {
                return;
            }
        }
        self.by_runtime.each(|keeper| {
            hand_over(keeper);
        });
    }

    /// Returns the keeper of a runtime, which is started if there is none.
    fn keeper(self: &Arc<Keepers>, runtime: &Handle) -> Running<mpsc::UnboundedSender<Work>> {
        let (sender, new) = mpsc::unbounded_channel();
        // Leases that are held last longer than the `Leases` that acquired them.
        let keepers = self.clone();
        let serve = |guard| async move {
            let turn = Turn::default();
            turn.clone().begin_with_each_poll(serve(guard, new, turn)).await;
            drop(keepers);
        };
        self.by_runtime.get_or_start(runtime, || sender, serve, |_| {}).0
    }
}

/// Does the work of one runtime until there is none.
async fn serve(
    guard: Guard<mpsc::UnboundedSender<Work>>,
    mut new: mpsc::UnboundedReceiver<Work>,
    turn: Turn,
) {
    let windows = Arc::new(Windows::default());
    let mut futures = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(work) = new.recv() => {
                // A panic of one ends no other.
                let future = AssertUnwindSafe(work(windows.clone())).catch_unwind();
                futures.push(turn.clone().within(future));
            }
            Some(_) = futures.next() => {}
            else => return,
        }
        if futures.is_empty() && guard.end_if(|_| new.is_empty()).is_some() {
            return;
        }
    }
}

/// How many leases a keeper polls before the other tasks of its runtime have their turn.
const TURN: usize = 128;

/// What is left of a keeper's turn.
///
/// It takes the place of Tokio's cooperative budget. Once that is used up, every future of Tokio returns
/// `Pending`, and a `FuturesUnordered` polls all others in vain: of 100,000 leases hardly any was renewed. It
/// stops when futures wake themselves at once, as these do at the end of a turn.
#[derive(Clone, Debug, Default)]
struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// Runs the task, each poll of which is a turn.
    async fn begin_with_each_poll(self, task: impl Future<Output = ()>) {
        let mut task = pin!(task);
        unconstrained(poll_fn(|cx| {
            self.0.store(TURN, Ordering::Relaxed);
            task.as_mut().poll(cx)
        }))
        .await;
    }

    /// Runs a future of that task.
    async fn within<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let left = self.0.load(Ordering::Relaxed);
            if left == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.0.store(left - 1, Ordering::Relaxed);
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// A lease that is held.
pub(super) struct Held {
    pub(super) calls: Calls,
    pub(super) token: u64,
    pub(super) state: state::LeaseState,
    /// Its place in the wheel.
    pub(super) entry: LocalEntry,
    pub(super) lease: HeldLease,
    pub(super) stats: Arc<LeaseStats>,
    /// Receives a message when the holder releases the lease, and is closed when the lease is dropped.
    pub(super) given_up: oneshot::Receiver<()>,
    pub(super) releasing: Releasing,
}

impl Held {
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
                        let renewal = calls.renew(keys, token, &*releasing.server);
                        let by = state.valid_until();
                        request = Some(Box::pin(windows.send(calls.slot(), by, renewal)));
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
                                let outcome = match renewed {
                                    Ok(true) => {
                                        stats.renewals.renewed.increment();
                                        keys = RenewedKeys::Both;
                                        Outcome::Renewed { sent }
                                    }
                                    Ok(false) => Outcome::Refused,
                                    Err(error) => {
                                        stats.renewals.failed.increment();
                                        tracing::debug!(%error, "a lease could not be renewed; it is tried again");
                                        keys = RenewedKeys::HolderAlone;
                                        Outcome::Failed
                                    }
                                };
                                state.answered(Instant::now(), outcome, random_part);
                                if matches!(outcome, Outcome::Renewed { .. })
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
pub(super) struct Releasing {
    pub(super) server: Arc<dyn AnyConnection>,
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

impl Releasing {
    /// Releases the lease, also through an outage, until it must have expired by itself. The caller gets the
    /// first answer, or the error once the outage has lasted for `ANSWER`, or `NoAnswer` at the end of the
    /// lease.
    pub(super) async fn run(self, call: Call, asked: Asked) {
        let attempt = || send(&*self.server, call.clone());
        self.repeat(attempt, Some(asked)).await;
    }

    /// Does the same for nobody, in a keeper's task.
    pub(super) async fn run_in_background(self, call: Call, windows: &Windows) {
        // Nobody needs the release once the lease has expired by itself.
        let by = Instant::now() + self.ttl;
        let attempt = async || {
            let request = send(&*self.server, call.clone());
            windows.send(self.slot, by, request).await.1
        };
        self.repeat(attempt, None).await;
    }

    /// Returns the release as work of a keeper.
    pub(super) fn work(self, call: Call) -> Work {
        Box::new(|windows| async move { self.run_in_background(call, &windows).await }.boxed())
    }

    async fn repeat<F>(&self, attempt: impl Fn() -> F, mut asked: Option<Asked>)
    where
        F: Future<Output = Result<i64, Error>>,
    {
        let start = Instant::now();
        let end = start + self.ttl.max(ANSWER);
        let held = asked.as_ref().is_some_and(|asked| start < asked.valid_until);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            let by = asked
                .as_ref()
                .map_or(end, |asked| asked.valid_until.max(start + ANSWER));
            let outcome = timers::until(by, attempt()).await;
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
            timers::sleep(backoff.next_pause()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;
    use tokio::task::{coop::consume_budget, yield_now};

    use super::*;

    #[tokio::test]
    async fn no_future_is_polled_in_vain_and_other_tasks_have_their_turns() {
        const FUTURES: usize = 10 * TURN;
        let (polls, turn) = (AtomicUsize::new(0), Turn::default());
        let futures: FuturesUnordered<_> = (0..FUTURES)
            .map(|_| {
                let mut works = Box::pin(async {
                    for _ in 0..10 {
                        consume_budget().await;
                    }
                });
                let polls = &polls;
                turn.clone().within(poll_fn(move |cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    works.as_mut().poll(cx)
                }))
            })
            .collect();
        let all = async { assert_eq!(futures.count().await, FUTURES) };
        let mut before = 0;
        let other = async {
            while before < FUTURES {
                let now = polls.load(Ordering::Relaxed);
                assert!(now - before <= TURN, "{now} after {before}");
                before = now;
                yield_now().await;
            }
        };
        join(turn.begin_with_each_poll(all), other).await;
        assert_eq!(polls.into_inner(), FUTURES);
    }
}
