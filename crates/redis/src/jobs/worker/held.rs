//! `HeldLeases`: the leases that a worker renews, of claims and of jobs, and how long its jobs may take.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use tickwheel::{Wheel, delay_queue::Key};
use tokio::time::Instant;

use crate::{
    error::Error,
    jobs::{
        stats::QueueStats,
        store::{
            batcher::Operation,
            change::{Leased, renew},
            claim::JobLease,
            nearby::NearbyWorker,
        },
    },
    mutex::Mutex,
    server::retry::jittered,
    timers,
    validity::{margin, valid_for},
};

/// How often a worker renews that is not told of jobs that were cancelled.
const RENEW_UNTOLD: Duration = Duration::from_secs(1);
/// The shortest interval between two renewals of a worker that is told.
const RENEWALS_APART: Duration = Duration::from_millis(100);

pub(super) struct HeldLeases {
    /// For how long each is renewed.
    lease: Duration,
    wheel: Wheel,
    stats: Arc<QueueStats>,
    /// Whose engine is notified of a lease that Redis does not renew.
    nearby: Arc<NearbyWorker>,
    state: Mutex<State>,
}

struct State {
    /// By the address of the lease.
    leases: HashMap<usize, HeldLease>,
    renewed_at: Instant,
    renew_at: Instant,
    /// Whether a job may have been cancelled since its renewal was sent.
    may_be_cancelled: bool,
    /// When the first of the leases expires unless it is renewed, or a job will have taken as long as it may.
    /// Sooner where that job is done by now, or a renewal was refused.
    expire_at: Instant,
}

pub(super) struct HeldLease {
    pub(super) lease: Arc<JobLease>,
    /// Whether a renewal is in flight.
    is_renewing: bool,
    /// The entry of the claim in the wheel, while it waits until it is due.
    pub(super) on_wheel: Option<Key>,
    /// Until when the job may take.
    may_take_until: Option<Instant>,
}

impl HeldLease {
    fn is_lost(&self, now: Instant) -> bool {
        self.lease.validity.is_lost() || self.may_take_until.is_some_and(|until| until <= now)
    }

    /// Returns when it will be lost unless it is renewed.
    fn end(&self) -> Instant {
        self.may_take_until
            .into_iter()
            .fold(self.lease.validity.until(), Instant::min)
    }
}

fn address(lease: &Arc<JobLease>) -> usize {
    Arc::as_ptr(lease).addr()
}

impl HeldLeases {
    pub(super) fn new(
        lease: Duration,
        wheel: &Wheel,
        stats: Arc<QueueStats>,
        nearby: Arc<NearbyWorker>,
    ) -> Arc<HeldLeases> {
        let now = Instant::now();
        let state = State {
            leases: HashMap::new(),
            renewed_at: now,
            renew_at: now + RENEW_UNTOLD.min(lease / 3),
            may_be_cancelled: false,
            // One that is not allowed is refused by the engine.
            expire_at: timers::after(lease),
        };
        Arc::new(HeldLeases {
            lease,
            wheel: wheel.clone(),
            stats,
            nearby,
            state: Mutex::new(state),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().leases.is_empty()
    }

    pub(super) fn insert(&self, lease: &Arc<JobLease>) {
        let held = HeldLease {
            lease: lease.clone(),
            is_renewing: false,
            on_wheel: None,
            may_take_until: None,
        };
        self.state.lock().leases.insert(address(lease), held);
    }

    /// Records the entry in the wheel of a claim that is held.
    pub(super) fn set_on_wheel(&self, lease: &Arc<JobLease>, entry: Key) {
        if let Some(held) = self.state.lock().leases.get_mut(&address(lease)) {
            held.on_wheel = Some(entry);
        }
    }

    /// Limits until when a job may take that is held.
    pub(super) fn limit_time(&self, lease: &Arc<JobLease>, until: Instant) {
        let mut state = self.state.lock();
        if let Some(held) = state.leases.get_mut(&address(lease)) {
            held.may_take_until = Some(until);
            state.expire_at = state.expire_at.min(until);
        }
    }

    /// Removes a lease, and counts it as lost if it was. Returns whether it was held and not lost.
    pub(super) fn remove(&self, lease: &Arc<JobLease>) -> bool {
        let mut state = self.state.lock();
        if state.leases.remove(&address(lease)).is_none() {
            return false;
        }
        let is_lost = lease.validity.is_lost();
        if is_lost {
            self.stats.lost.increment();
        }
        !is_lost
    }

    /// Lets go of all leases.
    pub(super) fn drain(&self) -> Vec<Arc<JobLease>> {
        let mut state = self.state.lock();
        state.leases.drain().map(|(_, held)| held.lease).collect()
    }

    // Renewal.

    /// Returns when to renew leases, or to look for expired ones, next.
    pub(super) fn next_renewal(&self) -> Instant {
        let state = self.state.lock();
        state.renew_at.min(state.expire_at)
    }

    /// Renews soon, because a job may have been cancelled.
    pub(super) fn renew_soon(&self) {
        self.state.lock().renew_soon();
    }

    /// Renews what is due for it, and lets go of what is lost. Returns the renewals, to be sent, and what is
    /// lost.
    ///
    /// A worker that `is_told` of jobs that were cancelled renews after a third of the lease minus a random
    /// part, so that workers that started together do not renew together.
    pub(super) fn renew_due(
        self: &Arc<Self>,
        now: Instant,
        is_told: impl FnOnce() -> bool,
    ) -> (Vec<(usize, Operation)>, Vec<HeldLease>) {
        let mut state = self.state.lock();
        let is_due = state.renew_at <= now;
        if !is_due && state.expire_at > now {
            return Default::default();
        }
        let lost = state.leases.extract_if(|_, held| held.is_lost(now));
        let lost: Vec<HeldLease> = lost.map(|(_, held)| held).collect();
        let first = state.leases.values().map(HeldLease::end).min();
        state.expire_at = first.unwrap_or_else(|| timers::after(self.lease));
        let mut to_renew = Vec::new();
        if is_due {
            let mut period = jittered(self.lease / 3);
            if !is_told() {
                period = period.min(RENEW_UNTOLD);
            }
            state.renewed_at = now;
            state.renew_at = now + period;
            to_renew = state.begin_renewals();
        }
        drop(state);
        self.stats.lost.add(lost.len() as u64);
        for held in &lost {
            held.lease.validity.lose();
        }
        let renewals = to_renew
            .into_iter()
            .map(|(job, may_take_until)| (job.partition, self.renewal(job, may_take_until)));
        (renewals.collect(), lost)
    }

    /// Returns the renewal of a job that may take until that time.
    fn renewal(self: &Arc<Self>, job: Arc<JobLease>, may_take_until: Option<Instant>) -> Operation {
        let until = job.validity.until();
        let mut lease = self.lease;
        if may_take_until.is_some_and(|end| end <= until) {
            // One that lasts for as long as the job may take is not extended.
            let left = until.saturating_duration_since(Instant::now());
            lease = lease.min(left + margin(lease, self.wheel.tick_duration()));
        }
        let (this, change) = (self.clone(), renew(&job, lease));
        Operation::new(change, until, move |leased| this.renewed(&job, lease, leased))
    }

    /// Goes on with a lease whose renewal was answered. Without an answer, the next renewal may succeed;
    /// otherwise the lease expires.
    fn renewed(&self, job: &Arc<JobLease>, lease: Duration, leased: Result<Leased, Error>) {
        match leased {
            Ok(Leased::Since(sent)) => {
                self.stats.renewals.renewed.increment();
                job.validity
                    .extend(sent + valid_for(lease, self.wheel.tick_duration()));
            }
            // Before the engine is told to look for lost leases.
            Ok(Leased::Refused) => job.validity.lose(),
            Err(_) => self.stats.renewals.failed.increment(),
        }
        let is_refused = matches!(leased, Ok(Leased::Refused));
        let mut state = self.state.lock();
        if is_refused {
            state.expire_at = Instant::now();
        }
        if let Some(held) = state.leases.get_mut(&address(job)) {
            held.is_renewing = false;
        }
        drop(state);
        if is_refused {
            self.nearby.has_work.notify_one();
        }
    }
}

impl State {
    /// Returns the leases of which no renewal is in flight, each with until when its job may take.
    fn begin_renewals(&mut self) -> Vec<(Arc<JobLease>, Option<Instant>)> {
        let (mut begun, mut was_renewing) = (Vec::new(), false);
        for held in self.leases.values_mut() {
            if mem::replace(&mut held.is_renewing, true) {
                was_renewing = true;
            } else {
                begun.push((held.lease.clone(), held.may_take_until));
            }
        }
        if mem::take(&mut self.may_be_cancelled) && was_renewing {
            // The renewal in flight may have been carried out before the job was cancelled.
            self.renew_soon();
        }
        begun
    }

    fn renew_soon(&mut self) {
        self.may_be_cancelled = true;
        self.renew_at = self.renew_at.min(self.renewed_at + RENEWALS_APART);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::jobs::store::nearby::Nearby;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease() -> Arc<JobLease> {
        JobLease::new("id".to_owned(), 0, "holder".into(), Instant::now() + 100 * SECOND)
    }

    fn held_leases() -> Arc<HeldLeases> {
        let nearby = Nearby::default().add(Handle::current(), Duration::ZERO, None);
        HeldLeases::new(100 * SECOND, &Wheel::new(), Arc::default(), nearby)
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_jobs_that_are_done() {
        let held = held_leases();
        let long = lease();
        held.insert(&long);
        held.limit_time(&long, Instant::now() + 60 * SECOND);
        for _ in 0..1000 {
            let job = lease();
            held.insert(&job);
            held.limit_time(&job, Instant::now() + 60 * SECOND);
            assert!(held.remove(&job));
        }
        assert_eq!(held.state.lock().leases.len(), 1);
        assert!(held.remove(&long));
        assert!(held.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_lost_once_when_it_has_taken_as_long_as_it_may() {
        let held = held_leases();
        let (first, second, limit) = (lease(), lease(), SECOND / 4);
        for (job, after) in [(&second, 2 * limit), (&first, limit)] {
            held.insert(job);
            held.limit_time(job, Instant::now() + after);
        }
        held.renew_due(Instant::now(), || true);
        assert_eq!(held.next_renewal(), Instant::now() + limit);
        assert!(!first.validity.is_lost());
        tokio::time::advance(limit).await;
        held.renew_due(Instant::now(), || true);
        assert_eq!(held.next_renewal(), Instant::now() + limit);
        assert!(first.validity.is_lost() && !second.validity.is_lost());
        assert!(!held.remove(&first) && held.remove(&second));
        assert_eq!(held.stats.lost.get(), 1);
    }
}
