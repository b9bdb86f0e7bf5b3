//! `Partition`: the keys of one partition of a queue, and its two batchers.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    batcher::Batcher,
    call_names::CallName,
    change::{Answer, Change},
};
use crate::{
    error::Error,
    jobs::settings::HandleSettings,
    server::{
        erased::AnyConnection,
        keys::Tag,
        nonce::Nonce,
        script::{Call, Script},
    },
};

/// A script that changes jobs, which begins with the common prelude and ends the function that this begins. Its
/// first line says whether Redis may run it when out of memory.
macro_rules! script {
    ($first:literal, $file:literal) => {
        Script::new(concat!(
            $first,
            "\n",
            include_str!("scripts/prelude.lua"),
            include_str!($file),
            "end)()"
        ))
    };
}

static SCHEDULE: Script = script!("#!lua", "scripts/schedule.lua");
static UPDATE: Script = script!("#!lua flags=allow-oom", "scripts/update.lua");
static TAKE: Script = script!("#!lua flags=allow-oom", "scripts/take.lua");
static GIVE_BACK: Script = script!("#!lua flags=allow-oom", "scripts/give_back.lua");
static FETCH: Script = Script::new(include_str!("scripts/fetch.lua"));
static GET: Script = Script::new(include_str!("scripts/get.lua"));
static OLDEST: Script = Script::new(include_str!("scripts/oldest.lua"));
static COUNTS: Script = Script::new(include_str!("scripts/counts.lua"));
static WAITING: Script = Script::new(include_str!("scripts/waiting.lua"));
static DEAD: Script = Script::new(include_str!("scripts/dead.lua"));

/// How many bytes of payload a page of dead jobs may have. The connection is shared, so every other answer
/// waits behind it: for 22 ms at 12 MB/s.
const PAGE: usize = 256 << 10;

pub(in crate::jobs) const PREFIX: &str = "tickwheel:jobs";

pub(in crate::jobs) struct Partition {
    tag: Tag,
    /// What the channels begin with on which workers are told to look.
    channel: String,
    /// Schedules new jobs. Redis refuses these when it is out of memory.
    pub(in crate::jobs) schedules: Arc<Batcher>,
    /// All other operations on jobs.
    pub(in crate::jobs) updates: Arc<Batcher>,
}

impl Partition {
    pub(in crate::jobs) fn new(
        name: &str,
        number: usize,
        server: &Arc<dyn AnyConnection>,
        settings: HandleSettings,
    ) -> Partition {
        let tag = Tag::new(PREFIX, &format!("{name}:{number}"));
        let channel = tag.key("sooner");
        let batcher = |script| {
            Batcher::new(
                server.clone(),
                script,
                keys(&tag).to_vec(),
                vec![channel.as_bytes().to_vec()],
                settings.answer_within,
            )
        };
        Partition {
            schedules: batcher(&SCHEDULE),
            updates: batcher(&UPDATE),
            channel,
            tag,
        }
    }

    /// Makes a change, and waits for its answer.
    pub(in crate::jobs) async fn change(
        &self,
        change: Change<'_>,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        self.updates.submit(change.arguments(), deadline)?.await
    }

    pub(in crate::jobs) fn channel(&self) -> &str {
        &self.channel
    }

    /// Returns the channel on which workers are told to renew what they hold.
    pub(in crate::jobs) fn channel_of_renewals(&self) -> String {
        format!("{}:renew", self.channel)
    }

    /// Returns the channel on which idle workers are told that those that watch have been told of a job.
    pub(in crate::jobs) fn channel_of_idle(&self) -> String {
        format!("{}:later", self.channel)
    }

    /// Returns the channel of one worker.
    pub(in crate::jobs) fn channel_of(&self, worker: Nonce) -> String {
        format!("{}:{worker}", self.channel)
    }

    pub(in crate::jobs) fn key(&self, what: &str) -> String {
        self.tag.key(what)
    }

    /// Returns a call of `take.lua`, a sweep and a take, without its last arguments.
    pub(in crate::jobs) fn take(&self, call: &CallName) -> Call {
        self.of_worker(&TAKE, call)
    }

    /// Returns a call that undoes a take whose answer never arrived.
    pub(in crate::jobs) fn give_back(&self, call: &CallName) -> Call {
        self.of_worker(&GIVE_BACK, call)
    }

    fn of_worker(&self, script: &'static Script, call: &CallName) -> Call {
        self.with_keys(script)
            .arg(&call.sequence)
            .arg(&self.channel)
            .arg(&*call.token)
    }

    /// Returns a call that reads the payload of a job that is held under `token`.
    pub(in crate::jobs) fn fetch(&self, id: &str, token: &str) -> Call {
        FETCH
            .call()
            .key(self.tag.key("state"))
            .key(self.tag.key("payload"))
            .arg(id)
            .arg(token)
    }

    /// Returns a call that reads where a job is.
    pub(in crate::jobs) fn get(&self, id: &str) -> Call {
        ["due", "claimed", "running", "dead", "state"]
            .into_iter()
            .fold(GET.call(), |call, what| call.key(self.tag.key(what)))
            .arg(id)
    }

    pub(in crate::jobs) fn counts(&self) -> Call {
        ["due", "claimed", "running", "dead", "settings"]
            .into_iter()
            .fold(COUNTS.call(), |call, what| call.key(self.tag.key(what)))
    }

    pub(in crate::jobs) fn oldest(&self) -> Call {
        OLDEST.call().key(self.tag.key("due"))
    }

    /// Returns a call that reads a page of the jobs that are "due" or "claimed".
    pub(in crate::jobs) fn waiting(&self, set: &str, offset: usize) -> Call {
        WAITING
            .call()
            .key(self.tag.key("due"))
            .key(self.tag.key("claimed"))
            .key(self.tag.key("state"))
            .arg(set)
            .arg(offset)
    }

    pub(in crate::jobs) fn dead(&self, offset: usize, limit: usize) -> Call {
        DEAD.call()
            .key(self.tag.key("dead"))
            .key(self.tag.key("state"))
            .key(self.tag.key("payload"))
            .arg(offset)
            .arg(limit)
            .arg(PAGE)
    }

    fn with_keys(&self, script: &'static Script) -> Call {
        keys(&self.tag)
            .into_iter()
            .fold(script.call(), |call, key| call.key(key))
    }
}

/// The keys of a partition, in the order in which the prelude names them.
const KEYS: [&str; 11] = [
    "due",
    "claimed",
    "running",
    "dead",
    "state",
    "payload",
    "watching",
    "idle",
    "repeats",
    "settings",
    "last:calls",
];

fn keys(tag: &Tag) -> [String; 11] {
    KEYS.map(|what| tag.key(what))
}

/// Returns the partition of an id by FNV-1a (Fowler, Noll and Vo 1991), which is the same in every process
/// and version.
pub(in crate::jobs) fn partition_of(id: &str, partitions: usize) -> usize {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits alone are poorly distributed for a power of two.
    ((hash ^ (hash >> 32)) % partitions as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prelude_names_the_keys_in_this_order() {
        let names = KEYS.join(", ").replace(":calls", "");
        let prelude = include_str!("scripts/prelude.lua");
        assert!(
            prelude.contains(&format!("local {names} = unpack(KEYS)")),
            "{names}"
        );
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
