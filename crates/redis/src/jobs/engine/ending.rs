//! Ends a worker whose stream was dropped or whose wheel was shut down.

use std::mem;

use futures_util::StreamExt;
use tokio::time::Instant;

use super::Engine;
use crate::{
    error::Error,
    jobs::{
        batcher::Operation,
        queue::{PATIENCE, operation},
        take::{TakeRequest, Taken},
        waiting::sleep_until,
    },
};

impl Engine {
    /// Returns the claimed jobs to the queue, and renews those that the consumer still works on.
    pub(super) async fn end(mut self) {
        let inbox = self.inbox.clone();
        let wheel = inbox.queue.wheel.clone();
        self.hints.clear();
        self.close();
        for on_wheel in mem::take(&mut self.on_wheel) {
            self.give_back("release", on_wheel.claim.into_iter().collect());
        }
        for fetching in mem::take(&mut self.fetching) {
            let claim = fetching.claim.map(|(_, claim)| claim);
            self.give_back("release", claim.into_iter().collect());
        }
        let mut given = false;
        loop {
            // Starts that were in flight when the stream was dropped are answered later.
            let now = Instant::now();
            self.give_back_older(Some(now), Some(now));
            if wheel.is_shutdown() {
                inbox.end();
                break;
            }
            if self.takes.is_empty() && !mem::replace(&mut given, true) {
                self.give_back_unanswered();
            }
            if given && !inbox.holds() {
                return;
            }
            let now = Instant::now();
            if self.renew_at <= now {
                self.renew();
            } else if self.expire_at <= now {
                self.expire();
            }
            let limit_at = inbox.end_overdue();
            let next = self.renew_at.min(self.expire_at);
            let next = limit_at.map_or(next, |at| next.min(at));
            tokio::select! {
                () = inbox.engine.notified() => {}
                Some((request, taken)) = self.takes.next(), if !self.takes.is_empty() => {
                    self.give_back_taken(request, taken);
                }
                _ = sleep_until(&wheel, next) => {}
            }
        }
        while let Some((request, taken)) = self.takes.next().await {
            self.give_back_taken(request, taken);
        }
        if !given {
            self.give_back_unanswered();
        }
    }

    /// Has others told of due jobs instead of this worker.
    fn close(&self) {
        let deadline = Instant::now() + PATIENCE;
        let closed = self.sweeps.iter().enumerate().filter(|(_, sweep)| sweep.listed);
        let closed = closed.map(|(partition, _)| {
            let arguments = operation("close", &self.ear.to_string(), "-", 0, 0);
            (partition, Operation::new(arguments, deadline, drop))
        });
        self.inbox.queue.update_all(&self.inbox.runtime, closed.collect());
    }

    fn give_back_taken(&mut self, request: TakeRequest, taken: Result<Taken, Error>) {
        self.sweeps[request.partition].unanswered = taken.is_err();
        if let Ok(taken) = taken {
            let claims = taken.claims.into_iter().map(|(_, claim)| claim).collect();
            self.give_back("release", claims);
        }
    }

    fn give_back_unanswered(&self) {
        for (partition, sweep) in self.sweeps.iter().enumerate() {
            if sweep.unanswered {
                let queue = self.inbox.queue.clone();
                let call = queue.partitions[partition].give_back(&self.senders[partition].call_name());
                // A job that cannot be returned is delivered again when its lease has expired.
                tokio::spawn(async move { queue.ask(call).await.map(drop) });
            }
        }
    }
}
