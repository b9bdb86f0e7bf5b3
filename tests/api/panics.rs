//! Where a panic about a misuse says that it is: in the caller's file, as `#[track_caller]` promises.

use std::{
    cell::{Cell, RefCell},
    future::{pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    time::Duration,
};

use tickwheel::{DelayQueue, Wheel, deadline, time};
use tokio::time::Instant;
use tokio_test::task::spawn;

use crate::support::SECOND;

thread_local! {
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
    /// The file that the last expected panic of this thread names.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Asserts that each call panics, and that the panic names this file.
fn assert_name_the_caller(calls: &mut [(&str, &mut dyn FnMut())]) {
    // It stays, because a test beside this one may have put its own hook before it.
    let others = take_hook();
    set_hook(Box::new(move |panic| {
        if IS_EXPECTED.get() {
            PLACE.set(panic.location().map(|place| place.file().to_owned()));
        } else {
            others(panic);
        }
    }));
    for (name, call) in calls {
        PLACE.take();
        IS_EXPECTED.set(true);
        let has_panicked = catch_unwind(AssertUnwindSafe(call)).is_err();
        IS_EXPECTED.set(false);
        assert!(has_panicked, "{name}");
        assert_eq!(PLACE.take().as_deref(), Some(file!()), "{name}");
    }
}

#[test]
fn a_misuse_names_the_line_of_the_caller() {
    let wheel = Wheel::new();
    let mut queue = DelayQueue::on(&wheel);
    let [gone, other] = ["gone", "other"].map(|value| queue.insert(value, SECOND));
    queue.remove(&gone);
    queue.remove(&other);
    let queue = RefCell::new(queue);
    let mut interval = wheel.interval(SECOND);
    assert_name_the_caller(&mut [
        ("remove", &mut || _ = queue.borrow_mut().remove(&gone)),
        ("reset", &mut || queue.borrow_mut().reset(&gone, SECOND)),
        ("reset_at", &mut || {
            queue.borrow_mut().reset_at(&gone, Instant::now())
        }),
        ("deadline", &mut || _ = queue.borrow().deadline(&gone)),
        ("reserve", &mut || queue.borrow_mut().reserve(usize::MAX)),
        ("with_capacity", &mut || {
            drop(DelayQueue::<u8>::with_capacity(usize::MAX))
        }),
        ("schedule", &mut || drop(wheel.schedule(SECOND, async {}))),
        ("schedule_at", &mut || {
            drop(wheel.schedule_at(Instant::now(), async {}))
        }),
        ("fixed rate", &mut || {
            drop(wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {}))
        }),
        ("fixed delay", &mut || {
            drop(wheel.periodic(SECOND).spawn_with_fixed_delay(|| async {}))
        }),
        ("periodic", &mut || drop(wheel.periodic(Duration::ZERO))),
        ("interval", &mut || drop(wheel.interval(Duration::ZERO))),
        ("set_period", &mut || interval.set_period(Duration::ZERO)),
    ]);
}

/// Polls a future once, in this file.
macro_rules! poll_once {
    ($future:expr) => {
        &mut || _ = spawn(async { $future.await }).poll()
    };
}

/// A timer needs a runtime at its first poll, whose `.await` is what the panic names.
#[test]
fn a_missing_runtime_names_the_line_of_the_caller() {
    let wheel = Wheel::new();
    let label = wheel.labelled("label");
    let calls: &mut [(&str, &mut dyn FnMut())] = &mut [
        ("sleep", poll_once!(wheel.sleep(SECOND))),
        ("sleep of the global wheel", poll_once!(time::sleep(SECOND))),
        ("try_sleep", poll_once!(wheel.try_sleep(SECOND))),
        ("timeout", poll_once!(wheel.timeout(SECOND, pending::<()>()))),
        (
            "try_timeout",
            poll_once!(wheel.try_timeout(SECOND, pending::<()>())),
        ),
        (
            "labelled timeout",
            poll_once!(label.timeout(SECOND, pending::<()>())),
        ),
        ("tick", &mut || {
            let mut interval = wheel.interval_at(Instant::now() + SECOND, SECOND);
            poll_once!(interval.tick())();
        }),
        ("idle timer", poll_once!(wheel.idle_timer(SECOND))),
        ("scope", poll_once!(deadline::within(SECOND, pending::<()>()))),
        (
            "labelled scope",
            poll_once!(label.within(SECOND, pending::<()>())),
        ),
        (
            "deadline timeout",
            poll_once!(deadline::timeout(SECOND, pending::<()>())),
        ),
        ("delay queue", &mut || {
            let mut queue = DelayQueue::on(&wheel);
            queue.insert("value", SECOND);
            _ = spawn(poll_fn(|cx| queue.poll_expired(cx))).poll();
        }),
    ];
    assert_name_the_caller(calls);
    let without_timers = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = without_timers.enter();
    assert_name_the_caller(calls);
}
