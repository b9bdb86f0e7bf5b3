//! Processes that fork without `exec` while a wheel waits on a timer of the kernel, and one whose clock is not
//! the kernel's. A program without libtest, because a process had better have one thread when it forks, and
//! runtimes without Tokio's `test-util`, because a current-thread one has no timer of the kernel otherwise.
//!
//! A child shares the timer and the `epoll` in which it is registered with its parent. Another clock takes
//! libfaketime.

use std::{
    env, fs,
    future::{Future, poll_fn},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    process::{self, Command},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use fork::{Fork, fork, waitpid};
use tickwheel::{Sleep, Wheel};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, timeout},
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const MILLISECOND: Duration = Duration::from_millis(1);

/// How long something may take that takes no time, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(20);

fn main() {
    match env::args().nth(1).as_deref() {
        Some("clock that stands still") => return no_timer_fires(),
        Some("clock of its own") => return timers_go_by_this_clock(),
        _ => {}
    }
    with_clock("2030-01-01 00:00:00", "clock that stands still");
    with_clock("-10d", "clock of its own");
    with_clock("+0 x3", "clock of its own");
    for (what, in_child) in [
        (
            "ends",
            (|runtime, wheel, sleep| mem::forget((runtime, wheel, sleep)))
                as fn(Runtime, Wheel, Pin<Box<Sleep>>),
        ),
        ("drops the runtime, and the timer first", |runtime, _, sleep| {
            drop(sleep);
            drop(runtime);
        }),
        (
            "drops the runtime, and the timer afterwards",
            |runtime, _, _sleep| drop(runtime),
        ),
        ("drops the wheel and its timer", |_runtime, wheel, sleep| {
            drop((wheel, sleep))
        }),
        ("starts an earlier timer", |runtime, wheel, _sleep| {
            poll(&runtime, &mut Box::pin(wheel.sleep(MINUTE)));
        }),
        ("waits in the runtime", |runtime, wheel, _sleep| {
            wait(&runtime, wheel.sleep(MILLISECOND))
        }),
        ("goes on with its parent's timer", |runtime, _, mut sleep| {
            sleep.as_mut().reset(Instant::now() + MILLISECOND);
            wait(&runtime, sleep);
        }),
        ("has a runtime of its own", |_runtime, wheel, _sleep| {
            let own = runtime();
            wait(&own, wheel.sleep(MILLISECOND));
            poll(&own, &mut Box::pin(wheel.sleep(HOUR)));
            assert!(wheel.snapshot().engines.iter().all(|engine| engine.kernel_timer));
        }),
    ] {
        println!("a child {what}");
        assert_parent_goes_on(in_child);
    }
}

/// Runs this program again with another clock.
fn with_clock(time: &str, what: &str) {
    println!("a process that has a {what}: {time}");
    let libraries = fs::read_dir("/usr/lib").unwrap();
    let library = libraries
        .map(|folder| folder.unwrap().path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime is installed");
    let mut command = Command::new(env::current_exe().unwrap());
    let command = command.arg(what).env("LD_PRELOAD", library).env("FAKETIME", time);
    assert!(command.status().unwrap().success());
}

/// Timers stand still as Tokio's do, and the driver does not run over and over.
fn no_timer_fires() {
    let (runtime, wheel) = (multi_thread(), wheel());
    let sleep = runtime.spawn(wheel.sleep(MILLISECOND));
    let tokios = runtime.spawn(async { tokio::time::sleep(MILLISECOND).await });
    while wheel.pending() == 0 {
        thread::yield_now();
    }
    // By the kernel's clock.
    thread::sleep(100 * MILLISECOND);
    assert!(!sleep.is_finished() && !tokios.is_finished());
    assert!(!wheel.snapshot().engines[0].kernel_timer);
    assert_eq!(wheel.metrics().turns, 0);
}

fn timers_go_by_this_clock() {
    let (runtime, wheel) = (multi_thread(), wheel());
    for millis in [1, 3, 10, 30] {
        let (start, duration) = (Instant::now(), millis * MILLISECOND);
        wait(&runtime, wheel.sleep(duration));
        assert!(start.elapsed() >= duration);
    }
    assert!(!wheel.snapshot().engines[0].kernel_timer);
}

/// Asserts that a parent's timer stays as it is while a child does something with what it has inherited.
fn assert_parent_goes_on(in_child: fn(Runtime, Wheel, Pin<Box<Sleep>>)) {
    let (runtime, wheel) = (runtime(), wheel());
    let mut sleep = Box::pin(wheel.sleep(HOUR));
    poll(&runtime, &mut sleep);
    assert!(wheel.snapshot().engines[0].kernel_timer);

    let child = match fork().expect("the process can fork") {
        Fork::Child => {
            let outcome = catch_unwind(AssertUnwindSafe(|| in_child(runtime, wheel, sleep)));
            process::exit(outcome.is_err().into())
        }
        Fork::Parent(child) => child,
    };
    assert_eq!(waitpid(child).expect("it is a child"), 0, "the child fails");

    let left = left_of_kernel_timers();
    assert!(left.len() == 1 && left[0] > HOUR - LIMIT, "{left:?}");
    // The timer can still be set, and `epoll` tells of it.
    sleep.as_mut().reset(Instant::now() + MILLISECOND);
    wait(&runtime, sleep);
    assert!(wheel.snapshot().engines[0].kernel_timer);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime whose worker drives it.
fn multi_thread() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

fn wheel() -> Wheel {
    let builder = Wheel::builder().kernel_timer(true).slack(Duration::ZERO);
    builder.build().unwrap()
}

fn poll(runtime: &Runtime, sleep: &mut Pin<Box<Sleep>>) {
    runtime.block_on(poll_fn(|_| {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }));
}

/// Waits for a timer, which is lost if that takes very long. The watchdog is Tokio's.
fn wait(runtime: &Runtime, sleep: impl Future) {
    runtime
        .block_on(async { timeout(LIMIT, sleep).await })
        .expect("a timer is lost");
}

/// Returns for how long each timer of the kernel that this process has still waits.
fn left_of_kernel_timers() -> Vec<Duration> {
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
    // The descriptor by which this directory is read has no information any more.
    let infos = descriptors.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    infos
        .filter_map(|info| {
            let left = info.lines().find_map(|line| line.strip_prefix("it_value: ("))?;
            let (seconds, nanos) = left.trim_end_matches(')').split_once(", ")?;
            Some(Duration::new(seconds.parse().unwrap(), nanos.parse().unwrap()))
        })
        .collect()
}
