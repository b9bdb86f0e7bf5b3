//! Everything at once, on the real clock, under random load, with every promise checked along the way.
//!
//! Hundreds of tasks on several threads sleep, time out, reset, tick, idle, schedule, cancel and drop at
//! random, on wheels of different shapes, while other runtimes use the same wheels, begin and end. Every few
//! seconds the load stops. At such a quiet point nothing may be pending, the counters must add up, and
//! nothing of a runtime that has ended may be left: no engine, no descriptor and no memory.
//!
//! It runs for 5 seconds, or for the number in the environment:
//!
//!     TICKWHEEL_SOAK_SECONDS=60 cargo test --release --test soak -- --nocapture

use std::{
    env, panic,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};

use crate::{
    actions::{ON_PURPOSE, act_at_random, sleep_on_another_executor, visit},
    judge::{Judge, watch_for_a_standstill},
    left::Left,
    random::Random,
    stage::Stage,
};

mod actions;
mod judge;
mod left;
#[path = "../support/random.rs"]
mod random;
mod stage;

const TASKS: u64 = 2000;
/// Between two things that a task does, so that a wheel that refuses them all does not set the pace.
const PAUSE: Duration = Duration::from_millis(5);
const ROUND: Duration = Duration::from_secs(5);

const SECONDS: &str = "TICKWHEEL_SOAK_SECONDS";

#[test]
fn every_promise_is_kept_under_everything_at_once() {
    let seconds = env::var(SECONDS).map_or(5, |value| match value.parse() {
        Ok(seconds @ 1..=86400) => seconds,
        _ => panic!("{SECONDS}={value}: allowed is a whole number from 1 to 86400"),
    });
    let judge = Arc::new(Judge::default());
    watch_for_a_standstill(judge.clone());
    be_silent_about_planned_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime can be had");
    runtime.block_on(soak(Duration::from_secs(seconds), &judge));
    judge.give_verdict();
}

fn be_silent_about_planned_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        if message.is_none_or(|message| message != ON_PURPOSE) {
            report(panic);
        }
    }));
}

async fn soak(duration: Duration, judge: &Arc<Judge>) {
    let started = Instant::now();
    let stages: Vec<Arc<Stage>> = Stage::all(judge).into_iter().map(Arc::new).collect();
    let (mut round, mut left) = (0, Left::default());
    while started.elapsed() < duration {
        round += 1;
        let end = Instant::now() + ROUND.min(duration - started.elapsed());
        let stop = Arc::new(AtomicBool::new(false));
        let load = start_load(&stages, &stop, round);
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + Duration::from_secs(1))).await;
            judge.show_progress(started, &stages);
        }
        stop.store(true, Ordering::Relaxed);
        load.wait().await;
        for stage in &stages {
            stage.check_quiet_point().await;
        }
        left.check(judge);
    }
    for stage in &stages {
        stage.close();
    }
}

fn repeat_until(
    stop: &Arc<AtomicBool>,
    seed: u64,
    act: impl Fn(&mut Random) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (stop, mut random) = (stop.clone(), Random::new(seed));
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            act(&mut random);
        }
    })
}

struct Load {
    tasks: JoinSet<()>,
    threads: Vec<thread::JoinHandle<()>>,
}

fn start_load(stages: &[Arc<Stage>], stop: &Arc<AtomicBool>, round: u64) -> Load {
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let stage = stages[number as usize % stages.len()].clone();
        let (stop, mut random) = (stop.clone(), Random::new(round * TASKS + number));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                act_at_random(&stage, &mut random).await;
                tokio::time::sleep(random.within(PAUSE)).await;
            }
        });
    }
    // Runtimes that come and go. Their refusals would not all be heard of, and a series that they start on
    // the wheel with a handle would outlive them.
    let (pinned, others) = stages.split_last().expect("there are several");
    let unlimited = others.iter().filter(|stage| stage.wheel.max_pending().is_none());
    let mut threads: Vec<_> = unlimited
        .cloned()
        .map(|stage| repeat_until(stop, round, move |random| visit(&stage, random)))
        .collect();
    // A thread of no runtime.
    let pinned = pinned.clone();
    threads.push(repeat_until(stop, round, move |random| {
        futures::executor::block_on(sleep_on_another_executor(&pinned, random));
    }));
    Load { tasks, threads }
}

impl Load {
    async fn wait(self) {
        self.tasks.join_all().await;
        for thread in self.threads {
            let joined = tokio::task::spawn_blocking(|| thread.join()).await;
            joined.expect("not cancelled").expect("no thread panics");
        }
    }
}
