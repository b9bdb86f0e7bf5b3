//! `Lane`: the verbs on the jobs of one partition, in batches, one batch at a time.
//!
//! A verb that finds the lane idle is sent at once. Those that come while its answer is awaited go together, in the next batch.
//! So a batch costs nobody a wait, and the more there is to do, the fewer commands it takes.
//!
//! A batch carries the lane's name and a number. One whose answer was lost is sent again under the same number, and Redis answers
//! as it did at first. Since no batch is sent before the one in front of it is settled, Redis keeps one answer for each lane.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::Value;
use tickwheel::Wheel;
use tokio::{task::yield_now, time::Instant};

use super::{
    patience::{pause, within},
    server::Server,
};
use crate::{
    error::Error,
    nonce::{Nonce, random_part},
    script::{Call, Script},
};

/// As many jobs as a script looks at.
const BATCH: usize = 100;
/// A batch takes no further verb once it has so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long to wait after an attempt that failed: at first, and at most.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Lane {
    server: Arc<dyn Server>,
    wheel: Wheel,
    script: &'static Script,
    /// The keys of the partition, and that of the lane's last answer.
    keys: Vec<String>,
    /// What every call begins with, after the number.
    head: Vec<Vec<u8>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    batches: u64,
    waiting: VecDeque<Verb>,
    /// Whether a task carries batches.
    busy: bool,
}

type Answered = Box<dyn FnOnce(Result<Answer, Error>) + Send>;

/// What is to be done to one job.
pub(super) struct Verb {
    arguments: Vec<Vec<u8>>,
    /// When nobody is interested any more.
    deadline: Instant,
    /// Until it has been given.
    answer: Option<Answered>,
}

impl Verb {
    /// `answer` is called once, in any case, and with no lock of a lane held.
    pub(super) fn new(
        arguments: Vec<Vec<u8>>,
        deadline: Instant,
        answer: impl FnOnce(Result<Answer, Error>) + Send + 'static,
    ) -> Verb {
        Verb {
            arguments,
            deadline,
            answer: Some(Box::new(answer)),
        }
    }

    fn answer(mut self, answer: Result<Answer, Error>) {
        if let Some(answered) = self.answer.take() {
            answered(answer);
        }
    }

    fn bytes(&self) -> usize {
        self.arguments.iter().map(Vec::len).sum()
    }
}

impl Drop for Verb {
    /// Its carrier has gone with its runtime.
    fn drop(&mut self) {
        if let Some(answered) = self.answer.take() {
            answered(Err(Error::NoAnswer {
                waited: Duration::ZERO,
            }));
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) yes: bool,
    /// When the request was sent first: what it grants counts from then.
    pub(super) sent: Instant,
}

impl Lane {
    pub(super) fn new(
        server: Arc<dyn Server>,
        wheel: Wheel,
        script: &'static Script,
        mut keys: Vec<String>,
        lane: impl FnOnce(Nonce) -> String,
        head: Vec<Vec<u8>>,
    ) -> Arc<Lane> {
        keys.push(lane(Nonce::new()));
        Arc::new(Lane {
            server,
            wheel,
            script,
            keys,
            head,
            state: Mutex::default(),
        })
    }

    /// Must be called in a Tokio runtime, if a batch is not under way already.
    pub(super) fn push(self: &Arc<Self>, verb: Verb) {
        let mut state = self.lock();
        state.waiting.push_back(verb);
        if state.busy {
            return;
        }
        state.busy = true;
        drop(state);
        let carrier = Carrier {
            lane: self.clone(),
            finished: false,
        };
        tokio::spawn(carrier.carry_all());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch and its number, and what came too late to be sent.
    fn next(&self) -> (u64, Vec<Verb>, Vec<Verb>) {
        let mut state = self.lock();
        let (mut batch, mut late, mut bytes) = (Vec::new(), Vec::new(), 0);
        let now = Instant::now();
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some(verb) = state.waiting.pop_front() else {
                break;
            };
            if verb.deadline <= now {
                late.push(verb);
            } else {
                bytes += verb.bytes();
                batch.push(verb);
            }
        }
        if batch.is_empty() && late.is_empty() {
            state.busy = false;
        } else if !batch.is_empty() {
            state.batches += 1;
        }
        (state.batches, batch, late)
    }
}

/// Carries batches until nothing waits. Dropped before that, with its runtime, it lets everybody know.
struct Carrier {
    lane: Arc<Lane>,
    finished: bool,
}

impl Carrier {
    async fn carry_all(mut self) {
        loop {
            // Those who are about to ask, some because the last batch was answered, ask first, and so go with this one.
            yield_now().await;
            let (number, batch, late) = self.lane.next();
            if batch.is_empty() && late.is_empty() {
                self.finished = true;
                return;
            }
            for verb in late {
                // Never sent, because what stood in front of it got no answer either.
                verb.answer(Err(Error::NoAnswer { waited: ATTEMPT }));
            }
            if !batch.is_empty() {
                self.carry(number, batch).await;
            }
        }
    }

    async fn carry(&self, number: u64, mut batch: Vec<Verb>) {
        let lane = &self.lane;
        let mut call = lane.script.call();
        for key in &lane.keys {
            call = call.key(key);
        }
        call = call.arg(number).args(lane.head.iter().cloned());
        for verb in &mut batch {
            call = call.args(mem::take(&mut verb.arguments));
        }
        let sent = Instant::now();
        let last = batch.iter().map(|verb| verb.deadline).max().unwrap_or(sent);
        match self.ask(&Arc::new(call), batch.len(), last).await {
            Ok(answers) => {
                for (verb, yes) in batch.into_iter().zip(answers) {
                    verb.answer(Ok(Answer { yes, sent }));
                }
            }
            Err(error) => {
                for verb in batch {
                    verb.answer(Err(error.clone()));
                }
            }
        }
    }

    /// Sends the call until there is an answer, or nobody is interested any more.
    async fn ask(&self, call: &Arc<Call>, verbs: usize, last: Instant) -> Result<Vec<bool>, Error> {
        let lane = &self.lane;
        let mut rest = PAUSE;
        loop {
            let left = last.saturating_duration_since(Instant::now()).min(ATTEMPT);
            let answer = within(&lane.wheel, left, lane.server.send(call.clone())).await;
            let error = match answer.and_then(|answer| digits(&answer, verbs)) {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            if !is_passing(&error) || Instant::now() + rest >= last {
                return Err(error);
            }
            pause(&lane.wheel, rest / 2 + random_part(rest / 2)).await;
            rest = (rest * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.lane.lock();
        state.busy = false;
        let given_up = mem::take(&mut state.waiting);
        drop(state);
        drop(given_up);
    }
}

/// Whether to send the same batch again. A server without memory is not asked again: it would only be asked more.
pub(super) fn is_passing(error: &Error) -> bool {
    error.is_passing()
        && !matches!(error, Error::Redis(error) if matches!(error.code(), Some("OOM" | "STALE")))
}

fn digits(answer: &Value, expected: usize) -> Result<Vec<bool>, Error> {
    match answer {
        Value::BulkString(digits) if digits.len() == expected => {
            Ok(digits.iter().map(|digit| *digit == b'1').collect())
        }
        other => Err(unexpected(other)),
    }
}

/// The error for an answer that no script of ours gives.
pub(super) fn unexpected(answer: &Value) -> Error {
    Error::Redis(redis::RedisError::from((
        redis::ErrorKind::UnexpectedReturnType,
        "not the answer of this script",
        format!("{answer:?}"),
    )))
}
