//! Where a panic about a misuse says that it is: in the caller's file, as `#[track_caller]` promises.
//! `every_kind.rs` has the panics of a missing runtime.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
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

/// Returns what a call says as it panics, and the file that it names.
pub(crate) fn panic_of(call: impl FnOnce()) -> (String, String) {
    static HOOK: Once = Once::new();
    // It stays, because tests run side by side.
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if IS_EXPECTED.get() {
                PLACE.set(panic.location().map(|place| place.file().to_owned()));
            } else {
                others(panic);
            }
        }));
    });
    IS_EXPECTED.set(true);
    let panicked = catch_unwind(AssertUnwindSafe(call));
    IS_EXPECTED.set(false);
    let words = match panicked.expect_err("it panics").downcast::<&str>() {
        Ok(words) => words.to_string(),
        Err(other) => *other.downcast::<String>().unwrap(),
    };
    (words, PLACE.take().expect("a place"))
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
    let calls: [(&str, &mut dyn FnMut()); 13] = [
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
    ];
    for (name, call) in calls {
        assert_eq!(panic_of(call).1, file!(), "{name}");
    }
}
