//! Takes jobs from the partitions, and holds them on the wheel until they are due.

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{Engine, Fetching, OnWheel};
use crate::{
    error::Error,
    jobs::{
        claim::Claim,
        fetch::fetch,
        inbox::{NotifyEngine, Status},
        take::{TakeRequest, Taken, take},
        waiting::sleep_until,
    },
};

/// The largest number of jobs in one take.
const TAKE: usize = 60;
/// How many bytes of payload the takes in flight of a worker may bring, of which each may bring a quarter of what is left. All answers
/// share one connection, so a lease that is renewed waits for them: for 90 ms at 12 MB/s.
const BYTES: usize = 1 << 20;
/// How many bytes a take may bring in any case.
const FEWEST_BYTES: usize = 4 << 10;

impl Engine {
    /// Returns how many claims there may be in the inbox.
    fn room(&self) -> usize {
        let prefetch = self.inbox.settings.prefetch;
        // Large jobs that are slow to fetch leave room for others.
        let fetching = self.fetching.len().saturating_sub(prefetch);
        prefetch.saturating_sub(self.on_wheel.len() + fetching + self.expected)
    }

    /// Returns how much room makes a take worthwhile.
    fn half(&self) -> usize {
        self.inbox.settings.prefetch.div_ceil(2)
    }

    fn has_more(&self) -> bool {
        !self.paused && self.sweeps.iter().any(|sweep| sweep.more && !sweep.taking)
    }

    /// Whether there is room for jobs that are known to be available.
    pub(super) fn wants_more(&self, status: &Status) -> bool {
        let free = self.room().saturating_sub(status.ready);
        let starving = status.asked && status.ready == 0;
        self.has_more() && free > 0 && (starving || free >= self.half())
    }

    pub(super) fn waits_for(&self) -> NotifyEngine {
        let more = self.has_more();
        NotifyEngine {
            asked: self.paused,
            low: self.room().checked_sub(self.half()).filter(|_| more),
            starving: more && self.room() > 0,
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
            let free = self.room().saturating_sub(status.ready);
            let wants_more = self.wants_more(status);
            let sweep = &mut self.sweeps[partition];
            if !sweep.is_due(now, free, wants_more) {
                continue;
            }
            let again = sweep.unanswered;
            sweep.begin(now);
            if !again {
                self.senders[partition].next_call();
            }
            let bytes = BYTES.saturating_sub(self.expected_bytes) / 4;
            let request = TakeRequest {
                call: self.senders[partition].call_name(),
                partition,
                limit: free.min(TAKE),
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
        let look_ahead = self.inbox.settings.look_ahead;
        sweep.answered(now, taken.next_due, taken.next_end, look_ahead);
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
        let (queue, lease, size) = (self.inbox.queue.clone(), claim.lease.clone(), claim.size);
        self.fetching.push(Fetching {
            claim: Some((due, claim)),
            fetched: async move { fetch(&queue, lease.partition, &lease.id, &lease.token, size).await }
                .boxed(),
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
                self.give_back("release", vec![claim]);
            }
        }
    }

    fn undeliverable(&self, error: Error) {
        tracing::warn!(queue = self.inbox.queue.name, %error, "a job could not be delivered");
        self.inbox.report(error);
    }
}
