//! Refusal: sleeps that a shutdown ends while they begin, change hands or are reset, and the limit.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use loom::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{model, task::Task, world::World};
use crate::{
    error::SleepError,
    timers::limit::{Permit, TrySleep},
    wheel::Wheel,
};

type Outcome = Result<(), SleepError>;

const MILLISECOND: Duration = Duration::from_millis(1);

fn poll(sleep: &mut TrySleep, task: &(Arc<Task>, Waker)) -> Poll<Outcome> {
    Pin::new(sleep).poll(&mut Context::from_waker(&task.1))
}

/// Polls a sleep until it completes, as its task does.
fn finish(mut poll: impl FnMut() -> Poll<Outcome>, task: &Task) -> Outcome {
    loop {
        match poll() {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => task.wait(),
        }
    }
}

/// Runs `sleeper` beside a shutdown. No time passes, so a sleep ends by being refused, or never.
fn beside_a_shutdown(sleeper: impl Fn(&Wheel) + Copy + Send + Sync + 'static) {
    model(3, move || {
        let world = World::new();
        let engine = world.engine();
        let wheel = Wheel::of(&world.shared, None);
        let shuts_down = wheel.clone();
        let sleeper = world.spawn(move |_| sleeper(&wheel));
        assert!(shuts_down.shutdown().tasks.is_empty());
        sleeper.join().unwrap();
        drop(engine);
        world.shut_down();
    });
}

#[test]
fn a_sleep_that_begins_beside_a_shutdown_is_refused() {
    beside_a_shutdown(|wheel| {
        let (mut sleep, task) = (wheel.try_sleep(MILLISECOND), Task::new());
        let outcome = finish(|| poll(&mut sleep, &task), &task.0);
        assert_eq!(outcome, Err(SleepError::Shutdown));
    });
}

/// The shutdown finds the waker of the first task on the roster, that of the second, or neither.
#[test]
fn a_sleep_that_another_task_polls_beside_a_shutdown_is_refused_there() {
    beside_a_shutdown(|wheel| {
        let (mut sleep, tasks) = (wheel.try_sleep(MILLISECOND), [Task::new(), Task::new()]);
        if poll(&mut sleep, &tasks[0]).is_ready() {
            return;
        }
        let outcome = finish(|| poll(&mut sleep, &tasks[1]), &tasks[1].0);
        assert_eq!(outcome, Err(SleepError::Shutdown));
    });
}

/// The reset may take the waker off the roster before the shutdown has come to it.
#[test]
fn a_sleep_that_another_thread_resets_beside_a_shutdown_is_refused() {
    model(3, || {
        let world = World::new();
        let engine = world.engine();
        let wheel = Wheel::of(&world.shared, None);
        let sleep = Arc::new(Mutex::new(wheel.try_sleep(MILLISECOND)));
        let task = Task::new();
        {
            let _entered = world.runtime.enter();
            assert!(poll(&mut sleep.lock().unwrap(), &task).is_pending());
        }
        let polled = sleep.clone();
        let sleeper = world.spawn(move |_| {
            let outcome = finish(|| poll(&mut polled.lock().unwrap(), &task), &task.0);
            assert_eq!(outcome, Err(SleepError::Shutdown));
        });
        let resetter = world.spawn(move |_| sleep.lock().unwrap().reset_after(2 * MILLISECOND));
        wheel.shutdown();
        sleeper.join().unwrap();
        resetter.join().unwrap();
        drop(engine);
        world.shut_down();
    });
}

#[test]
fn no_more_wait_than_the_limit_allows_and_each_gives_its_permit_back() {
    model(3, || {
        let world = World::new();
        let wheel = Wheel::of(&world.shared, Some(1));
        let inside = Arc::new(AtomicUsize::new(0));
        let waiting = [(); 2].map(|()| {
            let (sleepers, inside) = (wheel.stripe().sleepers.clone(), inside.clone());
            world.spawn(move |_| {
                let Ok(_permit) = Permit::take(&sleepers) else {
                    return;
                };
                assert_eq!(inside.fetch_add(1, Relaxed), 0, "two have the only permit");
                inside.fetch_sub(1, Relaxed);
            })
        });
        waiting.into_iter().for_each(|waits| waits.join().unwrap());
        assert!(
            Permit::take(&wheel.stripe().sleepers).is_ok(),
            "a permit is lost"
        );
    });
}
