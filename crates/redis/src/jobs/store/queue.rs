//! `Queue`: what all handles, workers and jobs of a queue share, and `Partition`: the keys of a part of it.

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

use super::{
    batcher::{Batcher, Operation},
    change::{self, Change},
    fetch::Fetches,
    nearby::Nearby,
};
use crate::{
    error::{Error, check_name},
    jobs::settings::{HandleSettings, MAX_PARTITIONS},
    server::{
        erased::AnyConnection,
        first_use::FirstUse,
        names::Tag,
        retry::ask,
        script::{Call, Script, parse},
    },
    timers,
};

static OPEN: Script = Script::new(include_str!("scripts/open.lua"));
static FETCH: Script = Script::new(include_str!("scripts/fetch.lua"));
static SCHEDULE: Script = script!("#!lua", "scripts/schedule.lua");
static UPDATE: Script = script!("#!lua flags=allow-oom", "scripts/update.lua");

const PREFIX: &str = "tickwheel:jobs";

/// How long a call is retried at least while Redis does not answer.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Queue {
    pub(crate) wheel: Wheel,
    pub(crate) server: Arc<dyn AnyConnection>,
    pub(crate) name: String,
    /// As many as the settings say, unless `check` refuses that.
    pub(crate) partitions: Vec<Partition>,
    pub(crate) settings: HandleSettings,
    fetches: Fetches,
    /// The workers of this handle and its clones.
    pub(crate) nearby: Arc<Nearby>,
    opened: FirstUse,
    /// Whether the user of the connection may publish, as far as is known.
    may_publish: AtomicBool,
}

/// The keys and channels of a part of a queue.
pub(crate) struct Partition {
    pub(crate) tag: Tag,
    /// What the channels begin with on which workers are told to look.
    pub(crate) channel: String,
    /// Changes that add a job. Redis refuses these when it is out of memory.
    schedules: Arc<Batcher>,
    /// All other changes.
    updates: Arc<Batcher>,
}

impl Partition {
    fn new(name: &str, number: usize, server: &Arc<dyn AnyConnection>, answer_within: Duration) -> Partition {
        let tag = Tag::new(PREFIX, &format!("{name}:{number}"));
        let channel = tag.key("sooner");
        let batcher = |script: &'static Script| {
            let call = script.on(&tag);
            Batcher::new(server.clone(), call, channel.clone(), answer_within)
        };
        Partition {
            schedules: batcher(&SCHEDULE),
            updates: batcher(&UPDATE),
            channel,
            tag,
        }
    }

    /// Makes a change, and returns a future that waits for its answer.
    pub(crate) fn submit<A: Send + 'static>(
        &self,
        change: Change<A>,
        deadline: Instant,
    ) -> Result<impl Future<Output = Result<A, Error>> + use<A>, Error> {
        let batcher = if change.adds_job {
            &self.schedules
        } else {
            &self.updates
        };
        batcher.submit(change, deadline)
    }
}

impl Queue {
    pub(crate) fn new(
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
    pub(crate) fn with(&self, settings: HandleSettings) -> Queue {
        let (wheel, server, name) = (self.wheel.clone(), self.server.clone(), self.name.clone());
        Queue::new(wheel, server, name, settings, self.nearby.clone())
    }

    /// Checks, at first use, that the queue has this number of partitions and that Redis does not evict keys.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        self.limited(|_| ready(Ok(()))).await
    }

    /// Opens the queue and makes a request, which is given until when it may take. Opening the queue counts
    /// towards the limit.
    pub(crate) async fn limited<T, F>(&self, request: impl FnOnce(Instant) -> F) -> Result<T, Error>
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
            ("channel", self.partitions[0].channel.clone()),
            ("key", self.partitions[0].tag.key("state")),
        ]);
        let (stored, may_publish, missing): (i64, bool, String) =
            parse(self.ask_until(call, deadline).await?)?;
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
            self.set(change::keep_dead(count, age), deadline).await?;
        }
        if let Some(jobs) = max_running {
            let jobs = (self.settings.max_running != Some(u64::MAX)).then_some(jobs);
            self.set(change::set_max_running(jobs), deadline).await?;
        }
        Ok(())
    }

    /// Whether workers that listen are told of what this process does.
    pub(crate) fn may_publish(&self) -> bool {
        self.may_publish.load(Ordering::Relaxed)
    }

    /// Makes a change to all partitions at once. Returns whether it changed anything.
    async fn set(&self, change: Change<bool>, deadline: Instant) -> Result<bool, Error> {
        let partitions = self.partitions.iter();
        let changes = partitions.map(async |partition| partition.submit(change.clone(), deadline)?.await);
        Ok(try_join_all(changes).await?.contains(&true))
    }

    /// Opens the queue and sends a call that may be carried out twice, which is repeated until it is answered
    /// or [`call_limit`](Queue::call_limit) has passed.
    pub(crate) async fn ask(&self, call: Call) -> Result<Value, Error> {
        self.limited(|deadline| self.ask_until(call, deadline)).await
    }

    pub(crate) async fn ask_until(&self, call: Call, deadline: Instant) -> Result<Value, Error> {
        ask(&*self.server, call, self.settings.answer_within, deadline, Ok).await
    }

    /// Fetches a payload that was too large for the answer to a take, in its turn. Returns `None` if the job is
    /// not held by that holder any more.
    pub(crate) async fn fetch(
        &self,
        partition: usize,
        id: &str,
        holder: &str,
    ) -> Result<Option<Vec<u8>>, Error> {
        let limit = self.settings.answer_within;
        let _permit = self.fetches.permit(limit).await;
        let arguments = [("id", id.to_owned()), ("holder", holder.to_owned())];
        let call = FETCH.on(&self.partitions[partition].tag).named(arguments);
        parse(self.ask_until(call, Instant::now() + limit).await?)
    }

    /// Returns how long a call is retried while Redis does not answer.
    pub(crate) fn call_limit(&self) -> Duration {
        CALL_LIMIT.max(self.settings.answer_within)
    }

    pub(crate) fn partition(&self, id: &str) -> &Partition {
        &self.partitions[self.number_of(id)]
    }

    pub(crate) fn number_of(&self, id: &str) -> usize {
        partition_of(id, self.partitions.len())
    }

    /// Tells the workers of this handle that a job is due after that time.
    pub(crate) fn expect_job(&self, partition: usize, delay: Duration) {
        if let Some(due) = Instant::now().checked_add(delay) {
            let channel = &*self.partitions[partition].channel;
            let channel = self.may_publish().then_some(channel);
            self.nearby.expect_job(partition, channel, due);
        }
    }

    /// Tells the workers of this handle that jobs of any partition may be due.
    pub(crate) fn expect_jobs(&self) {
        for partition in 0..self.partitions.len() {
            self.expect_job(partition, Duration::ZERO);
        }
    }

    /// Pushes operations to their partitions, with those of one partition together, to be sent on this
    /// runtime.
    pub(crate) fn update_all(&self, runtime: &Handle, mut operations: Vec<(usize, Operation)>) {
        operations.sort_by_key(|(partition, _)| *partition);
        let mut operations = operations.into_iter().peekable();
        while let Some((partition, first)) = operations.next() {
            let rest = from_fn(|| Some(operations.next_if(|(other, _)| *other == partition)?.1));
            self.partitions[partition]
                .updates
                .push(runtime, once(first).chain(rest));
        }
    }

    /// Opens the queue and makes a change to all partitions at once. Returns whether it changed anything.
    pub(crate) async fn change_all(&self, change: Change<bool>) -> Result<bool, Error> {
        self.limited(|deadline| self.set(change, deadline)).await
    }

    /// Opens the queue and makes a change to a job of one partition, or to several.
    pub(crate) async fn change<A: Send + 'static>(
        &self,
        partition: &Partition,
        change: Change<A>,
    ) -> Result<A, Error> {
        self.limited(async |deadline| partition.submit(change, deadline)?.await)
            .await
    }
}

/// Returns the partition of an id by FNV-1a (Fowler, Noll and Vo 1991), which is the same in every process
/// and version.
fn partition_of(id: &str, partitions: usize) -> usize {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits alone are poorly distributed for a power of two.
    ((hash ^ (hash >> 32)) % partitions as u64) as usize
}

#[cfg(test)]
mod tests {
    use futures_util::future::{BoxFuture, FutureExt, join_all};
    use tokio::time::sleep_until;

    use super::*;
    use crate::mutex::Mutex;

    /// Sends its answers one after the other, and each for 1.4 s, as a connection does with 16 MiB at 12 MB/s.
    struct Slow(Mutex<Instant>);

    impl AnyConnection for Slow {
        fn send<'a>(&'a self, _: &'a Call) -> BoxFuture<'a, Result<Value, Error>> {
            let mut free_at = self.0.lock();
            *free_at = Instant::now().max(*free_at) + Duration::from_millis(1_400);
            let payload = Value::BulkString(b"payload".to_vec());
            sleep_until(*free_at).map(|()| Ok(payload)).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fetches_that_begin_together_are_all_answered() {
        let (slow, settings) = (Slow(Mutex::new(Instant::now())), HandleSettings::default());
        let queue = Queue::new(
            Wheel::new(),
            Arc::new(slow),
            "q".to_owned(),
            settings,
            Arc::default(),
        );
        for fetched in join_all((0..20).map(|_| queue.fetch(0, "a", "-"))).await {
            assert_eq!(fetched.unwrap().as_deref(), Some(&b"payload"[..]));
        }
    }

    #[test]
    fn ids_stay_where_they_are() {
        // Written down, because jobs are stored by it.
        let places: Vec<usize> = ["", "a", "order-1", "order-2", "ключ"]
            .into_iter()
            .map(|id| partition_of(id, 16))
            .collect();
        assert_eq!(places, [1, 0, 2, 11, 15]);
    }

    #[test]
    fn ids_spread() {
        let mut counts = [0; 8];
        for id in 0..8000 {
            counts[partition_of(&format!("job-{id}"), 8)] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }
}
