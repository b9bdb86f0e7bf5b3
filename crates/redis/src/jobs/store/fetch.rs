//! `fetch`: fetches a payload that is too large for the answer to a take.

use std::time::Duration;

use redis::Value;
use tokio::{sync::Notify, time::Instant};

use super::Queue;
use crate::{error::Error, mutex::Mutex, server::answer::unexpected, timers};

/// Fetches a payload, one at a time for all workers of a queue, because all answers share one connection.
/// Returns `None` if the job is no longer held under that token.
pub(in crate::jobs) async fn fetch(
    queue: &Queue,
    partition: usize,
    id: &str,
    token: &str,
) -> Result<Option<Vec<u8>>, Error> {
    let limit = queue.settings.answer_within;
    let _permit = queue.fetches.permit(limit).await;
    let call = queue.partitions[partition].fetch(id, token);
    match queue.ask_until(call, Instant::now() + limit).await? {
        Value::BulkString(payload) => Ok(Some(payload)),
        Value::Nil => Ok(None),
        other => Err(unexpected(&other)),
    }
}

/// How many payloads are fetched at the same time. Every other answer waits behind them: for 90 ms behind 1 MiB
/// at 12 MB/s.
const FETCHES: usize = 1;

/// Permits to fetch a payload.
#[derive(Debug, Default)]
pub(in crate::jobs) struct Fetches {
    /// Until when each permit is valid. One whose holder is not polled any more is replaced then.
    permits: Mutex<Vec<Instant>>,
    returned: Notify,
}

#[derive(Debug)]
pub(in crate::jobs) struct Permit<'a> {
    fetches: &'a Fetches,
    until: Instant,
}

impl Fetches {
    /// Waits for a permit for a fetch that takes no longer than `limit`.
    async fn permit(&self, limit: Duration) -> Permit<'_> {
        loop {
            let returned = self.returned.notified();
            let first_end = {
                let now = Instant::now();
                let mut permits = self.permits.lock();
                permits.retain(|until| *until > now);
                if permits.len() < FETCHES {
                    let until = now + limit * 2;
                    permits.push(until);
                    return Permit { fetches: self, until };
                }
                permits.iter().min().copied().unwrap_or(now)
            };
            timers::until(first_end, returned).await;
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut permits = self.fetches.permits.lock();
        if let Some(place) = permits.iter().position(|until| *until == self.until) {
            permits.swap_remove(place);
        }
        drop(permits);
        // All of them, because any one may not be polled any more.
        self.fetches.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn permits_are_few_and_none_is_lost() {
        let fetches = Fetches::default();
        let first = assert_ready!(task::spawn(fetches.permit(LIMIT)).poll());
        let mut unpolled = task::spawn(fetches.permit(LIMIT));
        assert_pending!(unpolled.poll());
        let mut second = task::spawn(fetches.permit(LIMIT));
        assert_pending!(second.poll());
        drop(first);
        let second = assert_ready!(second.poll());
        // Its holder is not polled any more.
        let third = fetches.permit(LIMIT).await;
        drop((second, third));
        assert!(fetches.permits.lock().is_empty());
    }
}
