//! `Batcher`: sends the operations on the jobs of one partition in batches.
//!
//! Each runtime on which operations are asked for has a lane of its own, so that none waits for another. A
//! lane sends one batch at a time. An operation is sent at once if no batch of its lane is in flight.
//! Operations that arrive while one is in flight are sent together in the next one. Batching therefore delays
//! no operation, and the more operations there are, the fewer commands each of them takes.
//!
//! Batches are named by the `sender` of their lane. A batch whose answer was lost is sent again under the
//! same name, and Redis gives the same answer as at first. No batch is sent before its predecessor has been
//! answered, so Redis keeps only one answer per sender. A lane ends when no operation waits, and leaves its
//! sender to the next one, so there are only as many senders as there were lanes at once.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use redis::Value;
use tokio::{runtime::Handle, sync::oneshot, task::yield_now, time::Instant};

use super::change::Change;
use crate::{
    error::Error,
    mutex::Mutex,
    per_runtime::{Guard, PerRuntime},
    server::{
        erased::AnyConnection,
        names::Sender,
        retry::ask,
        script::{Call, parse, unexpected},
    },
    timers,
};

/// The largest number of jobs that a script looks at.
pub(crate) const BATCH: usize = 100;
/// The largest size of a batch in bytes. A larger operation gets a batch of its own, so that no other
/// operation fails with it.
const BATCH_BYTES: usize = 256 << 10;
/// How long after its deadline an operation is answered, unless the runtime that sends it has come to a stop.
const OVERTIME: Duration = Duration::from_secs(1);

pub(crate) struct Batcher {
    server: Arc<dyn AnyConnection>,
    /// What every call begins with: the script and the keys of the partition.
    call: Call,
    channel: String,
    /// After how long a call is sent again.
    answer_within: Duration,
    /// The operations that wait, of each runtime that has a lane. If the runtime ends, they are answered by
    /// being dropped.
    lanes: PerRuntime<VecDeque<Operation>>,
    /// The senders of lanes that have ended.
    senders: Mutex<Vec<Sender>>,
}

type OnAnswer = Box<dyn FnOnce(Result<Answer, Error>) + Send>;

/// What a script says of an operation, and when the request was first sent.
type Answer = (u64, Instant);

/// A change that waits to be sent or answered.
pub(crate) struct Operation {
    arguments: Vec<Vec<u8>>,
    asked: Instant,
    /// When the answer becomes useless.
    deadline: Instant,
    /// Called once with the answer.
    answered: Option<OnAnswer>,
}

impl Operation {
    /// Creates an operation. `answered` is called exactly once, with no lock of a batcher held.
    pub(crate) fn new<A: 'static>(
        change: Change<A>,
        deadline: Instant,
        answered: impl FnOnce(Result<A, Error>) + Send + 'static,
    ) -> Operation {
        let (arguments, read) = change.request();
        let read = move |(number, sent): Answer| {
            read(number, sent).ok_or_else(|| unexpected(&Value::Int(number as i64)))
        };
        Operation {
            arguments,
            asked: Instant::now(),
            deadline,
            answered: Some(Box::new(move |answer| answered(answer.and_then(read)))),
        }
    }

    fn answer(mut self, answer: Result<Answer, Error>) {
        if let Some(answered) = self.answered.take() {
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
        if let Some(answered) = self.answered.take() {
            answered(Err(Error::NoAnswer {
                waited: self.asked.elapsed(),
            }));
        }
    }
}

impl Batcher {
    /// Creates a batcher whose calls begin with `call`, and then with their name and the channel on which
    /// workers are told.
    pub(crate) fn new(
        server: Arc<dyn AnyConnection>,
        call: Call,
        channel: String,
        answer_within: Duration,
    ) -> Arc<Batcher> {
        Arc::new(Batcher {
            server,
            call,
            channel,
            answer_within,
            lanes: PerRuntime::default(),
            senders: Mutex::default(),
        })
    }

    /// Adds operations to the lane of a runtime. They are sent together if they fit into one batch.
    pub(crate) fn push(self: &Arc<Self>, runtime: &Handle, operations: impl IntoIterator<Item = Operation>) {
        let mut operations = operations.into_iter().peekable();
        if operations.peek().is_none() {
            return;
        }
        let serve = |guard| {
            let sender = self.senders.lock().pop();
            let lane = Lane {
                batcher: self.clone(),
                guard,
                sender: sender.unwrap_or_else(Sender::new),
                is_sending: false,
            };
            lane.send_all()
        };
        self.lanes.get_or_start(runtime, VecDeque::new, serve, |waiting| {
            waiting.extend(operations)
        });
    }

    /// Pushes a change, to be sent on the current runtime, and returns a future that waits for its answer.
    pub(crate) fn submit<A: Send + 'static>(
        self: &Arc<Self>,
        change: Change<A>,
        deadline: Instant,
    ) -> Result<impl Future<Output = Result<A, Error>> + use<A>, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::NoRuntime);
        };
        let (sender, receiver) = oneshot::channel();
        let asked = Instant::now();
        let operation = Operation::new(change, deadline, |answer| {
            let _ = sender.send(answer);
        });
        self.push(&runtime, [operation]);
        Ok(async move {
            match timers::until(deadline + OVERTIME, receiver).await {
                Some(Ok(answer)) => answer,
                // Every operation is answered, but not by a runtime that nobody drives.
                Some(Err(_)) | None => Err(Error::NoAnswer {
                    waited: asked.elapsed(),
                }),
            }
        })
    }
}

/// Takes the next batch, and the operations before its end whose deadline has passed.
fn next_batch(waiting: &mut VecDeque<Operation>) -> (Vec<Operation>, Vec<Operation>) {
    let (mut batch, mut late, mut bytes) = (Vec::new(), Vec::new(), 0);
    let now = Instant::now();
    while let Some(first) = waiting.front()
        && batch.len() < BATCH
        && (batch.is_empty() || bytes + first.bytes() <= BATCH_BYTES)
        && let Some(operation) = waiting.pop_front()
    {
        if operation.deadline <= now {
            late.push(operation);
        } else {
            bytes += operation.bytes();
            batch.push(operation);
        }
    }
    (batch, late)
}

/// Sends the batches of one runtime until no operation waits.
struct Lane {
    batcher: Arc<Batcher>,
    guard: Guard<VecDeque<Operation>>,
    /// Left to the next lane.
    sender: Sender,
    /// Whether the outcome of the sender's last call is unknown.
    is_sending: bool,
}

impl Lane {
    async fn send_all(mut self) {
        loop {
            // Tasks that were just woken, some of them by the last answers, push their operations first and
            // so join this batch.
            yield_now().await;
            let lane = self.guard.running();
            if lane.end_if(|waiting| waiting.is_empty()).is_some() {
                return;
            }
            let (batch, late) = lane.get(next_batch).unwrap_or_default();
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

    async fn send_batch(&mut self, mut batch: Vec<Operation>) {
        let (batcher, sender) = (&self.batcher, &mut self.sender);
        let mut arguments = Vec::new();
        for operation in &mut batch {
            arguments.append(&mut operation.arguments);
        }
        let sent = Instant::now();
        let deadlines = batch.iter().map(|operation| operation.deadline);
        let deadline = deadlines.max().unwrap_or(sent);
        let operations = batch.len();
        let read = |answer| numbers(answer, operations);
        self.is_sending = true;
        let answers = loop {
            sender.next_call();
            let head = [
                ("sequence", sender.sequence()),
                ("channel", batcher.channel.clone()),
            ];
            let call = batcher.call.clone().named(head).args(arguments.iter().cloned());
            let server = &*batcher.server;
            let answers = ask(server, call, batcher.answer_within, deadline, read).await;
            match &answers {
                Ok(_) => sender.stored(),
                Err(error) if sender.renew_if_copied(error) && Instant::now() < deadline => continue,
                Err(_) => sender.given_up(),
            }
            break answers;
        };
        self.is_sending = false;
        match answers {
            Ok(answers) => {
                for (operation, number) in batch.into_iter().zip(answers) {
                    operation.answer(Ok((number, sent)));
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

impl Drop for Lane {
    fn drop(&mut self) {
        if self.is_sending {
            self.sender.given_up();
        }
        self.batcher.senders.lock().push(self.sender.clone());
    }
}

/// Reads as many numbers as expected.
fn numbers(answer: Value, expected: usize) -> Result<Vec<u64>, Error> {
    let text: String = parse(answer)?;
    let numbers: Option<Vec<u64>> = text.split(' ').map(|number| number.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.len() == expected);
    numbers.ok_or_else(|| unexpected(&Value::BulkString(text.into())))
}
