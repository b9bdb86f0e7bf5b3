//! `Queue`: the state that all handles, workers and jobs of a queue share.

use std::{
    iter::{from_fn, once},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::try_join_all;
use redis::{ErrorKind, ServerErrorKind, Value};
use tickwheel::Wheel;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{
    asking::{ask, repeat, unexpected},
    batcher::{Batcher, Operation},
    change::{Answer, Change},
    claim::{Claim, JobLease},
    fetch::Fetches,
    limits::Limits,
    local::LocalWorkers,
    partition::{PREFIX, Partition, partition_of},
    server::Server,
};
use crate::{
    error::{Error, check_name},
    first_use::FirstUse,
    keys::Tag,
    local,
    notifications::Notifications,
    script::{Call, Script},
};

static OPEN: Script = Script::new(include_str!("scripts/open.lua"));

/// How long a call is retried at least while Redis does not answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The largest number of partitions that a worker can still sweep.
const MAX_PARTITIONS: usize = 1024;

pub(super) struct Queue {
    pub(super) wheel: Wheel,
    pub(super) server: Arc<dyn Server>,
    pub(super) name: String,
    pub(super) partitions: Vec<Partition>,
    /// The number of partitions asked for, which `check` may refuse.
    pub(super) given: usize,
    pub(super) notifications: Option<Notifications>,
    pub(super) limits: Limits,
    /// Permits to fetch large payloads.
    pub(super) fetches: Fetches,
    /// The workers of this handle and its clones.
    pub(super) workers: Arc<LocalWorkers>,
    opened: FirstUse,
}

impl Queue {
    pub(super) fn new(
        wheel: Wheel,
        server: Arc<dyn Server>,
        name: String,
        given: usize,
        notifications: Option<Notifications>,
        limits: Limits,
        workers: Arc<LocalWorkers>,
    ) -> Queue {
        let partitions = (0..given.clamp(1, MAX_PARTITIONS))
            .map(|number| Partition::new(&name, number, &server, limits))
            .collect();
        Queue {
            wheel,
            server,
            name,
            partitions,
            given,
            notifications,
            limits,
            fetches: Fetches::default(),
            workers,
            opened: FirstUse::default(),
        }
    }

    /// Returns the same queue with other settings of a handle, whose workers share what is scheduled.
    pub(super) fn with(&self, given: usize, notifications: Option<Notifications>, limits: Limits) -> Queue {
        Queue::new(
            self.wheel.clone(),
            self.server.clone(),
            self.name.clone(),
            given,
            notifications,
            limits,
            self.workers.clone(),
        )
    }

    /// Checks, at first use, that the queue has this number of partitions and that Redis does not evict keys.
    pub(super) async fn open(&self) -> Result<OpenQueue<'_>, Error> {
        let began = Instant::now();
        let last = began + self.patience();
        self.opened.ensure(|| self.check(last)).await?;
        Ok(OpenQueue {
            queue: self,
            began,
            last,
        })
    }

    async fn check(&self, last: Instant) -> Result<(), Error> {
        check_name(&self.name, "a queue's name has at least one character")?;
        if self.given != self.partitions.len() {
            return Err(Error::InvalidSetting {
                setting: "partitions",
                value: self.given.to_string(),
                allowed: "1 to 1024",
            });
        }
        self.limits.check()?;
        let attempt = self.limits.answer_within;
        repeat(attempt, last, || self.server.check_policy()).await?;
        let call = OPEN
            .call()
            .key(Tag::new(PREFIX, &self.name).key("partitions"))
            .arg(self.given)
            .arg(self.partitions[0].channel())
            .arg(self.partitions[0].key("state"));
        let answer = self.ask_until(call, last).await?;
        let Ok((stored, may_publish, missing)) =
            redis::from_redis_value::<(i64, bool, String)>(answer.clone())
        else {
            return Err(unexpected(&answer));
        };
        if !missing.is_empty() {
            return Err(Error::Redis(redis::RedisError::from((
                ErrorKind::Server(ServerErrorKind::NoPerm),
                "this user has no permissions to run a command of our scripts",
                missing,
            ))));
        }
        if stored != self.given as i64 {
            return Err(Error::Partitions {
                given: self.given as u32,
                stored: u32::try_from(stored).unwrap_or(u32::MAX),
            });
        }
        if !may_publish {
            tracing::warn!(
                queue = self.name,
                "the user of the connection may not publish (ACL): other workers notice a job up to five seconds later"
            );
        }
        if let Some((count, age)) = self.limits.keep_dead {
            let count = count.div_ceil(self.partitions.len() as u64);
            let keep = Change::KeepDead { count, age };
            try_join_all(
                self.partitions
                    .iter()
                    .map(|partition| partition.change(keep, last)),
            )
            .await?;
        }
        Ok(())
    }

    /// Sends a call that may be carried out twice, and repeats it until it is answered or
    /// [`patience`](Queue::patience) has passed.
    pub(super) async fn ask(&self, call: Call) -> Result<Value, Error> {
        self.ask_until(call, Instant::now() + self.patience()).await
    }

    pub(super) async fn ask_until(&self, call: Call, last: Instant) -> Result<Value, Error> {
        let attempt = self.limits.answer_within;
        ask(&*self.server, call, attempt, last, Ok).await
    }

    /// Returns how long a call is retried while Redis does not answer.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE.max(self.limits.answer_within)
    }

    pub(super) fn partition(&self, id: &str) -> &Partition {
        &self.partitions[self.number_of(id)]
    }

    pub(super) fn number_of(&self, id: &str) -> usize {
        partition_of(id, self.partitions.len())
    }

    /// Tells the workers of this handle that a job is due after that time.
    pub(super) fn expect_job(&self, partition: usize, delay: Duration) {
        if let Some(due) = Instant::now().checked_add(delay) {
            self.workers.tell(partition, due);
        }
    }

    /// Pushes operations to their partitions, with those of one partition together, to be sent on this
    /// runtime.
    pub(super) fn update_all(&self, runtime: &Handle, mut operations: Vec<(usize, Operation)>) {
        operations.sort_by_key(|(partition, _)| *partition);
        let mut operations = operations.into_iter().peekable();
        while let Some((partition, first)) = operations.next() {
            let rest = from_fn(|| Some(operations.next_if(|(other, _)| *other == partition)?.1));
            self.partitions[partition]
                .updates
                .push(runtime, once(first).chain(rest));
        }
    }

    /// Returns claims that are not worked on to the queue, from the given runtime. Each keeps a clone of
    /// `goodbye` until it is answered.
    pub(super) fn give_back<G: Clone + Send + 'static>(
        self: &Arc<Queue>,
        runtime: &Handle,
        how: fn(&JobLease) -> Change<'_>,
        claims: Vec<Claim>,
        goodbye: &G,
    ) {
        let deadline = Instant::now() + PATIENCE;
        let given_back = claims.into_iter().map(|Claim { lease, .. }| {
            let arguments = how(&lease).arguments();
            let (queue, partition, goodbye) = (self.clone(), lease.partition, goodbye.clone());
            let returned = move |answer: Result<Answer, Error>| {
                let _goodbye = goodbye;
                // A job that cannot be returned is delivered again when its lease has expired.
                if answer.is_ok_and(Answer::is_done) {
                    queue.expect_job(partition, Duration::ZERO);
                }
            };
            (partition, Operation::new(arguments, deadline, returned))
        });
        self.update_all(runtime, given_back.collect());
    }

    /// Makes a change to all partitions at once. Returns whether it changed anything.
    pub(super) async fn change_all(&self, change: Change<'_>) -> Result<bool, Error> {
        let open = self.open().await?;
        let changes = self
            .partitions
            .iter()
            .map(|partition| open.change(partition, change));
        let answers = try_join_all(changes).await?;
        Ok(answers.into_iter().any(Answer::is_done))
    }

    /// Carries out one operation on the job `id`, whose arguments a script of that batcher expects.
    pub(super) async fn on_job(
        &self,
        id: &str,
        batcher: impl FnOnce(&Partition) -> &Arc<Batcher>,
        arguments: Vec<Vec<u8>>,
    ) -> Result<Answer, Error> {
        check_name(id, "a job's id has at least one character")?;
        let open = self.open().await?;
        let answer = submit(batcher(self.partition(id)), arguments, open.last).await;
        answer.map_err(|error| error.after(open.began.elapsed()))
    }
}

/// A queue that is open, for one call of a handle, with the limit of that call. Opening the queue counts
/// towards the limit.
#[derive(Clone, Copy)]
pub(super) struct OpenQueue<'a> {
    pub(super) queue: &'a Queue,
    began: Instant,
    last: Instant,
}

impl OpenQueue<'_> {
    /// Sends a request that may be carried out twice, and repeats it until it is answered or the limit has
    /// passed.
    pub(super) async fn ask(&self, request: Call) -> Result<Value, Error> {
        let answer = self.queue.ask_until(request, self.last).await;
        answer.map_err(|error| error.after(self.began.elapsed()))
    }

    pub(super) async fn change(&self, partition: &Partition, change: Change<'_>) -> Result<Answer, Error> {
        let answer = partition.change(change, self.last).await;
        answer.map_err(|error| error.after(self.began.elapsed()))
    }

    /// Sends a request of several that follow each other, each of which has the limit from the answer to the
    /// one before.
    pub(super) async fn ask_next(&mut self, request: Call) -> Result<Value, Error> {
        let answer = self.ask(request).await?;
        self.began = Instant::now();
        self.last = self.began + self.queue.patience();
        Ok(answer)
    }
}

/// How long after its deadline an operation is answered, unless the runtime that sends it has come to a stop.
const GRACE: Duration = Duration::from_secs(1);

/// Pushes an operation, to be sent on the current runtime, and waits for its answer.
pub(super) async fn submit(
    batcher: &Arc<Batcher>,
    arguments: Vec<Vec<u8>>,
    deadline: Instant,
) -> Result<Answer, Error> {
    let Ok(runtime) = Handle::try_current() else {
        return Err(Error::NoRuntime);
    };
    let (sender, receiver) = oneshot::channel();
    let asked = Instant::now();
    let operation = Operation::new(arguments, deadline, |answer: Result<Answer, Error>| {
        let _ = sender.send(answer);
    });
    batcher.push(&runtime, [operation]);
    match local::until(deadline + GRACE, receiver).await {
        Some(Ok(answer)) => answer,
        // Every operation is answered, but not by a runtime that nobody drives.
        Some(Err(_)) | None => Err(Error::NoAnswer {
            waited: asked.elapsed(),
        }),
    }
}

/// The largest number that scripts are sent, because Lua represents it exactly.
pub(super) const LARGEST_NUMBER: u64 = 9_000_000_000_000_000;

/// Returns microseconds, rounded up so that nothing is early.
pub(super) fn micros(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1000);
    micros.min(u128::from(LARGEST_NUMBER)) as u64
}

/// Returns microseconds since 1970, rounded up, and zero for an earlier time.
pub(super) fn micros_of(time: SystemTime) -> u64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
