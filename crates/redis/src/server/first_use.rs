//! `FirstUse`: what is done once, by whoever comes first, and blocks nobody who comes later.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{error::Error, timers};

/// How long others wait for whoever is at it. Longer than a round trip takes; short, because its future may
/// not be polled any more.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(100);

/// A check that is repeated until it has succeeded once.
#[derive(Debug, Default)]
pub(crate) struct FirstUse {
    succeeded: AtomicBool,
    under_way: AtomicBool,
    ended: Notify,
}

impl FirstUse {
    /// Runs `check` unless it has succeeded before. If another task is at it, waits for that for a moment.
    pub(crate) async fn ensure<F>(&self, check: impl Fn() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let wait_until = Instant::now() + WAIT_FOR_OTHERS;
        loop {
            if self.succeeded.load(Ordering::Acquire) {
                return Ok(());
            }
            let ended = self.ended.notified();
            if !self.under_way.swap(true, Ordering::AcqRel) {
                let _trying = Trying(self);
                return self.run(check()).await;
            }
            if timers::until(wait_until, ended).await.is_none() {
                return self.run(check()).await;
            }
        }
    }

    async fn run(&self, check: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        check.await?;
        self.succeeded.store(true, Ordering::Release);
        Ok(())
    }
}

struct Trying<'a>(&'a FirstUse);

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        self.0.under_way.store(false, Ordering::Release);
        self.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{FutureExt, join_all};
    use std::sync::atomic::AtomicU32;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn those_who_come_together_do_it_once() {
        let (first_use, runs) = (FirstUse::default(), AtomicU32::new(0));
        let check = || async {
            runs.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
            Ok(())
        };
        for outcome in join_all((0..10).map(|_| first_use.ensure(check))).await {
            outcome.unwrap();
        }
        assert_eq!(runs.into_inner(), 1);
    }

    #[tokio::test]
    async fn one_who_is_not_polled_blocks_nobody() {
        let first_use = FirstUse::default();
        let mut kept = Box::pin(first_use.ensure(std::future::pending));
        assert!((&mut kept).now_or_never().is_none());
        first_use.ensure(|| async { Ok(()) }).await.unwrap();
        first_use.ensure(std::future::pending).await.unwrap();
    }

    #[tokio::test]
    async fn a_failure_is_nobody_elses() {
        let first_use = FirstUse::default();
        let failed = first_use.ensure(|| async { Err(Error::NoRuntime) }).await;
        assert!(failed.is_err());
        first_use.ensure(|| async { Ok(()) }).await.unwrap();
    }
}
