//! `Batcher`: sends the operations on the jobs of one partition in batches, one batch at a time.
//!
//! An operation is sent at once if no batch is in flight. Operations that arrive while a batch is in flight are sent together in the
//! next one. Batching therefore delays no operation, and the more operations there are, the fewer commands each of them takes.
//!
//! Batches are named by a `sender`. A batch whose answer was lost is sent again under the same name, and Redis gives the same answer as
//! at first. No batch is sent before its predecessor has been answered, so Redis keeps only one answer per batcher.

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
    asking::{ask, unexpected},
    sender::Sender,
    server::Server,
};
use crate::{
    error::Error,
    nonce::Nonce,
    script::{Call, Script},
};

/// The largest number of jobs that a script looks at.
const BATCH: usize = 100;
/// The largest size of a batch in bytes. A larger operation gets a batch of its own, so that no other operation fails with it.
const BATCH_BYTES: usize = 256 << 10;

pub(super) struct Batcher {
    server: Arc<dyn Server>,
    wheel: Wheel,
    script: &'static Script,
    /// The keys of the partition.
    keys: Vec<String>,
    /// Returns the key of a sender's last answer.
    last_reply: Box<dyn Fn(Nonce) -> String + Send + Sync>,
    /// The first arguments of every call, after its name.
    head: Vec<Vec<u8>>,
    /// The time limit of one attempt.
    attempt: Duration,
    /// Locked while a batch is in flight.
    sender: tokio::sync::Mutex<Sender>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Operation>,
    /// Whether a task is sending batches.
    busy: bool,
}

type Answered = Box<dyn FnOnce(Result<Answer, Error>) + Send>;

/// An operation on one job.
pub(super) struct Operation {
    arguments: Vec<Vec<u8>>,
    asked: Instant,
    /// When the answer becomes useless.
    deadline: Instant,
    /// Called once with the answer.
    answer: Option<Answered>,
}

impl Operation {
    /// Creates an operation. `answer` is called exactly once, with no lock of a batcher held.
    pub(super) fn new(
        arguments: Vec<Vec<u8>>,
        deadline: Instant,
        answer: impl FnOnce(Result<Answer, Error>) + Send + 'static,
    ) -> Operation {
        Operation {
            arguments,
            asked: Instant::now(),
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

impl Drop for Operation {
    /// Answers an operation whose task was dropped by a runtime that shut down.
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
    /// When the request was first sent, from which time a granted lease counts.
    pub(super) sent: Instant,
}

impl Batcher {
    pub(super) fn new(
        server: Arc<dyn Server>,
        wheel: Wheel,
        script: &'static Script,
        keys: Vec<String>,
        last_reply: impl Fn(Nonce) -> String + Send + Sync + 'static,
        head: Vec<Vec<u8>>,
        attempt: Duration,
    ) -> Arc<Batcher> {
        Arc::new(Batcher {
            server,
            wheel,
            script,
            keys,
            last_reply: Box::new(last_reply),
            head,
            attempt,
            sender: tokio::sync::Mutex::new(Sender::new()),
            state: Mutex::default(),
        })
    }

    /// Adds operations, which are sent together if they fit into one batch. Must be called in a Tokio runtime unless a batch is in
    /// flight already.
    pub(super) fn push(self: &Arc<Self>, operations: impl IntoIterator<Item = Operation>) {
        let mut state = self.lock();
        state.waiting.extend(operations);
        if state.busy || state.waiting.is_empty() {
            return;
        }
        state.busy = true;
        drop(state);
        let task = BatchTask {
            batcher: self.clone(),
            finished: false,
        };
        tokio::spawn(task.send_all());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next batch, and the operations whose deadline has passed.
    fn next(&self) -> (Vec<Operation>, Vec<Operation>) {
        let mut state = self.lock();
        let (mut batch, mut late, mut bytes) = (Vec::new(), Vec::new(), 0);
        let now = Instant::now();
        while batch.len() < BATCH {
            let fits = |operation: &Operation| batch.is_empty() || bytes + operation.bytes() <= BATCH_BYTES;
            if !state.waiting.front().is_some_and(fits) {
                break;
            }
            let Some(operation) = state.waiting.pop_front() else {
                break;
            };
            if operation.deadline <= now {
                late.push(operation);
            } else {
                bytes += operation.bytes();
                batch.push(operation);
            }
        }
        if batch.is_empty() && late.is_empty() {
            state.busy = false;
        }
        (batch, late)
    }
}

/// Sends batches until no operation waits. If it is dropped before that with its runtime, it answers all of them.
struct BatchTask {
    batcher: Arc<Batcher>,
    finished: bool,
}

impl BatchTask {
    async fn send_all(mut self) {
        loop {
            // Tasks that were just woken, some of them by the last answers, push their operations first and so join this batch.
            yield_now().await;
            let (batch, late) = self.batcher.next();
            if batch.is_empty() && late.is_empty() {
                self.finished = true;
                return;
            }
            for operation in late {
                // It was never sent, because the batches before it got no answer in time either.
                let waited = operation.asked.elapsed();
                operation.answer(Err(Error::NoAnswer { waited }));
            }
            if !batch.is_empty() {
                self.send_batch(batch).await;
            }
        }
    }

    async fn send_batch(&self, mut batch: Vec<Operation>) {
        let batcher = &self.batcher;
        let mut arguments = batcher.head.clone();
        for operation in &mut batch {
            arguments.append(&mut operation.arguments);
        }
        let sent = Instant::now();
        let last = batch
            .iter()
            .map(|operation| operation.deadline)
            .max()
            .unwrap_or(sent);
        let operations = batch.len();
        let read = |answer: Value| digits(&answer, operations);
        let mut sender = batcher.sender.lock().await;
        let answers = loop {
            sender.next_call();
            let call = batcher.keys.iter().fold(batcher.script.call(), Call::key);
            let call = call
                .key((batcher.last_reply)(sender.name()))
                .arg(sender.sequence())
                .args(arguments.iter().cloned());
            let server = &*batcher.server;
            let answers = ask(server, &batcher.wheel, call, batcher.attempt, last, read).await;
            match &answers {
                Ok(_) => sender.stored(),
                Err(error) if sender.was_copied(error) && Instant::now() < last => continue,
                Err(_) => sender.given_up(),
            }
            break answers;
        };
        drop(sender);
        match answers {
            Ok(answers) => {
                for (operation, yes) in batch.into_iter().zip(answers) {
                    operation.answer(Ok(Answer { yes, sent }));
                }
            }
            Err(error) => {
                for operation in batch {
                    operation.answer(Err(error.clone()));
                }
            }
        }
    }
}

impl Drop for BatchTask {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.batcher.lock();
        state.busy = false;
        let given_up = mem::take(&mut state.waiting);
        drop(state);
        drop(given_up);
    }
}

fn digits(answer: &Value, expected: usize) -> Result<Vec<bool>, Error> {
    match answer {
        Value::BulkString(digits) if digits.len() == expected => {
            Ok(digits.iter().map(|digit| *digit == b'1').collect())
        }
        other => Err(unexpected(other)),
    }
}
