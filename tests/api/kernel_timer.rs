//! The feature `precise`: wheels that wait on a timer of the kernel.

use crate::{panics::panic_of, support};

use std::{
    env,
    future::{Future, pending},
    io::{BufRead, BufReader},
    panic,
    process::{self, Command, Stdio},
    sync::mpsc,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use futures::{executor::block_on, future::join_all};
use tickwheel::{BuildError, Wheel, time};
use tokio::runtime::{Builder, Runtime};

use support::{
    assert_adds_up, assert_at_rest, ms, own_process::in_own_process, paused_runtime, real_runtime, register,
    waiting,
};

const TICK: Duration = Duration::from_micros(20);
const HOUR: Duration = Duration::from_secs(3_600);

/// Not a current-thread runtime, which has a clock that a test may pause.
fn runtime(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().unwrap()
}

fn wheel() -> Wheel {
    Wheel::builder().tick_duration(TICK).build().unwrap()
}

/// Returns whether a sleep in the runtime waits on the kernel's timer.
fn is_on_kernel(runtime: &Runtime, wheel: &Wheel) -> bool {
    runtime.block_on(async {
        let mut sleep = wheel.sleep(HOUR);
        register(&mut sleep);
        let engines = wheel.snapshot().engines;
        assert_eq!(engines.len(), 1);
        assert_eq!(engines[0].pending, 1);
        engines[0].kernel_timer
    })
}

#[test]
fn a_tick_may_be_shorter_than_a_millisecond() {
    let given = TICK - Duration::from_nanos(1);
    let error = Wheel::builder().tick_duration(given).build().unwrap_err();
    assert_eq!(error, BuildError::TickDuration { given });
    assert_eq!(
        error.to_string(),
        "a tick duration of 19.999µs is not within 20µs..=3600s"
    );
    assert_eq!(wheel().tick_duration(), TICK);
}

#[test]
fn a_short_tick_and_a_wheel_that_asks_for_it_wait_on_the_kernel() {
    let runtime = runtime(2);
    assert!(is_on_kernel(&runtime, &wheel()));
    let asking = |asks| Wheel::builder().kernel_timer(asks).build().unwrap();
    assert!(is_on_kernel(&runtime, &asking(true)));
    assert!(!is_on_kernel(&runtime, &asking(false)));
    assert!(!is_on_kernel(&runtime, &Wheel::new()));
}

#[test]
fn the_global_wheel_may_wait_on_the_kernel_too() {
    if !in_own_process(the_global_wheel_may_wait_on_the_kernel_too, "") {
        return;
    }
    Wheel::builder().kernel_timer(true).build_global().unwrap();
    runtime(1).block_on(async {
        time::sleep(ms(1)).await;
        assert!(Wheel::global().snapshot().engines[0].kernel_timer);
    });
}

#[test]
fn a_clock_that_a_test_may_pause_is_tokio_s() {
    for runtime in [paused_runtime(), real_runtime()] {
        assert!(!is_on_kernel(&runtime, &wheel()));
    }
    let wheel = wheel();
    paused_runtime().block_on(async {
        for micros in [1, 300, 999, 1_000, 1_001, 4_700] {
            let duration = Duration::from_micros(micros);
            let start = tokio::time::Instant::now();
            tokio::time::sleep(duration).await;
            let tokios = start.elapsed();
            let start = tokio::time::Instant::now();
            wheel.sleep(duration).await;
            let (ours, difference) = (start.elapsed(), start.elapsed().abs_diff(tokios));
            assert!(
                ours >= duration && difference < ms(1),
                "{ours:?}, Tokio {tokios:?}"
            );
        }
    });
}

#[test]
fn a_runtime_without_io_panics_in_tokios_words_and_spoils_nothing() {
    let without_io = Builder::new_multi_thread().enable_time().build().unwrap();
    let (with_io, asking) = (runtime(1), Wheel::builder().kernel_timer(true).build().unwrap());
    for wheel in [wheel(), asking] {
        let mut sleep = Box::pin(wheel.sleep(ms(1)));
        let mut timeout = Box::pin(wheel.timeout(ms(1), pending::<()>()));
        // By hand, because `block_on` is where a future that it polls panics.
        let cx = || Context::from_waker(Waker::noop());
        let mut polls: [&mut dyn FnMut(); 2] = [&mut || _ = sleep.as_mut().poll(&mut cx()), &mut || {
            _ = timeout.as_mut().poll(&mut cx())
        }];
        for poll in &mut polls {
            let _entered = without_io.enter();
            let (message, file) = panic_of(poll);
            assert!(
                message.starts_with("A Tokio 1.x context was found, but IO is disabled. Call `enable_io`")
                    && message.ends_with("or its builder asked for it."),
                "{message}"
            );
            assert_eq!(file, file!());
        }
        assert!(wheel.snapshot().engines.is_empty());
        assert_eq!((wheel.pending(), wheel.metrics().registered), (0, 0));
        with_io.block_on(async {
            sleep.await;
            timeout.await.unwrap_err();
        });
        assert_at_rest(&wheel);
    }
}

/// So few at a time that one lost wake-up hangs.
#[test]
fn no_sleep_is_early_and_none_is_lost() {
    let (runtime, wheel) = (runtime(2), wheel());
    let sleeps = |seed| {
        let (wheel, mut random) = (wheel.clone(), fastrand::Rng::with_seed(seed));
        async move {
            for _ in 0..2_000 {
                let duration = Duration::from_nanos(random.u64(..60_000));
                let start = Instant::now();
                wheel.sleep(duration).await;
                assert!(start.elapsed() >= duration);
            }
        }
    };
    let tasks: Vec<_> = (0..3).map(|seed| runtime.spawn(sleeps(seed))).collect();
    runtime.block_on(async { join_all(tasks).await.into_iter().for_each(Result::unwrap) });
    assert_at_rest(&wheel);
}

/// The timer is restarted beside others, again and again, for a time that is longer than its duration.
#[test]
fn an_idle_timer_that_is_busy_makes_no_sleep_early() {
    let (runtime, wheel) = (runtime(1), wheel());
    let idle = wheel.idle_timer(Duration::from_micros(100));
    let busy = idle.handle().busy();
    let idle = runtime.spawn(idle);
    let sleeps = |seed| {
        let (wheel, mut random) = (wheel.clone(), fastrand::Rng::with_seed(seed));
        async move {
            for _ in 0..500 {
                let duration = Duration::from_nanos(random.u64(..2_000_000));
                let start = Instant::now();
                wheel.sleep(duration).await;
                assert!(
                    start.elapsed() >= duration,
                    "{:?} for {duration:?}",
                    start.elapsed()
                );
            }
        }
    };
    let tasks: Vec<_> = (0..8).map(|seed| runtime.spawn(sleeps(seed))).collect();
    runtime.block_on(async { join_all(tasks).await.into_iter().for_each(Result::unwrap) });
    drop(busy);
    runtime.block_on(idle).unwrap();
    assert_at_rest(&wheel);
}

#[test]
fn other_threads_set_the_timer_too() {
    let runtime = runtime(1);
    let builder = Wheel::builder()
        .tick_duration(TICK)
        .handle(runtime.handle().clone());
    let wheel = builder.build().unwrap();
    // Earlier and earlier, so that each moves the alarm.
    let sleep = |n| waiting(Waker::noop(), || Box::pin(wheel.sleep(n * ms(1))));
    let later: Vec<_> = (1..50).rev().map(sleep).collect();
    for sleep in later.into_iter().rev() {
        block_on(sleep);
    }
    assert_at_rest(&wheel);
}

#[test]
fn what_waits_in_a_runtime_that_ends_goes_on_elsewhere() {
    for round in 0..50 {
        let (runtime, wheel) = (runtime(2), wheel());
        let (sender, ended) = mpsc::channel::<()>();
        for task in 0..8 {
            let (wheel, sender) = (wheel.clone(), sender.clone());
            runtime.spawn(async move {
                let _sender = sender;
                loop {
                    wheel.sleep(Duration::from_micros(50 + 37 * task)).await;
                }
            });
        }
        drop(sender);
        let sleep = runtime.block_on(async { waiting(Waker::noop(), || wheel.sleep(ms(5))) });
        let scheduled = runtime.block_on(async { wheel.schedule(HOUR, async {}) });
        thread::sleep(Duration::from_micros(40 * round));
        drop(runtime);
        ended.recv().unwrap_err();
        real_runtime().block_on(async {
            sleep.await;
            scheduled.await.unwrap_err();
        });
        assert_eq!(wheel.pending(), 0);
        assert_adds_up(&wheel);
    }
}

/// With Tokio's alternative timer too, which `.ci/alternative-timer` gives every runtime here: no panic is
/// survived, be it caught or not.
#[test]
fn a_runtime_that_ends_aborts_no_process_that_aborts_on_panics() {
    if !in_own_process(a_runtime_that_ends_aborts_no_process_that_aborts_on_panics, "") {
        return;
    }
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
    for round in 0..50 {
        let (runtime, wheel) = (runtime(2), wheel());
        let mut sleep = Box::pin(wheel.sleep(HOUR));
        runtime.block_on(async { register(&mut sleep) });
        runtime.spawn(wheel.sleep(HOUR));
        runtime.block_on(wheel.sleep(Duration::from_micros(10 * round)));
        drop(runtime);
        assert!(wheel.snapshot().engines.is_empty());
    }
}

/// A process that is stopped while its timers come due, and goes on afterwards.
#[test]
fn a_process_that_is_stopped_loses_no_timer() {
    const STOPPED: &str = "TICKWHEEL_TEST_STOPPED";
    if env::var_os(STOPPED).is_some() {
        return sleep_while_stopped();
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "kernel_timer::a_process_that_is_stopped_loses_no_timer",
            "--nocapture",
        ])
        .env(STOPPED, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().ends_with("waiting")),
        "the child ended first"
    );
    let send = |signal| {
        let status = Command::new("sh")
            .args(["-c", &format!("kill -{signal} {}", child.id())])
            .status();
        assert!(status.unwrap().success());
    };
    send("STOP");
    thread::sleep(ms(250));
    send("CONT");
    // Its last line, so that it does not write to a closed pipe.
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}

fn sleep_while_stopped() {
    let (runtime, wheel) = (runtime(2), wheel());
    let sleep = |duration| {
        let wheel = wheel.clone();
        async move {
            let start = Instant::now();
            wheel.sleep(duration).await;
            assert!(start.elapsed() >= duration);
        }
    };
    let tasks: Vec<_> = (1..=200).map(|number| runtime.spawn(sleep(ms(number)))).collect();
    println!("waiting");
    runtime.block_on(async { join_all(tasks).await.into_iter().for_each(Result::unwrap) });
    // The alarm can be set again.
    runtime.block_on(sleep(ms(1)));
    assert!(is_on_kernel(&runtime, &wheel));
    assert_at_rest(&wheel);
}
