//! The descriptors of wheels that wait on a timer of the kernel. A process of its own, because it counts all
//! descriptors of the process.

#![cfg(target_os = "linux")]

use std::{
    env,
    fs::{self, File},
    process::Command,
    time::Duration,
};

use tickwheel::Wheel;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

fn wheel() -> Wheel {
    Wheel::builder()
        .tick_duration(Duration::from_micros(100))
        .build()
        .unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn sleep(wheel: Wheel) {
    // Tasks leave spares.
    let task = async move { wheel.sleep(Duration::from_micros(50)).await };
    tokio::spawn(task).await.unwrap();
}

/// Gives an engine that is not needed any more time to end. Returns that it has not been seen to.
async fn nap() -> bool {
    tokio::time::sleep(Duration::from_millis(5)).await;
    false
}

/// In one test, because the others of this process would change the count.
#[test]
fn no_descriptor_is_left_and_none_is_needed() {
    const WITHOUT: &str = "TICKWHEEL_TEST_WITHOUT_DESCRIPTORS";
    if env::var_os(WITHOUT).is_some() {
        return without_descriptors();
    }
    let wheel = wheel();
    runtime().block_on(sleep(wheel.clone()));
    let before = descriptors();
    for _ in 0..1_000 {
        runtime().block_on(sleep(wheel.clone()));
    }
    assert_eq!(descriptors(), before);
    assert!(wheel.snapshot().engines.is_empty());

    // A wheel that goes takes its own along, in a runtime that stays.
    let runtime = runtime();
    runtime.block_on(sleep(wheel));
    let before = descriptors();
    for _ in 0..100 {
        runtime.block_on(sleep(self::wheel()));
    }
    let ended = || descriptors() <= before;
    assert!(
        (0..2_000).any(|_| ended() || runtime.block_on(nap())),
        "{before} to {}",
        descriptors()
    );

    let script = "ulimit -n 40 && exec \"$0\" --exact no_descriptor_is_left_and_none_is_needed --nocapture";
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .env(WITHOUT, "1");
    assert!(command.status().unwrap().success());
}

/// The process may have 40 descriptors, so that it soon has as many.
fn without_descriptors() {
    let (runtime, wheel) = (runtime(), wheel());
    let held: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(held.len() < 40);
    runtime.block_on(async {
        sleep(wheel.clone()).await;
        let engines = wheel.snapshot().engines;
        assert!(!engines[0].kernel_timer);
    });
}
