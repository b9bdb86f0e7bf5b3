//! `Lease`: a lease for its holder, and `RenewedLease`: the same lease for its keeper.

use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::RecvError},
    time::Instant,
};

use super::{
    calls::Calls,
    keeper::Keepers,
    state::{LeaseState, Outcome, Step},
    windows::Windows,
};
use crate::{
    error::Error,
    server::retry::jittered,
    timers::LocalEntry,
    validity::{Lost, Validity},
};

/// A lease that is held until it is [released](Lease::release), dropped, or [lost](Lease::lost).
///
/// It is renewed in the background, on the runtime that acquired it, for as long as it exists. Dropping it,
/// including by a panic of the holder, releases it in the background.
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    name: Box<str>,
    token: u64,
    validity: Validity,
    calls: Arc<Calls>,
    /// A message tells the keeper that the holder releases the lease; dropping the sender tells it to release
    /// the lease itself.
    given_up: Option<oneshot::Sender<()>>,
    /// The runtime on which the lease was acquired and is renewed.
    runtime: Handle,
}

impl Lease {
    /// Creates a lease for its holder, and for the keeper of the current runtime.
    pub(super) fn new(name: &str, token: u64, calls: Arc<Calls>, state: LeaseState) -> (Lease, RenewedLease) {
        let (give_up, given_up) = oneshot::channel();
        let validity = Validity::new(state.valid_until());
        calls.client.stats.acquired();
        let renewed = RenewedLease {
            calls: calls.clone(),
            token,
            state,
            validity: validity.clone(),
            given_up,
            is_over: false,
        };
        let lease = Lease {
            name: name.into(),
            token,
            validity,
            calls,
            given_up: Some(give_up),
            runtime: Handle::current(),
        };
        (lease, renewed)
    }

    /// Returns the fencing token, which is greater than the token of every earlier holder of this lease.
    ///
    /// Send it with every write to the resource that the lease protects, and let the resource reject a token
    /// smaller than the greatest one it has seen: a holder that was suspended for longer than its TTL cannot
    /// know in time that it has lost the lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// let token = lease.token();
    /// println!("update reports set body = 'new', fence = {token} where fence <= {token}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the name of the lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// assert_eq!(lease.name(), "reports");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the TTL that the lease was acquired with.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// assert_eq!(lease.ttl().as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(&self) -> Duration {
        self.calls.ttl
    }

    /// Returns the instant until which the holder may assume that it holds the lease.
    ///
    /// It is the time at which the last successful request was sent, plus the TTL, minus a margin of two
    /// ticks and 10 ms, or of a hundredth of the TTL if that is more. Each renewal moves it, and once the
    /// lease is lost, it is in the past.
    ///
    /// It is an instant of the local monotonic clock, which on Linux stands still while the machine is
    /// suspended. Use the [token](Lease::token) to guard against that.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// use tokio::time::Instant;
    ///
    /// if Instant::now() < lease.valid_until() {
    ///     println!("still ours, for {:?} at least", lease.valid_until() - Instant::now());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        self.validity.until()
    }

    /// Returns a future that completes when the lease is no longer held.
    ///
    /// It completes no later than [`valid_until`](Lease::valid_until), whatever Redis says, and whatever
    /// becomes of the runtime that acquired the lease and renews it. It completes earlier if Redis reports
    /// the lease as lost, if the lease is released, if that runtime ends, or if the wheel is shut down.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// tokio::select! {
    ///     () = lease.lost() => println!("stop: somebody else may have it now"),
    ///     () = async { /* the work */ } => println!("done"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> Lost {
        self.validity.lost()
    }

    /// Releases the lease. Returns `true` if it was held until now, and `false` if it had expired or been
    /// lost before.
    ///
    /// The lease is not renewed after the first poll. Releasing also works on a wheel that has been shut
    /// down. If it fails, it is retried in the background until the lease must have expired by itself. The
    /// request is sent by the runtime that polls this future.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped midway, the release continues in the background.
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis has been unavailable for a second, and for as long as the connection tries
    ///   to reach it by itself.
    /// - [`Error::NoAnswer`]: Redis has not answered by the end of the lease, or within a second if that is
    ///   longer.
    /// - [`Error::NoRuntime`]: the runtime on which the lease was acquired has been shut down, which has
    ///   ended the lease. It is released in the background. Or the future is polled outside a runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// if !lease.release().await? {
    ///     println!("it was lost before: the work may have been done twice");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<bool, Error> {
        let valid_until = self.validity.granted();
        self.validity.lose();
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (answer, mut answered) = oneshot::channel();
        let mut release = Releasing {
            future: Some(self.calls.clone().release(answer, valid_until).boxed()),
            keepers: self.calls.client.keepers.clone(),
            runtime,
        };
        let is_kept = self
            .given_up
            .take()
            .is_some_and(|given_up| given_up.send(()).is_ok());
        // The runtime has been shut down and has ended the lease. Others need not wait until it expires.
        if !is_kept {
            return Err(Error::NoRuntime);
        }
        poll_fn(|cx| {
            release.poll(cx);
            Pin::new(&mut answered).poll(cx)
        })
        .await
        .unwrap_or(Err(Error::NoRuntime))
    }
}

impl Drop for Lease {
    /// Releases a lease that was dropped. Where its own runtime cannot do it, or may be idle, the current one
    /// does.
    fn drop(&mut self) {
        self.validity.lose();
        let Some(given_up) = self.given_up.take() else {
            return;
        };
        let is_elsewhere = Handle::try_current().is_ok_and(|here| here.id() != self.runtime.id());
        if is_elsewhere || given_up.is_closed() {
            let _ = given_up.send(());
            let release = self.calls.clone();
            let work = Box::new(|windows| release.release_dropped(windows).boxed());
            self.calls.client.keepers.adopt(&self.runtime, work);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.calls.ttl)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

/// A release that goes on in the background when its caller stops waiting.
struct Releasing {
    future: Option<BoxFuture<'static, ()>>,
    keepers: Arc<Keepers>,
    /// The runtime that has polled it last.
    runtime: Handle,
}

impl Releasing {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Ok(here) = Handle::try_current() {
            self.runtime = here;
        }
        if let Some(future) = &mut self.future
            && let Poll::Ready(()) = future.as_mut().poll(cx)
        {
            self.future = None;
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.keepers.adopt(&self.runtime, Box::new(|_| future));
        }
    }
}

/// A lease that is held, for its keeper. When this is dropped, whatever ends the future that renews it,
/// including a runtime that is shut down before the first poll, the holder is told that it is lost.
pub(super) struct RenewedLease {
    calls: Arc<Calls>,
    token: u64,
    state: LeaseState,
    validity: Validity,
    /// Receives a message when the holder releases the lease, and is closed when the lease is dropped.
    given_up: oneshot::Receiver<()>,
    /// Whether it was counted as lost or given up.
    is_over: bool,
}

impl RenewedLease {
    /// Renews the lease, which has that entry in the wheel, until it is given up or lost, and releases it
    /// unless the holder does.
    pub(super) async fn renew_while_held(mut self, entry: LocalEntry, windows: Arc<Windows>) {
        let given_up = match self.renew(entry, &windows).await {
            Some(given_up) => {
                // The holder may know before this future that it has run out.
                if self.validity.granted() <= Instant::now() {
                    self.count_as_lost();
                }
                given_up
            }
            None => {
                self.count_as_lost();
                if self.state.has_run_out(Instant::now()) {
                    self.validity.run_out();
                } else {
                    self.validity.lose();
                }
                (&mut self.given_up).await
            }
        };
        if !mem::replace(&mut self.is_over, true) {
            self.calls.client.stats.given_up();
        }
        let calls = self.calls.clone();
        drop(self);
        // A holder that calls `release` waits for the answer and sends the request itself. Nobody waits for a
        // lease that was dropped.
        if given_up.is_err() {
            calls.release_dropped(windows).await;
        }
    }

    /// Renews the lease until it is given up, and returns how, or until it is lost.
    async fn renew(&mut self, mut entry: LocalEntry, windows: &Windows) -> Option<Result<(), RecvError>> {
        let (calls, token) = (self.calls.clone(), self.token);
        let (mut request, mut has_failed) = (None, false);
        loop {
            match self.state.next(Instant::now()) {
                Step::Renew => {
                    let (calls, by) = (&calls, self.state.valid_until());
                    let renewal = async move {
                        if has_failed {
                            calls.renew_holder(token).await
                        } else {
                            calls.renew(token).await
                        }
                    };
                    request = Some(Box::pin(windows.send(calls.slot(), by, renewal)));
                    continue;
                }
                Step::Lose => return None,
                Step::Wait(until) => entry.reset(until),
            }
            tokio::select! {
                biased;
                given_up = &mut self.given_up => return Some(given_up),
                (sent, renewed) = async { request.as_mut().unwrap().await }, if request.is_some() => {
                    request = None;
                    has_failed = renewed.is_err();
                    self.renewed(sent, renewed);
                }
                slept = &mut entry => {
                    if slept.is_err() {
                        self.state.lose();
                    }
                }
            }
        }
    }

    /// Records the answer to a renewal.
    fn renewed(&mut self, sent: Instant, renewed: Result<bool, Error>) {
        let renewals = &self.calls.client.stats.renewals;
        let outcome = match renewed {
            Ok(true) => {
                renewals.renewed.increment();
                Outcome::Renewed { sent }
            }
            Ok(false) => Outcome::Refused,
            Err(error) => {
                renewals.failed.increment();
                tracing::debug!(%error, "a lease could not be renewed; it is tried again");
                Outcome::Failed
            }
        };
        self.state.answered(Instant::now(), outcome, jittered);
        if matches!(outcome, Outcome::Renewed { .. }) {
            self.validity.extend(self.state.valid_until());
            if self.validity.is_lost() {
                self.state.lose();
            }
        }
    }

    fn count_as_lost(&mut self) {
        if !mem::replace(&mut self.is_over, true) {
            self.calls.client.stats.lost();
        }
    }
}

impl Drop for RenewedLease {
    fn drop(&mut self) {
        self.count_as_lost();
        self.validity.lose();
    }
}
