//! `Desk`: what a worker's stream, its engine and its jobs share.
//!
//! The engine puts claims on the desk that have become due. A poll of the stream asks for a job, whereupon as
//! many claims are started as the consumer has places for, which makes them deliveries, and the stream yields
//! the started jobs.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{consumer::Consumer, held::HeldLeases};
use crate::{
    error::Error,
    jobs::{
        settings::WorkerSettings,
        store::{
            batcher::Operation,
            change::{Change, Finished, Leased, give_back, start},
            claim::{Claim, JobLease},
            nearby::NearbyWorker,
            queue::{CALL_LIMIT, Queue},
        },
    },
    mutex::Mutex,
    validity::valid_for,
};

/// How long a consumer may work on a job and not ask for another, before what was claimed for it goes back.
pub(super) const UNASKED: Duration = Duration::from_millis(50);

/// The shortest interval between two errors that the stream yields.
const ERRORS_APART: Duration = Duration::from_secs(1);

pub(super) struct Desk {
    pub(super) queue: Arc<Queue>,
    pub(super) settings: WorkerSettings,
    /// With the runtime of the engine, on which claims are started too: whoever polls the stream may stop at
    /// any time. The engine is notified of work there.
    pub(super) nearby: Arc<NearbyWorker>,
    /// Tracks what goes back until it is answered, and starts, which may have to go back then. It is closed
    /// once a worker that ends has sent all else.
    pub(super) given_back: TaskTracker,
    /// All leases that are renewed, of claims and of jobs.
    pub(super) held: Arc<HeldLeases>,
    state: Mutex<State>,
}

struct State {
    /// Claims that have become due, by due time and then by the order in which they were added.
    due: BTreeMap<(u64, u64), Claim>,
    added: u64,
    starting: usize,
    started: VecDeque<Claim>,
    consumer: Consumer,
    /// Whether the consumer waits for a job.
    asked: bool,
    waker: Option<Waker>,
    error: Option<Error>,
    last_error: Option<Instant>,
    /// Whether the stream has ended: it was dropped or closed, or its runtime or its wheel has ended.
    ended: bool,
}

impl State {
    /// Whether the consumer receives what is started now. One that works on as many jobs as it has places for
    /// does not ask. It will when the end of one of them is answered, which is sent in the same batch as the
    /// start of the next one. If it does not receive what is started, no more is.
    fn will_receive(&self) -> bool {
        self.asked || (self.consumer.places.is_some() && self.started.is_empty())
    }
}

/// The part of the state that the engine reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    /// Whether the consumer waits for a job.
    pub(super) asked: bool,
    pub(super) ended: bool,
    /// Claims that have become due and that the consumer has not received.
    pub(super) ready: usize,
    /// How many places the consumer has, if it has said so, and how many are free.
    pub(super) places: Option<usize>,
    pub(super) free: usize,
    /// How many jobs the consumer starts in the time that was asked about.
    pub(super) starts_soon: usize,
    /// When it last received a job.
    pub(super) received_at: Option<Instant>,
    /// Whether a due claim waits, and since when the first started one has.
    pub(super) has_due: bool,
    pub(super) started_since: Option<Instant>,
}

impl Status {
    /// Whether the consumer receives a job as soon as there is one, for all that is known.
    pub(super) fn has_free_place(&self) -> bool {
        self.asked || (self.places.is_some() && self.free > 0)
    }

    /// Whether the consumer has not asked for another job for so long since it received one, or has left the
    /// first one that it asked for.
    pub(super) fn is_busy(&self, now: Instant, long: Duration) -> bool {
        !self.asked && self.received_at.is_none_or(|at| at + long <= now)
    }
}

impl Desk {
    pub(super) fn new(queue: Arc<Queue>, settings: WorkerSettings, runtime: Handle) -> Arc<Desk> {
        let notifications = queue.settings.notifications.clone();
        let nearby = queue.nearby.add(runtime, settings.look_ahead, notifications);
        let stats = queue.nearby.stats.clone();
        Arc::new(Desk {
            held: HeldLeases::new(settings.lease, &queue.wheel, stats, nearby.clone()),
            nearby,
            queue,
            settings,
            given_back: TaskTracker::new(),
            state: Mutex::new(State {
                due: BTreeMap::new(),
                added: 0,
                starting: 0,
                started: VecDeque::new(),
                consumer: Consumer::new(settings.concurrency),
                asked: false,
                waker: None,
                error: None,
                last_error: None,
                ended: false,
            }),
        })
    }

    /// Sends operations from the runtime of the engine.
    pub(super) fn send(&self, operations: Vec<(usize, Operation)>) {
        self.queue.update_all(&self.nearby.runtime, operations);
    }

    /// Gives claims back, started or not.
    pub(super) fn give_back(self: &Arc<Self>, claims: impl IntoIterator<Item = Claim>) {
        self.give_back_as(|claim| give_back(&claim.lease, claim.was_tried), claims);
    }

    /// Gives claims back by such changes, from the runtime of the engine.
    pub(super) fn give_back_as(
        self: &Arc<Self>,
        how: impl Fn(&Claim) -> Change<Finished>,
        claims: impl IntoIterator<Item = Claim>,
    ) {
        let changes = claims.into_iter().map(|claim| {
            self.held.remove(&claim.lease);
            (claim.lease.partition, how(&claim))
        });
        self.give_back_from(&self.nearby.runtime, changes.collect());
    }

    /// Makes changes by which claims go back, from that runtime or, if they get no answer there, as when it has
    /// ended, from that of another worker. Without another one, the claims wait until their leases have expired.
    fn give_back_from(self: &Arc<Self>, runtime: &Handle, changes: Vec<(usize, Change<Finished>)>) {
        let is_first = runtime.id() == self.nearby.runtime.id();
        let operations = changes.into_iter().map(|(partition, change)| {
            let (desk, again, unanswered) = (self.clone(), change.clone(), self.given_back.token());
            let answered = move |finished: Result<Finished, Error>| {
                let _answered = unanswered;
                match finished {
                    Ok(Finished::Lost) => {}
                    Ok(_) => desk.queue.expect_job(partition, Duration::ZERO),
                    Err(error) if error.is_unanswered() && is_first => {
                        if let Some(other) = desk.queue.nearby.another_runtime(&desk.nearby) {
                            desk.give_back_from(&other, vec![(partition, again)]);
                        }
                    }
                    // It is delivered again when its lease has expired.
                    Err(_) => {}
                }
            };
            (
                partition,
                Operation::new(change, Instant::now() + CALL_LIMIT, answered),
            )
        });
        self.queue.update_all(runtime, operations.collect());
    }

    fn notify_engine(&self) {
        self.nearby.has_work.notify_one();
    }

    // The stream's side.

    pub(super) fn set_places(&self, places: usize) {
        self.state.lock().consumer.places = Some(places);
    }

    pub(super) fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Claim, Error>>> {
        let mut lost = Vec::new();
        let next = self.poll_started(cx, &mut lost);
        // For Redis they run until their leases end, or until the end of one that was cancelled is confirmed.
        self.give_back(lost);
        next
    }

    /// Returns a started job, or asks for one. Adds those to `lost` that were lost before they were received.
    fn poll_started(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        lost: &mut Vec<Claim>,
    ) -> Poll<Option<Result<Claim, Error>>> {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        while let Some(claim) = state.started.pop_front() {
            if claim.lease.validity.is_lost() {
                lost.push(claim);
                continue;
            }
            let now = Instant::now();
            state.asked = false;
            state.consumer.receive(now);
            let ends = self.settings.time_limit.and_then(|limit| now.checked_add(limit));
            if let Some(ends) = ends {
                self.held.limit_time(&claim.lease, ends);
            }
            drop(state);
            self.notify_engine();
            let stats = &self.queue.nearby.stats;
            stats.delivered(claim.lateness(now), claim.was_tried);
            return Poll::Ready(Some(Ok(claim)));
        }
        if let Some(error) = state.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        // Dropped with the lock released.
        let old = state.waker.replace(waker);
        state.asked = true;
        let starts = self.start(&mut state);
        drop(state);
        drop(old);
        self.send(starts);
        self.notify_engine();
        Poll::Pending
    }

    pub(super) fn close(&self) {
        self.state.lock().ended = true;
        self.nearby.end();
        self.notify_engine();
    }

    /// Starts as many due claims as the consumer has places for, if it waits for a job or will soon.
    fn start(self: &Arc<Self>, state: &mut State) -> Vec<(usize, Operation)> {
        if !state.will_receive() || state.ended {
            return Vec::new();
        }
        let mut starts = Vec::new();
        while state.consumer.free_places(state.starting + state.started.len()) > 0 {
            let Some((_, claim)) = state.due.pop_first() else {
                break;
            };
            let job = claim.lease.clone();
            if job.validity.is_lost() {
                self.held.remove(&job);
                continue;
            }
            state.starting += 1;
            let start = start(&job, self.settings.lease, self.settings.max_attempts);
            let (desk, unanswered) = (self.clone(), self.given_back.token());
            let start = Operation::new(start, job.validity.until(), move |leased| {
                let _unanswered = unanswered;
                desk.answered(claim, leased);
            });
            starts.push((job.partition, start));
        }
        starts
    }

    /// Goes on with a claim whose start was answered.
    fn answered(self: Arc<Self>, mut claim: Claim, leased: Result<Leased, Error>) {
        let error = match leased {
            Ok(Leased::Since(sent)) => {
                let until = sent + valid_for(self.settings.lease, self.queue.wheel.tick_duration());
                // One that was lost meanwhile goes back when it is to be received.
                claim.lease.validity.extend(until);
                let mut state = self.state.lock();
                state.starting -= 1;
                if state.ended {
                    // Nobody receives it any more.
                    drop(state);
                    return self.give_back([claim]);
                }
                claim.since = Instant::now();
                state.started.push_back(claim);
                return wake(state);
            }
            Ok(Leased::Refused) => None,
            Err(error) => Some(error),
        };
        let mut state = self.state.lock();
        state.starting -= 1;
        self.held.remove(&claim.lease);
        // After an error, which may come from a runtime that shuts down, starting more is left to the next
        // poll.
        let starts = if error.is_none() {
            self.start(&mut state)
        } else {
            Vec::new()
        };
        drop(state);
        self.send(starts);
        // The engine may take other jobs instead, and another worker may run one.
        self.notify_engine();
        let Some(error) = error else {
            return self.queue.expect_job(claim.lease.partition, Duration::ZERO);
        };
        if error.is_unanswered() {
            // It may have been carried out all the same, and then nobody would give the job back before its lease
            // ends.
            self.give_back([claim]);
        }
        self.report(error);
        wake(self.state.lock());
    }

    // The jobs' side.

    /// Stops renewing a job that is being finished or was dropped, and starts another one in its place.
    /// Returns whether it was renewed and not lost until now.
    pub(super) fn vacate(self: &Arc<Self>, lease: &Arc<JobLease>) -> bool {
        let was_held = self.held.remove(lease);
        let mut state = self.state.lock();
        state.consumer.vacate();
        let starts = self.start(&mut state);
        drop(state);
        self.send(starts);
        self.notify_engine();
        was_held
    }

    // The engine's side.

    /// Returns the status, with how many jobs the consumer starts within `soon`.
    pub(super) fn status(&self, soon: Duration) -> Status {
        let state = self.state.lock();
        Status {
            asked: state.asked,
            ended: state.ended,
            ready: state.due.len() + state.starting + state.started.len(),
            places: state.consumer.places,
            free: state.consumer.free_places(0),
            starts_soon: state.consumer.starts_in(Instant::now(), soon),
            received_at: state.consumer.received_at(),
            has_due: !state.due.is_empty(),
            started_since: state.started.front().map(|started| started.since),
        }
    }

    /// Adds claims that have become due.
    pub(super) fn add(self: &Arc<Self>, claims: impl IntoIterator<Item = Claim>) {
        let mut state = self.state.lock();
        let since = Instant::now();
        for mut claim in claims {
            if claim.lease.validity.is_lost() {
                self.held.remove(&claim.lease);
                continue;
            }
            state.added += 1;
            claim.since = since;
            let order = (claim.due, state.added);
            state.due.insert(order, claim);
        }
        let starts = self.start(&mut state);
        drop(state);
        self.send(starts);
    }

    /// Lets the stream yield an error, unless it has yielded another within `ERRORS_APART`.
    pub(super) fn report(&self, error: Error) {
        let mut state = self.state.lock();
        // The error with which the stream ends is its last.
        if state.ended {
            return;
        }
        let now = Instant::now();
        if state.last_error.is_some_and(|last| now < last + ERRORS_APART) {
            return;
        }
        state.last_error = Some(now);
        state.error = Some(error);
        wake(state);
    }

    /// Reports a job that could not be delivered.
    pub(super) fn report_undeliverable(&self, error: Error) {
        tracing::warn!(queue = self.queue.name, %error, "a job could not be delivered");
        self.report(error);
    }

    /// Gives back the claims that have been due, and the jobs that have been started, since before these
    /// instants.
    pub(super) fn give_back_older(
        self: &Arc<Self>,
        due_before: Option<Instant>,
        started_before: Option<Instant>,
    ) {
        let mut state = self.state.lock();
        let mut claims = Vec::new();
        while let Some(due) = state.due.first_entry()
            && Some(due.get().since) <= due_before
        {
            claims.push(due.remove());
        }
        while let Some(started) = state.started.front()
            && Some(started.since) <= started_before
        {
            claims.extend(state.started.pop_front());
            // The consumer has stopped polling.
            state.asked = false;
        }
        drop(state);
        self.give_back(claims);
    }

    /// Ends the stream and all leases, because the wheel was shut down.
    pub(super) fn end(&self) {
        let held = self.end_stream(None);
        self.queue.nearby.stats.lost.add(held.len() as u64);
        for lease in held {
            lease.validity.lose();
        }
    }

    /// Ends the stream with an error, because nobody renews leases any more. Those that are held last until
    /// they expire.
    pub(super) fn end_without_runtime(&self) {
        self.end_stream(Some(Error::NoRuntime));
    }

    /// Ends the stream, and lets go of all leases.
    fn end_stream(&self, error: Option<Error>) -> Vec<Arc<JobLease>> {
        let mut state = self.state.lock();
        state.ended = true;
        state.error = error.or(state.error.take());
        wake(state);
        self.nearby.end();
        self.held.drain()
    }
}

/// Wakes the stream after releasing the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{
        FutureExt,
        future::{BoxFuture, poll_fn},
    };
    use redis::Value;
    use tickwheel::Wheel;
    use tokio::{
        sync::{Notify, mpsc},
        time::timeout,
    };

    use super::*;
    use crate::{
        jobs::settings::HandleSettings,
        server::{erased::AnyConnection, script::Call},
    };

    /// Carries out every call, says that it was sent, and answers when it is told to.
    struct AnswersLate {
        sent: mpsc::UnboundedSender<()>,
        answer: Arc<Notify>,
    }

    impl AnyConnection for AnswersLate {
        fn send<'a>(&'a self, _: &'a Call) -> BoxFuture<'a, Result<Value, Error>> {
            async {
                self.sent.send(()).unwrap();
                self.answer.notified().await;
                Ok(Value::BulkString(b"1".to_vec()))
            }
            .boxed()
        }
    }

    fn due_claim(id: &str) -> Claim {
        let until = Instant::now() + Duration::from_secs(60);
        Claim {
            lease: JobLease::new(id.to_owned(), 0, "holder".into(), until),
            payload: Vec::new(),
            size: 0,
            attempts: 0,
            was_tried: false,
            due: 0,
            late_by: Duration::ZERO,
            due_at: Instant::now(),
            since: Instant::now(),
        }
    }

    /// Whether the stream or the wheel has ended meanwhile, nobody receives it any more. A worker that is
    /// closed waits for both answers.
    #[tokio::test(start_paused = true)]
    async fn a_start_that_is_answered_after_the_end_is_undone() {
        for end in [Desk::close, Desk::end] {
            let (sent, mut was_sent) = mpsc::unbounded_channel();
            let answer = Arc::new(Notify::new());
            let server = Arc::new(AnswersLate {
                sent,
                answer: answer.clone(),
            });
            let settings = HandleSettings {
                answer_within: Duration::from_secs(60),
                ..HandleSettings::default()
            };
            let (wheel, nearby) = (Wheel::new(), Arc::default());
            let queue = Queue::new(wheel, server, "q".to_owned(), settings, nearby);
            let desk = Desk::new(Arc::new(queue), WorkerSettings::default(), Handle::current());
            let asks = poll_fn(|cx| Poll::Ready(desk.poll_next(cx).is_pending()));
            assert!(asks.await, "the consumer waits for a job");
            desk.add(["started", "due"].map(due_claim));
            let soon = Duration::from_secs(1);
            timeout(soon, was_sent.recv()).await.unwrap();
            end(&desk);
            let status = desk.status(soon);
            assert!(status.ready == 2 && status.started_since.is_none());
            desk.given_back.close();
            let given_back = timeout(soon, desk.given_back.wait());
            assert!(given_back.await.is_err(), "the start was not answered");
            answer.notify_one();
            timeout(soon, was_sent.recv()).await.unwrap();
            let given_back = timeout(soon, desk.given_back.wait());
            assert!(given_back.await.is_err(), "its end was not answered");
            answer.notify_one();
            timeout(soon, desk.given_back.wait()).await.unwrap();
        }
    }
}
