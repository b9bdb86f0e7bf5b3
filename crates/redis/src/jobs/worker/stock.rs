//! `Stock`: the claims that wait on the wheel until they are due, and those whose large payloads are
//! fetched. Gives back what the consumer does not ask for.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tickwheel::{DelayQueue, delay_queue::Key};
use tokio::time::Instant;

use super::desk::{Desk, Status, UNASKED};
use crate::{
    error::Error,
    jobs::store::{change::unfetched, claim::Claim},
};

/// How long a consumer may work on a job and not ask for another, before what waits on the wheel for it
/// goes back, unless it is known to start another job soon. It comes due for others meanwhile.
const UNASKED_AHEAD: Duration = Duration::from_millis(5);
/// How long a started job waits for the consumer to receive it, before it goes back.
const UNRECEIVED: Duration = Duration::from_millis(200);

pub(super) struct Stock {
    desk: Arc<Desk>,
    /// Those that are not due yet.
    pub(super) on_wheel: DelayQueue<Claim>,
    /// Those whose payload is fetched, one at a time, and the fetch of the first.
    pub(super) unfetched: VecDeque<Claim>,
    fetch: Option<BoxFuture<'static, Fetched>>,
}

type Fetched = Result<Option<Vec<u8>>, Error>;

impl Stock {
    pub(super) fn new(desk: Arc<Desk>) -> Stock {
        Stock {
            on_wheel: DelayQueue::on(&desk.queue.wheel),
            unfetched: VecDeque::new(),
            fetch: None,
            desk,
        }
    }

    /// Adds claims, to be kept until they may be delivered. Returns those that may.
    pub(super) fn add(&mut self, claims: Vec<Claim>) -> Vec<Claim> {
        let mut due_now = Vec::new();
        for claim in claims {
            self.desk.held.insert(&claim.lease);
            if claim.is_whole() {
                due_now.extend(self.add_to_wheel(claim));
            } else {
                self.unfetched.push_back(claim);
            }
        }
        due_now
    }

    /// Puts a claim on the wheel until it is due, or returns it if it is due now.
    fn add_to_wheel(&mut self, claim: Claim) -> Option<Claim> {
        if claim.due_at <= Instant::now() {
            return Some(claim);
        }
        let (lease, due_at) = (claim.lease.clone(), claim.due_at);
        let entry = self.on_wheel.insert_at(claim, due_at);
        self.desk.held.set_on_wheel(&lease, entry);
        None
    }

    /// Waits until claims are due. Those that are due at the same tick are returned together.
    pub(super) async fn take_due(&mut self) -> Vec<Claim> {
        poll_fn(|cx| self.poll_due(cx)).await
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Claim>> {
        while let Some(Claim { lease, .. }) = self.unfetched.front() {
            let fetch = self.fetch.get_or_insert_with(|| {
                let (queue, lease) = (self.desk.queue.clone(), lease.clone());
                async move { queue.fetch(lease.partition, &lease.id, &lease.holder).await }.boxed()
            });
            let Poll::Ready(fetched) = fetch.poll_unpin(cx) else {
                break;
            };
            self.fetch = None;
            let claim = self.unfetched.pop_front();
            if let Some(claim) = claim.and_then(|claim| self.fetched(claim, fetched)) {
                return Poll::Ready(vec![claim]);
            }
        }
        match self.on_wheel.poll_expired(cx) {
            Poll::Ready(Some(first)) => {
                let mut due = vec![first];
                self.on_wheel.expired(&mut due, usize::MAX);
                Poll::Ready(due.into_iter().map(|due| due.into_inner()).collect())
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Goes on with a claim whose payload was fetched, or was not. Returns it if it is due now.
    fn fetched(&mut self, mut claim: Claim, fetched: Fetched) -> Option<Claim> {
        match fetched {
            Ok(Some(payload)) => {
                claim.payload = payload;
                return self.add_to_wheel(claim);
            }
            // It was cancelled or lost.
            Ok(None) => {
                self.desk.held.remove(&claim.lease);
            }
            // Redis ends the connection of a client to which an answer is larger than it may be.
            Err(error) if error.is_unanswered() || error.is_broken_connection() => {
                self.count_unfetched(claim)
            }
            Err(error) => {
                self.desk.report(error);
                self.desk.give_back([claim]);
            }
        }
        None
    }

    /// Counts an attempt for a claim whose payload could not be fetched in time.
    fn count_unfetched(&self, claim: Claim) {
        let desk = &self.desk;
        desk.report_undeliverable(Error::Undeliverable {
            id: claim.lease.id.clone(),
            reason: format!(
                "its payload of {} bytes was not fetched within {:?}",
                claim.size, desk.queue.settings.answer_within
            ),
        });
        desk.give_back_as(
            |claim| unfetched(&claim.lease, desk.settings.max_attempts),
            [claim],
        );
    }

    // Giving back.

    /// Gives back what the consumer has not asked for or received in time.
    pub(super) fn give_back_unwanted(&mut self, status: &Status, now: Instant) {
        let is_unasked = status.is_busy(now, UNASKED);
        let longest = if is_unasked { UNASKED } else { UNRECEIVED };
        let is_unreceived = status.started_since.is_some_and(|since| since + longest <= now);
        if status.is_busy(now, patience_ahead(status)) {
            let claims = self.take_ahead();
            self.desk.give_back(claims);
        }
        if (is_unasked && status.has_due) || is_unreceived {
            self.desk
                .give_back_older(is_unasked.then_some(now), is_unreceived.then_some(now));
        }
    }

    /// Returns when something may have to go back next.
    pub(super) fn next_give_back(&self, status: &Status, now: Instant) -> Option<Instant> {
        let busy_from = |long| status.received_at.map(|at| at + long).filter(|at| *at > now);
        let ready = (status.ready > 0).then(|| {
            let unasked = busy_from(UNASKED).unwrap_or(now + UNASKED);
            unasked.min(now + UNRECEIVED)
        });
        let is_ahead = !self.on_wheel.is_empty() && !status.asked;
        let ahead = is_ahead.then(|| busy_from(patience_ahead(status)).unwrap_or(now + UNASKED));
        ready.into_iter().chain(ahead).min()
    }

    /// Takes what is not due yet.
    fn take_ahead(&mut self) -> Vec<Claim> {
        let mut claims = Vec::with_capacity(self.on_wheel.len());
        while let Some(first) = self.on_wheel.peek() {
            claims.push(self.on_wheel.remove(&first).into_inner());
        }
        claims
    }

    /// Lets go of a claim that is lost, by its entry in the wheel, if it has one.
    pub(super) fn remove(&mut self, lost: Option<Key>) {
        if let Some(entry) = lost {
            self.on_wheel.try_remove(&entry);
        }
    }

    /// Gives back everything that the consumer was not shown, as far as it is known here. A start that is
    /// under way goes back when it is answered.
    pub(super) fn give_back_all(&mut self) {
        self.fetch = None;
        let mut claims = self.take_ahead();
        claims.extend(mem::take(&mut self.unfetched));
        self.desk.give_back(claims);
        let now = Instant::now();
        self.desk.give_back_older(Some(now), Some(now));
    }
}

/// Returns how long a consumer may work on a job and not ask for another, before what waits on the wheel
/// for it goes back.
fn patience_ahead(status: &Status) -> Duration {
    if status.starts_soon == 0 {
        UNASKED_AHEAD
    } else {
        UNASKED
    }
}
