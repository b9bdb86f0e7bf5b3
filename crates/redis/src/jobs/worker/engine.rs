//! `Engine`: the task of a worker. It takes jobs and holds them until they are due, and when the worker ends, it
//! gives back what nobody works on.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use tickwheel::{SleepError, Wheel};
use tokio::time::Instant;

use super::{claims::Claims, desk::Desk, takes::Takes};
use crate::{
    jobs::store::{change::How, queue::Queue},
    server::retry::Backoff,
};

/// The pauses after failed attempts to open the queue.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Engine {
    desk: Arc<Desk>,
    takes: Takes,
    claims: Claims,
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
            claims: Claims::new(desk.clone()),
            hints: SelectAll::new(),
            has_ended: false,
            desk,
        }
    }

    pub(super) async fn run(mut self) {
        if self.open().await {
            self.listen();
            self.claims.begin();
            self.work().await;
        }
        self.end().await;
        self.has_ended = true;
    }

    /// Opens the queue, retrying until it succeeds. Returns `false` if the worker ends first.
    async fn open(&mut self) -> bool {
        let desk = self.desk.clone();
        let Queue { wheel, .. } = &*desk.queue;
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
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
            let next = Instant::now() + backoff.next_pause();
            loop {
                if desk.is_closed() {
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
        let hints = |channel, hint: Hint| {
            stream::unfold(notifications.listen(channel), move |listener| async move {
                listener.heard().await;
                Some((hint, listener))
            })
            .boxed()
        };
        for (number, partition) in queue.partitions.iter().enumerate() {
            self.hints.extend([
                // Before the worker's own channel: once that is listened to, both are.
                hints(partition.channel_of_renewals(), Hint::Renew),
                hints(
                    partition.channel_of(self.takes.ear()),
                    Hint::Look { partition: number },
                ),
                hints(partition.channel_of_idle(), Hint::LookLater { partition: number }),
            ]);
        }
    }

    fn heed(&mut self, hint: Hint) {
        match hint {
            Hint::Look { partition } => self.takes.told(partition),
            Hint::LookLater { partition } => self.takes.told_as_idle(partition),
            Hint::Renew => self.claims.renew_soon(),
        }
    }

    /// Runs until the stream is dropped or the wheel is shut down.
    async fn work(&mut self) {
        let desk = self.desk.clone();
        let wheel = &desk.queue.wheel;
        loop {
            let now = Instant::now();
            let limit_at = desk.end_overdue();
            self.takes.expect();
            self.claims.keep(now, self.takes.is_told());
            let status = desk.status(self.takes.soon());
            if status.closed || wheel.is_shutdown() {
                return;
            }
            self.claims.give_back_unwanted(&status, now);
            // What went back has left room.
            let status = desk.status(self.takes.soon());
            let (on_wheel, unfetched) = (self.claims.on_wheel(), self.claims.unfetched());
            self.takes.take_due(&status, now, on_wheel, unfetched);
            let next = [
                limit_at,
                self.takes.next_look(),
                self.claims.next_return(&status, now),
            ];
            let next = next
                .into_iter()
                .flatten()
                .fold(self.claims.next_renewal(), Instant::min);
            tokio::select! {
                () = desk.nearby.has_work.notified() => {}
                due = self.claims.due() => desk.add(due),
                answered = self.takes.answered() => {
                    let claims = self.takes.taken(answered);
                    desk.add(self.claims.hold(claims));
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

    /// Gives back what nobody works on, and renews what the consumer still works on.
    async fn end(&mut self) {
        let desk = self.desk.clone();
        let wheel = &desk.queue.wheel;
        self.takes.leave();
        while !wheel.is_shutdown() {
            self.claims.give_back_all();
            if !self.takes.are_in_flight() {
                self.takes.give_back_unanswered();
                desk.given_back.close();
            }
            let has_given_back = desk.given_back.is_closed() && desk.given_back.is_empty();
            if has_given_back && !desk.holds() {
                return;
            }
            let limit_at = desk.end_overdue();
            self.claims.keep(Instant::now(), self.takes.is_told());
            let next = limit_at
                .into_iter()
                .fold(self.claims.next_renewal(), Instant::min);
            tokio::select! {
                () = desk.nearby.has_work.notified() => {}
                answered = self.takes.answered() => {
                    let claims = self.takes.taken(answered);
                    self.claims.give_back(|_| How::GiveBack, claims);
                    self.takes.leave();
                }
                Some(hint) = self.hints.next(), if !self.hints.is_empty() => self.heed(hint),
                () = desk.given_back.wait(), if !has_given_back => {}
                _ = sleep_until(wheel, next) => {}
            }
        }
        desk.end();
        self.claims.give_back_all();
        while self.takes.are_in_flight() {
            let answered = self.takes.answered().await;
            let claims = self.takes.taken(answered);
            self.claims.give_back(|_| How::GiveBack, claims);
        }
        self.takes.give_back_unanswered();
        desk.given_back.close();
        desk.given_back.wait().await;
    }
}

impl Drop for Engine {
    /// Ends the stream with an error if the task has not ended by itself: its runtime was shut down, or it
    /// panicked.
    fn drop(&mut self) {
        if !self.has_ended {
            self.desk.end_without_runtime();
            // Before the tracker is closed, so that `close` waits for these too.
            self.claims.give_back_elsewhere();
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
