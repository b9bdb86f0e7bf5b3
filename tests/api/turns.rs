//! A turn: what is due is woken in order, once, with no lock held, and lets other tasks run.

use crate::support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tickwheel::{Sleep, Wheel};
use tokio::time::Instant;

use support::{
    DAY, SECOND, TICK, advance, assert_at_rest, block_until, counting_waker, ms, real_runtime, register,
    register_for, settle, waiting, waker_of,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_starved_driver_catches_up_in_one_turn_in_order_of_deadline() {
    let runtime = real_runtime();
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let mut sleeps: Vec<Sleep> = Vec::new();
        // Far enough away for all to be registered before the first is due.
        let first = Instant::now() + ms(200);
        for n in (1..=5_u32).rev() {
            let order = order.clone();
            let waker = waker_of(move || order.lock().unwrap().push(n));
            let mut sleep = wheel.sleep_until(first + ms(1) * (n - 1));
            register_for(&waker, &mut sleep);
            sleeps.push(sleep);
        }
        settle().await;
        let before = wheel.metrics();
        // A task that blocks, past the last deadline. On the real clock: what a paused one does in a jump is
        // another test.
        block_until(first + ms(10));
        while order.lock().unwrap().len() < 5 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 4, 5]);
        let after = wheel.metrics();
        assert_eq!(after.turns - before.turns, 1, "all in one turn");
        assert!(after.max_lag >= ms(9), "the lag is reported: {:?}", after.max_lag);
        for sleep in sleeps {
            sleep.await;
        }
    });
    assert_at_rest(&wheel);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_blocks_holds_no_lock_of_the_wheel() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let (entered, is_entered) = mpsc::channel();
    let release = Arc::new(AtomicBool::new(false));
    let waker = {
        let release = release.clone();
        waker_of(move || {
            entered.send(()).unwrap();
            while !release.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        })
    };
    let blocked = waiting(&waker, || wheel.sleep(ms(5)));
    tokio::task::block_in_place(|| is_entered.recv().unwrap());
    // The waker still blocks.
    let mut other = wheel.sleep(SECOND);
    register(&mut other);
    other.reset_at(Instant::now() + SECOND / 2);
    drop(other);
    assert_eq!(wheel.pending(), 0);
    assert_eq!(wheel.timeout(SECOND, async { 7 }).await, Ok(7));
    release.store(true, Ordering::SeqCst);
    blocked.await;
}

#[tokio::test(start_paused = true)]
async fn after_a_thousand_wakes_the_runtime_gets_its_turn() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let (waker, woken) = counting_waker();
    let mut sleeps: Vec<_> = (0..10_000).map(|_| wheel.sleep(TICK)).collect();
    for sleep in &mut sleeps {
        register_for(&waker, sleep);
    }
    tokio::time::advance(TICK).await;
    let mut turns = 0;
    while woken.load(Ordering::SeqCst) < 10_000 {
        turns += 1;
        assert!(turns < 1_000, "{} were woken", woken.load(Ordering::SeqCst));
        tokio::task::yield_now().await;
    }
    assert!(turns >= 5, "10,000 wakes in {turns} turns");
    drop(sleeps);
    assert_at_rest(&wheel);
}

/// The driver has done with the shard by then, and is about to wait for the next deadline that it found
/// there.
#[tokio::test(start_paused = true)]
async fn a_timer_that_a_waker_starts_is_not_left_for_a_later_one() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let mut later = wheel.sleep(HOUR);
    register(&mut later);
    let (waker, woken) = counting_waker();
    let started = Arc::new(Mutex::new(None));
    let starts = {
        let (wheel, started) = (wheel.clone(), started.clone());
        waker_of(move || {
            let mut sleep = wheel.sleep(ms(50));
            register_for(&waker, &mut sleep);
            *started.lock().unwrap() = Some(sleep);
        })
    };
    let mut first = wheel.sleep(ms(20));
    register_for(&starts, &mut first);
    advance(ms(20)).await;
    assert!(started.lock().unwrap().is_some());
    advance(ms(50)).await;
    assert_eq!(woken.load(Ordering::SeqCst), 1);
}

/// The reset moves the alarm to an instant that has passed already, and nobody polls the sleep.
#[tokio::test(start_paused = true)]
async fn a_driver_whose_alarm_is_set_too_late_comes_at_once() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(DAY);
    let (waker, woken) = counting_waker();
    register_for(&waker, &mut sleep);
    settle().await;
    advance(TICK * 2 + ms(5)).await;
    let start = Instant::now();
    sleep.reset_at(start - TICK);
    settle().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(woken.load(Ordering::SeqCst), 1);
}

/// The hand of the wheel has not moved meanwhile. Timers that go into a coarse bucket are spread together, before
/// the first of them expires.
#[tokio::test(start_paused = true)]
async fn the_first_timer_that_was_reset_after_some_quiet_does_not_wait_for_the_others() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let mut sleeps: Vec<_> = (0..20_000).map(|_| wheel.sleep(HOUR)).collect();
    sleeps.iter_mut().for_each(register);
    tokio::time::sleep(140 * SECOND).await;
    for (sleep, after) in sleeps.iter_mut().zip(0..) {
        sleep.reset_after(ms(2_000 + after));
        register(sleep);
    }
    let cascaded = wheel.metrics().cascaded;
    sleeps.swap_remove(0).await;
    let cascaded = wheel.metrics().cascaded - cascaded;
    assert!(
        cascaded < 5_000,
        "{cascaded} timers were moved before the first expired"
    );
}
