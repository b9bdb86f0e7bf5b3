//! Takes jobs from the partitions, and holds them on the wheel until they are due.

use futures_util::FutureExt;
use tokio::time::Instant;

use super::{Engine, OnWheel};
use crate::{
    error::Error,
    jobs::{
        inbox::{NotifyEngine, Status},
        take::{TakeRequest, Taken, take},
        waiting::sleep_until,
    },
};

/// The largest number of jobs in one take.
const TAKE: usize = 60;

impl Engine {
    /// Returns how many claims there may be in the inbox.
    fn room(&self) -> usize {
        let prefetch = self.inbox.settings.prefetch;
        prefetch.saturating_sub(self.on_wheel.len() + self.expected)
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
            let request = TakeRequest {
                worker: self.worker,
                partition,
                number: sweep.number,
                limit: free.min(TAKE),
                again,
            };
            self.expected += request.limit;
            self.takes
                .push(take(self.inbox.queue.clone(), self.inbox.settings, request).boxed());
        }
        self.first = (self.first + 1) % partitions;
    }

    pub(super) fn taken(&mut self, request: TakeRequest, taken: Result<Taken, Error>) {
        self.expected -= request.limit;
        let now = Instant::now();
        let sweep = &mut self.sweeps[request.partition];
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                sweep.failed(now);
                self.inbox.report(error);
                return;
            }
        };
        let look_ahead = self.inbox.settings.look_ahead;
        sweep.answered(now, taken.next_due, taken.next_end, look_ahead);
        let mut due_now = Vec::new();
        for (due, claim) in taken.claims {
            self.inbox.hold(&claim.lease);
            if due <= now {
                due_now.push(claim);
            } else {
                let wheel = self.inbox.queue.wheel.clone();
                self.on_wheel.push(OnWheel {
                    claim: Some(claim),
                    sleep: async move { sleep_until(&wheel, due).await }.boxed(),
                });
            }
        }
        self.inbox.add(due_now);
    }
}
