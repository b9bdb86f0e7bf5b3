//! `Engine`: the task of a worker. It takes jobs (`taking`) at the times that `sweep` determines, holds them
//! on the wheel until they are due, and renews their leases (`renewing`). When the worker ends, it returns
//! the jobs that nobody works on (`ending`).

use std::{
    convert::Infallible,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream, FuturesUnordered, SelectAll},
};
use tokio::{sync::mpsc, time::Instant};

use super::{
    change::Change,
    claim::Claim,
    inbox::{Inbox, Status},
    sender::Sender,
    take::{TakeRequest, Taken},
    waiting::sleep_until,
};
use crate::{error::Error, nonce::Nonce};

mod ending;
mod renewing;
mod sweep;
mod taking;

use sweep::Sweep;

/// How long a consumer may work on a job and not ask for another, before what was claimed for it is returned
/// to the queue.
const UNASKED: Duration = Duration::from_millis(50);
/// The same for what is held on the wheel for a consumer that is not known to start another job soon. It
/// comes due for others meanwhile.
const UNASKED_AHEAD: Duration = Duration::from_millis(5);
/// How far ahead jobs are claimed for a consumer that has shown how fast it starts them, in addition to two
/// round trips.
const SOON: Duration = Duration::from_millis(20);
/// The longest round trip that is counted, because a large payload takes longer.
const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(200);
/// How long a started job waits to be fetched, before it is returned to the queue.
const GIVE_BACK_AFTER: Duration = Duration::from_millis(200);

pub(super) struct Engine {
    inbox: Arc<Inbox>,
    /// The sweep of each partition, and the sender of its takes.
    sweeps: Vec<Sweep>,
    senders: Vec<Sender>,
    /// The partition that is swept first the next time.
    first: usize,
    takes: FuturesUnordered<BoxFuture<'static, (TakeRequest, Result<Taken, Error>)>>,
    /// How many jobs the takes in flight may bring.
    expected: usize,
    /// How many bytes of payload they may bring.
    expected_bytes: usize,
    /// Claims whose payload is being fetched.
    fetching: FuturesUnordered<Fetching>,
    on_wheel: FuturesUnordered<OnWheel>,
    hints: SelectAll<BoxStream<'static, Hint>>,
    /// Whether the consumer has not asked for a first job yet.
    paused: bool,
    /// The name under which the worker listens.
    ear: Nonce,
    /// Kept by whatever has to be answered before the worker has ended. Before its end, nobody waits for that.
    goodbye: Option<mpsc::Sender<Infallible>>,
    /// How long a take takes, as a moving average.
    round_trip: Duration,
    renew_at: Instant,
    renewed_at: Instant,
    /// When the first of the held leases expires unless it is renewed.
    expire_at: Instant,
    /// When the first of the delivered jobs will have taken as long as it may.
    limit_at: Option<Instant>,
}

/// What a message of Redis says, or may have said before anybody listened.
enum Hint {
    /// A job of the partition may have become due.
    Look { partition: usize },
    /// Jobs of a partition may have been cancelled, or the queue paused.
    Renew,
}

/// A claim that waits on the wheel until it is due.
struct OnWheel {
    claim: Option<Claim>,
    /// Resolves to `false` when the wheel is shut down.
    sleep: BoxFuture<'static, bool>,
}

impl Future for OnWheel {
    type Output = Option<Claim>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Claim>> {
        self.sleep.as_mut().poll(cx).map(|_| self.claim.take())
    }
}

/// A claim whose payload is being fetched, with the instant from which it may be delivered.
struct Fetching {
    claim: Option<(Instant, Claim)>,
    fetched: BoxFuture<'static, Result<Option<Vec<u8>>, Error>>,
}

impl Future for Fetching {
    type Output = (Option<(Instant, Claim)>, Result<Option<Vec<u8>>, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let fetched = self.fetched.as_mut().poll(cx);
        fetched.map(|fetched| (self.claim.take(), fetched))
    }
}

impl Engine {
    pub(super) fn new(inbox: Arc<Inbox>) -> Engine {
        let now = Instant::now();
        Engine {
            senders: inbox.queue.partitions.iter().map(|_| Sender::new()).collect(),
            sweeps: inbox.queue.partitions.iter().map(|_| Sweep::new(now)).collect(),
            first: 0,
            takes: FuturesUnordered::new(),
            expected: 0,
            expected_bytes: 0,
            fetching: FuturesUnordered::new(),
            on_wheel: FuturesUnordered::new(),
            hints: SelectAll::new(),
            paused: true,
            ear: Nonce::new(),
            goodbye: None,
            round_trip: Duration::ZERO,
            renew_at: now,
            renewed_at: now,
            expire_at: now + inbox.settings.lease,
            limit_at: None,
            inbox,
        }
    }

    pub(super) async fn run(mut self) {
        if self.open().await {
            self.listen();
            self.renew_at = Instant::now() + self.renewal_period();
            self.work().await;
        }
        self.end().await;
    }

    /// Opens the queue, retrying until it succeeds. Returns `false` if the worker ends first.
    async fn open(&mut self) -> bool {
        let inbox = self.inbox.clone();
        loop {
            let opened = async {
                inbox.settings.check(&inbox.queue.wheel)?;
                inbox.queue.open().await.map(drop)
            };
            // This waits for the answer in any case. A wheel that is shut down meanwhile is noticed below.
            match opened.await {
                Ok(()) => return !inbox.queue.wheel.is_shutdown(),
                Err(error) => inbox.report(error),
            }
            let next = Instant::now() + Duration::from_secs(1);
            loop {
                if inbox.is_closed() {
                    return false;
                }
                tokio::select! {
                    () = inbox.engine.notified() => {}
                    alive = sleep_until(&inbox.queue.wheel, next) => {
                        if !alive {
                            return false;
                        }
                        break;
                    }
                }
            }
        }
    }

    fn listen(&mut self) {
        let queue = &self.inbox.queue;
        let Some(notifications) = &queue.notifications else {
            return;
        };
        for (number, partition) in queue.partitions.iter().enumerate() {
            // Before the worker's own channel: once that is listened to, both are.
            let renewals = notifications.listen(partition.channel_of_renewals());
            let renewals = stream::unfold(renewals, |listener| async move {
                listener.heard().await;
                Some((Hint::Renew, listener))
            });
            let own = notifications.listen(partition.channel_of(self.ear));
            let own = stream::unfold(own, move |listener| async move {
                listener.heard().await;
                Some((Hint::Look { partition: number }, listener))
            });
            self.hints.extend([renewals.boxed(), own.boxed()]);
        }
    }

    /// Runs until the stream is dropped or the wheel is shut down.
    async fn work(&mut self) {
        let inbox = self.inbox.clone();
        let wheel = inbox.queue.wheel.clone();
        loop {
            let status = inbox.status(self.soon());
            if status.closed || wheel.is_shutdown() {
                return;
            }
            let now = Instant::now();
            if status.asked {
                self.paused = false;
            }
            for (partition, at) in inbox.take_expected() {
                if let Some(sweep) = self.sweeps.get_mut(partition) {
                    sweep.expect(at);
                }
            }
            self.limit_at = inbox.end_overdue();
            self.give_back_unwanted(&status, now);
            let status = inbox.status(self.soon());
            self.take_jobs(&status, now);
            if self.renew_at <= now {
                self.renew();
            } else if self.expire_at <= now {
                self.expire();
            }
            let status = inbox.notify_engine_when(self.waits_for(&status), self.soon());
            if status.closed || (status.asked && self.paused) || self.wants_to_take(&status) {
                continue;
            }
            let next = self.next(&status, now);
            tokio::select! {
                () = inbox.engine.notified() => {}
                Some(claim) = self.on_wheel.next(), if !self.on_wheel.is_empty() => {
                    // Jobs that are due at the same tick are started together.
                    let mut claims = Vec::from_iter(claim);
                    while let Some(Some(claim)) = self.on_wheel.next().now_or_never() {
                        claims.extend(claim);
                    }
                    inbox.add(claims);
                }
                Some((request, taken)) = self.takes.next(), if !self.takes.is_empty() => self.taken(request, taken),
                Some((claim, fetched)) = self.fetching.next(), if !self.fetching.is_empty() => {
                    if let Some((due, claim)) = claim {
                        self.fetched(due, claim, fetched);
                    }
                }
                Some(hint) = self.hints.next(), if !self.hints.is_empty() => self.heed(hint),
                alive = sleep_until(&wheel, next) => {
                    if !alive {
                        return;
                    }
                }
            }
        }
    }

    /// Whether Redis tells the worker of jobs that are due or were cancelled, in all partitions.
    fn listens(&self) -> bool {
        self.sweeps.iter().all(|sweep| sweep.listens)
    }

    fn heed(&mut self, hint: Hint) {
        match hint {
            Hint::Look { partition } => {
                self.sweeps[partition].told(Instant::now());
                self.inbox.set_listens(self.listens());
            }
            Hint::Renew => self.renew_soon(),
        }
    }

    /// Returns when to act next if no event occurs before.
    fn next(&self, status: &Status, now: Instant) -> Instant {
        let mut next = self.renew_at.min(self.expire_at);
        next = self.limit_at.map_or(next, |at| next.min(at));
        if !self.paused {
            for sweep in self.sweeps.iter().filter(|sweep| !sweep.taking) {
                next = next.min(sweep.at);
            }
        }
        // The engine is not notified when a job is fetched, so it has to look.
        if status.ready > 0 || status.out > 0 {
            next = next.min(now + GIVE_BACK_AFTER);
        }
        let busy_from = |long| status.fetched_at.map(|at| at + long).filter(|at| *at > now);
        if status.ready > 0 {
            next = next.min(busy_from(UNASKED).unwrap_or(now + UNASKED));
        }
        if !self.on_wheel.is_empty() && !status.asked {
            next = next.min(busy_from(patience_ahead(status)).unwrap_or(now + UNASKED));
        }
        next
    }
}

impl Drop for Engine {
    /// Returns what `end` has not returned, because the runtime has ended before.
    fn drop(&mut self) {
        let on_wheel = mem::take(&mut self.on_wheel);
        let mut claims: Vec<Claim> = on_wheel
            .into_iter()
            .filter_map(|on_wheel| on_wheel.claim)
            .collect();
        let fetching = mem::take(&mut self.fetching);
        claims.extend(
            fetching
                .into_iter()
                .filter_map(|fetching| Some(fetching.claim?.1)),
        );
        self.inbox
            .give_back_elsewhere(|job| Change::GiveBack { job }, claims);
    }
}

/// Returns how long a consumer may work on a job and not ask for another, before what is held on the wheel
/// for it is returned.
fn patience_ahead(status: &Status) -> Duration {
    if status.starts_soon == 0 {
        UNASKED_AHEAD
    } else {
        UNASKED
    }
}

/// Whether the consumer has been working for so long without asking for another job.
fn is_busy(status: &Status, now: Instant, long: Duration) -> bool {
    !status.asked && status.fetched_at.is_some_and(|at| at + long <= now)
}
