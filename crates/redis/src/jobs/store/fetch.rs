//! `Fetches`: lets one payload be fetched at a time that is too large for the answer to a take.

use std::time::Duration;

use tokio::{sync::Notify, time::Instant};

use crate::{mutex::Mutex, timers};

/// One payload is fetched at a time, because all answers share one connection. Every other answer waits behind
/// it: for 90 ms behind 1 MiB at 12 MB/s.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    /// Until when the permit is valid that is out. One whose holder is not polled any more is replaced then.
    out_until: Mutex<Option<Instant>>,
    returned: Notify,
}

/// A permit to fetch a payload.
#[derive(Debug)]
pub(super) struct FetchPermit<'a> {
    fetches: &'a Fetches,
    until: Instant,
}

impl Fetches {
    /// Waits for a permit for a fetch that takes no longer than `limit`.
    pub(super) async fn permit(&self, limit: Duration) -> FetchPermit<'_> {
        loop {
            let returned = self.returned.notified();
            let out_until = {
                let now = Instant::now();
                let mut out_until = self.out_until.lock();
                match *out_until {
                    Some(until) if until > now => until,
                    _ => {
                        let until = now + limit * 2;
                        *out_until = Some(until);
                        return FetchPermit { fetches: self, until };
                    }
                }
            };
            timers::until(out_until, returned).await;
        }
    }
}

impl Drop for FetchPermit<'_> {
    fn drop(&mut self) {
        let mut out_until = self.fetches.out_until.lock();
        if *out_until == Some(self.until) {
            *out_until = None;
        }
        drop(out_until);
        // All that wait, because any one may not be polled any more.
        self.fetches.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn there_is_one_permit_and_it_is_not_lost() {
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
        assert_eq!(*fetches.out_until.lock(), None);
    }
}
