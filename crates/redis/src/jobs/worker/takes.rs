//! `Takes`: looks at the partitions when their `Lookout`s say so, and takes as many jobs as there is room
//! for.

use std::{mem, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{runtime::Handle, time::Instant};

use super::{
    desk::{Desk, Status, UNASKED},
    lookout::{Lookout, Plan, Room},
    stock::Stock,
};
use crate::{
    error::Error,
    jobs::store::{
        batcher::Operation,
        change,
        claim::Claim,
        queue::CALL_LIMIT,
        take::{self, Take, Taken},
    },
    server::names::Sender,
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
/// How far ahead jobs are claimed for a consumer that has shown how fast it starts them, in addition to two
/// round trips.
const SOON: Duration = Duration::from_millis(20);
/// The longest round trip that is counted, because a large payload takes longer.
const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(200);

pub(super) struct Takes {
    desk: Arc<Desk>,
    /// The lookout on each partition, and the sender of its takes.
    lookouts: Vec<Lookout>,
    senders: Vec<Sender>,
    /// The partition that is looked at first the next time.
    first: usize,
    in_flight: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// How many jobs the takes in flight may bring, and how many bytes of payload.
    jobs_in_flight: usize,
    bytes_in_flight: usize,
    /// Whether the consumer has asked for a first job.
    has_begun: bool,
    /// How long a take takes, as a moving average.
    round_trip: Duration,
}

/// A take, and what became of it.
pub(super) type Answered = (Take, Result<Taken, Error>);

impl Takes {
    pub(super) fn new(desk: Arc<Desk>) -> Takes {
        let now = Instant::now();
        let partitions = &desk.queue.partitions;
        Takes {
            lookouts: partitions.iter().map(|_| Lookout::new(now)).collect(),
            senders: partitions.iter().map(|_| Sender::new()).collect(),
            first: 0,
            in_flight: FuturesUnordered::new(),
            jobs_in_flight: 0,
            bytes_in_flight: 0,
            has_begun: false,
            round_trip: Duration::ZERO,
            desk,
        }
    }

    /// Returns how far ahead jobs are claimed for a consumer that has shown how fast it starts them.
    pub(super) fn soon(&self) -> Duration {
        SOON + 2 * self.round_trip
    }

    pub(super) fn lookout(&mut self, partition: usize) -> &mut Lookout {
        &mut self.lookouts[partition]
    }

    /// Records what this process knows to become due.
    pub(super) fn expect(&mut self) {
        for (partition, at) in self.desk.nearby.take_expected() {
            if let Some(lookout) = self.lookouts.get_mut(partition) {
                lookout.expect(at);
            }
        }
    }

    /// Returns how many claims the consumer has places for now, or will have started soon. Every other due
    /// job is left to the other workers.
    fn wanted(&self, status: &Status) -> usize {
        let prefetch = self.desk.settings.prefetch;
        let max_claims = status.places.map_or(prefetch, |places| prefetch.max(places));
        if status.asked && status.received_at.is_none() {
            // Of a consumer that does not say its places nothing is known yet. What turns out to be too many
            // goes back soon.
            return status.places.unwrap_or(max_claims);
        }
        let asked = if status.asked { status.free } else { 0 };
        let soon = if status.is_busy(Instant::now(), UNASKED) {
            0
        } else {
            status.starts_soon
        };
        asked.max(soon).min(max_claims)
    }

    /// Returns how many jobs may be claimed, in addition to the stock.
    fn room(&self, status: &Status, stock: &Stock) -> Room {
        let wanted = self.wanted(status);
        // Large jobs that are slow to fetch leave room for others.
        let unfetched = stock.unfetched.len().saturating_sub(wanted);
        let due = wanted.saturating_sub(unfetched + self.jobs_in_flight + status.ready);
        Room {
            due,
            ahead: due.saturating_sub(stock.on_wheel.len()),
            worthwhile: wanted.div_ceil(2),
            is_starving: due > 0 && status.has_free_place() && status.ready == 0 && self.jobs_in_flight == 0,
        }
    }

    /// Sends a take to each partition that is due for one.
    pub(super) fn take_due(&mut self, status: &Status, now: Instant, stock: &Stock) {
        self.has_begun |= status.asked;
        if !self.has_begun {
            return;
        }
        let is_busy = status.is_busy(now, HAND_OVER_AFTER);
        let partitions = self.lookouts.len();
        for step in 0..partitions {
            let partition = (self.first + step) % partitions;
            let room = self.room(status, stock);
            if self.lookouts[partition].plan(now, &room, is_busy) == Plan::Look {
                self.send(partition, &room, now);
            }
        }
        self.first = (self.first + 1) % partitions;
    }

    fn send(&mut self, partition: usize, room: &Room, now: Instant) {
        let lookout = &mut self.lookouts[partition];
        let is_resent = lookout.unanswered;
        let nearby = &self.desk.nearby;
        let channel = &self.desk.queue.partitions[partition].channel;
        let worker = nearby.hears(channel, nearby.name).then_some(nearby.name);
        lookout.begin(now);
        lookout.is_named = worker.is_some();
        if !is_resent {
            self.senders[partition].next_call();
        }
        let bytes = BYTES.saturating_sub(self.bytes_in_flight) / 4;
        let take = Take {
            call: self.senders[partition].call_name(),
            partition,
            wanted: room.due.min(TAKE),
            wanted_ahead: room.ahead.min(TAKE),
            worker,
            bytes: bytes.max(FEWEST_BYTES),
            is_resent,
        };
        self.jobs_in_flight += take.wanted;
        self.bytes_in_flight += take.bytes;
        let (queue, settings) = (self.desk.queue.clone(), self.desk.settings);
        self.in_flight.push(take::send(queue, settings, take).boxed());
    }

    /// Waits for the answer to a take. Without a take in flight, waits for ever.
    pub(super) async fn answered(&mut self) -> Answered {
        match self.in_flight.next().await {
            Some(answered) => answered,
            None => std::future::pending().await,
        }
    }

    /// Takes note of an answer, and returns the claims in it.
    pub(super) fn taken(&mut self, (take, taken): Answered) -> Vec<Claim> {
        self.jobs_in_flight -= take.wanted;
        self.bytes_in_flight -= take.bytes;
        let now = Instant::now();
        let lookout = &mut self.lookouts[take.partition];
        let sender = &mut self.senders[take.partition];
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) if sender.renew_if_copied(&error) => {
                lookout.restart(now);
                return Vec::new();
            }
            Err(error) => {
                lookout.failed(now);
                self.desk.report(error);
                return Vec::new();
            }
        };
        if taken.is_stored {
            sender.stored();
        }
        let round_trip = now
            .saturating_duration_since(lookout.sent)
            .min(LONGEST_ROUND_TRIP);
        self.round_trip = (self.round_trip * 7 + round_trip) / 8;
        let look_ahead = self.desk.settings.look_ahead;
        lookout.answered(now, taken.next_due, taken.next_end, look_ahead);
        lookout.is_listed = taken.is_listed;
        lookout.is_one_of_few = taken.is_one_of_few;
        for error in taken.undeliverable {
            self.desk.report_undeliverable(error);
        }
        taken.claims
    }

    /// Returns when to look at a partition next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        if !self.has_begun {
            return None;
        }
        let waiting = self.lookouts.iter().filter(|lookout| !lookout.is_taking);
        waiting.map(|lookout| lookout.at).min()
    }

    // The end.

    /// Whether a take is in flight, whose jobs have to be given back.
    pub(super) fn are_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Has others told of due jobs in place of this worker, wherever Redis lists it.
    pub(super) fn unlist(&mut self) {
        let deadline = Instant::now() + CALL_LIMIT;
        let lookouts = self.lookouts.iter_mut().enumerate();
        let unlisted = lookouts.filter_map(|(partition, lookout)| {
            let unanswered = mem::take(&mut lookout.is_listed).then(|| self.desk.given_back.token())?;
            let unlist = change::unlist(self.desk.nearby.name);
            Some((
                partition,
                Operation::new(unlist, deadline, move |_| drop(unanswered)),
            ))
        });
        self.desk.send(unlisted.collect());
    }

    /// Undoes the takes that were not answered and will not be, on that runtime.
    pub(super) fn undo_unanswered(&mut self, runtime: &Handle) {
        for (partition, lookout) in self.lookouts.iter_mut().enumerate() {
            if mem::take(&mut lookout.unanswered) || mem::take(&mut lookout.is_taking) {
                let call = self.senders[partition].call_name();
                let undone = take::undo(self.desk.queue.clone(), partition, &call);
                self.desk.given_back.spawn_on(undone, runtime);
            }
        }
    }
}
