//! `Engine`: the task of a worker. It takes jobs and has them wait until they are due, and when the worker
//! ends, it gives back what nobody works on.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use tickwheel::{SleepError, Wheel};
use tokio::time::Instant;

use super::{desk::Desk, stock::Stock, takes::Takes};
use crate::{jobs::store::queue::Queue, server::retry::Backoff};

/// The first and the longest delay after the queue could not be opened.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(1);

pub(super) struct Engine {
    desk: Arc<Desk>,
    takes: Takes,
    stock: Stock,
    hints: SelectAll<BoxStream<'static, Hint>>,
    has_ended: bool,
}

/// What a message of Redis says, or may have said before anybody listened.
#[derive(Clone, Copy)]
enum Hint {
    /// A job of the partition may have become due.
    Look { partition: usize },
    /// The same, and those that watch have been told.
    LookLater { partition: usize },
    /// Jobs of a partition may have been cancelled, or the queue paused.
    Renew,
}

impl Engine {
    pub(super) fn new(desk: Arc<Desk>) -> Engine {
        Engine {
            takes: Takes::new(desk.clone()),
            stock: Stock::new(desk.clone()),
            hints: SelectAll::new(),
            has_ended: false,
            desk,
        }
    }

    pub(super) async fn run(mut self) {
        if self.open().await {
            self.listen();
            self.work().await;
        }
        self.end().await;
        self.has_ended = true;
    }

    /// Opens the queue, retrying until it succeeds. Returns `false` if the worker ends first.
    async fn open(&mut self) -> bool {
        let desk = self.desk.clone();
        let Queue { wheel, .. } = &*desk.queue;
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            let opened = async {
                desk.settings.check(wheel)?;
                desk.queue.open().await
            };
            // This waits for the answer in any case. A wheel that is shut down meanwhile is noticed below.
            match opened.await {
                Ok(()) => return !wheel.is_shutdown(),
                Err(error) => desk.report(error),
            }
            let next = Instant::now() + backoff.next_delay();
            loop {
                if desk.status(Duration::ZERO).ended {
                    return false;
                }
                tokio::select! {
                    () = desk.nearby.has_work.notified() => {}
                    is_alive = sleep_until(wheel, next) => {
                        if !is_alive {
                            return false;
                        }
                        break;
                    }
                }
            }
        }
    }

    fn listen(&mut self) {
        let queue = &self.desk.queue;
        let Some(notifications) = &queue.settings.notifications else {
            return;
        };
        for (number, partition) in queue.partitions.iter().enumerate() {
            let hints = |to: String, hint: Hint| {
                let listener = notifications.listen(format!("{}:{to}", partition.channel));
                stream::unfold(listener, move |listener| async move {
                    listener.heard().await;
                    Some((hint, listener))
                })
                .boxed()
            };
            self.hints.extend([
                hints("renew".to_owned(), Hint::Renew),
                hints(
                    self.desk.nearby.name.to_string(),
                    Hint::Look { partition: number },
                ),
                hints("later".to_owned(), Hint::LookLater { partition: number }),
            ]);
        }
    }

    fn heed(&mut self, hint: Hint) {
        let now = Instant::now();
        match hint {
            Hint::Look { partition } => self.takes.lookout(partition).hint(now),
            Hint::LookLater { partition } => self.takes.lookout(partition).told_as_idle(now),
            Hint::Renew => self.desk.held.renew_soon(),
        }
    }

    /// Renews the leases that are due for it, and lets go of those that are lost.
    fn keep_leases(&mut self, now: Instant) {
        let queue = &self.desk.queue;
        let is_told = || {
            let mut partitions = queue.partitions.iter();
            queue.may_publish()
                && partitions.all(|partition| self.desk.nearby.hears(&partition.channel, "renew"))
        };
        let (renewals, lost) = self.desk.held.renew_due(now, is_told);
        for held in lost {
            self.stock.remove(held.on_wheel);
            // Another may run in its place.
            queue.expect_job(held.lease.partition, Duration::ZERO);
        }
        self.desk.send(renewals);
    }

    /// Runs until the stream is dropped or the wheel is shut down.
    async fn work(&mut self) {
        let desk = self.desk.clone();
        let wheel = &desk.queue.wheel;
        loop {
            let now = Instant::now();
            self.takes.expect();
            self.keep_leases(now);
            let status = desk.status(self.takes.soon());
            if status.ended || wheel.is_shutdown() {
                return;
            }
            self.stock.give_back_unwanted(&status, now);
            // What went back has left room.
            let status = desk.status(self.takes.soon());
            self.takes.take_due(&status, now, &self.stock);
            let next = [self.takes.next_look(), self.stock.next_give_back(&status, now)];
            let next = next
                .into_iter()
                .flatten()
                .fold(desk.held.next_renewal(), Instant::min);
            tokio::select! {
                () = desk.nearby.has_work.notified() => {}
                due = self.stock.take_due() => desk.add(due),
                answered = self.takes.answered() => {
                    let claims = self.takes.taken(answered);
                    desk.add(self.stock.add(claims));
                }
                Some(hint) = self.hints.next(), if !self.hints.is_empty() => self.heed(hint),
                is_alive = sleep_until(wheel, next) => {
                    if !is_alive {
                        return;
                    }
                }
            }
        }
    }

    /// Gives back what nobody works on, and renews what the consumer still works on, unless the wheel is shut
    /// down.
    async fn end(&mut self) {
        let desk = self.desk.clone();
        let wheel = &desk.queue.wheel;
        self.takes.unlist();
        loop {
            let is_shutdown = wheel.is_shutdown();
            if is_shutdown {
                desk.end();
            }
            self.stock.give_back_all();
            if !self.takes.are_in_flight() {
                self.takes.undo_unanswered(&desk.nearby.runtime);
                desk.given_back.close();
            }
            let has_given_back = desk.given_back.is_closed() && desk.given_back.is_empty();
            if has_given_back && desk.held.is_empty() {
                return;
            }
            self.keep_leases(Instant::now());
            let next = desk.held.next_renewal();
            tokio::select! {
                () = desk.nearby.has_work.notified() => {}
                answered = self.takes.answered() => {
                    let claims = self.takes.taken(answered);
                    desk.give_back(claims);
                    self.takes.unlist();
                }
                Some(hint) = self.hints.next(), if !self.hints.is_empty() => self.heed(hint),
                () = desk.given_back.wait(), if !has_given_back => {}
                _ = sleep_until(wheel, next), if !is_shutdown => {}
            }
        }
    }
}

impl Drop for Engine {
    /// Ends the stream with an error if the task has not ended by itself: its runtime was shut down, or it
    /// panicked.
    fn drop(&mut self) {
        if !self.has_ended {
            self.desk.end_without_runtime();
            // Before the tracker is closed, so that `close` waits for these too.
            self.stock.give_back_all();
            if let Some(runtime) = self.desk.queue.nearby.another_runtime(&self.desk.nearby) {
                self.takes.undo_unanswered(&runtime);
            }
        }
        self.desk.given_back.close();
    }
}

/// Waits until `deadline`, on Tokio's timer where the wheel is full. False when the wheel has been shut down.
async fn sleep_until(wheel: &Wheel, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(wheel.now());
    match wheel.try_sleep(left).await {
        Ok(()) => true,
        Err(SleepError::Shutdown) => false,
        Err(_) => {
            tokio::time::sleep_until(deadline).await;
            true
        }
    }
}
