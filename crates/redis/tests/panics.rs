//! Where a panic about a misuse says that it is: in the caller's file. In a program of its own, because it
//! sets the process's hook.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Mutex,
    time::Duration,
};

use redis::Client;
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, JobError, Reconnecting};
use tokio::runtime::Runtime;

/// The file that a panic names.
fn place_of_panic(call: impl FnOnce()) -> Option<String> {
    static PLACE: Mutex<Option<String>> = Mutex::new(None);
    set_hook(Box::new(|panic| {
        *PLACE.lock().unwrap() = panic.location().map(|place| place.file().to_owned());
    }));
    let has_panicked = catch_unwind(AssertUnwindSafe(call)).is_err();
    // From here on, panics are printed.
    drop(take_hook());
    has_panicked.then(|| PLACE.lock().unwrap().take()).flatten()
}

#[test]
fn a_misuse_names_the_line_of_the_caller() {
    // Nothing connects to it.
    let connection = Reconnecting::of(Client::open("redis://127.0.0.1:1/").unwrap());
    let jobs = DelayedJobs::new(&Wheel::new(), connection, "q");
    let runtime = Runtime::new().unwrap();
    let worker = runtime.block_on(async { jobs.worker().start() });
    let here = Some(file!());

    let start = place_of_panic(|| drop(jobs.worker().start()));
    assert_eq!(start.as_deref(), here, "outside a runtime");
    let sample_every = place_of_panic(|| drop(jobs.sample_every(Duration::ZERO)));
    assert_eq!(sample_every.as_deref(), here);
    let run = place_of_panic(|| drop(worker.run(0, async |_| Ok::<(), JobError>(()))));
    assert_eq!(run.as_deref(), here);
}
