//! `Asking`: one task's requests for a lease, and the fate of a request that got no answer.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use futures_util::FutureExt;
use tickwheel::{SleepError, Wheel};
use tokio::{runtime::Handle, sync::oneshot, task::unconstrained, time::Instant};

use super::{
    calls::{Acquired, Calls},
    keeper::{Held, Keepers, Releasing},
    lease::Lease,
    lease_stats::{HeldLease, LeaseStats},
    line::{Undo, Waiter, Waiters},
    release::Ending,
    state::{LeaseState, Terms},
};
use crate::{
    error::Error,
    server::{erased::AnyConnection, keys::Tag, nonce::random_part},
    timers::LocalEntry,
    validity::Validity,
};

/// The outcome of an attempt that did not fail.
pub(super) enum Acquisition {
    Held(Lease),
    Taken {
        left: Option<Duration>,
        token: Option<u64>,
    },
}

/// What all leases of a [`Leases`](super::Leases) share.
#[derive(Clone)]
pub(super) struct LeaseClient {
    pub(super) wheel: Wheel,
    pub(super) server: Arc<dyn AnyConnection>,
    pub(super) prefix: Arc<str>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) keepers: Arc<Keepers>,
    pub(super) stats: Arc<LeaseStats>,
}

/// A task's requests for a lease, one or several.
pub(super) struct Asking<'a> {
    client: &'a LeaseClient,
    name: &'a str,
    tag: &'a Tag,
    terms: Terms,
    runtime: Handle,
    /// The request that may have acquired the lease, and when it was first sent. It is either repeated
    /// unchanged or undone.
    unsure: Option<(Calls, Instant)>,
}

impl<'a> Asking<'a> {
    pub(super) fn new(client: &'a LeaseClient, name: &'a str, tag: &'a Tag, terms: Terms) -> Asking<'a> {
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
    pub(super) async fn attempt(&mut self, waiter: Option<&Waiter<'_>>) -> Result<Acquisition, Error> {
        let LeaseClient {
            wheel,
            server,
            prefix,
            ..
        } = self.client;
        let validity = self.terms.validity();
        let now = Instant::now();
        let mut entry = LocalEntry::until(wheel, now + validity);
        enter(&mut entry).await?;
        // A request that was first sent so long ago would be answered too late.
        if self
            .unsure
            .as_ref()
            .is_some_and(|(_, sent)| *sent + validity / 2 < now)
        {
            self.give_back();
        }
        let mut was_unsure = self.unsure.is_some();
        let (calls, sent) = loop {
            let (calls, sent) = self
                .unsure
                .get_or_insert_with(|| (Calls::new(prefix, self.tag.clone(), self.terms.ttl), now))
                .clone();
            let asked = waiter.map_or(Ok(()), |waiter| waiter.asks(self.undo(&calls)));
            if asked.is_ok() {
                break (calls, sent);
            }
            // Another has given it back, so that an answer to it means nothing.
            (self.unsure, was_unsure) = (None, false);
        };
        let standing = waiter.map(Waiter::standing);
        entry.reset(sent + validity);
        let (mut broken, mut repeated) = (false, was_unsure);
        let answer = loop {
            let asked = Instant::now();
            let ask = async {
                server.check_policy().await?;
                calls.acquire(&**server, standing).await
            };
            let answer = tokio::select! {
                answer = ask => answer,
                slept = &mut entry => return Err(late(slept, self.terms)),
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
        let token = match answer {
            Ok(Acquired::Yes { token }) => token,
            Ok(Acquired::No { left, token }) => {
                self.unsure = None;
                return Ok(Acquisition::Taken { left, token });
            }
            Err(error) => {
                if error.is_refusal() && !repeated {
                    self.unsure = None;
                }
                return Err(error);
            }
        };
        let state = LeaseState::new(self.terms, sent, random_part);
        let validity = Validity::new(state.valid_until());
        if validity.is_lost() {
            return Err(Error::NoAnswer {
                waited: sent.elapsed(),
            });
        }
        if waiter.is_some_and(|waiter| waiter.holds().is_err()) {
            self.give_back();
            return Ok(Acquisition::Taken {
                left: Some(Duration::ZERO),
                token: None,
            });
        }
        self.unsure = None;
        let (give_up, given_up) = oneshot::channel();
        let release = (self.releasing(), calls.release());
        let keepers = self.client.keepers.clone();
        let ending = Ending::new(release, give_up, keepers, Handle::current());
        let held = Held {
            calls,
            token,
            state,
            entry,
            lease: HeldLease::new(validity.clone(), self.client.stats.clone()),
            stats: self.client.stats.clone(),
            given_up,
            releasing: self.releasing(),
        };
        let keep = Box::new(|windows| held.keep(windows).boxed());
        self.client.keepers.adopt(&self.runtime, keep);
        Ok(Acquisition::Held(Lease {
            name: self.name.into(),
            token,
            ttl: self.terms.ttl,
            validity,
            ending: Some(ending),
        }))
    }

    fn releasing(&self) -> Releasing {
        Releasing {
            server: self.client.server.clone(),
            ttl: self.terms.ttl,
            waiters: self.client.waiters.clone(),
            key: self.tag.key(""),
            slot: self.tag.slot(),
        }
    }

    /// Returns what another task does to release a lease that may have been acquired, if this one is not
    /// polled any more.
    fn undo(&self, calls: &Calls) -> Undo {
        let (keepers, runtime) = (self.client.keepers.clone(), self.runtime.clone());
        let (releasing, call) = (self.releasing(), calls.give_back());
        Undo::new(move || keepers.adopt(&runtime, releasing.work(call)))
    }

    /// Releases, in the background, a lease that may have been acquired.
    fn give_back(&mut self) {
        if let Some((calls, _)) = self.unsure.take() {
            let give_back = self.releasing().work(calls.give_back());
            self.client.keepers.adopt(&self.runtime, give_back);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.give_back();
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

fn late(slept: Result<(), SleepError>, terms: Terms) -> Error {
    match slept {
        Ok(()) => Error::NoAnswer {
            waited: terms.validity(),
        },
        Err(refused) => refused.into(),
    }
}
