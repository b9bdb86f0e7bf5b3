//! `Partition`: the keys and channels of one partition of a queue, and its two batchers.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use super::{
    batcher::{Batcher, Operation},
    change::Change,
};
use crate::{
    error::Error,
    server::{
        erased::AnyConnection,
        names::{Nonce, Tag},
        script::Script,
    },
};

static SCHEDULE: Script = script!("#!lua", "scripts/schedule.lua");
static UPDATE: Script = script!("#!lua flags=allow-oom", "scripts/update.lua");

pub(in crate::jobs) const PREFIX: &str = "tickwheel:jobs";

pub(in crate::jobs) struct Partition {
    pub(super) tag: Tag,
    /// What the channels begin with on which workers are told to look.
    channel: String,
    /// Changes that add a job. Redis refuses these when it is out of memory.
    schedules: Arc<Batcher>,
    /// All other changes.
    updates: Arc<Batcher>,
}

impl Partition {
    pub(in crate::jobs) fn new(
        name: &str,
        number: usize,
        server: &Arc<dyn AnyConnection>,
        attempt: Duration,
    ) -> Partition {
        let tag = Tag::new(PREFIX, &format!("{name}:{number}"));
        let channel = tag.key("sooner");
        let batcher = |script: &'static Script| {
            let call = script.on(&tag);
            Batcher::new(server.clone(), call, channel.clone(), attempt)
        };
        Partition {
            schedules: batcher(&SCHEDULE),
            updates: batcher(&UPDATE),
            channel,
            tag,
        }
    }

    /// Makes a change, and returns a future that waits for its answer.
    pub(in crate::jobs) fn submit<C: Change>(
        &self,
        change: &C,
        deadline: Instant,
    ) -> Result<impl Future<Output = Result<C::Answer, Error>> + use<C>, Error> {
        let batcher = if C::ADDS { &self.schedules } else { &self.updates };
        batcher.submit(change, deadline)
    }

    /// Makes changes that add no job, together, to be sent on that runtime.
    pub(in crate::jobs) fn push(&self, runtime: &Handle, changes: impl IntoIterator<Item = Operation>) {
        self.updates.push(runtime, changes);
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
