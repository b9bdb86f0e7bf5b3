//! Where a panic about a misuse says that it is: in the caller's file, as `#[track_caller]` promises.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    time::Duration,
};

use tickwheel::{DelayQueue, Wheel};
use tokio::time::Instant;

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
