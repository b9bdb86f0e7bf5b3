//! Samples a queue: asks Redis how long it is, and how late its oldest due job is.

use std::{sync::Weak, time::Duration};

use futures_util::future::{try_join, try_join_all};
use redis::{FromRedisValue, from_redis_value};
use tokio::time::Instant;

use super::queue::Queue;
use crate::{
    error::Error,
    jobs::report::{Counts, QueueSample},
    server::script::Script,
    timers,
};

static COUNTS: Script = Script::new(include_str!("scripts/counts.lua"));
static OLDEST: Script = Script::new(include_str!("scripts/oldest.lua"));

/// Returns the numbers of jobs in a queue.
pub(in crate::jobs) async fn counts(queue: &Queue) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    for [waiting, running, dead, paused] in ask_all::<[u64; 4]>(queue, &COUNTS).await? {
        counts.waiting += waiting;
        counts.running += running;
        counts.dead += dead;
        counts.paused |= paused > 0;
    }
    Ok(counts)
}

/// Samples a queue, and keeps the sample for its exporters.
pub(in crate::jobs) async fn sample(queue: &Queue) -> Result<QueueSample, Error> {
    let asked = Instant::now();
    let oldest = ask_all::<i64>(queue, &OLDEST);
    let (counts, oldest) = try_join(counts(queue), oldest).await?;
    let sample = QueueSample {
        counts,
        oldest_due: oldest
            .into_iter()
            .filter_map(|micros| u64::try_from(micros).ok())
            .max()
            .map(Duration::from_micros),
    };
    queue.nearby.stats.sampled(asked, sample);
    Ok(sample)
}

/// Samples a queue at once and then every `period`, until nothing else uses it or its wheel is shut down.
pub(in crate::jobs) async fn sample_every(queue: Weak<Queue>, period: Duration) {
    while let Some(used) = queue.upgrade().filter(|queue| !queue.wheel.is_shutdown()) {
        let next = timers::after(period);
        let sampled = sample(&used).await;
        drop(used);
        if let Err(error) = sampled {
            tracing::debug!(%error, "a queue could not be sampled; it is tried again");
        }
        timers::sleep_until(next).await;
    }
}

/// Asks all partitions at once.
async fn ask_all<T: FromRedisValue>(queue: &Queue, script: &'static Script) -> Result<Vec<T>, Error> {
    let ask = async |deadline| {
        let answers = queue.partitions.iter().map(async |partition| {
            let answer = queue.ask_until(script.on(&partition.tag), deadline).await?;
            from_redis_value(answer).map_err(|error| Error::Redis(error.into()))
        });
        try_join_all(answers).await
    };
    queue.limited(ask).await
}
