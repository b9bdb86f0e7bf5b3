//! `Claims`: what a worker holds. It keeps claims on the wheel until they are due, fetches large payloads, renews
//! all leases, and gives back what the consumer does not ask for.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tickwheel::DelayQueue;
use tokio::time::Instant;

use super::desk::{Desk, Status, UNASKED};
use crate::{
    error::Error,
    jobs::{
        claim::{Claim, JobLease, valid_until},
        store::{
            batcher::Operation,
            change::{Finish, Held, Hold, How},
            queue::CALL_LIMIT,
        },
    },
    server::retry::jittered,
};

/// How long a consumer may work on a job and not ask for another, before what is held on the wheel for it goes
/// back, unless it is known to start another job soon. It comes due for others meanwhile.
const UNASKED_AHEAD: Duration = Duration::from_millis(5);
/// How long a started job waits to be fetched, before it goes back.
const UNFETCHED: Duration = Duration::from_millis(200);
/// How often a worker renews that is not told of jobs that were cancelled.
const RENEW_UNTOLD: Duration = Duration::from_secs(1);
/// The shortest interval between two renewals of a worker that is told.
const RENEWALS_APART: Duration = Duration::from_millis(100);

pub(super) struct Claims {
    desk: Arc<Desk>,
    /// Those that are not due yet.
    on_wheel: DelayQueue<Claim>,
    /// Those whose payload is fetched, one at a time, and the fetch of the first.
    unfetched: VecDeque<Claim>,
    fetch: Option<BoxFuture<'static, Fetched>>,
    renewed_at: Instant,
    renew_at: Instant,
    /// Whether a job may have been cancelled since its renewal was sent.
    may_be_cancelled: bool,
    /// When the first of the held leases expires unless it is renewed.
    expire_at: Instant,
    /// Whether a renewal was refused since the lost leases were removed.
    refused: Arc<AtomicBool>,
}

type Fetched = Result<Option<Vec<u8>>, Error>;

impl Claims {
    pub(super) fn new(desk: Arc<Desk>) -> Claims {
        let now = Instant::now();
        Claims {
            on_wheel: DelayQueue::on(&desk.queue.wheel),
            unfetched: VecDeque::new(),
            fetch: None,
            renewed_at: now,
            renew_at: now,
            may_be_cancelled: false,
            expire_at: now + desk.settings.lease,
            refused: Arc::default(),
            desk,
        }
    }

    pub(super) fn on_wheel(&self) -> usize {
        self.on_wheel.len()
    }

    pub(super) fn unfetched(&self) -> usize {
        self.unfetched.len()
    }

    /// Holds claims until they may be delivered. Returns those that may.
    pub(super) fn hold(&mut self, claims: Vec<Claim>) -> Vec<Claim> {
        let mut due_now = Vec::new();
        for claim in claims {
            self.desk.hold(&claim.lease);
            if claim.is_whole() {
                due_now.extend(self.wait(claim));
            } else {
                self.unfetched.push_back(claim);
            }
        }
        due_now
    }

    /// Lets a claim wait on the wheel until it is due, or returns it if it is due now.
    fn wait(&mut self, claim: Claim) -> Option<Claim> {
        if claim.due_at <= Instant::now() {
            return Some(claim);
        }
        let (lease, due_at) = (claim.lease.clone(), claim.due_at);
        lease.set_entry(self.on_wheel.insert_at(claim, due_at));
        None
    }

    /// Waits until claims are due. Those that are due at the same tick are returned together.
    pub(super) async fn due(&mut self) -> Vec<Claim> {
        poll_fn(|cx| self.poll_due(cx)).await
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Claim>> {
        while let Some(Claim { lease, .. }) = self.unfetched.front() {
            let fetch = self.fetch.get_or_insert_with(|| {
                let (queue, lease) = (self.desk.queue.clone(), lease.clone());
                async move { queue.fetch(lease.partition, &lease.id, &lease.token).await }.boxed()
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
                return self.wait(claim);
            }
            // It was cancelled or lost.
            Ok(None) => self.desk.forget(&claim.lease),
            Err(error) if error.is_unanswered() => self.count_unfetched(&claim),
            Err(error) => {
                self.desk.report(error);
                self.give_back(|_| How::GiveBack, vec![claim]);
            }
        }
        None
    }

    /// Counts an attempt for a claim whose payload could not be fetched in time.
    fn count_unfetched(&self, claim: &Claim) {
        let (desk, job) = (&self.desk, &claim.lease);
        desk.report_undeliverable(Error::Undeliverable {
            id: job.id.clone(),
            reason: format!(
                "its payload of {} bytes was not fetched within {:?}",
                claim.size, desk.queue.settings.answer_within
            ),
        });
        desk.forget(job);
        let attempts = desk.settings.attempts;
        let how = How::Unfetched { attempts };
        let unanswered = desk.given_back.token();
        let counted = Operation::new(&Finish { job, how }, Instant::now() + CALL_LIMIT, move |_| {
            drop(unanswered)
        });
        desk.send(vec![(job.partition, counted)]);
    }

    // Renewal.

    /// Returns when to renew leases, or to look for expired ones, next.
    pub(super) fn next_renewal(&self) -> Instant {
        self.renew_at.min(self.expire_at)
    }

    /// Lets the first renewal be due, as if the worker were not told of jobs that were cancelled.
    pub(super) fn begin(&mut self) {
        self.renew_at = Instant::now() + RENEW_UNTOLD.min(self.desk.settings.lease / 3);
    }

    /// Renews soon, because a job may have been cancelled.
    pub(super) fn renew_soon(&mut self) {
        self.may_be_cancelled = true;
        self.renew_at = self.renew_at.min(self.renewed_at + RENEWALS_APART);
    }

    /// Renews what is due for it, and lets go of what is lost. A worker that `is_told` of jobs that were
    /// cancelled renews after a third of the lease minus a random part, so that workers that started together
    /// do not renew together.
    pub(super) fn keep(&mut self, now: Instant, is_told: bool) {
        if self.renew_at <= now {
            let period = jittered(self.desk.settings.lease / 3);
            let longest = if is_told { period } else { RENEW_UNTOLD };
            self.renewed_at = now;
            self.renew_at = now + period.min(longest);
            let may_be_cancelled = mem::take(&mut self.may_be_cancelled);
            if !self.renew() && may_be_cancelled {
                // The renewal in flight may have been carried out before the job was cancelled.
                self.renew_soon();
            }
        } else if self.expire_at <= now || self.refused.load(Ordering::Relaxed) {
            self.remove_lost();
        }
    }

    /// Renews the leases that are held. Returns `false` if a renewal of one was in flight before.
    fn renew(&mut self) -> bool {
        let (mut renewals, mut are_all_renewed) = (Vec::new(), true);
        for job in self.remove_lost() {
            let (desk, refused) = (self.desk.clone(), self.refused.clone());
            let Some(lease) = job.begin_renewal(&desk.queue.wheel, desk.settings.lease) else {
                are_all_renewed = false;
                continue;
            };
            let renew = Hold::Renew {
                job: &job.clone(),
                lease,
            };
            let (partition, deadline) = (job.partition, job.validity.until());
            let renewal = Operation::new(&renew, deadline, move |held| {
                if renewed(&desk, &job, held, lease) == Some(Held::Refused) {
                    refused.store(true, Ordering::Relaxed);
                    desk.nearby.has_work.notify_one();
                }
            });
            renewals.push((partition, renewal));
        }
        self.desk.send(renewals);
        are_all_renewed
    }

    /// Lets go of the leases that are lost, and returns the others.
    fn remove_lost(&mut self) -> Vec<Arc<JobLease>> {
        self.refused.store(false, Ordering::Relaxed);
        let (lasting, lost) = self.desk.remove_lost();
        for entry in lost.iter().filter_map(|lease| lease.entry()) {
            self.on_wheel.try_remove(&entry);
        }
        let first = lasting.iter().map(|lease| lease.validity.until()).min();
        self.expire_at = first.unwrap_or_else(|| Instant::now() + self.desk.settings.lease);
        lasting
    }

    // Giving back.

    /// Gives back what the consumer has not asked for or fetched in time.
    pub(super) fn give_back_unwanted(&mut self, status: &Status, now: Instant) {
        let is_unasked = status.is_busy(now, UNASKED);
        let longest = if is_unasked { UNASKED } else { UNFETCHED };
        let is_unfetched = status.started_since.is_some_and(|since| since + longest <= now);
        if status.is_busy(now, patience_ahead(status)) {
            self.give_back_ahead();
        }
        if (is_unasked && status.has_due) || is_unfetched {
            self.give_back_older(is_unasked.then_some(now), is_unfetched.then_some(now));
        }
    }

    /// Returns when something may have to go back next.
    pub(super) fn next_return(&self, status: &Status, now: Instant) -> Option<Instant> {
        let busy_from = |long| status.fetched_at.map(|at| at + long).filter(|at| *at > now);
        let ready = (status.ready > 0).then(|| {
            let unasked = busy_from(UNASKED).unwrap_or(now + UNASKED);
            unasked.min(now + UNFETCHED)
        });
        let is_held = !self.on_wheel.is_empty() && !status.asked;
        let ahead = is_held.then(|| busy_from(patience_ahead(status)).unwrap_or(now + UNASKED));
        ready.into_iter().chain(ahead).min()
    }

    /// Gives back what is not due yet.
    pub(super) fn give_back_ahead(&mut self) {
        let claims = self.take_ahead();
        self.give_back(|_| How::GiveBack, claims);
    }

    fn take_ahead(&mut self) -> Vec<Claim> {
        let mut claims = Vec::with_capacity(self.on_wheel.len());
        while let Some(first) = self.on_wheel.peek() {
            claims.push(self.on_wheel.remove(&first).into_inner());
        }
        claims
    }

    fn take_unfetched(&mut self) -> Vec<Claim> {
        self.fetch = None;
        mem::take(&mut self.unfetched).into()
    }

    /// Gives back everything that the consumer was not shown, as far as it is known here. A start that is under
    /// way goes back when it is answered.
    pub(super) fn give_back_all(&mut self) {
        self.give_back_ahead();
        let unfetched = self.take_unfetched();
        self.give_back(|_| How::GiveBack, unfetched);
        let now = Instant::now();
        self.give_back_older(Some(now), Some(now));
    }

    /// Gives back claims that have been due, and jobs that have been started, since before these instants.
    fn give_back_older(&self, due: Option<Instant>, started: Option<Instant>) {
        let taken = self.desk.take_back(due, started);
        self.give_back(|_| How::GiveBack, taken.claims);
        self.give_back(How::undo_start, taken.starts);
    }

    /// Gives back what was not given back, because the runtime has ended before.
    pub(super) fn give_back_elsewhere(&mut self) {
        let mut claims = self.take_ahead();
        claims.extend(self.take_unfetched());
        self.desk.give_back_elsewhere(|_| How::GiveBack, claims);
    }

    pub(super) fn give_back(&self, how: fn(&Claim) -> How<'static>, claims: Vec<Claim>) {
        for claim in &claims {
            self.desk.forget(&claim.lease);
        }
        let desk = &self.desk;
        desk.queue
            .give_back(&desk.nearby.runtime, how, claims, &desk.given_back);
    }
}

/// Goes on with a lease whose renewal was answered. Without an answer, the next renewal may succeed; otherwise
/// the lease expires.
fn renewed(desk: &Desk, job: &JobLease, held: Result<Held, Error>, lease: Duration) -> Option<Held> {
    job.end_renewal();
    let (wheel, renewals) = (&desk.queue.wheel, &desk.queue.nearby.stats.renewals);
    match held {
        Ok(Held::Since(sent)) => {
            renewals.renewed.increment();
            job.validity.extend(valid_until(wheel, sent, lease));
        }
        Ok(Held::Refused) => job.validity.lose(),
        Err(_) => renewals.failed.increment(),
    }
    held.ok()
}

/// Returns how long a consumer may work on a job and not ask for another, before what is held on the wheel for
/// it goes back.
fn patience_ahead(status: &Status) -> Duration {
    if status.starts_soon == 0 {
        UNASKED_AHEAD
    } else {
        UNASKED
    }
}
