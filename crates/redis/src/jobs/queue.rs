//! `Queue`: the state that all handles, workers and jobs of a queue share.

use std::{
    iter::{from_fn, once},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::Value;
use tickwheel::Wheel;
use tokio::{
    sync::{OnceCell, Semaphore, oneshot},
    time::Instant,
};

use super::{
    asking::{ask, unexpected},
    batcher::{Answer, Batcher, Operation},
    limits::Limits,
    partition::{PREFIX, Partition, partition_of},
    server::Server,
};
use crate::{
    error::{Error, check_name},
    keys::Tag,
    notifications::Notifications,
    script::{Call, Script},
};

static OPEN: Script = Script::new(include_str!("scripts/open.lua"));

/// How long a call is retried at least while Redis does not answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The largest number of partitions that a worker can still sweep.
const MAX_PARTITIONS: usize = 1024;

/// How many payloads are fetched in parts at the same time.
const FETCHES: usize = 2;

pub(super) struct Queue {
    pub(super) wheel: Wheel,
    pub(super) server: Arc<dyn Server>,
    pub(super) name: String,
    pub(super) partitions: Vec<Partition>,
    /// The number of partitions asked for, which `check` may refuse.
    pub(super) given: usize,
    pub(super) notifications: Option<Notifications>,
    pub(super) limits: Limits,
    /// Permits to fetch payloads in parts.
    pub(super) fetches: Semaphore,
    opened: OnceCell<()>,
}

impl Queue {
    pub(super) fn new(
        wheel: Wheel,
        server: Arc<dyn Server>,
        name: String,
        given: usize,
        notifications: Option<Notifications>,
        limits: Limits,
    ) -> Queue {
        let partitions = (0..given.clamp(1, MAX_PARTITIONS))
            .map(|number| Partition::new(&name, number, &server, &wheel, limits))
            .collect();
        Queue {
            wheel,
            server,
            name,
            partitions,
            given,
            notifications,
            limits,
            fetches: Semaphore::new(FETCHES),
            opened: OnceCell::new(),
        }
    }

    /// Checks, at first use, that the queue has this number of partitions and that Redis does not evict keys.
    pub(super) async fn open(&self) -> Result<(), Error> {
        self.opened.get_or_try_init(|| self.check()).await.copied()
    }

    async fn check(&self) -> Result<(), Error> {
        check_name(&self.name, "a queue's name has at least one character")?;
        if self.given != self.partitions.len() {
            return Err(Error::InvalidSetting {
                setting: "partitions",
                value: self.given.to_string(),
                allowed: "1 to 1024",
            });
        }
        self.limits.check()?;
        self.server.check_policy().await?;
        let call = OPEN
            .call()
            .key(Tag::new(PREFIX, &self.name).key("partitions"))
            .arg(self.given);
        match self.ask(call).await? {
            Value::Int(stored) if stored == self.given as i64 => Ok(()),
            Value::Int(stored) => Err(Error::Partitions {
                given: self.given as u32,
                stored: u32::try_from(stored).unwrap_or(u32::MAX),
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a call that may be carried out twice, and repeats it until it is answered or [`patience`](Queue::patience) has passed.
    pub(super) async fn ask(&self, call: Call) -> Result<Value, Error> {
        self.ask_until(call, Instant::now() + self.patience()).await
    }

    pub(super) async fn ask_until(&self, call: Call, last: Instant) -> Result<Value, Error> {
        let attempt = self.limits.answer_within;
        ask(&*self.server, &self.wheel, call, attempt, last, Ok).await
    }

    /// Returns how long a call is retried while Redis does not answer.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE.max(self.limits.answer_within)
    }

    pub(super) fn partition(&self, id: &str) -> &Partition {
        &self.partitions[partition_of(id, self.partitions.len())]
    }

    /// Pushes operations to their partitions, with those of one partition together.
    pub(super) fn update_all(&self, mut operations: Vec<(usize, Operation)>) {
        operations.sort_by_key(|(partition, _)| *partition);
        let mut operations = operations.into_iter().peekable();
        while let Some((partition, first)) = operations.next() {
            let rest = from_fn(|| Some(operations.next_if(|(other, _)| *other == partition)?.1));
            self.partitions[partition].updates.push(once(first).chain(rest));
        }
    }

    /// Carries out one operation on the job `id`.
    pub(super) async fn on_job(
        &self,
        id: &str,
        batcher: impl FnOnce(&Partition) -> &Arc<Batcher>,
        arguments: Vec<Vec<u8>>,
    ) -> Result<bool, Error> {
        check_name(id, "a job's id has at least one character")?;
        self.open().await?;
        submit(
            batcher(self.partition(id)),
            arguments,
            Instant::now() + self.patience(),
        )
        .await
    }
}

/// Pushes an operation and waits for its answer.
pub(super) async fn submit(
    batcher: &Arc<Batcher>,
    arguments: Vec<Vec<u8>>,
    deadline: Instant,
) -> Result<bool, Error> {
    let (sender, receiver) = oneshot::channel();
    batcher.push([Operation::new(
        arguments,
        deadline,
        |answer: Result<Answer, Error>| {
            let _ = sender.send(answer);
        },
    )]);
    match receiver.await {
        Ok(answer) => answer.map(|answer| answer.yes),
        Err(_) => unreachable!("every operation is answered"),
    }
}

/// Returns the arguments of an operation of `scripts/update.lua`.
pub(super) fn operation(name: &str, id: &str, token: &str, first: u64, second: u64) -> Vec<Vec<u8>> {
    vec![
        name.into(),
        id.into(),
        token.into(),
        first.to_string().into(),
        second.to_string().into(),
    ]
}

/// Returns microseconds, rounded up so that nothing is early, and limited to what Lua represents exactly.
pub(super) fn micros(duration: Duration) -> u64 {
    const LONGEST: u64 = 9_000_000_000_000_000;
    duration.as_nanos().div_ceil(1000).min(u128::from(LONGEST)) as u64
}

/// Returns microseconds since 1970, rounded up, and zero for an earlier time.
pub(super) fn micros_of(time: SystemTime) -> u64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
