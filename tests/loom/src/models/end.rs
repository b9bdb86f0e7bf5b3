//! An engine's end beside timers that are started: each is woken, or told at once, and goes on elsewhere.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    task::{Poll, Wake, Waker},
};

use loom::sync::Mutex;

use super::{
    model,
    task::Task,
    world::{World, finish, moment, poll, spawn},
};
use crate::{
    engine::{clock::Moment, registry, timer::Timer},
    runtime::Handle,
    stand_in::time::{self, ENDED},
};

/// Waits for a timer on a runtime that may shut down meanwhile. Returns whether it elapsed, and `false` if a
/// poll panicked in Tokio's words.
fn sleep_or_be_told(timer: &mut Timer, task: &(Arc<Task>, Waker)) -> bool {
    loop {
        let polled = catch_unwind(AssertUnwindSafe(|| poll(timer, &task.1)));
        match polled {
            Ok(Poll::Pending) => task.0.wait(),
            Ok(Poll::Ready(())) => return true,
            Err(payload) => {
                let words = payload.downcast_ref::<&str>();
                if words != Some(&ENDED) {
                    resume_unwind(payload);
                }
                return false;
            }
        }
    }
}

/// No time passes, so no timer elapses.
#[test]
fn a_timer_that_is_started_while_its_runtime_shuts_down_is_woken_or_told() {
    model(4, || {
        let world = World::new();
        let engine = world.engine();
        let sleeper = world.spawn(|world| assert!(!sleep_or_be_told(&mut world.timer(1), &Task::new())));
        drop(engine);
        world.runtime.shut_down();
        sleeper.join().unwrap();
        world.assert_ended();
    });
}

/// The task takes its last timer's entry over, as far as it can tell that it is there.
#[test]
fn an_entry_that_is_taken_over_while_its_runtime_shuts_down_wakes_its_task() {
    model(4, || {
        let world = World::new();
        let engine = world.engine();
        let sleeper = world.spawn(|world| {
            let task = Task::new();
            let mut first = world.timer(1);
            let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut first, &task.1)));
            drop(first);
            assert!(!sleep_or_be_told(&mut world.timer(2), &task));
        });
        drop(engine);
        world.runtime.shut_down();
        sleeper.join().unwrap();
        world.assert_ended();
    });
}

/// The engine begins while the runtime shuts down, or not at all.
#[test]
fn an_engine_that_begins_while_its_runtime_shuts_down_ends() {
    model(4, || {
        let world = World::new();
        let sleeper = world.spawn(|world| assert!(!sleep_or_be_told(&mut world.timer(1), &Task::new())));
        world.runtime.shut_down();
        sleeper.join().unwrap();
        world.assert_ended();
    });
}

/// One thread begins the engine, and the other one may find it.
#[test]
fn an_engine_that_two_threads_begin_while_its_runtime_shuts_down_ends() {
    model(3, || {
        let world = World::new();
        let sleep = |world: &World| assert!(!sleep_or_be_told(&mut world.timer(1), &Task::new()));
        let sleepers = [(); 2].map(|()| world.spawn(sleep));
        world.runtime.shut_down();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        world.assert_ended();
    });
}

#[test]
fn two_threads_begin_one_engine() {
    model(3, || {
        let world = World::new();
        let sleepers = [(); 2].map(|()| world.spawn(|world| world.sleep_until(1)));
        world.runtime.timers().run();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        world.shut_down();
    });
}

/// The tasks of the runtime are being dropped, and one of them still waits. Its timer goes on.
#[test]
fn an_engine_goes_on_while_the_tasks_of_its_runtime_are_dropped() {
    model(4, || {
        let world = World::new();
        let engine = world.engine();
        let sleeper = world.spawn(|world| world.sleep_until(1));
        drop(engine);
        world.runtime.drop_tasks();
        world.runtime.timers().run();
        sleeper.join().unwrap();
        world.runtime.timers().end();
        world.assert_ended();
    });
}

/// The timer is polled on another runtime than that of its engine, and its entry has expired for an earlier
/// deadline.
#[test]
fn a_timer_whose_runtime_shuts_down_goes_on_where_it_is_polled() {
    model(3, || {
        let [world, other] = [1, 2].map(|id| World::with(Handle::new(id), None));
        let mut timer = world.timer(1);
        {
            let _entered = world.runtime.enter();
            assert_eq!(poll(&mut timer, Waker::noop()), Poll::Pending);
        }
        assert!(timer.reset(moment(2), moment(0)).is_none());
        assert!(world.runtime.timers().turn());
        assert_eq!(time::elapsed(), 1);
        let polled_there = other.clone();
        let sleeper = other.spawn(move |_| {
            finish(&mut timer, &Task::new(), || ());
            assert!(time::elapsed() >= 2, "early");
        });
        let runtime = other.runtime.clone();
        let time = spawn(&other.runtime, move || runtime.timers().run());
        world.runtime.shut_down();
        sleeper.join().unwrap();
        time.join().unwrap();
        polled_there.runtime.shut_down();
        world.assert_ended();
    });
}

/// The horizon of a shard that has ended is no moment that has come.
#[test]
fn a_timer_that_is_reset_while_its_runtime_shuts_down_does_not_elapse() {
    model(3, || {
        let world = World::new();
        let mut timer = world.timer(100);
        {
            let _entered = world.runtime.enter();
            assert_eq!(poll(&mut timer, Waker::noop()), Poll::Pending);
        }
        let resetter = world.spawn(move |_| {
            let waker = timer.reset(moment(50), Moment::ZERO);
            assert!(!timer.has_completed(), "early");
            waker.into_iter().for_each(Waker::wake);
        });
        world.runtime.shut_down();
        resetter.join().unwrap();
        world.assert_ended();
    });
}

/// All timers of the wheel wait on one runtime, until that ends.
#[test]
fn a_timer_of_a_wheel_with_a_handle_goes_on_where_it_is_polled_once_that_runtime_ends() {
    model(4, || {
        let given = Handle::new(1);
        let world = World::with(Handle::new(2), Some(given.clone()));
        let sleeper = world.spawn(|world| world.sleep_until(1));
        let runtime = world.runtime.clone();
        let time = spawn(&world.runtime, move || runtime.timers().run());
        given.shut_down();
        sleeper.join().unwrap();
        time.join().unwrap();
        world.shut_down();
    });
}

/// A task whose timer was bound to the runtime of its thread would be spawned on one that has ended.
#[test]
fn once_the_runtime_of_a_handle_has_ended_nobody_is_given_the_handle() {
    model(3, || {
        let given = Handle::new(1);
        let world = World::with(Handle::new(2), Some(given.clone()));
        let forgets = world.spawn(move |world| world.shared.forget_builder_runtime(given.id()));
        let has_ended = world.shared.builder_runtime().is_none();
        assert!(!(has_ended && world.shared.builder_handle().is_some()));
        forgets.join().unwrap();
        world.assert_ended();
    });
}

/// Lets the tasks of a runtime run until all of them wait. An engine's task yields after each turn.
fn run_tasks(runtime: &Handle) {
    (0..2).for_each(|_| runtime.poll_tasks(&Task::without_thread().1));
}

/// Lets the engine's task run, linger as it does in an engine that has become unused, and look again.
fn linger(runtime: &Handle) {
    run_tasks(runtime);
    runtime.timers().process(time::elapsed() + 20);
    run_tasks(runtime);
}

/// The wheel has no handle any more, so the engine's task ends it unless it has timers.
#[test]
fn a_timer_that_is_started_while_an_unused_engine_ends_is_not_slept_through() {
    model(3, || {
        let world = World::new();
        let engine = world.engine();
        world.shared.forget_handles();
        engine.alarm.notify_if_no_handle(&world.shared);
        drop(engine);
        let sleeper = world.spawn(|world| world.sleep_until(1));
        let runtime = world.runtime.clone();
        let task = spawn(&world.runtime, move || linger(&runtime));
        world.runtime.timers().run();
        sleeper.join().unwrap();
        task.join().unwrap();
        world.shut_down();
    });
}

/// A waker that starts its timer again, as that of a scheduled task does which has been put off.
struct Again(Mutex<Option<Timer>>);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        if let Some(timer) = &mut *self.0.lock().unwrap() {
            assert!(!timer.has_lost_engine(), "ended in the middle of a turn");
            assert_eq!(poll(timer, &Waker::from(self.clone())), Poll::Pending);
        }
    }
}

/// The turn has taken the only entry out, and the engine's task looks before the entry's waker is called.
#[test]
fn an_unused_engine_does_not_end_in_the_middle_of_a_turn() {
    model(2, || {
        let world = World::new();
        let engine = world.engine();
        let again = Arc::new(Again(Mutex::new(Some(world.timer(1)))));
        {
            let _entered = world.runtime.enter();
            again.clone().wake();
            let mut timer = again.0.lock().unwrap();
            assert!(
                timer
                    .as_mut()
                    .is_some_and(|timer| timer.reset(moment(100), moment(0)).is_none())
            );
        }
        run_tasks(&world.runtime);
        world.shared.forget_handles();
        engine.alarm.notify_if_no_handle(&world.shared);
        drop(engine);
        let runtime = world.runtime.clone();
        let turn = spawn(&world.runtime, move || runtime.timers().process(1));
        linger(&world.runtime);
        turn.join().unwrap();
        drop(again.0.lock().unwrap().take());
        world.shut_down();
    });
}

/// Cancels the last timer, which `waker` has polled, as the last handle goes. Whichever comes second has the engine end.
fn cancel_beside_the_last_handle(waker: &Waker) {
    let world = World::new();
    let engine = world.engine();
    // Its turn would come later than the end of the model.
    let mut timer = world.timer(1_000);
    let entered = world.runtime.enter();
    assert_eq!(poll(&mut timer, waker), Poll::Pending);
    // It has looked when there was a handle.
    run_tasks(&world.runtime);
    let canceller = world.spawn(move |_| drop(timer));
    world.shared.forget_handles();
    engine.alarm.notify_if_no_handle(&world.shared);
    drop(engine);
    run_tasks(&world.runtime);
    canceller.join().unwrap();
    linger(&world.runtime);
    world.assert_ended();
    drop(entered);
}

#[test]
fn an_engine_ends_whose_last_timer_is_cancelled_as_its_last_handle_goes() {
    model(3, || cancel_beside_the_last_handle(Waker::noop()));
}

/// The entry becomes a spare, because the waker is a task's.
#[test]
fn an_engine_ends_whose_last_timer_leaves_a_spare_as_its_last_handle_goes() {
    model(3, || cancel_beside_the_last_handle(&Task::new().1));
}

/// Its task has looked when there was a handle, the last handle has found no engine in the list, and its first timer is
/// due at once, so that no entry ever expires nor is cancelled.
#[test]
fn an_engine_ends_that_begins_as_the_last_handle_goes() {
    model(3, || {
        let world = World::new();
        let entered = world.runtime.enter();
        let sleeper = world.spawn(|world| world.sleep_until(0));
        let runtime = world.runtime.clone();
        let task = spawn(&world.runtime, move || run_tasks(&runtime));
        world.shared.forget_handles();
        for engine in registry::of_wheel(&world.shared) {
            engine.alarm.notify_if_no_handle(&world.shared);
        }
        sleeper.join().unwrap();
        task.join().unwrap();
        // It begins to linger anew if it is told twice.
        linger(&world.runtime);
        linger(&world.runtime);
        world.assert_ended();
        drop(entered);
    });
}
