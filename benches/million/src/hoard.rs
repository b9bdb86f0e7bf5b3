//! The further idle deadlines that the process holds.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use crate::{clockwork::Clockwork, machine::cores, options::Options, random::Random, tally::Tally};

/// The deadlines lie at least this far beyond the end of the traffic: they are held, and never expire.
const FAR: Duration = Duration::from_secs(60);

/// Idle deadlines that one task holds: each a boxed sleep, polled once, as a connection's state would hold it.
pub(crate) struct Hoard<C: Clockwork> {
    sleeps: Vec<Pin<Box<C::Sleep>>>,
    within: Duration,
    random: Random,
}

impl<C: Clockwork> Hoard<C> {
    async fn arm(clock: C, count: usize, options: Options, number: u64) -> Hoard<C> {
        let mut hoard = Hoard {
            sleeps: Vec::with_capacity(count),
            within: options.traffic() + FAR,
            random: Random::new(number),
        };
        while hoard.sleeps.len() < count {
            let mut sleep = Box::pin(clock.sleep_until(hoard.deadline()));
            poll_fn(|cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            hoard.sleeps.push(sleep);
            // A sleep polled without budget would be pending, and not registered.
            if hoard.sleeps.len() % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        hoard
    }

    /// Has traffic push a hundredth of the deadlines back, ten times a second.
    pub(crate) async fn hold(mut self, clock: C, stop: Arc<AtomicBool>) -> Tally {
        let mut tally = Tally::default();
        while !stop.load(Ordering::Relaxed) {
            let deadline = Instant::now() + Duration::from_millis(100);
            tally.registered += 1;
            clock.sleep_until(deadline).await;
            tally.sleep_expired(deadline);
            for _ in 0..self.sleeps.len() / 100 {
                let (place, deadline) = (self.random.below(self.sleeps.len() as u64), self.deadline());
                C::reset(self.sleeps[place as usize].as_mut(), deadline);
                tally.pushed_back += 1;
            }
        }
        tally.registered += self.sleeps.len() as u64;
        tally.cancelled += self.sleeps.len() as u64;
        tally
    }

    fn deadline(&mut self) -> Instant {
        Instant::now() + self.within + self.random.within(FAR)
    }
}

pub(crate) async fn arm_all<C: Clockwork>(clock: &C, options: Options) -> Vec<Hoard<C>> {
    let tasks = cores();
    let arming: Vec<_> = (0..tasks)
        .map(|number| {
            let count = options.timers / tasks + usize::from(number < options.timers % tasks);
            tokio::spawn(Hoard::arm(clock.clone(), count, options, number as u64))
        })
        .collect();
    let mut hoards = Vec::new();
    for task in arming {
        hoards.push(task.await.expect("arming does not panic"));
    }
    hoards
}
