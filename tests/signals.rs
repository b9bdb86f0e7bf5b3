//! A suspended process: all timers that became due in the meantime are expired in one visit.
#![cfg(target_os = "linux")]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use futures::future::join_all;
use tickwheel::Wheel;
use tokio::time::{Duration, Instant};

const HELPER: &str = "TICKWHEEL_SUSPENDED";
const TICK: Duration = Duration::from_millis(10);
const TIMERS: u32 = 10;
/// The first deadline, counted from registration, by when the process has to be suspended; the others come a tick apart.
const FIRST: Duration = Duration::from_millis(100);
/// From when the process is known to be suspended: past every deadline, and no longer.
const SUSPENDED: Duration = Duration::from_millis(200);

fn signal(signal: &str, process: u32) {
    let command = format!("kill -{signal} {process}");
    assert!(
        Command::new("sh")
            .args(["-c", &command])
            .status()
            .unwrap()
            .success()
    );
}

/// The state of a process: R, S, T and so on.
fn state_of(process: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn a_suspended_process_catches_up_in_one_visit_and_in_order_of_deadline() {
    if env::var_os(HELPER).is_some() {
        return suspended();
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("a_suspended_process_catches_up_in_one_visit_and_in_order_of_deadline")
        .env(HELPER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(
        lines.any(|line| line == "about to be suspended"),
        "the helper came to nothing"
    );
    while state_of(child.id()) != 'T' {
        thread::yield_now();
    }
    // Nothing in a suspended process can tell that its deadlines have passed: only the real clock knows.
    thread::sleep(SUSPENDED);
    signal("CONT", child.id());
    assert!(
        lines.any(|line| line == "caught up"),
        "the helper did not catch up"
    );
    assert!(child.wait().unwrap().success());
}

/// The helper: registers timers, has itself stopped before the first is due, and looks at what happened when it goes on.
#[tokio::main(flavor = "current_thread")]
async fn suspended() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    wheel.sleep(TICK).await;

    let order = Arc::new(Mutex::new(Vec::new()));
    let registered = Instant::now();
    let sleepers: Vec<_> = (0..TIMERS)
        .rev()
        .map(|number| {
            let deadline = registered + FIRST + TICK * number;
            let (sleep, order) = (wheel.sleep_until(deadline), order.clone());
            tokio::spawn(async move {
                sleep.await;
                assert!(Instant::now() >= deadline, "early");
                order.lock().unwrap().push(number);
            })
        })
        .collect();
    // The driver learns of the deadlines, and waits.
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    let before = wheel.metrics();
    assert_eq!(
        before.pending, TIMERS as usize,
        "registration took longer than the first deadline"
    );

    // No task runs from here on, until the process has been stopped and goes on.
    println!("\nabout to be suspended");
    signal("STOP", std::process::id());
    // The stop may take a moment to reach this thread.
    while registered.elapsed() < FIRST + TICK * TIMERS {
        thread::sleep(Duration::from_millis(1));
    }

    for sleeper in join_all(sleepers).await {
        sleeper.unwrap();
    }
    let after = wheel.metrics();
    assert_eq!(after.expired - before.expired, u64::from(TIMERS));
    assert_eq!(
        after.ticks - before.ticks,
        1,
        "one visit swept every tick that was missed"
    );
    assert_eq!(*order.lock().unwrap(), (0..TIMERS).collect::<Vec<_>>());
    // How late it came is measured: from the first deadline at the earliest to the end of the suspension.
    assert!(
        after.max_lag >= SUSPENDED - FIRST - TICK,
        "a lag of {:?}",
        after.max_lag
    );

    // And the wheel goes on as before.
    wheel.sleep(TICK).await;
    println!("caught up");
}
