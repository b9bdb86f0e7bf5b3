//! `Interval`: its ticks, what counts as a missed one, its resets, and its use as a `Stream`. Tokio's own
//! tests, which `.ci/run tokio-tests` runs, have the three policies for missed ticks and the kinds of resets.

use crate::support;

use std::{
    fmt::Debug,
    pin::pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use futures::{StreamExt, poll};
use tickwheel::{Interval, Wheel};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};

use support::{
    DAY, SECOND, advance, assert_at_rest, counting_waker, ms, on_a_clock_ahead_by, paused_runtime, register,
    threaded_runtime,
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

/// To the nanosecond, though both round deadlines up to milliseconds.
#[tokio::test(start_paused = true)]
async fn with_ticks_of_a_millisecond_a_tick_counts_as_missed_when_tokios_does() {
    let wheel = Wheel::new();
    for behavior in [MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
        for micros in [0, 1, 250, 483, 999] {
            for late in [4_900, 5_000, 5_001, 5_400, 5_517, 5_999, 6_000, 6_001] {
                let first = Instant::now() + ms(10) + Duration::from_micros(micros);
                let period = Duration::from_micros(11_483);
                let mut ours = wheel.interval_at(first, period);
                let mut tokios = tokio::time::interval_at(first, period);
                ours.set_missed_tick_behavior(behavior);
                tokios.set_missed_tick_behavior(behavior);
                assert!(poll!(pin!(ours.tick())).is_pending());
                assert!(poll!(pin!(tokios.tick())).is_pending());
                advance(first - Instant::now() + Duration::from_micros(late)).await;
                for tick in 0..3 {
                    let (tokios, ours) = (tokios.tick().await, ours.tick().await);
                    assert_eq!(
                        ours, tokios,
                        "tick {tick}, {late} us late of {micros}, {behavior:?}"
                    );
                }
            }
        }
    }
}

/// By how much the tick before was rounded up is no excuse for one that was moved to the past.
#[tokio::test(start_paused = true)]
async fn a_tick_that_is_moved_to_the_past_counts_as_missed() {
    let wheel = Wheel::new();
    for (is_due, wheel) in [(false, Wheel::new()), (true, Wheel::new()), (true, wheel.clone())] {
        let start = Instant::now();
        // The engine of a wheel that has no handle ends as its tick is due.
        let interval = wheel.interval(ms(10));
        drop(wheel);
        let mut interval = task::spawn(interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        assert_ready_eq!(poll_tick(&mut interval), start);
        assert_pending!(poll_tick(&mut interval));
        advance(ms(10)).await;
        if !is_due {
            assert_ready_eq!(poll_tick(&mut interval), start + ms(10));
        }
        interval.reset_at(start - SECOND);
        assert_ready_eq!(poll_tick(&mut interval), start - SECOND);
        assert_pending!(poll_tick(&mut interval));
        advance(ms(10)).await;
        assert_ready_eq!(poll_tick(&mut interval), start + ms(20));
    }
}

/// Ticks are due some ms before a tick of the wheel, and that time does not count.
#[tokio::test(start_paused = true)]
async fn what_a_longer_tick_rounds_up_is_no_delay() {
    for (before, late, is_missed) in [(7, 11, false), (7, 13, true), (1, 11, true), (9, 14, false)] {
        let wheel = Wheel::builder().tick_duration(ms(10)).build().unwrap();
        let first = Instant::now() + ms(100 - before);
        let mut interval = task::spawn(wheel.interval_at(first, ms(100)));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        assert_pending!(poll_tick(&mut interval));
        advance(ms(100 - before + late)).await;
        assert_ready_eq!(poll_tick(&mut interval), first);
        let next = first + ms(if is_missed { late + 100 } else { 100 });
        assert_eq!(interval.tick().await, next, "{before} ms before, {late} ms late");
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

/// Its ticks begin elsewhere in a millisecond than those of the runtime that has ended.
#[test]
fn a_tick_is_no_later_than_the_clock_of_the_next_runtime() {
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

/// A timer waits in the shard of the thread that polls it first, and each shard expires up to a moment of its
/// own.
#[test]
fn an_interval_that_moves_between_threads_goes_on_ticking() {
    let runtime = threaded_runtime(1);
    let wheel = Wheel::builder().shards(64).build().unwrap();
    let (waker, woken) = counting_waker();
    let mut interval = wheel.interval(ms(5));
    let mut move_on = || {
        let _entered = runtime.enter();
        let mut cx = Context::from_waker(&waker);
        let before = woken.load(Ordering::SeqCst);
        while interval.poll_tick(&mut cx).is_ready() {}
        let start = std::time::Instant::now();
        while woken.load(Ordering::SeqCst) == before {
            assert!(start.elapsed() < SECOND * 20, "the tick is lost");
            thread::sleep(ms(1));
        }
        assert!(interval.poll_tick(&mut cx).is_ready());
        // The next one is due as it is polled on the next thread.
        interval.reset();
        thread::sleep(ms(10));
    };
    for _ in 0..10 {
        thread::scope(|scope| scope.spawn(&mut move_on).join().unwrap());
    }
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

// set_period

#[tokio::test(start_paused = true)]
async fn set_period_counts_from_the_last_tick() {
    for (waits, later) in [(true, ms(400)), (false, ms(400)), (true, ms(40)), (false, ms(40))] {
        let wheel = Wheel::new();
        let start = Instant::now();
        let mut interval = wheel.interval(ms(100));
        assert_eq!(interval.tick().await, start);
        if waits {
            assert!(poll!(Box::pin(interval.tick())).is_pending());
        }
        tokio::time::advance(ms(30)).await;
        interval.set_period(later);
        assert_eq!(interval.period(), later);
        for tick in 1..4 {
            assert_eq!(interval.tick().await, start + later * tick);
            assert_eq!(start.elapsed(), later * tick);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn set_period_wakes_the_task_that_awaits_a_tick() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut interval = task::spawn(wheel.interval(DAY));
    assert_ready_eq!(poll_tick(&mut interval), start);
    assert_pending!(poll_tick(&mut interval));
    tokio::time::advance(ms(100)).await;
    // To an instant that comes, ..
    interval.set_period(ms(150));
    assert!(!interval.is_woken());
    advance(ms(50)).await;
    assert!(interval.is_woken());
    assert_ready_eq!(poll_tick(&mut interval), start + ms(150));
    // .. and to one that has passed.
    assert_pending!(poll_tick(&mut interval));
    advance(ms(100)).await;
    interval.set_period(ms(60));
    assert!(interval.is_woken());
    assert_ready_eq!(poll_tick(&mut interval), start + ms(210));
}

#[tokio::test(start_paused = true)]
async fn set_period_counts_from_the_last_reset() {
    let start = Instant::now();
    let mut interval = Wheel::new().interval(ms(100));
    interval.tick().await;
    tokio::time::advance(ms(70)).await;
    interval.reset();
    interval.set_period(ms(50));
    assert_eq!(interval.tick().await, start + ms(120));
    assert_eq!(interval.tick().await, start + ms(170));
}

#[tokio::test(start_paused = true)]
async fn set_period_leaves_an_instant_that_was_given() {
    let given: [fn(&mut Interval, Instant); 4] = [
        |_, _| {}, // by `interval_at`
        |interval, start| interval.reset_at(start + ms(500)),
        |interval, _| interval.reset_after(ms(500)),
        |interval, _| interval.reset_immediately(),
    ];
    for (number, give) in given.into_iter().enumerate() {
        let start = Instant::now();
        let mut interval = Wheel::new().interval_at(start + ms(500), ms(100));
        if number > 0 {
            // There has been a tick, from which the period does not count either.
            interval.reset_immediately();
            interval.tick().await;
        }
        give(&mut interval, start);
        interval.set_period(ms(30));
        let first = if number == 3 { start } else { start + ms(500) };
        assert_eq!(interval.tick().await, first);
        assert_eq!(interval.tick().await, first + ms(30));
    }
}

#[test]
#[should_panic(expected = "`period` must be non-zero.")]
fn set_period_panics_on_zero() {
    Wheel::new().interval(SECOND).set_period(Duration::ZERO);
}

// Long ticks.

/// Every tick comes late by as much as it was rounded up, which must not add up.
#[tokio::test(start_paused = true)]
async fn an_interval_does_not_drift_on_a_wheel_with_long_ticks() {
    let behaviors = [
        MissedTickBehavior::Burst,
        MissedTickBehavior::Delay,
        MissedTickBehavior::Skip,
    ];
    for (tick, period) in [(7, 10), (7, 100), (7, 333), (10, 25), (50, 120), (100, 101)] {
        for behavior in behaviors {
            let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
            let start = Instant::now();
            let mut interval = wheel.interval(ms(period));
            interval.set_missed_tick_behavior(behavior);
            for n in 0..700 {
                let due = interval.tick().await;
                assert_eq!(
                    due,
                    start + ms(period) * n,
                    "{behavior:?} every {period} ms in ticks of {tick} ms"
                );
                assert!(Instant::now() - due < ms(tick));
            }
        }
    }
}

/// Like any zero duration.
#[tokio::test(start_paused = true)]
async fn the_first_tick_completes_at_the_next_tick_of_the_wheel() {
    let wheel = Wheel::builder().tick_duration(ms(100)).build().unwrap();
    wheel.sleep(ms(1)).await;
    for micros in [1, 250, 333, 999] {
        tokio::time::advance(Duration::from_micros(micros)).await;
        let now = Instant::now();
        let mut interval = wheel.interval(SECOND);
        assert_eq!(interval.tick().await, now);
        let first = Instant::now();
        assert!(first > now && first - now <= ms(100));
        interval.reset_immediately();
        assert_eq!(interval.tick().await, first);
        assert!(first.elapsed() <= ms(100));
    }
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

/// As an instant is before the machine started, if a program that starts with it subtracts from the time.
#[tokio::test(start_paused = true)]
async fn a_start_before_that_of_the_machine_keeps_its_grid() {
    let wheel = Wheel::new();
    let period = Duration::from_secs(7 * 86_400);
    let weeks = |weeks| Instant::now().checked_sub(period * weeks);
    // Ten years, unless the clock has none before the machine's start.
    let Some(start) = weeks(520) else { return };
    assert_eq!(wheel.sleep_until(start).deadline(), start);
    let mut ours = wheel.interval_at(start + SECOND, period);
    let mut tokios = tokio::time::interval_at(start + SECOND, period);
    for _ in 0..522 {
        assert_eq!(ours.tick().await, tokios.tick().await);
    }
}
