//! `Queue`: what all handles, workers and jobs of a queue share, and `OpenQueue`: one that has been checked.

use std::{
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

use super::{
    batcher::Operation,
    change::{Change, Edit, Finish, Finished, How},
    fetch::Fetches,
    nearby::Nearby,
    partition::{PREFIX, Partition, partition_of},
};
use crate::{
    error::{Error, check_name},
    jobs::{claim::Claim, settings::HandleSettings},
    server::{
        answer::unexpected,
        erased::AnyConnection,
        first_use::FirstUse,
        keys::Tag,
        notifications::Notifications,
        retry::ask,
        script::{Call, Script},
    },
    timers,
};

static OPEN: Script = Script::new(include_str!("scripts/open.lua"));
static FETCH: Script = Script::new(include_str!("scripts/fetch.lua"));

/// How long a call is retried at least while Redis does not answer.
pub(in crate::jobs) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The largest number of partitions that a worker can still sweep.
const MAX_PARTITIONS: usize = 1024;

pub(in crate::jobs) struct Queue {
    pub(in crate::jobs) wheel: Wheel,
    pub(in crate::jobs) server: Arc<dyn AnyConnection>,
    pub(in crate::jobs) name: String,
    pub(in crate::jobs) partitions: Vec<Partition>,
    /// The number of partitions asked for, which `check` may refuse.
    pub(in crate::jobs) given: usize,
    pub(in crate::jobs) notifications: Option<Notifications>,
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
        given: usize,
        notifications: Option<Notifications>,
        settings: HandleSettings,
        nearby: Arc<Nearby>,
    ) -> Queue {
        let partitions = (0..given.clamp(1, MAX_PARTITIONS))
            .map(|number| Partition::new(&name, number, &server, settings))
            .collect();
        Queue {
            wheel,
            server,
            name,
            partitions,
            given,
            notifications,
            settings,
            fetches: Fetches::default(),
            nearby,
            opened: FirstUse::default(),
            may_publish: AtomicBool::new(true),
        }
    }

    /// Returns the same queue with other settings of a handle, whose workers share what is scheduled.
    pub(in crate::jobs) fn with(
        &self,
        given: usize,
        notifications: Option<Notifications>,
        settings: HandleSettings,
    ) -> Queue {
        Queue::new(
            self.wheel.clone(),
            self.server.clone(),
            self.name.clone(),
            given,
            notifications,
            settings,
            self.nearby.clone(),
        )
    }

    /// Checks, at first use, that the queue has this number of partitions and that Redis does not evict keys.
    pub(in crate::jobs) async fn open(&self) -> Result<OpenQueue<'_>, Error> {
        let began = Instant::now();
        // A limit that is not allowed is refused below.
        let deadline = timers::after(self.call_limit());
        self.opened.ensure(|| self.check(deadline)).await?;
        Ok(OpenQueue {
            queue: self,
            began,
            deadline,
        })
    }

    async fn check(&self, deadline: Instant) -> Result<(), Error> {
        check_name(&self.name, "a queue's name has at least one character")?;
        if self.given != self.partitions.len() {
            return Err(Error::InvalidSetting {
                setting: "partitions",
                value: self.given.to_string(),
                allowed: "1 to 1024",
            });
        }
        self.settings.check()?;
        let max_running = self.settings.max_running_of_each(self.partitions.len())?;
        let call = OPEN.on(&Tag::new(PREFIX, &self.name)).named([
            ("given", self.given.to_string()),
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
        if stored != self.given as i64 {
            return Err(Error::Partitions {
                given: self.given as u32,
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

    /// Sends a call that may be carried out twice, and repeats it until it is answered or
    /// [`call_limit`](Queue::call_limit) has passed.
    pub(in crate::jobs) async fn ask(&self, call: Call) -> Result<Value, Error> {
        self.ask_until(call, Instant::now() + self.call_limit()).await
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

    /// Returns claims that are not worked on to the queue, from the given runtime. Each keeps a clone of
    /// `goodbye` until it is answered.
    pub(in crate::jobs) fn give_back<G: Clone + Send + 'static>(
        self: &Arc<Queue>,
        runtime: &Handle,
        how: fn(&Claim) -> How<'static>,
        claims: Vec<Claim>,
        goodbye: &G,
    ) {
        let deadline = Instant::now() + CALL_LIMIT;
        let given_back = claims.into_iter().map(|claim| {
            let (queue, partition, goodbye) = (self.clone(), claim.lease.partition, goodbye.clone());
            let returned = move |finished: Result<Finished, Error>| {
                let _goodbye = goodbye;
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

    /// Makes a change to all partitions at once. Returns whether it changed anything.
    pub(in crate::jobs) async fn edit_all(&self, edit: Edit<'_>) -> Result<bool, Error> {
        let open = self.open().await?;
        let changed = self.set(edit, open.deadline).await;
        changed.map_err(|error| error.after(open.began.elapsed()))
    }

    /// Makes a change to the job `id`.
    pub(in crate::jobs) async fn change<C: Change>(&self, id: &str, change: &C) -> Result<C::Answer, Error> {
        check_name(id, "a job's id has at least one character")?;
        self.open().await?.change(self.partition(id), change).await
    }
}

/// A queue that is open, for one call of a handle, with the limit of that call. Opening the queue counts
/// towards the limit.
#[derive(Clone, Copy)]
pub(in crate::jobs) struct OpenQueue<'a> {
    pub(in crate::jobs) queue: &'a Queue,
    began: Instant,
    deadline: Instant,
}

impl OpenQueue<'_> {
    /// Sends a request that may be carried out twice, and repeats it until it is answered or the limit has
    /// passed.
    pub(in crate::jobs) async fn ask(&self, request: Call) -> Result<Value, Error> {
        let answer = self.queue.ask_until(request, self.deadline).await;
        answer.map_err(|error| error.after(self.began.elapsed()))
    }

    pub(in crate::jobs) async fn change<C: Change>(
        &self,
        partition: &Partition,
        change: &C,
    ) -> Result<C::Answer, Error> {
        let answer = partition.submit(change, self.deadline)?.await;
        answer.map_err(|error| error.after(self.began.elapsed()))
    }

    /// Sends a request of several that follow each other, each of which has the limit from the answer to the
    /// one before.
    pub(in crate::jobs) async fn ask_next(&mut self, request: Call) -> Result<Value, Error> {
        let answer = self.ask(request).await?;
        self.began = Instant::now();
        self.deadline = self.began + self.queue.call_limit();
        Ok(answer)
    }
}
