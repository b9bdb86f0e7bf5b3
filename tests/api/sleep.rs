//! `Sleep`: precision, `reset`, dropping, wakers, the cooperative budget.

use crate::support;

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tickwheel::{Sleep, Wheel};
use tokio::{task::unconstrained, time::Instant};
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, advance, assert_at_rest, counting_waker, ms, paused_runtime, real_runtime, register,
    register_for, waker_of,
};

const fn send_sync_unpin<T: Send + Sync + Unpin + Debug>() {}
const _: () = send_sync_unpin::<Sleep>();
const _: () = send_sync_unpin::<Wheel>();

// The feature `console` adds 8: see tests/console.rs.
#[cfg(all(target_pointer_width = "64", not(feature = "console")))]
#[test]
fn it_takes_at_most_40_bytes() {
    assert!(size_of::<Sleep>() <= 40, "it takes {}", size_of::<Sleep>());
}

// Precision.

#[tokio::test(start_paused = true)]
async fn a_direct_poll_after_advance_sees_it_elapsed_without_another_yield() {
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.sleep(SECOND));
    assert_pending!(sleep.poll());
    tokio::time::advance(SECOND).await;
    assert_ready!(sleep.poll());

    // The same with the driver asleep far beyond, and for many.
    let mut far = task::spawn(wheel.sleep(DAY));
    assert_pending!(far.poll());
    let mut sleeps: Vec<_> = (1..=5_000).map(|n| task::spawn(wheel.sleep(ms(n)))).collect();
    sleeps.iter_mut().for_each(|sleep| assert_pending!(sleep.poll()));
    tokio::time::advance(ms(5_010)).await;
    unconstrained(async {
        for sleep in &mut sleeps {
            assert_ready!(sleep.poll());
        }
    })
    .await;
    assert_pending!(far.poll());
}

// Nothing to wait for, and far too much.

#[tokio::test(start_paused = true)]
async fn the_longest_durations_saturate_instead_of_panicking() {
    let wheel = Wheel::new();
    let year = DAY * 365;
    for duration in [
        Duration::MAX,
        Duration::MAX - ms(1),
        Duration::from_secs(u64::MAX / 10),
    ] {
        let mut sleep = task::spawn(wheel.sleep(duration));
        assert!(sleep.deadline() >= Instant::now() + year * 29);
        assert_pending!(sleep.poll());
        advance(year).await;
        assert_pending!(sleep.poll());
    }
    assert_at_rest(&wheel);
}

// What it says of itself.

#[tokio::test(start_paused = true)]
async fn it_stays_complete_however_often_it_is_polled() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(ms(10));
    (&mut sleep).await;
    for _ in 0..3 {
        (&mut sleep).await;
    }
    assert_eq!(wheel.metrics().registered, 1);
}

// reset

#[tokio::test(start_paused = true)]
async fn reset_to_a_later_instant_touches_nothing_until_the_old_deadline() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut sleep = task::spawn(wheel.sleep(ms(100)));
    assert_pending!(sleep.poll());
    for millis in 101..=1_000 {
        sleep.reset_at(start + ms(millis));
    }
    assert_eq!(wheel.metrics().registered, 1, "no reset went into the wheel");

    advance(ms(100)).await;
    assert!(sleep.is_woken(), "it re-arms itself at the old deadline");
    assert_pending!(sleep.poll());
    assert_eq!(wheel.metrics().registered, 2);
    advance(ms(899)).await;
    assert!(!sleep.is_woken());
    assert_pending!(sleep.poll());
    advance(ms(1)).await;
    assert!(sleep.is_woken());
    assert_ready!(sleep.poll());
    assert_at_rest(&wheel);
}

/// As Tokio's, which fires a timer within the call that resets it to a past instant.
#[tokio::test(start_paused = true)]
async fn reset_to_the_past_wakes_the_waiting_task_at_once() {
    for ago in [Duration::ZERO, TICK / 2, ms(500), SECOND * 2] {
        let wheel = Wheel::new();
        let mut tokio_sleep = task::spawn(Box::pin(tokio::time::sleep(DAY)));
        let mut sleep = task::spawn(wheel.sleep(DAY));
        assert_pending!(tokio_sleep.poll());
        assert_pending!(sleep.poll());
        tokio::time::advance(SECOND).await;
        tokio_sleep.as_mut().reset(Instant::now() - ago);
        sleep.reset_at(Instant::now() - ago);
        assert!(tokio_sleep.is_woken() && sleep.is_woken(), "to {ago:?} ago");
        assert_eq!(wheel.pending(), 0);
        assert!(sleep.is_elapsed());
        assert_ready!(tokio_sleep.poll());
        assert_ready!(sleep.poll());
        assert_at_rest(&wheel);
    }
}

/// On the real clock too, where the wheel may have stood still since long before that instant.
#[tokio::test]
async fn reset_to_the_past_wakes_the_waiting_task_at_once_on_the_real_clock() {
    for _ in 0..20 {
        let wheel = Wheel::new();
        let mut sleep = task::spawn(wheel.sleep(DAY));
        assert_pending!(sleep.poll());
        let began = Instant::now();
        tokio::time::sleep(ms(3)).await;
        assert!(!sleep.is_woken());
        // Tokio's timer has passed that, however late this task runs.
        sleep.reset_at(began + ms(1));
        assert!(sleep.is_woken() && sleep.is_elapsed());
        assert_eq!(wheel.pending(), 0);
        assert_ready!(sleep.poll());
        assert_at_rest(&wheel);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_woken_by_a_reset_to_the_past_can_reset_the_sleep_again() {
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.sleep(DAY));
    assert_pending!(sleep.poll());
    tokio::time::advance(SECOND).await;
    sleep.reset_at(Instant::now());
    assert!(sleep.is_woken());
    sleep.reset_at(Instant::now() + SECOND);
    assert_pending!(sleep.poll());
    assert!(!sleep.is_woken());
    advance(SECOND).await;
    assert!(sleep.is_woken());
    assert_ready!(sleep.poll());
    assert_at_rest(&wheel);
}

/// The waker runs with no lock held: it may use the wheel.
#[tokio::test(start_paused = true)]
async fn a_waker_that_a_reset_to_the_past_wakes_may_use_the_wheel() {
    struct Pends(Wheel, AtomicUsize);
    impl Wake for Pends {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1 + self.0.pending(), Ordering::Relaxed);
        }
    }
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let pends = Arc::new(Pends(wheel.clone(), AtomicUsize::new(0)));
    let mut sleep = wheel.sleep(DAY);
    let waker = Waker::from(pends.clone());
    assert_pending!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)));
    sleep.reset_at(Instant::now());
    assert_eq!(
        pends.1.load(Ordering::Relaxed),
        1,
        "woken once, with nothing pending"
    );
}

#[tokio::test]
async fn on_the_real_clock_what_has_elapsed_is_ready() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    wheel.sleep(ms(1)).await;
    let assert_ready_if_elapsed = |sleep: Sleep| {
        if sleep.is_elapsed() {
            assert_ready!(task::spawn(sleep).poll());
        }
    };
    let mut other = wheel.sleep(ms(1));
    (&mut other).await;
    let mut polled = wheel.sleep(SECOND);
    register(&mut polled);
    // The driver has no turn in this.
    std::thread::sleep(TICK * 2);
    let mut unpolled = wheel.sleep(SECOND);
    for sleep in [&mut other, &mut polled, &mut unpolled] {
        sleep.reset_at(Instant::now() - ms(5));
    }
    [other, polled, unpolled]
        .into_iter()
        .for_each(assert_ready_if_elapsed);
}

/// On the real clock, Tokio's timer runs the driver.
#[test]
fn a_sleep_that_is_polled_as_it_is_woken_has_elapsed() {
    polled_as_they_are_woken(&real_runtime());
}

/// On a paused clock, the driver's task runs it, and the budget of that is not the waker's.
#[test]
fn a_sleep_that_is_polled_as_the_drivers_task_wakes_it_has_elapsed() {
    polled_as_they_are_woken(&paused_runtime());
}

/// So many expire at one tick that the driver takes them out in several goes.
fn polled_as_they_are_woken(runtime: &tokio::runtime::Runtime) {
    const SLEEPS: usize = 600;
    runtime.block_on(async {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        wheel.sleep(ms(1)).await;
        let due = Instant::now() + ms(50);
        let elapsed = Arc::new(AtomicUsize::new(0));
        for _ in 0..SLEEPS {
            let sleep = Arc::new(Mutex::new(wheel.sleep_until(due)));
            let (woken, elapsed) = (sleep.clone(), elapsed.clone());
            let waker = waker_of(move || {
                let mut sleep = woken.lock().unwrap();
                let has_elapsed = sleep.is_elapsed();
                let polled = Pin::new(&mut *sleep).poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!((has_elapsed, polled), (true, Poll::Ready(())));
                elapsed.fetch_add(1, Ordering::SeqCst);
            });
            register_for(&waker, &mut *sleep.lock().unwrap());
        }
        while wheel.pending() > 0 {
            tokio::time::sleep(ms(1)).await;
        }
        assert_eq!(elapsed.load(Ordering::SeqCst), SLEEPS);
        assert_eq!(wheel.metrics().panics, 0);
    });
}

// reset_after

#[tokio::test(start_paused = true)]
async fn reset_after_counts_from_now() {
    for (first, later) in [(ms(100), ms(300)), (ms(300), ms(100)), (DAY, ms(1)), (ms(1), DAY)] {
        for polled in [false, true] {
            let mut sleep = Wheel::new().sleep(first);
            if polled {
                register(&mut sleep);
            }
            advance(ms(50)).await;
            let now = Instant::now();
            sleep.reset_after(later);
            assert_eq!(sleep.deadline(), now + later);
            assert!(!sleep.is_elapsed());
            (&mut sleep).await;
            assert_eq!(now.elapsed(), later);
            // Again, once it has completed.
            sleep.reset_after(later);
            sleep.await;
            assert_eq!(now.elapsed(), later * 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reset_after_nothing_completes_at_the_next_poll() {
    for tick in [1, 100] {
        let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
        let mut sleep = task::spawn(wheel.sleep(DAY));
        sleep.reset_after(Duration::ZERO);
        assert_ready!(sleep.poll());
        sleep.reset_after(DAY);
        assert_pending!(sleep.poll());
        sleep.reset_after(Duration::ZERO);
        assert!(sleep.is_woken());
        assert_ready!(sleep.poll());
        assert_at_rest(&wheel);
    }
}

#[tokio::test(start_paused = true)]
async fn reset_after_the_longest_duration_saturates() {
    let mut sleep = task::spawn(Wheel::new().sleep(ms(1)));
    sleep.reset_after(Duration::MAX);
    assert_pending!(sleep.poll());
    advance(DAY * 365).await;
    assert!(!sleep.is_woken());
    assert!(sleep.deadline() >= Instant::now() + DAY * 365 * 28);
}

/// As Tokio's, whose `reset` starts its timer.
#[tokio::test(start_paused = true)]
async fn what_was_reset_elapses_without_a_poll_and_what_was_not_does_not() {
    let wheel = Wheel::new();
    let mut sleeps = [(); 4].map(|()| wheel.sleep(ms(10)));
    let mut tokios = [(); 4].map(|()| Box::pin(tokio::time::sleep(ms(10))));
    let deadline = Instant::now() + ms(20);
    sleeps[1].reset_at(deadline);
    tokios[1].as_mut().reset(deadline);
    sleeps[2].reset_at(Instant::now());
    tokios[2].as_mut().reset(Instant::now());
    sleeps[3].reset_after(ms(20));
    tokios[3].as_mut().reset(deadline);
    for elapsed_after in [0, 10, 20] {
        let is_over = elapsed_after == 20;
        let expected = [false, is_over, true, is_over];
        assert_eq!(tokios.each_ref().map(|sleep| sleep.is_elapsed()), expected);
        assert_eq!(sleeps.each_ref().map(Sleep::is_elapsed), expected);
        advance(ms(10)).await;
    }
    for sleep in &mut sleeps[1..] {
        assert_ready!(task::spawn(sleep).poll());
    }
}

// Dropping.

#[tokio::test(start_paused = true)]
async fn dropping_cancels_at_every_stage() {
    let wheel = Wheel::new();
    let stages: [(&str, u64, u64); 8] = [
        ("before the first poll", 0, 0),
        ("pending", 1, 1),
        ("pending, reset later", 1, 1),
        ("pending, reset earlier", 1, 1),
        ("pending, reset to the past: expired", 1, 0),
        ("expired", 1, 0),
        ("completed", 1, 0),
        ("expired, re-armed later", 2, 1),
    ];
    for (stage, (name, registered, cancelled)) in stages.into_iter().enumerate() {
        let before = wheel.metrics();
        let mut sleep = task::spawn(wheel.sleep(ms(100)));
        if stage > 0 {
            assert_pending!(sleep.poll());
        }
        match stage {
            2 => sleep.reset_at(Instant::now() + SECOND),
            3 => sleep.reset_at(Instant::now() + ms(50)),
            4 => sleep.reset_at(Instant::now()),
            5 => advance(ms(100)).await,
            6 => {
                advance(ms(100)).await;
                assert_ready!(sleep.poll());
            }
            7 => {
                sleep.reset_at(Instant::now() + SECOND);
                advance(ms(100)).await;
                assert_pending!(sleep.poll());
            }
            _ => {}
        }
        drop(sleep);
        assert_at_rest(&wheel);
        let after = wheel.metrics();
        assert_eq!(after.registered - before.registered, registered, "{name}");
        assert_eq!(after.cancelled - before.cancelled, cancelled, "{name}");
    }
    let expired = wheel.metrics().expired;
    advance(SECOND * 10).await;
    assert_eq!(wheel.metrics().expired, expired, "nothing dropped expires later");
}

#[tokio::test(start_paused = true)]
async fn dropping_lets_go_of_the_waker_at_once() {
    struct Witness;
    impl Wake for Witness {
        fn wake(self: Arc<Self>) {}
    }
    let wheel = Wheel::new();
    let witness = Arc::new(Witness);
    let mut sleep = wheel.sleep(SECOND);
    let waker = Waker::from(witness.clone());
    register_for(&waker, &mut sleep);
    drop(waker);
    assert_eq!(Arc::strong_count(&witness), 2, "the wheel holds it");
    drop(sleep);
    assert_eq!(Arc::strong_count(&witness), 1, "the wheel let go of it");
}

// Wakers.

/// Sleeps that the waker of one of them drops, all at once.
type Owned = Arc<Mutex<Vec<Sleep>>>;

#[tokio::test(start_paused = true)]
async fn a_waker_may_drop_its_own_sleep_and_all_others_of_the_tick() {
    let wheel = Wheel::new();
    let owned = Owned::default();
    let wakes = Arc::new(AtomicUsize::new(0));
    let waker = {
        let (owned, wakes) = (owned.clone(), wakes.clone());
        waker_of(move || {
            wakes.fetch_add(1, Ordering::SeqCst);
            let dropped = std::mem::take(&mut *owned.lock().unwrap());
            drop(dropped);
        })
    };
    for millis in [10, 10, 20, 500] {
        for _ in 0..50 {
            let mut sleep = wheel.sleep(ms(millis));
            register_for(&waker, &mut sleep);
            owned.lock().unwrap().push(sleep);
        }
    }
    advance(ms(11)).await;
    assert!(wakes.load(Ordering::SeqCst) >= 1);
    assert!(owned.lock().unwrap().is_empty());
    assert_at_rest(&wheel);
    assert_eq!(wheel.metrics().panics, 0);
    advance(SECOND).await;
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_owns_a_sleep_may_be_dropped_by_the_wheel() {
    struct SleepInWaker {
        _sleep: Sleep,
    }
    impl Wake for SleepInWaker {
        fn wake(self: Arc<Self>) {}
    }
    let wheel = Wheel::new();
    let owner_of_a_sleep = || {
        let mut sleep = wheel.sleep(SECOND * 3600);
        register(&mut sleep);
        Waker::from(Arc::new(SleepInWaker { _sleep: sleep }))
    };
    // Dropped by a cancelled sleep, ...
    let mut primary = wheel.sleep(SECOND * 3600);
    register_for(&owner_of_a_sleep(), &mut primary);
    assert_eq!(wheel.pending(), 2);
    drop(primary);
    assert_at_rest(&wheel);
    // ... by one that is polled with another waker, ...
    let mut primary = wheel.sleep(SECOND * 3600);
    register_for(&owner_of_a_sleep(), &mut primary);
    register(&mut primary);
    assert_eq!(wheel.pending(), 1);
    drop(primary);
    // ... and by the driver that has woken it.
    let mut primary = wheel.sleep(SECOND);
    register_for(&owner_of_a_sleep(), &mut primary);
    advance(SECOND).await;
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn a_re_armed_sleep_wakes_the_task_that_polled_it_last() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let (first, first_woken) = counting_waker();
    let (last, last_woken) = counting_waker();
    let mut sleep = wheel.sleep(ms(100));
    register_for(&first, &mut sleep);
    sleep.reset_at(start + ms(300));
    register_for(&last, &mut sleep);
    advance(ms(100)).await;
    register_for(&last, &mut sleep);
    let before = last_woken.load(Ordering::SeqCst);
    advance(ms(200)).await;
    assert_eq!(first_woken.load(Ordering::SeqCst), 0);
    assert_eq!(last_woken.load(Ordering::SeqCst), before + 1);
}

// Runtimes.

#[test]
fn it_can_be_made_reset_and_dropped_outside_a_runtime() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(SECOND);
    sleep.reset_at(Instant::now() + ms(5));
    assert!(!sleep.is_elapsed());
    drop(sleep);
    let kept = wheel.sleep(ms(5));

    real_runtime().block_on(kept);
}
