//! `Asking`: one task's requests for a lease, and the fate of a request that got no answer.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use futures_util::FutureExt;
use tickwheel::SleepError;
use tokio::{runtime::Handle, task::unconstrained, time::Instant};

use super::{
    calls::{Calls, LeaseClient, OtherHolder},
    lease::Lease,
    line::Waiter,
    state::{LeaseState, Terms},
};
use crate::{
    error::Error,
    server::{names::Tag, retry::jittered},
    timers::LocalEntry,
};

/// A task's requests for a lease, one or several.
pub(super) struct Asking<'a> {
    client: &'a Arc<LeaseClient>,
    name: &'a str,
    tag: &'a Tag,
    terms: Terms,
    runtime: Handle,
    /// The request that may have acquired the lease, and when it was first sent. It is either repeated
    /// unchanged or undone.
    unsure: Option<(Arc<Calls>, Instant)>,
}

impl<'a> Asking<'a> {
    pub(super) fn new(client: &'a Arc<LeaseClient>, name: &'a str, tag: &'a Tag, terms: Terms) -> Asking<'a> {
        Asking {
            client,
            name,
            tag,
            terms,
            runtime: Handle::current(),
            unsure: None,
        }
    }

    /// Asks once, and again if the client stops waiting for an answer, for as long as the lease would last. A
    /// `waiter` that is passed over meanwhile does not get the lease.
    pub(super) async fn ask(
        &mut self,
        waiter: Option<&Waiter<'_>>,
    ) -> Result<Result<Lease, OtherHolder>, Error> {
        let validity = self.terms.validity();
        let mut entry = LocalEntry::until(&self.client.wheel, Instant::now() + validity);
        enter(&mut entry).await?;
        // A request that was first sent so long ago would be answered too late.
        let is_old = |(_, sent): &(Arc<Calls>, Instant)| *sent + validity / 2 < Instant::now();
        if self.unsure.as_ref().is_some_and(is_old) {
            self.undo();
        }
        let (mut repeated, (calls, sent)) = self.request(waiter);
        let standing = waiter.map(Waiter::standing);
        entry.reset(sent + validity);
        let mut broken = false;
        let answer = loop {
            let asked = Instant::now();
            let answer = tokio::select! {
                answer = calls.acquire(standing) => answer,
                slept = &mut entry => {
                    slept?;
                    return Err(Error::NoAnswer { waited: validity });
                }
            };
            match answer {
                // A client that does not wait at all would otherwise be called in a busy loop.
                Err(error) if error.is_unanswered() && asked.elapsed() > Duration::from_millis(10) => {}
                // A connection that broke while idle is noticed only by the next request.
                Err(error) if error.is_broken_connection() && !broken => broken = true,
                answer => break answer,
            }
            repeated = true;
        };
        match answer {
            Ok(Ok(token)) => self.begin_lease(waiter, token, calls, sent, entry),
            Ok(Err(other)) => {
                // An earlier copy may arrive once the lease is free.
                if repeated {
                    self.undo();
                }
                self.unsure = None;
                Ok(Err(other))
            }
            Err(error) => {
                if error.is_refusal() && !repeated {
                    self.unsure = None;
                }
                Err(error)
            }
        }
    }

    /// Returns the request to send and when it was first sent, and whether it was sent before.
    fn request(&mut self, waiter: Option<&Waiter<'_>>) -> (bool, (Arc<Calls>, Instant)) {
        loop {
            let was_sent = self.unsure.is_some();
            let new = || (Calls::new(self.client, self.tag, self.terms.ttl), Instant::now());
            let request = self.unsure.get_or_insert_with(new).clone();
            let (calls, runtime) = (request.0.clone(), self.runtime.clone());
            let undo = Box::new(move || calls.undo(&runtime));
            if waiter.is_none_or(|waiter| waiter.record_request(undo).is_ok()) {
                return (was_sent, request);
            }
            // Another has undone it, so that an answer to it means nothing.
            self.unsure = None;
        }
    }

    /// Makes a lease of a grant, and lets a keeper renew it, unless the grant has run out or was undone.
    fn begin_lease(
        &mut self,
        waiter: Option<&Waiter<'_>>,
        token: u64,
        calls: Arc<Calls>,
        sent: Instant,
        entry: LocalEntry,
    ) -> Result<Result<Lease, OtherHolder>, Error> {
        let state = LeaseState::new(self.terms, sent, jittered);
        if state.valid_until() <= Instant::now() {
            return Err(Error::NoAnswer {
                waited: sent.elapsed(),
            });
        }
        if waiter.is_some_and(|waiter| waiter.record_grant().is_err()) {
            self.undo();
            return Ok(Err(OtherHolder {
                left: Some(Duration::ZERO),
                token: None,
            }));
        }
        self.unsure = None;
        let (lease, renewed) = Lease::new(self.name, token, calls, state);
        let renews = Box::new(|windows| renewed.renew_while_held(entry, windows).boxed());
        self.client.keepers.adopt(&self.runtime, renews);
        Ok(Ok(lease))
    }

    /// Releases, in the background, a lease that may have been acquired.
    fn undo(&mut self) {
        if let Some((calls, _)) = self.unsure.take() {
            calls.undo(&self.runtime);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.undo();
    }
}

/// Registers the sleep in the wheel.
async fn enter(entry: &mut LocalEntry) -> Result<(), SleepError> {
    // A task that has used up its cooperative budget would get `Pending` before it is registered.
    unconstrained(poll_fn(|cx| match Pin::new(&mut *entry).poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(outcome),
        Poll::Pending => Poll::Ready(Ok(())),
    }))
    .await
}
