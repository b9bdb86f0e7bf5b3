//! The rules of the alarm: timers that are started while the driver works, and while Tokio's timer fires.

use super::{
    model,
    world::{World, spawn},
};
use crate::engine::driver::alarm::{Next, SetOutcome};

/// Both are started while the driver may be at work, for a timer of tick 1 that has been there before.
#[test]
fn what_is_registered_while_the_driver_works_is_not_slept_through() {
    model(3, || {
        let world = World::new();
        let engine = world.engine();
        let first = world.spawn(|world| world.sleep_until(1));
        let second = world.spawn(|world| world.sleep_until(2));
        world.runtime.timers().run();
        first.join().unwrap();
        second.join().unwrap();
        drop(engine);
        world.shut_down();
    });
}

/// The kernel's timer expires while it is set. No expiry is cleared that was not seen.
#[test]
fn a_kernel_timer_that_expires_as_it_is_set_is_not_slept_through() {
    model(2, || {
        let world = World::on_kernel_timer();
        let engine = world.engine();
        assert!(engine.alarm.has_kernel_timer());
        let first = world.spawn(|world| world.sleep_until(1));
        let second = world.spawn(|world| world.sleep_until(2));
        world.runtime.timers().run();
        first.join().unwrap();
        second.join().unwrap();
        drop(engine);
        world.shut_down();
    });
}

/// The millisecond comes while the alarm is being set to it.
#[test]
fn an_alarm_that_is_set_to_a_millisecond_that_has_come_is_set_again() {
    model(4, || {
        let world = World::new();
        let engine = world.engine();
        let sleeper = world.spawn(|world| world.sleep_until(1));
        world.runtime.timers().process(1);
        world.runtime.timers().run();
        sleeper.join().unwrap();
        drop(engine);
        world.shut_down();
    });
}

/// A turn is cut short, and the engine's task, which would go on with it, is behind many other tasks.
#[test]
fn a_driver_that_pauses_comes_again_whatever_is_registered() {
    model(3, || {
        let world = World::new();
        let alarm = world.engine().alarm.clone();
        let sleeper = world.spawn(|world| world.sleep_until(1));
        let pause = spawn(&world.runtime, move || {
            while let Some((driver, _)) = alarm.take() {
                if alarm.give_back(driver, Next::More) != SetOutcome::HasPassed {
                    break;
                }
            }
        });
        world.runtime.timers().run();
        sleeper.join().unwrap();
        pause.join().unwrap();
        world.shut_down();
    });
}
