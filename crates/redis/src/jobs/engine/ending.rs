//! Ends a worker whose stream was dropped or closed, or whose wheel was shut down.

use std::mem;

use futures_util::StreamExt;
use tokio::{sync::mpsc, time::Instant};

use super::Engine;
use crate::{
    error::Error,
    jobs::{
        batcher::Operation,
        change::Change,
        queue::PATIENCE,
        take::{TakeRequest, Taken},
        waiting::sleep_until,
    },
};

impl Engine {
    /// Returns the claimed jobs to the queue, and renews those that the consumer still works on.
    pub(super) async fn end(mut self) {
        let inbox = self.inbox.clone();
        let wheel = inbox.queue.wheel.clone();
        // Closed once everything that was sent to say goodbye has been answered.
        let (goodbye, mut answered) = mpsc::channel(1);
        self.goodbye = Some(goodbye);
        self.close();
        for on_wheel in mem::take(&mut self.on_wheel) {
            self.give_back(
                |job| Change::GiveBack { job },
                on_wheel.claim.into_iter().collect(),
            );
        }
        for fetching in mem::take(&mut self.fetching) {
            let claim = fetching.claim.map(|(_, claim)| claim);
            self.give_back(|job| Change::GiveBack { job }, claim.into_iter().collect());
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
            if given && !inbox.is_starting() {
                self.goodbye = None;
            }
            if inbox.given_back.is_cancelled() && !inbox.holds() {
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
                Some(hint) = self.hints.next(), if !self.hints.is_empty() => self.heed(hint),
                _ = answered.recv(), if !inbox.given_back.is_cancelled() => inbox.given_back.cancel(),
                _ = sleep_until(&wheel, next) => {}
            }
        }
        while let Some((request, taken)) = self.takes.next().await {
            self.give_back_taken(request, taken);
        }
        if !given {
            self.give_back_unanswered();
        }
        self.goodbye = None;
        answered.recv().await;
    }

    /// Has others told of due jobs instead of this worker.
    fn close(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let closed = self
            .sweeps
            .iter_mut()
            .enumerate()
            .filter_map(|(partition, sweep)| {
                let goodbye = mem::take(&mut sweep.listed).then(|| self.goodbye.clone())?;
                let arguments = Change::Close { worker: self.ear }.arguments();
                Some((
                    partition,
                    Operation::new(arguments, deadline, move |_| drop(goodbye)),
                ))
            });
        self.inbox.queue.update_all(&self.inbox.runtime, closed.collect());
    }

    fn give_back_taken(&mut self, request: TakeRequest, taken: Result<Taken, Error>) {
        self.sweeps[request.partition].unanswered = taken.is_err();
        if let Ok(taken) = taken {
            self.sweeps[request.partition].listed = taken.listed;
            self.close();
            let claims = taken.claims.into_iter().map(|(_, claim)| claim).collect();
            self.give_back(|job| Change::GiveBack { job }, claims);
        }
    }

    fn give_back_unanswered(&self) {
        for (partition, sweep) in self.sweeps.iter().enumerate() {
            if sweep.unanswered {
                let (queue, goodbye) = (self.inbox.queue.clone(), self.goodbye.clone());
                let call = queue.partitions[partition].give_back(&self.senders[partition].call_name());
                // A job that cannot be returned is delivered again when its lease has expired.
                tokio::spawn(async move {
                    let _goodbye = goodbye;
                    queue.ask(call).await.map(drop)
                });
            }
        }
    }
}
