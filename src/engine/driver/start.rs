//! Implements what a shard asks of its driver. Starts and replaces drivers.

use std::{sync::Arc, task::Waker};

use tokio::{runtime::Handle, time::Instant};

use super::{
    shared::{DriverSlot, Shared, current_runtime},
    task::{DriverTask, DriverWaker, Guard, spawn},
    timer::{Timer, begin_of_millisecond, has_come},
    turn::Driver,
};
use crate::{
    engine::{
        clock::{self, Clock, Source},
        events,
        shard::{Drive, Shard},
        sync::lock,
        timing_wheel::Nanos,
    },
    error::SleepError,
};

impl Drive for Shared {
    fn wake_by(&self, at: Instant) -> bool {
        self.alarm.wake_by(at)
    }

    fn wake_task(&self) {
        self.alarm.wake_task();
    }

    fn start(self: Arc<Self>) -> Result<(), SleepError> {
        if lock(&self.slot).taken {
            return Ok(());
        }
        if !clock::is_within_reach() {
            return Err(SleepError::Shutdown);
        }
        let ended = || lock(&self.runtimes).given_has_ended;
        let given = lock(&self.runtimes).given.clone();
        if let Some(runtime) = given.filter(|_| !ended()) {
            let id = runtime.id();
            let started = start_on(&self, runtime);
            if started.is_ok() {
                return started;
            }
            self.runtime_has_ended(id);
        }
        match Handle::try_current() {
            Err(_) if ended() && !self.is_current => Err(SleepError::Shutdown),
            _ => start_on(&self, current_runtime()),
        }
    }

    fn now(&self) -> Instant {
        let runtime = self.clock_runtime();
        let _entered = runtime.as_ref().and_then(clock::enter);
        clock::now()
    }

    fn has_come(&self, instant: Instant) -> bool {
        let Some(runtime) = self.clock_runtime().or_else(|| Handle::try_current().ok()) else {
            return true;
        };
        let real = {
            let _entered = runtime.enter();
            clock::is_real(Instant::now)
        };
        real || has_come(&runtime, instant)
    }

    fn instant_here(&self, instant: Instant) -> Instant {
        let here = clock::runtime_here();
        let now = match self.clock_runtime() {
            Some(runtime) if Some(runtime.id()) != here => {
                let is_real_here = clock::is_real(Instant::now);
                let _entered = runtime.enter();
                let is_one_clock = is_real_here && clock::is_real(Instant::now);
                (!is_one_clock).then(Instant::now)
            }
            Some(_) => None,
            None => lock(&self.slot).stopped(here),
        };
        now.map_or(instant, |now| clock::carried_over(instant, now, Instant::now()))
    }

    fn sibling(&self, number: usize) -> Option<Arc<Shard>> {
        let shards = self.shards.get()?;
        shards[number & (shards.len() - 1)].upgrade()
    }
}

/// Starts a driver on `runtime`, unless there is one by then. Returns `Err` if that runtime has been shut
/// down.
///
/// The driver's task comes first and the shards last, so that a shard counts as driven only once a task exists whose end it will
/// hear of. Until then nothing has changed, whatever panics.
fn start_on(shared: &Arc<Shared>, runtime: Handle) -> Result<(), SleepError> {
    let task = Arc::new(DriverTask::default());
    let timer = {
        let _entered = runtime.enter();
        let waker = DriverWaker {
            shared: shared.clone(),
            task: task.clone(),
            runtime: runtime.clone(),
            source: Source::of(&runtime),
        };
        Timer::new(runtime.clone(), Waker::from(Arc::new(waker)), task.woken.clone())
    };
    // No lock is held here, because a runtime that has been shut down drops the task at once.
    let guard = Guard::new(shared.clone(), task.clone());
    let spawned = spawn(&runtime, Box::pin(guard.run()));
    let (number, _former) = {
        let mut slot = lock(&shared.slot);
        if slot.taken {
            spawned.abort();
            return Ok(());
        }
        let entered = runtime.enter();
        let (now, source) = (Instant::now(), Source::of(&runtime));
        let clock = slot.clock_of_next(&runtime, now, source);
        drop(entered);
        let number = slot.driver + 1;
        if !task.attach(number) {
            return Err(SleepError::Shutdown);
        }
        slot.clock = clock;
        slot.runtime = Some(runtime.id());
        slot.taken = true;
        slot.driver = number;
        lock(&shared.runtimes).driving = Some(runtime.clone());
        let shards: Box<[_]> = shared.shards().collect();
        let driver = Driver::new(number, shards.clone(), slot.clock);
        let former = shared.alarm.set_up(number, driver, timer);
        for shard in &shards {
            shard.attach(slot.clock, now, number);
        }
        (number, former)
    };
    task.woken.notify_one();
    // Many other tasks may be ahead of the driver's task.
    shared.alarm.pause(number);
    let change = if number == 1 { "started" } else { "replaced" };
    events::driver_changed(&shared.stats.name, number, change);
    Ok(())
}

impl DriverSlot {
    /// Returns the clock of the next driver, on a runtime whose clock reads `now`. Its ticks begin with Tokio's milliseconds, so
    /// that a deadline is rounded up only once, and as Tokio would round it. If these are not known, the driver's task
    /// [finds](Shared::align) them.
    fn clock_of_next(&mut self, runtime: &Handle, now: Instant, source: Source) -> Clock {
        let former = Clock { source, ..self.clock };
        if self.driver > 0 && self.runtime == Some(runtime.id()) {
            return former;
        }
        let begin = begin_of_millisecond(runtime, now);
        self.is_aligned = begin.is_some();
        let begin = begin.unwrap_or(now);
        if self.driver == 0 {
            return Clock::new(begin, Nanos::ZERO, former.tick, source);
        }
        // Wheel time continues by the previous clock if both are real, and otherwise from where it stopped.
        let time = match self.clock.source.is_real() && source.is_real() {
            true => former.wheel_time(now),
            false => self.stopped_at,
        };
        Clock::aligned(begin, now, time, former.tick, source)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{future::poll_fn, task::Wake, time::Duration};

    use super::*;
    use crate::engine::{
        clock::MILLISECOND,
        labels::Stripe,
        shard,
        timing_wheel::{TickDuration, TimingWheel},
    };

    /// Creates a shard, and the driver to be, of which `drivers` have been before.
    fn driven_by_the_next_of(drivers: u64) -> Arc<Shard> {
        let tick = TickDuration::new(MILLISECOND);
        let shared = Arc::new(Shared::new(String::new(), tick, None, false));
        let wheel = TimingWheel::new(512, 4);
        let shard = Shard::new(
            wheel,
            shared.clock(),
            0,
            None,
            Stripe::new(Arc::default()),
            shared.clone(),
            (0, 0),
        );
        let shard = Arc::new(shard);
        shared.connect([Arc::downgrade(&shard)].into_iter());
        lock(&shared.slot).driver = drivers;
        shard
    }

    fn timer(shard: &Arc<Shard>, duration: Duration) -> shard::Timer {
        shard::Timer::after(shard, shard.now(), duration)
    }

    async fn sleep(shard: &Arc<Shard>) {
        let mut timer = timer(shard, MILLISECOND);
        poll_fn(|cx| timer.poll(cx.waker())).await.unwrap();
    }

    /// When the count of drivers is exhausted, the generation carries no information. It must not be taken for "still pending",
    /// as by a task that polls a timer of the previous driver with the same waker.
    #[test]
    fn timers_expire_under_however_many_drivers() {
        struct Task;
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let waker = Waker::from(Arc::new(Task));
        for drivers in [(1 << 20) - 4, u64::from(u32::MAX) - 3] {
            let shard = driven_by_the_next_of(drivers);
            let mut left: Option<shard::Timer> = None;
            for _ in 0..8 {
                // Each driver is on a runtime of its own, and on the real clock, because generations do not count on any other.
                left = tokio_test::block_on(async {
                    // The driver has started before the timer is polled.
                    sleep(&shard).await;
                    if let Some(mut timer) = left {
                        let mut ticks = 0;
                        while timer.poll(&waker).is_pending() {
                            assert!(ticks < 1_000, "it waits for ever");
                            sleep(&shard).await;
                            ticks += 1;
                        }
                    }
                    let mut timer = timer(&shard, 3 * MILLISECOND);
                    assert!(timer.poll(&waker).is_pending());
                    Some(timer)
                });
            }
        }
    }
}
