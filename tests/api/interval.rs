//! `Interval`: its ticks, what counts as a missed one, its resets, and its use as a `Stream`. Tokio's own tests, which `.ci/tokio-tests`
//! runs, have the three policies for missed ticks and the kinds of resets.

use crate::support;

use std::{
    fmt::Debug,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::{StreamExt, poll};
use tickwheel::{Interval, Wheel};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};

use support::{
    DAY, SECOND, advance, assert_at_rest, assert_due, ms, on_a_clock_ahead_by, paused_runtime, register,
};

const fn send_sync_unpin<T: Send + Sync + Unpin + Debug>() {}
const _: () = send_sync_unpin::<Interval>();

fn poll_tick(interval: &mut task::Spawn<Interval>) -> Poll<Instant> {
    interval.enter(|cx, mut interval| interval.poll_tick(cx))
}

/// Asserts that the ticks of `deltas`, in milliseconds from `start`, complete now, and no further one.
#[track_caller]
fn assert_ticks(interval: &mut task::Spawn<Interval>, start: Instant, deltas: &[u64]) {
    let now = start.elapsed();
    for &delta in deltas {
        let tick = assert_ready!(poll_tick(interval), "at {now:?}, for {delta} ms");
        assert_eq!(tick - start, ms(delta), "at {now:?}");
    }
    assert_pending!(poll_tick(interval), "at {now:?}, after {deltas:?}");
}

/// By how many milliseconds the clock moves at each step, and the ticks that complete then.
type Steps<'a> = &'a [(u64, &'a [u64])];

async fn assert_steps(interval: &mut task::Spawn<Interval>, start: Instant, steps: Steps<'_>) {
    for (step, deltas) in steps {
        tokio::time::advance(ms(*step)).await;
        assert_ticks(interval, start, deltas);
    }
}

/// An interval of 300 ms that has ticked at 0, and the instant of that tick.
fn of_300_ms(wheel: &Wheel, behavior: MissedTickBehavior) -> (task::Spawn<Interval>, Instant) {
    let start = Instant::now();
    let mut interval = task::spawn(wheel.interval_at(start, ms(300)));
    interval.set_missed_tick_behavior(behavior);
    assert_ticks(&mut interval, start, &[0]);
    (interval, start)
}

// What becomes of missed ticks.

#[tokio::test(start_paused = true)]
async fn skip_keeps_the_grid_through_a_stall_of_centuries() {
    let (mut interval, start) = of_300_ms(&Wheel::new(), MissedTickBehavior::Skip);
    let century = DAY * 36_500; // a multiple of 300 ms
    tokio::time::advance(century + ms(1_000)).await;
    assert_ticks(&mut interval, start, &[300]);
    tokio::time::advance(ms(199)).await;
    assert_ticks(&mut interval, start + century, &[]);
    tokio::time::advance(ms(1)).await;
    assert_ticks(&mut interval, start + century, &[1_200]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_late_by_no_more_than_a_tick_of_the_wheel_or_5_ms_does_not_count_as_missed() {
    // The first is not missed, the second is.
    let long: Steps<'_> = &[
        (310, &[300]),
        (290, &[600]),
        (320, &[900]),
        (280, &[]),
        (20, &[1_220]),
    ];
    let fine: Steps<'_> = &[(305, &[300]), (295, &[600]), (306, &[900]), (300, &[1_206])];
    for (tick, steps) in [(10, long), (1, fine)] {
        let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
        let (mut interval, start) = of_300_ms(&wheel, MissedTickBehavior::Delay);
        assert_steps(&mut interval, start, steps).await;
    }
}

/// That instant is within a tick of the wheel.
#[tokio::test(start_paused = true)]
async fn a_tick_that_is_due_at_this_very_instant_waits_for_no_tick_of_the_wheel() {
    let start = Instant::now();
    let mut interval = task::spawn(Wheel::new().interval_at(start + ms(5), ms(100)));
    assert_pending!(poll_tick(&mut interval));
    tokio::time::advance(ms(105)).await;
    assert_ticks(&mut interval, start, &[5, 105]);
}

#[test]
fn the_policy_is_burst_unless_set() {
    let mut interval = Wheel::new().interval(SECOND);
    assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
    for behavior in [
        MissedTickBehavior::Delay,
        MissedTickBehavior::Skip,
        MissedTickBehavior::Burst,
    ] {
        interval.set_missed_tick_behavior(behavior);
        assert_eq!(interval.missed_tick_behavior(), behavior);
    }
    assert_eq!(interval.period(), SECOND);
}

// The ticks themselves.

#[tokio::test(start_paused = true)]
async fn the_first_tick_completes_at_the_first_poll() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut interval = task::spawn(wheel.interval(SECOND));
    assert_ready_eq!(poll_tick(&mut interval), start);
    assert_pending!(poll_tick(&mut interval));
}

#[tokio::test(start_paused = true)]
async fn every_tick_is_never_early_and_less_than_a_tick_of_the_wheel_late() {
    for (tick, period) in [(1, 7), (10, 10), (10, 15), (10, 333), (100, 250), (10, 5_121)] {
        let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
        let start = Instant::now();
        let mut interval = wheel.interval(ms(period));
        for n in 0..100 {
            let due = interval.tick().await;
            assert_eq!(due, start + ms(period) * n);
            let late = Instant::now().checked_duration_since(due).expect("it was early");
            assert!(
                late < ms(tick),
                "tick {n}, every {period} ms in ticks of {tick} ms: {late:?} late"
            );
        }
        drop(interval);
        assert_at_rest(&wheel);
    }
}

/// A driver's ticks begin with its runtime's milliseconds, so that wheel time goes back by less than one when another runtime takes over.
#[test]
fn a_tick_is_no_later_than_the_clock_of_the_driver_that_took_over() {
    let wheel = Wheel::new();
    let mut interval = wheel.interval(ms(10));
    paused_runtime().block_on(async {
        interval.tick().await;
        assert!(poll!(pin!(interval.tick())).is_pending());
        advance(ms(10)).await;
    });
    on_a_clock_ahead_by(Duration::from_micros(300), async || {
        register(&mut wheel.sleep(SECOND));
        let tick = interval.tick().await;
        assert!(tick <= Instant::now(), "{:?} ahead", tick - Instant::now());
    });
}

#[tokio::test(start_paused = true)]
async fn a_tick_dropped_before_it_completes_is_not_consumed() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut interval = wheel.interval(ms(100));
    assert_eq!(interval.tick().await, start);
    for _ in 0..3 {
        assert!(poll!(Box::pin(interval.tick())).is_pending());
        tokio::time::advance(ms(30)).await;
    }
    assert_eq!(interval.tick().await, start + ms(100));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_interval_is_one_timer_and_a_dropped_one_none() {
    let wheel = Wheel::new();
    let mut interval = task::spawn(wheel.interval(ms(100)));
    assert_ready!(poll_tick(&mut interval));
    assert_eq!(wheel.pending(), 0, "nobody waits for the next tick yet");
    assert_pending!(poll_tick(&mut interval));
    assert_pending!(poll_tick(&mut interval));
    assert_eq!(wheel.pending(), 1);
    drop(interval);
    assert_at_rest(&wheel);
}

// reset

#[tokio::test(start_paused = true)]
async fn a_reset_to_an_earlier_instant_wakes_the_task_that_awaits_the_tick() {
    let wheel = Wheel::new();
    let mut interval = task::spawn(wheel.interval_at(Instant::now() + DAY, SECOND));
    assert_pending!(poll_tick(&mut interval));
    let soon = Instant::now() + ms(50);
    interval.reset_at(soon);
    advance(ms(40)).await;
    assert!(!interval.is_woken());
    advance(ms(10)).await;
    assert!(interval.is_woken());
    assert_ready_eq!(poll_tick(&mut interval), soon);
}

#[tokio::test(start_paused = true)]
async fn a_reset_to_a_later_instant_does_not_tick_at_the_old_one() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut interval = wheel.interval_at(start + ms(100), SECOND);
    assert!(poll!(Box::pin(interval.tick())).is_pending());
    interval.reset_after(ms(400));
    assert_eq!(interval.tick().await, start + ms(400));
    assert_eq!(start.elapsed(), ms(400));
}

// As a stream.

#[tokio::test(start_paused = true)]
async fn as_a_stream_it_yields_the_instants_of_its_ticks() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let ticks: Vec<_> = wheel.interval(ms(100)).take(4).collect().await;
    assert_eq!(ticks, [0, 100, 200, 300].map(|millis| start + ms(millis)));
    assert_eq!(start.elapsed(), ms(300));
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_it_skips_what_it_missed_as_before() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut interval = wheel.interval(SECOND);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval.tick().await;
    interval.tick().await;
    wheel.shutdown();
    advance(ms(2_500)).await;
    assert_eq!(interval.tick().await, start + SECOND * 2);
    assert_eq!(interval.tick().await, start + SECOND * 4);
    assert_due(start, SECOND * 4);
}

#[tokio::test(start_paused = true)]
async fn as_a_stream_it_ends_when_the_wheel_shuts_down() {
    let wheel = Wheel::new();
    let mut waiting = task::spawn(wheel.interval(SECOND));
    assert_ready!(waiting.poll_next()).unwrap();
    assert_pending!(waiting.poll_next());
    let mut fresh = wheel.interval(SECOND);
    assert_eq!(wheel.shutdown().timers, 1);
    assert!(waiting.is_woken());
    assert_ready_eq!(waiting.poll_next(), None);
    assert_eq!(fresh.next().await, None);
    let first = fresh.tick().await;
    assert_eq!(fresh.tick().await, first + SECOND, "on Tokio's timer");
    assert_due(first, SECOND);
}

// The cooperative budget.

#[tokio::test(start_paused = true)]
async fn a_loop_of_ticks_that_are_due_does_not_starve_its_runtime() {
    let mut interval = Wheel::new().interval(Duration::from_nanos(1));
    interval.tick().await;
    tokio::time::advance(ms(1)).await; // a million ticks
    let other_ran = Arc::new(AtomicBool::new(false));
    let flag = other_ran.clone();
    tokio::spawn(async move { flag.store(true, Ordering::SeqCst) });
    for _ in 0..1_000 {
        interval.tick().await;
    }
    assert!(other_ran.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_finds_no_budget_left_is_not_lost() {
    let start = Instant::now();
    let mut interval = Wheel::new().interval(ms(100));
    while tokio::task::coop::has_budget_remaining() {
        tokio::task::coop::consume_budget().await;
    }
    assert!(
        poll!(Box::pin(interval.tick())).is_pending(),
        "the budget is used up"
    );
    assert_eq!(interval.tick().await, start);
    assert_eq!(interval.tick().await, start + ms(100));
}
