//! Renews the held leases, and returns the jobs that the consumer does not fetch.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Engine, GIVE_BACK_AFTER, UNASKED, is_busy, patience_ahead};
use crate::{
    error::Error,
    jobs::{
        batcher::{Answer, Operation},
        claim::{Claim, JobLease, Renewal, valid_until},
        inbox::Status,
        queue::{PATIENCE, Queue, micros, operation},
        single_key::renew_by_single_keys,
    },
    nonce::random_part,
};

impl Engine {
    /// Returns a third of the lease minus a random part, so that workers that started together do not renew
    /// together.
    pub(super) fn renewal_period(&self) -> Duration {
        let third = self.inbox.settings.lease / 3;
        third - random_part(third / 5)
    }

    pub(super) fn renew(&mut self) {
        self.renew_at = Instant::now() + self.renewal_period();
        let duration = self.inbox.settings.lease;
        let mut renewals = Vec::new();
        let mut unanswered: BTreeMap<usize, Vec<Arc<JobLease>>> = BTreeMap::new();
        for lease in self.expire() {
            match lease.begin_renewal() {
                Renewal::Due => {}
                Renewal::UnderWay => {
                    unanswered.entry(lease.partition).or_default().push(lease);
                    continue;
                }
                Renewal::Unneeded => continue,
            }
            let arguments = operation("renew", &lease.id, &lease.token, micros(duration), 0);
            let (partition, deadline) = (lease.partition, lease.validity.until());
            let queue = self.inbox.queue.clone();
            let renewal = Operation::new(arguments, deadline, move |answer| {
                renewed(&lease, answer, &queue, duration);
            });
            renewals.push((partition, renewal));
        }
        self.inbox.queue.update_all(&self.inbox.runtime, renewals);
        // A third of the lease is left. If the slot of the partition moves, only scripts of a single key run.
        for (partition, leases) in unanswered {
            let queue = self.inbox.queue.clone();
            tokio::spawn(renew_by_single_keys(queue, partition, leases, duration));
        }
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
            self.give_back("release", claims.collect());
        }
        if (unasked && status.has_due) || unfetched {
            self.give_back_older(unasked.then_some(now), unfetched.then_some(now));
        }
    }

    /// Returns claims that have been due, and jobs that have been started, since before these instants.
    pub(super) fn give_back_older(&self, due: Option<Instant>, started: Option<Instant>) {
        let (claims, starts) = self.inbox.take_back(due, started);
        self.give_back("release", claims);
        self.give_back("unstart", starts);
    }

    /// Counts an attempt for a claim whose payload could not be fetched in time.
    pub(super) fn count_as_unfetched(&self, claim: &Claim) {
        let lease = &claim.lease;
        self.inbox.let_go(lease);
        let most = u64::from(self.inbox.settings.attempts);
        let arguments = operation("unfetched", &lease.id, &lease.token, 0, most);
        let deadline = Instant::now() + PATIENCE;
        let counted = Operation::new(arguments, deadline, drop);
        self.inbox
            .queue
            .update_all(&self.inbox.runtime, vec![(lease.partition, counted)]);
    }

    pub(super) fn give_back(&self, how: &str, claims: Vec<Claim>) {
        for claim in &claims {
            self.inbox.let_go(&claim.lease);
        }
        self.inbox.queue.give_back(&self.inbox.runtime, how, claims);
    }
}

fn renewed(lease: &JobLease, answer: Result<Answer, Error>, queue: &Queue, duration: Duration) {
    lease.end_renewal();
    let renewals = &queue.workers.stats.renewals;
    match answer {
        Ok(Answer { yes: true, sent, .. }) => {
            renewals.renewed.increment();
            lease.validity.extend(valid_until(&queue.wheel, sent, duration));
        }
        Ok(Answer { yes: false, .. }) => lease.validity.lose(),
        // The next renewal may succeed; otherwise the lease expires.
        Err(_) => renewals.failed.increment(),
    }
}
