//! The tasks of the soak test: one function for each way to use a wheel, each with its checks.

use std::{
    future::{Future, pending, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::poll;
use tickwheel::{Periodic, ScheduleError, SleepError, TimeoutError, TrySleep, Wheel};
use tokio::{
    runtime::{Builder, Runtime},
    task,
    time::{Instant, MissedTickBehavior},
};

use crate::{random::Random, stage::Stage};

const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_millis(200);
const NEVER: Duration = Duration::from_secs(3600);

/// In the message of every panic that belongs to the soak.
pub(crate) const ON_PURPOSE: &str = "on purpose";

pub(crate) async fn act_at_random(stage: &Arc<Stage>, random: &mut Random) {
    match random.below(15) {
        0 => sleep(stage, random).await,
        1 => sleep_until_the_past(stage).await,
        2 => reset(stage, random).await,
        3 => push_back(stage, random).await,
        4 => timeout(stage, random).await,
        5 => many_timeouts_that_do_not_elapse(stage, random).await,
        6 => interval(stage, random).await,
        7 => idle(stage, random).await,
        8 => schedule_and_await(stage, random).await,
        9 => schedule_and_cancel(stage, random).await,
        10 => periodic(stage, random).await,
        11 => drop_at_random(stage, random).await,
        12 => move_to_another_task(stage, random).await,
        13 => outlive_the_wheel(stage, random).await,
        _ if random.one_in(10) => shut_down(stage, random).await,
        _ => task::yield_now().await,
    }
}

async fn sleep(stage: &Stage, random: &mut Random) {
    let due = Instant::now() + random.within(LONG);
    let sleep = stage.wheel.try_sleep(due - Instant::now().min(due));
    let due = sleep.deadline().min(due);
    if let Some(outcome) = stage.patiently("a sleep", sleep).await {
        stage.check_sleep(outcome, due, "a sleep");
    }
}

/// Tasks of a runtime that ends while they are at it. Timers that are kept go on elsewhere.
pub(crate) fn visit(stage: &Arc<Stage>, random: &mut Random) {
    let runtime = visiting_runtime(random);
    for _ in 0..random.below(30) {
        let (stage, mut random) = (stage.clone(), Random::new(random.below(u64::MAX)));
        runtime.spawn(async move {
            loop {
                act_at_random(&stage, &mut random).await;
                task::yield_now().await;
            }
        });
    }
    let due = Instant::now() + random.within(SHORT);
    let mut kept = stage.wheel.sleep_until(due);
    let pause = random.within(SHORT);
    runtime.block_on(async {
        let _ = poll!(&mut kept);
        tokio::time::sleep(pause).await;
    });
    if random.one_in(2) {
        runtime.shutdown_background();
    } else {
        drop(runtime);
    }
    visiting_runtime(random).block_on(async {
        if stage
            .patiently("a sleep of an ended runtime", kept)
            .await
            .is_some()
        {
            stage.check_not_early(Ok(()), due, "a sleep of an ended runtime");
        }
    });
}

fn visiting_runtime(random: &mut Random) -> Runtime {
    let mut builder = match random.below(3) {
        0 => Builder::new_current_thread(),
        workers => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(workers as usize);
            builder
        }
    };
    builder.enable_all().build().expect("a runtime can be had")
}

pub(crate) async fn sleep_on_another_executor(stage: &Stage, random: &mut Random) {
    let due = Instant::now() + random.within(LONG);
    stage.wheel.sleep_until(due).await;
    stage.check_sleep(Ok(()), due, "a sleep on another executor");
}

async fn sleep_until_the_past(stage: &Stage) {
    let now = Instant::now();
    let sleep = stage.wheel.sleep_until(now.checked_sub(LONG).unwrap_or(now));
    if let Some(()) = stage.patiently("a sleep until the past", sleep).await {
        stage.check_sleep(Ok(()), now, "a sleep until the past");
    }
}

/// Resets a sleep before, after and without a first poll, earlier and later, and after it completed.
async fn reset(stage: &Stage, random: &mut Random) {
    let mut sleep = stage.wheel.try_sleep(random.within(LONG));
    for _ in 0..random.below(5) {
        if random.one_in(2) {
            if let Poll::Ready(outcome) = poll!(&mut sleep) {
                stage.check_not_early(outcome, sleep.deadline(), "a sleep that was reset");
                if outcome.is_err() {
                    return;
                }
            }
        }
        if random.one_in(3) {
            tokio::time::sleep(random.within(SHORT)).await;
        }
        sleep.reset_at(Instant::now() + random.within(LONG));
    }
    if let Some(outcome) = stage.patiently("a sleep that was reset", &mut sleep).await {
        stage.check_not_early(outcome, sleep.deadline(), "a sleep that was reset");
    }
}

/// An idle deadline that traffic pushes back.
async fn push_back(stage: &Stage, random: &mut Random) {
    let mut idle = stage.wheel.try_sleep(LONG);
    for _ in 0..random.below(8) {
        let traffic = tokio::time::sleep(random.within(SHORT * 2));
        tokio::select! {
            biased;
            () = traffic => idle.reset_at(Instant::now() + random.within(LONG)),
            outcome = &mut idle => {
                stage.check_sleep(outcome, idle.deadline(), "a deadline pushed back");
                return;
            }
        }
    }
    if let Some(outcome) = stage.patiently("a deadline pushed back", &mut idle).await {
        stage.check_sleep(outcome, idle.deadline(), "a deadline pushed back");
    }
}

async fn timeout(stage: &Stage, random: &mut Random) {
    let duration = random.within(LONG);
    let takes = random.within(LONG);
    let started = Instant::now();
    let outcome = match random.below(4) {
        0 => {
            let outcome = stage.wheel.try_timeout(duration, ready(7)).await;
            return stage.check(outcome == Ok(7), "a ready future never times out", || {
                format!("{outcome:?}")
            });
        }
        1 => {
            stage
                .patiently("a timeout", stage.wheel.try_timeout(duration, pending()))
                .await
        }
        2 => {
            let timeout = stage.wheel.timeout_at(started + duration, pending());
            let outcome = stage.patiently("a timeout", timeout).await;
            outcome.map(|outcome| outcome.map_err(|_| TimeoutError::Elapsed))
        }
        _ => {
            let slow = tokio::time::sleep(takes);
            stage
                .patiently("a timeout", stage.wheel.try_timeout(duration, slow))
                .await
        }
    };
    match outcome {
        Some(Ok(())) => stage.check_due(started + takes, "the future in a timeout"),
        Some(Err(TimeoutError::Elapsed)) => {
            stage.check_due(started + duration, "a timeout");
        }
        Some(Err(TimeoutError::AtCapacity { limit })) => stage.note_refusal(limit),
        Some(Err(error)) => stage.check(false, "a running wheel refuses nothing", || error.to_string()),
        None => {}
    }
}

async fn many_timeouts_that_do_not_elapse(stage: &Stage, random: &mut Random) {
    for _ in 0..random.below(100) {
        match stage.wheel.try_timeout(NEVER, task::yield_now()).await {
            Err(TimeoutError::AtCapacity { limit }) => stage.note_refusal(limit),
            outcome => stage.check(outcome == Ok(()), "a timeout waits for its time", || {
                format!("{outcome:?}")
            }),
        }
    }
}

async fn interval(stage: &Stage, random: &mut Random) {
    let period = SHORT / 10 + random.within(SHORT);
    let mut earliest = Instant::now() + random.within(SHORT);
    let mut interval = stage.wheel.interval_at(earliest, period);
    interval.set_missed_tick_behavior(match random.below(3) {
        0 => MissedTickBehavior::Burst,
        1 => MissedTickBehavior::Delay,
        _ => MissedTickBehavior::Skip,
    });
    for _ in 0..random.below(8) {
        if random.one_in(10) {
            // Too long for the next tick, which is missed.
            tokio::time::sleep(SHORT * 2).await;
        }
        match stage.patiently("an interval", interval.tick()).await {
            Some(tick) => {
                stage.check_not_early(Ok(()), tick, "an interval's tick");
                stage.check(tick >= earliest, "ticks are a period apart", || {
                    format!("{:?}", earliest - tick)
                });
                earliest = tick + period;
            }
            None => return,
        }
        if random.one_in(4) {
            earliest = Instant::now() + random.within(SHORT);
            interval.reset_at(earliest);
        }
    }
}

/// An idle timer that another task touches while this one waits.
async fn idle(stage: &Stage, random: &mut Random) {
    let duration = SHORT + random.within(LONG);
    let made = Instant::now();
    let mut timer = stage.wheel.idle_timer(duration);
    let handle = timer.handle();
    let pauses: Vec<_> = (0..random.below(6)).map(|_| random.within(SHORT * 2)).collect();
    let mut touching = tokio::spawn(async move {
        let mut last = made;
        for pause in pauses {
            tokio::time::sleep(pause).await;
            last = Instant::now();
            handle.touch();
        }
        last
    });
    tokio::select! {
        biased;
        last = &mut touching => {
            let last = match last {
                // The runtime of both tasks is ending.
                Err(error) if error.is_cancelled() && stage.is_visited() => return,
                last => last.expect("touching does not panic"),
            };
            let due = last + duration;
            if let Some(()) = stage.patiently("an idle timer", &mut timer).await {
                stage.check_due(due, "an idle timer");
            }
        }
        // Which touches it had seen is not known here.
        () = &mut timer => stage.check_not_early(Ok(()), made + duration, "an idle timer"),
    }
}

async fn schedule_and_await(stage: &Arc<Stage>, random: &mut Random) {
    let due = Instant::now() + random.within(LONG);
    let panics = random.one_in(50);
    let inside = stage.clone();
    let scheduled = stage.wheel.schedule_at(due, async move {
        inside.check_due(due, "a scheduled task");
        assert!(!panics, "{ON_PURPOSE}");
        "done"
    });
    if random.one_in(5) {
        // Detached, it runs all the same; whether it was refused, only the handle would have told.
        if stage.wheel.max_pending().is_none() {
            return drop(scheduled);
        }
    }
    match stage.patiently("a scheduled task", scheduled).await {
        Some(Err(ScheduleError::AtCapacity { limit })) => stage.note_refusal(limit),
        Some(Err(ScheduleError::Panicked(message))) => {
            stage.check(panics && message == ON_PURPOSE, "a panic is reported", || message);
        }
        // It ends with its runtime.
        Some(Err(ScheduleError::Cancelled)) if stage.is_visited() => {}
        Some(outcome) => stage.check(outcome == Ok("done") && !panics, "a scheduled task runs", || {
            format!("{outcome:?}")
        }),
        None => {}
    }
}

/// Two tasks cancel at about the time that the task is due.
async fn schedule_and_cancel(stage: &Stage, random: &mut Random) {
    let delay = random.within(LONG);
    let (ran, owned) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
    let inside = (ran.clone(), owned.clone());
    let scheduled = Arc::new(stage.wheel.schedule(delay, async move {
        inside.0.store(true, Ordering::SeqCst);
        drop(inside.1);
    }));
    let cancels = [(); 2].map(|()| {
        let (scheduled, owned) = (scheduled.clone(), Arc::downgrade(&owned));
        let pause = (delay + random.within(SHORT)).saturating_sub(SHORT / 2);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            scheduled.cancel().then(|| owned.strong_count() == 1)
        })
    });
    let mut cancelled = 0;
    for cancel in cancels {
        // It is cancelled where its runtime ends.
        let Ok(verdict) = cancel.await else { return };
        if let Some(dropped) = verdict {
            cancelled += 1;
            stage.check(dropped, "a cancelled task is dropped at once", String::new);
        }
    }
    let scheduled = Arc::into_inner(scheduled).expect("those who cancelled have ended");
    let Some(outcome) = stage
        .patiently("a task that was to be cancelled", scheduled)
        .await
    else {
        return;
    };
    let ran = ran.load(Ordering::SeqCst);
    let kept = match outcome {
        Ok(()) => ran && cancelled == 0,
        Err(ScheduleError::Cancelled) => !ran && cancelled == 1,
        Err(ScheduleError::AtCapacity { limit }) => {
            stage.note_refusal(limit);
            !ran && cancelled == 0
        }
        Err(_) => false,
    };
    stage.check(kept, "one cancel succeeds, or the task runs", || {
        format!("{outcome:?}, ran: {ran}, cancelled {cancelled} times")
    });
}

async fn periodic(stage: &Arc<Stage>, random: &mut Random) {
    let period = Duration::from_millis(5) + random.within(SHORT);
    let (running, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let builder = stage.wheel.periodic(period).jitter(random.within(SHORT));
    let (started, takes) = (Instant::now(), random.within(SHORT));
    let run = {
        let (stage, running, runs) = (stage.clone(), running.clone(), runs.clone());
        move || {
            let overlaps = running.swap(true, Ordering::SeqCst);
            stage.check(!overlaps, "runs never overlap", String::new);
            let earliest = started + period * (1 + runs.load(Ordering::SeqCst) as u32);
            stage.check(Instant::now() >= earliest, "runs are a period apart", || {
                format!("{period:?}")
            });
            let (running, runs) = (running.clone(), runs.clone());
            async move {
                tokio::time::sleep(takes).await;
                runs.fetch_add(1, Ordering::SeqCst);
                running.store(false, Ordering::SeqCst);
            }
        }
    };
    let series: Periodic = match random.below(2) {
        0 => builder.spawn_at_fixed_rate(run),
        _ => builder.spawn_with_fixed_delay(run),
    };
    tokio::time::sleep(random.within(LONG * 2)).await;
    if random.one_in(5) && stage.wheel.max_pending().is_none() {
        series.stop();
        return drop(series);
    }
    series.stop();
    let mut series = series;
    match stage.patiently("a series that was stopped", &mut series).await {
        Some(Err(ScheduleError::AtCapacity { limit })) => stage.note_refusal(limit),
        Some(outcome) => stage.check(outcome.is_ok(), "a series ends when stopped", || {
            format!("{outcome:?}")
        }),
        None => return,
    }
    let (counted, reported) = (runs.load(Ordering::SeqCst), series.runs());
    stage.check(counted == reported, "each run is counted", || {
        format!("{counted}, not {reported}")
    });
}

async fn drop_at_random(stage: &Stage, random: &mut Random) {
    let mut sleeps = Vec::new();
    for _ in 0..random.below(30) {
        let mut sleep = stage.wheel.try_sleep(SHORT + random.within(LONG));
        match poll!(&mut sleep) {
            Poll::Ready(outcome) => stage.check_sleep(outcome, sleep.deadline(), "a sleep among many"),
            Poll::Pending => sleeps.push(sleep),
        }
        if random.one_in(4) && !sleeps.is_empty() {
            let place = random.below(sleeps.len() as u64) as usize;
            drop(sleeps.swap_remove(place));
        }
    }
    tokio::time::sleep(random.within(LONG)).await;
    sleeps.truncate(random.below(5) as usize);
    for mut sleep in sleeps {
        if let Some(outcome) = stage.patiently("a sleep among many", &mut sleep).await {
            stage.check_not_early(outcome, sleep.deadline(), "a sleep among many");
        }
    }
}

async fn move_to_another_task(stage: &Arc<Stage>, random: &mut Random) {
    let mut sleep = stage.wheel.try_sleep(random.within(LONG));
    if let Poll::Ready(outcome) = poll!(&mut sleep) {
        return stage.check_sleep(outcome, sleep.deadline(), "a sleep that was to be moved");
    }
    let there = stage.clone();
    let moved = tokio::spawn(async move {
        if let Some(outcome) = there.patiently("a sleep that was moved", &mut sleep).await {
            there.check_sleep(outcome, sleep.deadline(), "a sleep that was moved");
        }
    });
    moved.await.expect("sleeping does not panic");
}

async fn outlive_the_wheel(stage: &Stage, random: &mut Random) {
    if !random.one_in(10) {
        return;
    }
    let due = Instant::now() + random.within(LONG);
    let sleep = Wheel::new().sleep_until(due);
    if let Some(()) = stage
        .patiently("a sleep without a handle of its wheel", sleep)
        .await
    {
        stage.check_sleep(Ok(()), due, "a sleep without a handle of its wheel");
    }
}

/// Shuts a wheel down that has a bit of everything.
async fn shut_down(stage: &Stage, random: &mut Random) {
    let wheel = Wheel::new();
    let mut sleeps: Vec<TrySleep> = (0..random.below(10)).map(|_| wheel.try_sleep(NEVER)).collect();
    for sleep in &mut sleeps {
        stage.check(poll!(sleep).is_pending(), "an hour takes an hour", String::new);
    }
    let ran = Arc::new(AtomicU64::new(0));
    let scheduled: Vec<_> = (0..random.below(10))
        .map(|_| {
            let ran = ran.clone();
            wheel.schedule(NEVER, async move { ran.fetch_add(1, Ordering::SeqCst) })
        })
        .collect();

    let unprocessed = wheel.shutdown();
    let found = unprocessed.tasks.len();
    stage.check(
        found == scheduled.len(),
        "a shutdown hands everything back",
        || format!("{found}, not {}", scheduled.len()),
    );
    for sleep in sleeps {
        resolves_shutdown(stage, sleep).await;
    }
    resolves_shutdown(stage, wheel.try_sleep(Duration::ZERO)).await;
    for task in unprocessed.tasks {
        task.await;
    }
    let (ran, expected) = (ran.load(Ordering::SeqCst), scheduled.len() as u64);
    stage.check(ran == expected, "what was handed back can be run", || {
        format!("{ran} of {expected}")
    });
    for handle in scheduled {
        let outcome = stage.patiently("the handle of a task handed back", handle).await;
        stage.check(
            matches!(outcome, None | Some(Err(ScheduleError::Shutdown))),
            "handed back is handed back",
            || format!("{outcome:?}"),
        );
    }
    let again = wheel.shutdown();
    stage.check(
        again.tasks.is_empty(),
        "a second shutdown hands nothing back",
        || format!("{again:?}"),
    );
}

async fn resolves_shutdown(stage: &Stage, sleep: impl Future<Output = Result<(), SleepError>>) {
    let outcome = stage.patiently("a sleep on a wheel shut down", sleep).await;
    stage.check(
        matches!(outcome, None | Some(Err(SleepError::Shutdown))),
        "a shutdown ends every sleep",
        || format!("{outcome:?}"),
    );
}
