//! What a `Wheel` says of itself: its clock, and whether it is alive. Its settings are in `builder`.

use std::time::Duration;

use tickwheel::Wheel;
use tokio::time::{Instant, advance};

use crate::support::{DAY, SECOND, ms, on_a_clock_ahead_by, paused_runtime, register, threaded_runtime};

#[tokio::test(start_paused = true)]
async fn now_is_the_clock_of_the_callers_runtime() {
    let wheel = Wheel::new();
    let start = Instant::now();
    assert_eq!(wheel.now(), start);
    advance(DAY).await;
    assert_eq!(wheel.now(), start + DAY);
    assert_eq!(Wheel::global().now(), start + DAY);
    wheel.sleep(SECOND).await;
    assert_eq!(wheel.now(), start + DAY + SECOND);
}

#[test]
fn now_is_the_machines_clock_outside_runtimes() {
    let wheel = Wheel::new();
    // Nor does it matter where one of its timers waits.
    let paused = paused_runtime();
    paused.block_on(async {
        advance(DAY).await;
        register(&mut wheel.sleep(SECOND));
    });
    let before = Instant::now();
    let now = wheel.now();
    assert!((before..=Instant::now()).contains(&now));
    on_a_clock_ahead_by(DAY * 2, async || assert_eq!(wheel.now(), Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_weak_handle_keeps_no_wheel_alive() {
    let wheel = Wheel::builder().name("weak").build().unwrap();
    let weak = wheel.downgrade();
    let clone = wheel.clone();
    drop(wheel);
    let upgraded = weak.upgrade().expect("there is a clone");
    assert_eq!(upgraded.name(), Some("weak"));
    // They are one wheel.
    let mut sleep = upgraded.sleep(SECOND);
    register(&mut sleep);
    assert_eq!(clone.pending(), 1);
    drop((clone, upgraded));
    assert!(weak.upgrade().is_none(), "a pending sleep is no handle");
    assert!(weak.clone().upgrade().is_none());
    assert!(format!("{weak:?}").contains("None"));
    sleep.await;
}

#[test]
fn the_global_wheel_is_one_and_lives_for_ever() {
    let weak = {
        let label = Wheel::global().labelled("tests/api/wheel.rs");
        drop(label);
        Wheel::global().downgrade()
    };
    let labels = weak.upgrade().unwrap().snapshot().labels;
    assert!(labels.iter().any(|label| &*label.name == "tests/api/wheel.rs"));
    let other = std::thread::spawn(|| Wheel::global().snapshot().labels)
        .join()
        .unwrap();
    assert!(other.iter().any(|label| &*label.name == "tests/api/wheel.rs"));
    assert_eq!(Wheel::global().tick_duration(), Duration::from_millis(1));
    assert!(
        !Wheel::new()
            .snapshot()
            .labels
            .iter()
            .any(|label| &*label.name == "tests/api/wheel.rs")
    );
}

/// The engine looks whether it is still needed, once its wheel has no handle and nothing waits. A timer that starts
/// meanwhile is turned as any other, also where the engine's task makes all turns.
#[test]
fn a_timer_that_outlives_the_handles_is_no_later_than_others() {
    threaded_runtime(2).block_on(async {
        let is_in_time = async || {
            let wheel = Wheel::new();
            let (first, mut second) = (wheel.sleep(ms(2)), wheel.sleep(ms(2)));
            drop(wheel);
            first.await;
            // By now, the engine's task has found nothing that waits.
            tokio::time::sleep(ms(1)).await;
            second.reset_after(ms(2));
            tokio::select! {
                biased;
                () = second => true,
                () = tokio::time::sleep(ms(6)) => false,
            }
        };
        // A busy machine may make most of them late.
        for _ in 0..50 {
            if is_in_time().await {
                return;
            }
        }
        panic!("each is late");
    });
}
