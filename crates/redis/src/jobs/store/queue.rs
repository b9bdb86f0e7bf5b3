//! `Queue`: what all handles, workers and jobs of a queue share.

use std::{
    future::ready,
    iter::{from_fn, once},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use redis::{ErrorKind, ServerErrorKind, Value};
use tickwheel::Wheel;
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use super::{
    batcher::Operation,
    change::{Change, Edit, Finish, Finished, How},
    fetch::Fetches,
    nearby::Nearby,
    partition::{PREFIX, Partition, partition_of},
};
use crate::{
    error::{Error, check_name},
    jobs::{
        claim::Claim,
        settings::{HandleSettings, MAX_PARTITIONS},
    },
    server::{
        answer::unexpected,
        erased::AnyConnection,
        first_use::FirstUse,
        names::Tag,
        retry::ask,
        script::{Call, Script},
    },
    timers,
};

static OPEN: Script = Script::new(include_str!("scripts/open.lua"));
static FETCH: Script = Script::new(include_str!("scripts/fetch.lua"));

/// How long a call is retried at least while Redis does not answer.
pub(in crate::jobs) const CALL_LIMIT: Duration = Duration::from_secs(5);

pub(in crate::jobs) struct Queue {
    pub(in crate::jobs) wheel: Wheel,
    pub(in crate::jobs) server: Arc<dyn AnyConnection>,
    pub(in crate::jobs) name: String,
    /// As many as the settings say, unless `check` refuses that.
    pub(in crate::jobs) partitions: Vec<Partition>,
    pub(in crate::jobs) settings: HandleSettings,
    fetches: Fetches,
    /// The workers of this handle and its clones.
    pub(in crate::jobs) nearby: Arc<Nearby>,
    opened: FirstUse,
    /// Whether the user of the connection may publish, as far as is known.
    may_publish: AtomicBool,
}

impl Queue {
    pub(in crate::jobs) fn new(
        wheel: Wheel,
        server: Arc<dyn AnyConnection>,
        name: String,
        settings: HandleSettings,
        nearby: Arc<Nearby>,
    ) -> Queue {
        let partitions = (0..settings.partitions.clamp(1, MAX_PARTITIONS))
            .map(|number| Partition::new(&name, number, &server, settings.answer_within))
            .collect();
        Queue {
            wheel,
            server,
            name,
            partitions,
            settings,
            fetches: Fetches::default(),
            nearby,
            opened: FirstUse::default(),
            may_publish: AtomicBool::new(true),
        }
    }

    /// Returns the same queue with other settings of a handle, whose workers share what is scheduled.
    pub(in crate::jobs) fn with(&self, settings: HandleSettings) -> Queue {
        let (wheel, server, name) = (self.wheel.clone(), self.server.clone(), self.name.clone());
        Queue::new(wheel, server, name, settings, self.nearby.clone())
    }

    /// Checks, at first use, that the queue has this number of partitions and that Redis does not evict keys.
    pub(in crate::jobs) async fn open(&self) -> Result<(), Error> {
        self.limited(|_| ready(Ok(()))).await
    }

    /// Opens the queue and makes a request, which is given until when it may take. Opening the queue counts
    /// towards the limit.
    pub(in crate::jobs) async fn limited<T, F>(&self, request: impl FnOnce(Instant) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let began = Instant::now();
        // A limit that is not allowed is refused below.
        let deadline = timers::after(self.call_limit());
        self.opened.ensure(|| self.check(deadline)).await?;
        let answer = request(deadline).await;
        answer.map_err(|error| error.after(began.elapsed()))
    }

    async fn check(&self, deadline: Instant) -> Result<(), Error> {
        check_name(&self.name, "a queue's name has at least one character")?;
        self.settings.check()?;
        let max_running = self.settings.max_running_of_each()?;
        let call = OPEN.on(&Tag::new(PREFIX, &self.name)).named([
            ("given", self.settings.partitions.to_string()),
            ("channel", self.partitions[0].channel().to_owned()),
            ("key", self.partitions[0].tag.key("state")),
        ]);
        let answer = self.ask_until(call, deadline).await?;
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
        if stored != self.settings.partitions as i64 {
            return Err(Error::Partitions {
                given: self.settings.partitions as u32,
                stored: u32::try_from(stored).unwrap_or(u32::MAX),
            });
        }
        if !may_publish {
            self.may_publish.store(false, Ordering::Relaxed);
            tracing::warn!(
                queue = self.name,
                "the user of the connection may not publish (ACL): other workers notice a job up to five seconds later"
            );
        }
        if let Some((count, age)) = self.settings.keep_dead {
            let count = count.div_ceil(self.partitions.len() as u64);
            self.set(Edit::KeepDead { count, age }, deadline).await?;
        }
        if let Some(most) = max_running {
            let most = (self.settings.max_running != Some(u64::MAX)).then_some(most);
            self.set(Edit::LimitRunning { most }, deadline).await?;
        }
        Ok(())
    }

    /// Whether workers that listen are told of what this process does.
    pub(in crate::jobs) fn may_publish(&self) -> bool {
        self.may_publish.load(Ordering::Relaxed)
    }

    /// Makes a change to all partitions at once. Returns whether it changed anything.
    async fn set(&self, edit: Edit<'_>, deadline: Instant) -> Result<bool, Error> {
        let partitions = self.partitions.iter();
        let changes = partitions.map(async |partition| partition.submit(&edit, deadline)?.await);
        Ok(try_join_all(changes).await?.contains(&true))
    }

    /// Opens the queue and sends a call that may be carried out twice, which is repeated until it is answered or
    /// [`call_limit`](Queue::call_limit) has passed.
    pub(in crate::jobs) async fn ask(&self, call: Call) -> Result<Value, Error> {
        self.limited(|deadline| self.ask_until(call, deadline)).await
    }

    pub(in crate::jobs) async fn ask_until(&self, call: Call, deadline: Instant) -> Result<Value, Error> {
        let attempt = self.settings.answer_within;
        ask(&*self.server, call, attempt, deadline, Ok).await
    }

    /// Fetches a payload that was too large for the answer to a take, in its turn. Returns `None` if the job is not
    /// held under that token any more.
    pub(in crate::jobs) async fn fetch(
        &self,
        partition: usize,
        id: &str,
        token: &str,
    ) -> Result<Option<Vec<u8>>, Error> {
        let limit = self.settings.answer_within;
        let _permit = self.fetches.permit(limit).await;
        let arguments = [("id", id.to_owned()), ("token", token.to_owned())];
        let call = FETCH.on(&self.partitions[partition].tag).named(arguments);
        match self.ask_until(call, Instant::now() + limit).await? {
            Value::BulkString(payload) => Ok(Some(payload)),
            Value::Nil => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns how long a call is retried while Redis does not answer.
    pub(in crate::jobs) fn call_limit(&self) -> Duration {
        CALL_LIMIT.max(self.settings.answer_within)
    }

    pub(in crate::jobs) fn partition(&self, id: &str) -> &Partition {
        &self.partitions[self.number_of(id)]
    }

    pub(in crate::jobs) fn number_of(&self, id: &str) -> usize {
        partition_of(id, self.partitions.len())
    }

    /// Tells the workers of this handle that a job is due after that time.
    pub(in crate::jobs) fn expect_job(&self, partition: usize, delay: Duration) {
        if let Some(due) = Instant::now().checked_add(delay) {
            self.nearby.expect_job(partition, due);
        }
    }

    /// Tells the workers of this handle that jobs of any partition may be due.
    pub(in crate::jobs) fn expect_jobs(&self) {
        for partition in 0..self.partitions.len() {
            self.expect_job(partition, Duration::ZERO);
        }
    }

    /// Pushes operations to their partitions, with those of one partition together, to be sent on this
    /// runtime.
    pub(in crate::jobs) fn update_all(&self, runtime: &Handle, mut operations: Vec<(usize, Operation)>) {
        operations.sort_by_key(|(partition, _)| *partition);
        let mut operations = operations.into_iter().peekable();
        while let Some((partition, first)) = operations.next() {
            let rest = from_fn(|| Some(operations.next_if(|(other, _)| *other == partition)?.1));
            self.partitions[partition].push(runtime, once(first).chain(rest));
        }
    }

    /// Returns claims that are not worked on to the queue, from the given runtime. `unanswered` tracks each until
    /// it is answered.
    pub(in crate::jobs) fn give_back(
        self: &Arc<Queue>,
        runtime: &Handle,
        how: fn(&Claim) -> How<'static>,
        claims: Vec<Claim>,
        unanswered: &TaskTracker,
    ) {
        let deadline = Instant::now() + CALL_LIMIT;
        let given_back = claims.into_iter().map(|claim| {
            let (queue, partition, unanswered) = (self.clone(), claim.lease.partition, unanswered.token());
            let returned = move |finished: Result<Finished, Error>| {
                let _answered = unanswered;
                // A job that cannot be returned is delivered again when its lease has expired.
                if finished.is_ok_and(|finished| finished != Finished::Lost) {
                    queue.expect_job(partition, Duration::ZERO);
                }
            };
            let finish = Finish {
                job: &claim.lease,
                how: how(&claim),
            };
            (partition, Operation::new(&finish, deadline, returned))
        });
        self.update_all(runtime, given_back.collect());
    }

    /// Opens the queue and makes a change to all partitions at once. Returns whether it changed anything.
    pub(in crate::jobs) async fn edit_all(&self, edit: Edit<'_>) -> Result<bool, Error> {
        self.limited(|deadline| self.set(edit, deadline)).await
    }

    /// Opens the queue and makes a change to a job of one partition, or to several.
    pub(in crate::jobs) async fn change<C: Change>(
        &self,
        partition: &Partition,
        change: &C,
    ) -> Result<C::Answer, Error> {
        self.limited(async |deadline| partition.submit(change, deadline)?.await)
            .await
    }
}
