//! Renews the held leases, and returns the jobs that the consumer does not fetch.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Engine, GIVE_BACK_AFTER, UNASKED, is_busy, patience_ahead};
use crate::{
    error::Error,
    jobs::{
        batcher::Operation,
        change::{Answer, Change, Renewed},
        claim::{Claim, JobLease, valid_until},
        inbox::{Inbox, Status},
        queue::{PATIENCE, Queue},
    },
    nonce::random_part,
};

/// How often a worker asks whether its jobs were cancelled that is not told.
const RENEW_UNTOLD: Duration = Duration::from_secs(1);
/// The shortest interval between two renewals of a worker that is told.
const RENEWALS_APART: Duration = Duration::from_millis(100);

impl Engine {
    /// Returns a third of the lease minus a random part, so that workers that started together do not renew
    /// together. A worker that is not told of jobs that were cancelled asks once a second.
    pub(super) fn renewal_period(&self) -> Duration {
        let third = self.inbox.settings.lease / 3;
        let period = third - random_part(third / 5);
        if self.listens() {
            period
        } else {
            period.min(RENEW_UNTOLD)
        }
    }

    /// Renews soon, because a job may have been cancelled.
    pub(super) fn renew_soon(&mut self) {
        self.renew_at = self.renew_at.min(self.renewed_at + RENEWALS_APART);
    }

    pub(super) fn renew(&mut self) {
        self.renewed_at = Instant::now();
        self.renew_at = self.renewed_at + self.renewal_period();
        let duration = self.inbox.settings.lease;
        let mut renewals = Vec::new();
        for job in self.expire() {
            let queue = self.inbox.queue.clone();
            let Some(lease) = job.begin_renewal(&queue.wheel, duration) else {
                continue;
            };
            let arguments = Change::Renew { job: &job, lease }.arguments();
            let (partition, deadline) = (job.partition, job.validity.until());
            let renewal = Operation::new(arguments, deadline, move |answer| {
                renewed(&job, answer, &queue, lease);
            });
            renewals.push((partition, renewal));
        }
        self.inbox.queue.update_all(&self.inbox.runtime, renewals);
    }

    /// Ends the leases that have expired, and returns the others.
    pub(super) fn expire(&mut self) -> Vec<Arc<JobLease>> {
        let held = self.inbox.held();
        self.expire_at = held
            .iter()
            .map(|lease| lease.validity.until())
            .min()
            .unwrap_or_else(|| Instant::now() + self.inbox.settings.lease);
        held
    }

    /// Returns the jobs that the consumer has not asked for or fetched in time to the queue.
    pub(super) fn give_back_unwanted(&mut self, status: &Status, now: Instant) {
        let unasked = is_busy(status, now, UNASKED);
        let longest = if unasked { UNASKED } else { GIVE_BACK_AFTER };
        let unfetched = status.started_since.is_some_and(|since| since + longest <= now);
        if is_busy(status, now, patience_ahead(status)) {
            let on_wheel = mem::take(&mut self.on_wheel);
            let claims = on_wheel.into_iter().filter_map(|on_wheel| on_wheel.claim);
            self.give_back(|job| Change::GiveBack { job }, claims.collect());
        }
        if (unasked && status.has_due) || unfetched {
            self.give_back_older(unasked.then_some(now), unfetched.then_some(now));
        }
    }

    /// Returns claims that have been due, and jobs that have been started, since before these instants.
    pub(super) fn give_back_older(&self, due: Option<Instant>, started: Option<Instant>) {
        let (claims, starts) = self.inbox.take_back(due, started);
        self.give_back(|job| Change::GiveBack { job }, claims);
        self.give_back(|job| Change::UndoStart { job }, starts);
    }

    /// Counts an attempt for a claim whose payload could not be fetched in time.
    pub(super) fn count_as_unfetched(&self, claim: &Claim) {
        let lease = &claim.lease;
        self.inbox.let_go(lease);
        let unfetched = Change::Unfetched {
            job: lease,
            attempts: self.inbox.settings.attempts,
        };
        let arguments = unfetched.arguments();
        let deadline = Instant::now() + PATIENCE;
        let counted = Operation::new(arguments, deadline, drop);
        self.inbox
            .queue
            .update_all(&self.inbox.runtime, vec![(lease.partition, counted)]);
    }

    pub(super) fn give_back(&self, how: fn(&JobLease) -> Change<'_>, claims: Vec<Claim>) {
        for claim in &claims {
            self.inbox.let_go(&claim.lease);
        }
        let Inbox { queue, runtime, .. } = &*self.inbox;
        queue.give_back(runtime, how, claims, &self.goodbye);
    }
}

fn renewed(lease: &JobLease, answer: Result<Answer, Error>, queue: &Queue, duration: Duration) {
    lease.end_renewal();
    let renewals = &queue.workers.stats.renewals;
    // The next renewal may succeed; otherwise the lease expires.
    let Ok(answer) = answer else {
        return renewals.failed.increment();
    };
    match answer.renewed() {
        Renewed::Extended => {
            renewals.renewed.increment();
            lease
                .validity
                .extend(valid_until(&queue.wheel, answer.sent, duration));
        }
        Renewed::Lost => lease.validity.lose(),
        Renewed::Cancelled => lease.cancel(),
    }
}
