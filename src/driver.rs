//! The one task that turns a wheel: it waits, visits the shards, and wakes what expired with no lock held.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, Interval},
};

use crate::{
    clock::Clock,
    crowd, events,
    link::Link,
    shard::{NEVER, Shard, Visited, Wakers},
    timing_wheel::Tick,
};

/// Wakers taken under one lock.
const BATCH: usize = 256;

/// Timers that the driver deals with before it yields to the runtime.
const TIMERS_PER_YIELD: usize = 1024;

/// Lateness from which a Tokio interval counts a tick as missed.
const MISSED: Duration = Duration::from_millis(5);

/// Lateness, in ticks, above which the driver says so.
const LATE_TICKS: u32 = 4;

/// The driver.
pub(crate) struct Driver {
    guard: Guard,
    shards: Box<[Arc<Shard>]>,
    clock: Clock,
    /// Its runtime has more than one worker, and they can share the waking. No test can pause the clock of such a one.
    shares: bool,
    interval: Interval,
    /// The tick that the interval waits for, where that is known.
    armed: Option<Tick>,
    wakers: Wakers,
}

/// Tells the wheel when its driver goes, whatever the reason.
struct Guard {
    link: Arc<Link>,
    number: u64,
    ran: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ran {
            self.link.never_ran(self.number);
        }
        self.link.leave(self.number);
        events::driver_stopped(&self.link.name, self.number);
    }
}

impl Driver {
    pub(crate) fn new(
        link: Arc<Link>,
        number: u64,
        shards: Box<[Arc<Shard>]>,
        clock: Clock,
        interval: Interval,
    ) -> Driver {
        Driver {
            guard: Guard {
                link,
                number,
                ran: false,
            },
            shards,
            clock,
            shares: false,
            interval,
            armed: None,
            wakers: Wakers::default(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.guard.number
    }

    pub(crate) async fn run(mut self) {
        self.guard.ran = true;
        self.shares = Handle::current().metrics().num_workers() > 1;
        while let Some(wake_at) = self.turn().await {
            self.wait(wake_at).await;
            self.guard.link.figures.woke();
        }
    }

    /// Visits every shard and wakes what is due. Returns when to come back; `None` when there is nothing
    /// left to drive for.
    async fn turn(&mut self) -> Option<Tick> {
        let link = &self.guard.link;
        let source = self.clock.source.recheck();
        if source != self.clock.source {
            self.clock.source = source;
            link.clock_reads(source);
        }
        let now = self.clock.nanos_of(Instant::now());
        link.figures.turned_to(now, &self.clock);
        let mut wake_at = None;
        let mut dealt_with = 0;
        for shard in &self.shards {
            loop {
                let visit = shard.visit(now, source, BATCH, &mut self.wakers);
                // What was settled or cascaded counts as well; but a test's `advance` is to find all of it done.
                dealt_with += match visit {
                    Visited::Unfinished if source.is_real() => BATCH,
                    _ => self.wakers.due.len(),
                };
                if self.shares {
                    crowd::share(link, &mut self.wakers.due);
                }
                link.wake(&mut self.wakers);
                if dealt_with >= TIMERS_PER_YIELD {
                    dealt_with = 0;
                    tokio::task::yield_now().await;
                }
                match visit {
                    Visited::Unfinished => continue,
                    Visited::Finished { next } => wake_at = Some(next.min(wake_at.unwrap_or(NEVER))),
                    Visited::Shutdown => {}
                }
                break;
            }
        }
        wake_at.filter(|_| !link.retire(&self.shards, &mut self.wakers))
    }

    /// Waits for the beginning of tick `wake_at`, or for a shard that wants to be visited earlier.
    async fn wait(&mut self, wake_at: Tick) {
        let mut notified = pin!(self.guard.link.notify.notified());
        if wake_at == NEVER {
            return notified.await;
        }
        if self.armed != Some(wake_at) {
            self.interval.reset_at(self.clock.instant_of(wake_at));
            self.armed = Some(wake_at);
        }
        let ticked = poll_fn(|cx| match notified.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.interval.poll_tick(cx).map(Some),
        });
        if let Some(planned) = ticked.await {
            let lag = planned.elapsed();
            self.guard.link.figures.lagged(lag);
            if lag > self.guard.link.tick * LATE_TICKS {
                events::driver_late(&self.guard.link.name, lag);
            }
            // A late interval skips; where to, it does not tell.
            self.armed = (lag < MISSED).then(|| wake_at.next());
        }
    }
}
