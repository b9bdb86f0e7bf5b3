//! Takes jobs from the partitions, and holds them on the wheel until they are due.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{Engine, Fetching, LONGEST_ROUND_TRIP, OnWheel, SOON, UNASKED, is_busy};
use crate::{
    error::Error,
    jobs::{
        change::Change,
        claim::Claim,
        fetch::fetch,
        inbox::{NotifyEngine, Status},
        take::{TakeRequest, Taken, take},
        waiting::sleep_until,
    },
};

/// The largest number of jobs in one take.
const TAKE: usize = 60;
/// How many bytes of payload the takes in flight of a worker may bring, of which each may bring a quarter of
/// what is left. All answers share one connection, so a lease that is renewed waits for them: for 90 ms at 12
/// MB/s.
const BYTES: usize = 1 << 20;
/// How many bytes a take may bring in any case.
const FEWEST_BYTES: usize = 4 << 10;
/// How long a consumer works without asking, before others are told of due jobs in its place.
const HAND_OVER_AFTER: Duration = Duration::from_millis(5);

/// How many jobs a worker may claim.
pub(super) struct Room {
    /// Jobs that are due.
    pub(super) due: usize,
    /// Jobs up to one that is not due yet.
    pub(super) ahead: usize,
    /// How many make a take worthwhile while the consumer is not starving.
    pub(super) worthwhile: usize,
    /// Whether the consumer asks and nothing is on its way.
    pub(super) is_starving: bool,
}

impl Room {
    pub(super) fn is_starving(&self) -> bool {
        self.is_starving && self.due > 0
    }

    pub(super) fn is_worthwhile(&self, jobs: usize) -> bool {
        jobs > 0 && jobs >= self.worthwhile
    }
}

impl Engine {
    /// Returns how far ahead jobs are claimed for a consumer that has shown how fast it starts them.
    pub(super) fn soon(&self) -> Duration {
        SOON + 2 * self.round_trip
    }

    /// Returns how many claims the consumer will have started soon. Every other due job is left to the other
    /// workers.
    fn wanted(&self, status: &Status) -> usize {
        let prefetch = self.inbox.settings.prefetch;
        if status.fetched_at.is_none() {
            // It is not known yet. What turns out to be too many is returned soon.
            return prefetch;
        }
        let asked = if status.asked { status.room } else { 0 };
        let is_busy = is_busy(status, Instant::now(), UNASKED);
        let soon = if is_busy { 0 } else { status.starts_soon };
        asked.max(soon).min(prefetch)
    }

    /// Returns how many jobs that are due may be claimed, if none is in the inbox.
    fn places(&self, wanted: usize) -> usize {
        // Large jobs that are slow to fetch leave room for others.
        let fetching = self.fetching.len().saturating_sub(wanted);
        wanted.saturating_sub(fetching + self.expected)
    }

    fn room(&self, status: &Status) -> Room {
        let wanted = self.wanted(status);
        let due = self.places(wanted).saturating_sub(status.ready);
        Room {
            due,
            ahead: due.saturating_sub(self.on_wheel.len()),
            worthwhile: wanted.div_ceil(2),
            is_starving: status.asked && status.ready == 0 && self.expected == 0,
        }
    }

    /// Whether a partition is known to have jobs for which there is room, or does not know yet that there is
    /// room.
    pub(super) fn wants_to_take(&self, status: &Status) -> bool {
        let room = self.room(status);
        let has_idle_wheel = self.on_wheel.is_empty();
        !self.paused && self.sweeps.iter().any(|sweep| sweep.wants(&room, has_idle_wheel))
    }

    pub(super) fn waits_for(&self, status: &Status) -> NotifyEngine {
        let wanted = self.wanted(status);
        let free = || self.sweeps.iter().filter(|sweep| !sweep.taking);
        let has_more = !self.paused && free().any(|sweep| sweep.more.is_some());
        NotifyEngine {
            asked: self.paused,
            low: self
                .places(wanted)
                .checked_sub(wanted.div_ceil(2))
                .filter(|_| has_more),
            fetched: status.starts_soon == 0 && (status.has_due || !self.on_wheel.is_empty()),
            starving: has_more || free().any(|sweep| sweep.is_unlisted()),
        }
    }

    /// Sends a take to each partition that is due for one.
    pub(super) fn take_jobs(&mut self, status: &Status, now: Instant) {
        if self.paused {
            return;
        }
        let partitions = self.sweeps.len();
        for step in 0..partitions {
            let partition = (self.first + step) % partitions;
            let room = self.room(status);
            let has_idle_wheel = self.on_wheel.is_empty();
            let is_busy = is_busy(status, now, HAND_OVER_AFTER);
            let sweep = &mut self.sweeps[partition];
            if !sweep.is_due(now, &room, has_idle_wheel, is_busy) {
                continue;
            }
            let again = sweep.unanswered;
            let ear = sweep.listens.then_some(self.ear);
            sweep.begin(now);
            if !again {
                self.senders[partition].next_call();
            }
            let bytes = BYTES.saturating_sub(self.expected_bytes) / 4;
            let request = TakeRequest {
                call: self.senders[partition].call_name(),
                partition,
                limit: room.due.min(TAKE),
                limit_ahead: room.ahead.min(TAKE),
                ear,
                bytes: bytes.max(FEWEST_BYTES),
                again,
            };
            self.expected += request.limit;
            self.expected_bytes += request.bytes;
            self.takes
                .push(take(self.inbox.queue.clone(), self.inbox.settings, request).boxed());
        }
        self.first = (self.first + 1) % partitions;
    }

    pub(super) fn taken(&mut self, request: TakeRequest, taken: Result<Taken, Error>) {
        self.expected -= request.limit;
        self.expected_bytes -= request.bytes;
        let now = Instant::now();
        let sweep = &mut self.sweeps[request.partition];
        let sender = &mut self.senders[request.partition];
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) if sender.was_copied(&error) => return sweep.restart(now),
            Err(error) => {
                sweep.failed(now);
                self.inbox.report(error);
                return;
            }
        };
        if taken.stored {
            sender.stored();
        }
        let round_trip = sweep.took(now).min(LONGEST_ROUND_TRIP);
        self.round_trip = (self.round_trip * 7 + round_trip) / 8;
        let look_ahead = self.inbox.settings.look_ahead;
        sweep.answered(now, taken.next_due, taken.next_end, look_ahead);
        sweep.listed = taken.listed;
        for error in taken.undeliverable {
            self.undeliverable(error);
        }
        let mut due_now = Vec::new();
        for (due, claim) in taken.claims {
            self.inbox.hold(&claim.lease);
            if claim.payload.len() < claim.size {
                self.fetch(due, claim);
            } else {
                due_now.extend(self.place(due, claim));
            }
        }
        self.inbox.add(due_now);
    }

    /// Holds a claim on the wheel until it is due, or returns it if it is due now.
    fn place(&mut self, due: Instant, claim: Claim) -> Option<Claim> {
        if due <= Instant::now() {
            return Some(claim);
        }
        let wheel = self.inbox.queue.wheel.clone();
        self.on_wheel.push(OnWheel {
            claim: Some(claim),
            sleep: async move { sleep_until(&wheel, due).await }.boxed(),
        });
        None
    }

    fn fetch(&mut self, due: Instant, claim: Claim) {
        let (queue, lease) = (self.inbox.queue.clone(), claim.lease.clone());
        self.fetching.push(Fetching {
            claim: Some((due, claim)),
            fetched: async move { fetch(&queue, lease.partition, &lease.id, &lease.token).await }.boxed(),
        });
    }

    /// Goes on with a claim whose payload was fetched, or was not.
    pub(super) fn fetched(
        &mut self,
        due: Instant,
        mut claim: Claim,
        fetched: Result<Option<Vec<u8>>, Error>,
    ) {
        match fetched {
            Ok(Some(payload)) => {
                claim.payload = payload;
                let due_now = self.place(due, claim);
                self.inbox.add(due_now);
            }
            // It was cancelled or lost.
            Ok(None) => self.inbox.let_go(&claim.lease),
            Err(error) if error.is_unanswered() => {
                let queue = &self.inbox.queue;
                self.undeliverable(Error::Undeliverable {
                    id: claim.lease.id.clone(),
                    reason: format!(
                        "its payload of {} bytes was not fetched within {:?}",
                        claim.size, queue.limits.answer_within
                    ),
                });
                self.count_as_unfetched(&claim);
            }
            Err(error) => {
                self.inbox.report(error);
                self.give_back(|job| Change::GiveBack { job }, vec![claim]);
            }
        }
    }

    fn undeliverable(&self, error: Error) {
        tracing::warn!(queue = self.inbox.queue.name, %error, "a job could not be delivered");
        self.inbox.report(error);
    }
}
