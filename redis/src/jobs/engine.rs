//! `Engine`: the one task of a worker. It takes jobs, holds them on the wheel until they are due, and renews what is held.

use std::{
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
use tokio::time::Instant;

use super::{
    claim::{Claim, Grip, valid_until},
    desk::{Desk, Ring, Standing},
    lane::{Answer, Verb},
    patience::sleep_until,
    queue::{PATIENCE, micros, verb},
    take::{Order, Taken, take},
};
use crate::{
    error::Error,
    nonce::{Nonce, random_part},
};

/// How far apart looks at a partition are at most, and while nothing happens there also at least.
const SWEEP: Duration = Duration::from_secs(5);
/// How much sooner a look may be, at random.
const JITTER: Duration = Duration::from_millis(100);
/// How far apart looks are that wait for the leases of others to end.
const ENDS_APART: Duration = Duration::from_secs(1);
/// As many jobs as one take gives.
const TAKE: usize = 60;
/// How long what has come due waits for a consumer that does not ask, before others may have it.
const LAID: Duration = Duration::from_secs(1);
/// How long what has been started waits for a consumer that does not come back.
const STARTED: Duration = Duration::from_millis(200);
/// How long is waited after a take that failed: at first, and at most.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Engine {
    desk: Arc<Desk>,
    worker: Nonce,
    looks: Vec<Look>,
    /// The partition that is looked at first, next time.
    turn: usize,
    takes: FuturesUnordered<BoxFuture<'static, (Order, Result<Taken, Error>)>>,
    /// How many jobs the takes under way may bring.
    expected: usize,
    held: FuturesUnordered<OnWheel>,
    hints: SelectAll<BoxStream<'static, usize>>,
    /// The consumer did not fetch what had come due; nothing is taken until it asks again.
    sated: bool,
    renew_at: Instant,
    /// When the first of what is held runs out, unless it is renewed.
    lapse_at: Instant,
}

/// A claim on the wheel until it is due.
struct OnWheel {
    claim: Option<Claim>,
    /// False when the wheel was shut down.
    sleep: BoxFuture<'static, bool>,
}

impl Future for OnWheel {
    type Output = Option<Claim>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Claim>> {
        self.sleep.as_mut().poll(cx).map(|_| self.claim.take())
    }
}

/// What is known of a partition.
struct Look {
    /// When to look next.
    at: Instant,
    sent: Instant,
    /// The take under way, or one that got no answer.
    taking: bool,
    number: u64,
    unanswered: bool,
    pause: Duration,
    /// Something may have come due since the take under way was sent.
    hinted: bool,
    /// More could have been taken.
    more: bool,
    /// Whether it was looked at before.
    swept: bool,
}

impl Engine {
    pub(super) fn new(desk: Arc<Desk>) -> Engine {
        let now = Instant::now();
        let looks = desk
            .queue
            .partitions
            .iter()
            .map(|_| Look {
                at: now,
                sent: now,
                taking: false,
                number: 0,
                unanswered: false,
                pause: PAUSE,
                hinted: false,
                more: false,
                swept: false,
            })
            .collect();
        Engine {
            worker: Nonce::new(),
            looks,
            turn: 0,
            takes: FuturesUnordered::new(),
            expected: 0,
            held: FuturesUnordered::new(),
            hints: SelectAll::new(),
            sated: true,
            renew_at: now,
            lapse_at: now + desk.settings.lease,
            desk,
        }
    }

    pub(super) async fn run(mut self) {
        if self.open().await {
            self.listen();
            self.renew_at = Instant::now() + self.renewal_period();
            self.work().await;
        }
        self.finish().await;
    }

    /// Opens the queue, as often as that takes. False when the worker ends before.
    async fn open(&mut self) -> bool {
        let desk = self.desk.clone();
        loop {
            let opened = async {
                desk.settings.check(&desk.queue.wheel)?;
                desk.queue.open().await
            };
            // An answer is awaited to its end: a wheel that is shut down meanwhile is found out below.
            match opened.await {
                Ok(()) => return !desk.queue.wheel.is_shutdown(),
                Err(error) => desk.report(error),
            }
            let next = Instant::now() + Duration::from_secs(1);
            loop {
                if desk.standing().closed {
                    return false;
                }
                tokio::select! {
                    () = desk.bell.notified() => {}
                    alive = sleep_until(&desk.queue.wheel, next) => {
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
        let queue = &self.desk.queue;
        let Some(notifications) = &queue.notifications else {
            return;
        };
        for (number, partition) in queue.partitions.iter().enumerate() {
            let listener = notifications.listen(&partition.channel);
            self.hints.push(
                stream::unfold(listener, move |listener| async move {
                    listener.heard().await;
                    Some((number, listener))
                })
                .boxed(),
            );
        }
    }

    /// Until the stream is dropped or the wheel shut down.
    async fn work(&mut self) {
        let desk = self.desk.clone();
        let wheel = desk.queue.wheel.clone();
        loop {
            let standing = desk.standing();
            if standing.closed || wheel.is_shutdown() {
                return;
            }
            let now = Instant::now();
            if standing.asked && mem::take(&mut self.sated) {
                self.looks.iter_mut().for_each(|look| look.at = now);
            }
            self.clear(&standing, now);
            self.look(&desk.standing(), now);
            if self.renew_at <= now {
                self.renew();
            } else if self.lapse_at <= now {
                self.lapse();
            }
            let standing = desk.attend(self.ring());
            if standing.closed || (standing.asked && self.sated) || self.wants_more(&standing) {
                continue;
            }
            let next = self.next(&standing, now);
            tokio::select! {
                () = desk.bell.notified() => {}
                Some(claim) = self.held.next(), if !self.held.is_empty() => {
                    claim.into_iter().for_each(|claim| desk.lay(claim));
                    // What is due at the same tick is laid at once.
                    while let Some(Some(claim)) = self.held.next().now_or_never() {
                        claim.into_iter().for_each(|claim| desk.lay(claim));
                    }
                }
                Some((order, taken)) = self.takes.next(), if !self.takes.is_empty() => self.taken(order, taken),
                Some(partition) = self.hints.next(), if !self.hints.is_empty() => self.hinted(partition),
                alive = sleep_until(&wheel, next) => {
                    if !alive {
                        return;
                    }
                }
            }
        }
    }

    // Taking.

    /// How many claims there could be beside those on the desk.
    fn room(&self) -> usize {
        let prefetch = self.desk.settings.prefetch;
        prefetch.saturating_sub(self.held.len() + self.expected)
    }

    /// How much room is worth a take.
    fn half(&self) -> usize {
        self.desk.settings.prefetch.div_ceil(2)
    }

    fn has_more(&self) -> bool {
        !self.sated && self.looks.iter().any(|look| look.more && !look.taking)
    }

    /// Whether there is room for what is known to be there.
    fn wants_more(&self, standing: &Standing) -> bool {
        let free = self.room().saturating_sub(standing.laid);
        let starving = standing.asked && standing.laid == 0;
        self.has_more() && free > 0 && (starving || free >= self.half())
    }

    fn ring(&self) -> Ring {
        let more = self.has_more();
        Ring {
            asked: self.sated,
            low: self.room().checked_sub(self.half()).filter(|_| more),
            starving: more && self.room() > 0,
        }
    }

    fn look(&mut self, standing: &Standing, now: Instant) {
        if self.sated {
            return;
        }
        let partitions = self.looks.len();
        for step in 0..partitions {
            let partition = (self.turn + step) % partitions;
            let free = self.room().saturating_sub(standing.laid);
            let wants_more = self.wants_more(standing);
            let look = &mut self.looks[partition];
            if look.taking {
                continue;
            }
            if look.at <= now {
                if free == 0 && now < look.sent + SWEEP && !look.unanswered {
                    look.more = true;
                    look.at = look.sent + SWEEP;
                    continue;
                }
            } else if !(look.more && wants_more) {
                continue;
            }
            let limit = free.min(TAKE);
            if !look.unanswered {
                look.number += 1;
            }
            let order = Order {
                worker: self.worker,
                partition,
                number: look.number,
                limit,
                again: look.unanswered,
            };
            look.taking = true;
            look.hinted = false;
            look.more = false;
            look.sent = now;
            self.expected += limit;
            self.takes
                .push(take(self.desk.queue.clone(), self.desk.settings, order).boxed());
        }
        self.turn = (self.turn + 1) % partitions;
    }

    fn taken(&mut self, order: Order, taken: Result<Taken, Error>) {
        self.expected -= order.limit;
        let now = Instant::now();
        let look = &mut self.looks[order.partition];
        look.taking = false;
        look.unanswered = taken.is_err();
        let Taken {
            claims,
            next_due,
            next_end,
        } = match taken {
            Ok(taken) => taken,
            Err(error) => {
                look.at = now + look.pause / 2 + random_part(look.pause / 2);
                look.pause = (look.pause * 2).min(LONGEST_PAUSE);
                self.desk.report(error);
                return;
            }
        };
        look.pause = PAUSE;
        // Those that look at the same moment, at first and when there is news, do not go on doing so.
        let jitter = if mem::replace(&mut look.swept, true) {
            JITTER
        } else {
            SWEEP / 2
        };
        look.at = look.sent + SWEEP - random_part(jitter);
        if let Some(end) = next_end {
            look.at = look.at.min(end.max(look.sent + ENDS_APART));
        }
        if let Some(due) = next_due {
            let ahead = self.desk.settings.look_ahead;
            let claimable = due.checked_sub(ahead).unwrap_or(now);
            look.more = claimable <= now;
            if !look.more {
                // At half of the look-ahead, so that what comes due one after the other is taken together.
                look.at = look.at.min(claimable + ahead / 2);
            }
        }
        if look.hinted {
            look.at = now;
        }
        for (due, claim) in claims {
            self.desk.hold(&claim.grip);
            if due <= now {
                self.desk.lay(claim);
            } else {
                let wheel = self.desk.queue.wheel.clone();
                self.held.push(OnWheel {
                    claim: Some(claim),
                    sleep: async move { sleep_until(&wheel, due).await }.boxed(),
                });
            }
        }
    }

    fn hinted(&mut self, partition: usize) {
        let look = &mut self.looks[partition];
        look.hinted = true;
        if !look.taking && !look.unanswered {
            look.at = Instant::now();
        }
    }

    // Giving back.

    /// Gives back what the consumer has not asked for.
    fn clear(&mut self, standing: &Standing, now: Instant) {
        let is_over = |since: Option<Instant>, limit| since.is_some_and(|since| since + limit <= now);
        let laid = !standing.asked && is_over(standing.due_since, LAID);
        let started = is_over(standing.started_since, STARTED);
        if laid {
            self.sated = true;
        }
        if laid || started {
            let (claims, starts) = self.desk.clear(laid.then_some(now), started.then_some(now));
            self.give_back("release", claims);
            self.give_back("unstart", starts);
        }
    }

    fn give_back(&self, name: &str, claims: Vec<Claim>) {
        let deadline = Instant::now() + PATIENCE;
        for Claim { grip, .. } in claims {
            self.desk.let_go(&grip);
            let arguments = verb(name, &grip.id, &grip.token, 0, 0);
            self.desk.queue.partitions[grip.partition].settle.push(
                // What could not be given back comes again when its lease has run out.
                Verb::new(arguments, deadline, drop),
            );
        }
    }

    // Renewing.

    /// A third of the lease, less a random part: workers that started together do not renew together.
    fn renewal_period(&self) -> Duration {
        let third = self.desk.settings.lease / 3;
        third - random_part(third / 5)
    }

    fn renew(&mut self) {
        self.renew_at = Instant::now() + self.renewal_period();
        let lease = self.desk.settings.lease;
        for grip in self.lapse() {
            if !grip.begin_renewal() {
                continue;
            }
            let arguments = verb("renew", &grip.id, &grip.token, micros(lease), 0);
            let deadline = grip.validity.until();
            let lane = self.desk.queue.partitions[grip.partition].settle.clone();
            let wheel = self.desk.queue.wheel.clone();
            lane.push(Verb::new(arguments, deadline, move |answer| {
                renewed(&grip, answer, &wheel, lease);
            }));
        }
    }

    /// Ends what has run out. Returns what is left.
    fn lapse(&mut self) -> Vec<Arc<Grip>> {
        let grips = self.desk.grips();
        self.lapse_at = grips
            .iter()
            .map(|grip| grip.validity.until())
            .min()
            .unwrap_or_else(|| Instant::now() + self.desk.settings.lease);
        grips
    }

    /// When there is something to do, if nothing happens.
    fn next(&self, standing: &Standing, now: Instant) -> Instant {
        let mut next = self.renew_at.min(self.lapse_at);
        if !self.sated {
            for look in self.looks.iter().filter(|look| !look.taking) {
                next = next.min(look.at);
            }
        }
        // Nobody rings when a job is fetched, nor when it is not.
        if standing.laid > 0 || standing.out > 0 {
            next = next.min(now + STARTED);
        }
        next
    }

    // The end.

    /// Gives back what was claimed, and renews what the consumer still works on.
    async fn finish(mut self) {
        let desk = self.desk.clone();
        let wheel = desk.queue.wheel.clone();
        self.hints.clear();
        for on_wheel in mem::take(&mut self.held) {
            self.give_back("release", on_wheel.claim.into_iter().collect());
        }
        let mut given = false;
        loop {
            // Starts that were under way when the stream went are answered late.
            self.clear_all();
            if wheel.is_shutdown() {
                desk.end();
                break;
            }
            if self.takes.is_empty() && !mem::replace(&mut given, true) {
                self.give_back_unanswered();
            }
            if given && !desk.standing().holds {
                return;
            }
            let now = Instant::now();
            if self.renew_at <= now {
                self.renew();
            } else if self.lapse_at <= now {
                self.lapse();
            }
            let next = self.renew_at.min(self.lapse_at);
            tokio::select! {
                () = desk.bell.notified() => {}
                Some((order, taken)) = self.takes.next(), if !self.takes.is_empty() => self.untake(order, taken),
                _ = sleep_until(&wheel, next) => {}
            }
        }
        while let Some((order, taken)) = self.takes.next().await {
            self.untake(order, taken);
        }
        if !given {
            self.give_back_unanswered();
        }
    }

    fn clear_all(&mut self) {
        let now = Instant::now();
        let (claims, starts) = self.desk.clear(Some(now), Some(now));
        self.give_back("release", claims);
        self.give_back("unstart", starts);
    }

    fn untake(&mut self, order: Order, taken: Result<Taken, Error>) {
        self.looks[order.partition].unanswered = taken.is_err();
        if let Ok(taken) = taken {
            let claims = taken.claims.into_iter().map(|(_, claim)| claim).collect();
            self.give_back("release", claims);
        }
    }

    fn give_back_unanswered(&self) {
        for (partition, look) in self.looks.iter().enumerate() {
            if look.unanswered {
                let queue = self.desk.queue.clone();
                let call = queue.partitions[partition].give_back(self.worker, look.number);
                // What could not be given back comes again when its lease has run out.
                tokio::spawn(async move { queue.ask(call).await.map(drop) });
            }
        }
    }
}

fn renewed(grip: &Grip, answer: Result<Answer, Error>, wheel: &tickwheel::Wheel, lease: Duration) {
    grip.end_renewal();
    match answer {
        Ok(Answer { yes: true, sent }) => {
            grip.validity.extend(valid_until(wheel, sent, lease));
        }
        Ok(Answer { yes: false, .. }) => grip.validity.lose(),
        // It may be renewed yet, the next time; if not, it lapses.
        Err(_) => {}
    }
}
