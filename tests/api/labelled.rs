//! `labelled`: every timeout of a label is counted exactly once, by its outcome and by the share of its time that was left.

use crate::support;

use std::{
    cell::Cell,
    future::{Future, Pending, pending, poll_fn, ready},
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use tickwheel::{LabelStats, Labelled, LabelledTimeout, Mode, TimeoutError, Wheel, time::Label};
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, advance, assert_due, full_wheel, make_tick, ms, own_process::in_own_process,
    paused_runtime, real_runtime, register, register_for, threaded_runtime,
};

#[track_caller]
fn stats(wheel: &Wheel, name: &str) -> LabelStats {
    let labels = wheel.snapshot().labels;
    let stats = labels.into_iter().find(|label| &*label.name == name);
    let stats = stats.unwrap_or_else(|| panic!("there is no label {name}"));
    let LabelStats {
        started,
        completed,
        elapsed,
        refused,
        cancelled,
        pending,
        headroom,
        ..
    } = stats;
    assert_eq!(started, completed + elapsed + refused + cancelled + pending);
    assert_eq!(headroom.iter().sum::<u64>(), completed);
    stats
}

/// Completed, elapsed, refused, cancelled, pending.
#[track_caller]
fn counts(wheel: &Wheel) -> [u64; 5] {
    let stats = stats(wheel, "label");
    [
        stats.completed,
        stats.elapsed,
        stats.refused,
        stats.cancelled,
        stats.pending,
    ]
}

fn never(wheel: &Wheel) -> LabelledTimeout<Pending<()>> {
    wheel.labelled("label").timeout(SECOND, pending())
}

#[tokio::test(start_paused = true)]
async fn a_timeout_counts_from_its_first_poll() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(never(&wheel));
    assert_eq!(counts(&wheel), [0; 5]);
    assert_pending!(timeout.poll());
    assert_eq!(counts(&wheel), [0, 0, 0, 0, 1]);
    assert_pending!(timeout.poll());
    assert_eq!(counts(&wheel), [0, 0, 0, 0, 1]);
    drop(timeout);
    assert_eq!(counts(&wheel), [0, 0, 0, 1, 0]);
    drop(never(&wheel));
    assert_eq!(stats(&wheel, "label").started, 1, "one that was never polled");
}

#[tokio::test(start_paused = true)]
async fn each_outcome_counts_once() {
    let wheel = Wheel::new();
    let labelled = wheel.labelled("label");

    assert_eq!(labelled.timeout(Duration::ZERO, ready(1)).await, Ok(1));
    assert_eq!(counts(&wheel), [1, 0, 0, 0, 0]);
    assert!(labelled.timeout(Duration::ZERO, pending::<()>()).await.is_err());
    assert_eq!(counts(&wheel), [1, 1, 0, 0, 0]);

    let mut timeout = task::spawn(never(&wheel));
    assert_pending!(timeout.poll());
    advance(SECOND).await;
    assert!(timeout.is_woken());
    assert_eq!(counts(&wheel), [1, 1, 0, 0, 1], "nobody has looked yet");
    assert!(assert_ready!(timeout.poll()).is_err());
    assert!(assert_ready!(timeout.poll()).is_err());
    drop(timeout);
    assert_eq!(counts(&wheel), [1, 2, 0, 0, 0]);

    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(labelled.timeout_at(Instant::now() + SECOND, receiver));
    assert_pending!(timeout.poll());
    sender.send(()).unwrap();
    assert_ready!(timeout.poll()).unwrap().unwrap();
    drop(timeout);
    assert_eq!(counts(&wheel), [2, 2, 0, 0, 0]);

    let mut timeout = never(&wheel);
    register(&mut timeout);
    let _future = timeout.into_inner();
    assert_eq!(counts(&wheel), [2, 2, 0, 1, 0]);
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_wheel_refuses() {
    let (wheel, occupant) = full_wheel();
    let refused = wheel.labelled("label").try_timeout(SECOND, pending::<()>()).await;
    assert_eq!(refused, Err(TimeoutError::AtCapacity { limit: 1 }));
    assert_eq!(counts(&wheel), [0, 0, 1, 0, 0]);
    drop(occupant);
}

#[tokio::test(start_paused = true)]
async fn on_tokios_timer_an_outcome_counts_as_on_the_wheel() {
    let (wheel, _occupant) = full_wheel();
    let labelled = wheel.labelled("label");
    let start = Instant::now();
    assert!(labelled.timeout(SECOND, pending::<()>()).await.is_err());
    assert_due(start, SECOND);
    assert_eq!(counts(&wheel), [0, 1, 0, 0, 0]);
    let in_time = labelled
        .timeout(SECOND * 10, tokio::time::sleep(SECOND * 4))
        .await;
    assert_eq!(in_time, Ok(()));
    assert_eq!(counts(&wheel), [1, 1, 0, 0, 0]);
    assert_eq!(wheel.snapshot().labels[0].headroom[6], 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_pending_at_a_shutdown_is_refused_whatever_comes_after() {
    let wheel = Wheel::new();
    let labelled = wheel.labelled("label");
    let (sender, receiver) = oneshot::channel();
    let mut completes = task::spawn(labelled.timeout(SECOND, receiver));
    let mut polled = task::spawn(never(&wheel));
    let mut dropped = never(&wheel);
    assert_pending!(completes.poll());
    assert_pending!(polled.poll());
    register(&mut dropped);
    assert_eq!(counts(&wheel), [0, 0, 0, 0, 3]);
    wheel.shutdown();
    assert_eq!(counts(&wheel), [0, 0, 3, 0, 0]);
    sender.send(()).unwrap();
    assert_ready!(completes.poll()).unwrap().unwrap();
    assert_pending!(polled.poll());
    assert!(polled.await.is_err());
    drop(dropped);
    assert_eq!(counts(&wheel), [0, 0, 3, 0, 0]);

    assert_eq!(
        labelled.try_timeout(SECOND, pending::<()>()).await,
        Err(TimeoutError::Shutdown)
    );
    assert_eq!(counts(&wheel), [0, 0, 4, 0, 0]);
    assert_eq!(labelled.timeout(SECOND, ready(())).await, Ok(()));
    assert_eq!(counts(&wheel), [1, 0, 4, 0, 0], "one that is ready succeeds");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_is_cancelled() {
    let wheel = Wheel::new();
    let labelled = wheel.labelled("label");
    let panics_at = |poll: u32| {
        let mut polls = 0;
        let mut timeout = Box::pin(labelled.timeout(
            SECOND,
            poll_fn(move |_| {
                polls += 1;
                assert_ne!(polls, poll, "this future panics, as it should");
                Poll::<()>::Pending
            }),
        ));
        let mut cx = Context::from_waker(Waker::noop());
        catch_unwind(AssertUnwindSafe(|| {
            assert_pending!(timeout.as_mut().poll(&mut cx));
            assert_pending!(timeout.as_mut().poll(&mut cx));
        }))
        .unwrap_err();
    };
    let mut beside = never(&wheel);
    register(&mut beside);
    panics_at(1);
    assert_eq!(counts(&wheel), [0, 0, 0, 1, 1]);
    panics_at(2);
    assert_eq!(counts(&wheel), [0, 0, 0, 2, 1]);
}

/// Its drop panics, be it a future or a waker.
struct PanicsAsItGoes;

impl Future for PanicsAsItGoes {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Wake for PanicsAsItGoes {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsAsItGoes {
    fn drop(&mut self) {
        panic!("this panics, as it should");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drop_that_panics_goes_on_and_counts() {
    let wheel = Wheel::new();
    let mut timeout = wheel.labelled("label").timeout(SECOND, PanicsAsItGoes);
    register(&mut timeout);
    catch_unwind(AssertUnwindSafe(|| drop(timeout))).unwrap_err();
    assert_eq!(counts(&wheel), [0, 0, 0, 1, 0]);

    let mut timeout = never(&wheel);
    let waker = Waker::from(Arc::new(PanicsAsItGoes));
    register_for(&waker, &mut timeout);
    drop(waker);
    catch_unwind(AssertUnwindSafe(|| drop(timeout))).unwrap_err();
    assert_eq!(counts(&wheel), [0, 0, 0, 2, 0]);
    assert_eq!(wheel.pending(), 0);
}

/// Completes a timeout of `duration` when `passed` of it has passed; returns the tenth that this counted in.
async fn headroom(wheel: &Wheel, at: bool, duration: Duration, passed: Duration) -> Option<usize> {
    let labelled = wheel.labelled("label");
    let before = stats(wheel, "label").headroom;
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(match at {
        true => labelled.timeout_at(Instant::now() + duration, receiver),
        false => labelled.timeout(duration, receiver),
    });
    assert_pending!(timeout.poll());
    advance(passed).await;
    sender.send(()).unwrap();
    assert_ready!(timeout.poll()).unwrap().unwrap();
    let after = stats(wheel, "label").headroom;
    (0..10).find(|n| after[*n] > before[*n])
}

#[tokio::test(start_paused = true)]
async fn headroom_counts_the_tenths_that_were_left() {
    let wheel = Wheel::new();
    for at in [false, true] {
        for (passed, tenths) in [
            (0, 9),
            (1, 9),
            (99, 9),
            (100, 9),
            (101, 8),
            (200, 8),
            (201, 7),
            (500, 5),
            (501, 4),
            (899, 1),
            (900, 1),
            (901, 0),
            (999, 0),
        ] {
            let found = headroom(&wheel, at, SECOND, ms(passed)).await;
            assert_eq!(found, Some(tenths), "after {passed} ms");
        }
    }
    assert_eq!(
        headroom(&wheel, true, SECOND * 60 * 60 * 24 * 365 * 29, DAY).await,
        Some(9)
    );
    let at_once = wheel.labelled("at once");
    at_once.timeout(SECOND, ready(())).await.unwrap();
    assert_eq!(stats(&wheel, "at once").headroom, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_at_counts_its_time_from_its_first_poll() {
    let wheel = Wheel::new();
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(
        wheel
            .labelled("label")
            .timeout_at(Instant::now() + SECOND * 10, receiver),
    );
    advance(SECOND * 9).await;
    assert_pending!(timeout.poll());
    sender.send(()).unwrap();
    assert_ready!(timeout.poll()).unwrap().unwrap();
    assert_eq!(stats(&wheel, "label").headroom[9], 1);
}

#[test]
fn headroom_is_exact_in_a_shard_that_ticks() {
    headroom_is_exact(true);
}

#[test]
fn headroom_is_exact_if_the_shard_ticks_no_more() {
    headroom_is_exact(false);
}

/// Of timeouts that begin while the shard ticks.
fn headroom_is_exact(goes_on_ticking: bool) {
    let runtime = real_runtime();
    runtime
        .block_on(runtime.spawn(async move {
            let wheel = Wheel::builder().shards(1).build().unwrap();
            let mut busy = make_tick(&wheel);
            assert_eq!(wheel.snapshot().shards[0].mode, Mode::Ticking);
            let labelled = wheel.labelled("label");
            let total = SECOND * 2;
            let begin = |_| {
                let (done, waits) = oneshot::channel();
                let mut timeout = Box::pin(labelled.timeout(total, waits));
                let before = Instant::now();
                register(&mut timeout);
                (before, done, timeout)
            };
            let timeouts: Vec<_> = (0..20).map(begin).collect();
            if !goes_on_ticking {
                busy.clear();
            }
            // A full visit has given every timeout its deadline, which is rounded up to a tick.
            wheel.sleep(2 * CADENCE).await;
            let counts_from = Instant::now() + TICK;
            for (before, done, timeout) in timeouts {
                wheel.sleep(ms(37)).await;
                if goes_on_ticking {
                    busy = make_tick(&wheel);
                }
                done.send(()).unwrap();
                let counted = stats(&wheel, "label").headroom;
                let most = tenths_left(total, counts_from);
                timeout.await.unwrap().unwrap();
                let least = tenths_left(total, before);
                let found = (0..10).find(|n| stats(&wheel, "label").headroom[*n] > counted[*n]);
                assert!(found.is_some_and(|found| (least..=most).contains(&found)));
            }
            let mode = wheel.snapshot().shards[0].mode;
            assert_eq!(mode == Mode::Ticking, goes_on_ticking);
            drop(busy);
        }))
        .unwrap();
}

/// How often a shard that ticks gets a full visit.
const CADENCE: Duration = ms(10);

/// In a task on the real clock, in a shard that ticks if `ticks`, no driver runs before `scene` waits.
fn in_a_shard<F: Future<Output = ()> + Send>(ticks: bool, scene: impl FnOnce(Wheel) -> F + Send + 'static) {
    let runtime = real_runtime();
    let task = runtime.spawn(async move {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        wheel.sleep(ms(1)).await;
        let busy = ticks.then(|| make_tick(&wheel));
        assert_eq!(wheel.snapshot().shards[0].mode == Mode::Ticking, ticks);
        scene(wheel).await;
        drop(busy);
    });
    runtime.block_on(task).unwrap();
}

/// Begins a timeout in the task that waits, so that the next one can take it over.
async fn begin(labelled: &Labelled, total: Duration) -> (oneshot::Sender<()>, Waits) {
    let (done, waits) = oneshot::channel();
    let mut timeout = Box::pin(labelled.timeout(total, waits));
    poll_fn(|cx| {
        assert_pending!(timeout.as_mut().poll(cx));
        Poll::Ready(())
    })
    .await;
    (done, timeout)
}

type Waits = Pin<Box<LabelledTimeout<oneshot::Receiver<()>>>>;

/// Completes a timeout, and returns the tenth that it is counted in.
async fn complete(wheel: &Wheel, (done, timeout): (oneshot::Sender<()>, Waits)) -> usize {
    let before = stats(wheel, "label").headroom;
    done.send(()).unwrap();
    timeout.await.unwrap().unwrap();
    let after = stats(wheel, "label").headroom;
    (0..10).find(|n| after[*n] > before[*n]).unwrap()
}

/// Asserts that a timeout of a second counts from an instant within `start`, by the tenth that it is counted in as it completes.
async fn assert_counts_from(
    start: RangeInclusive<Instant>,
    wheel: &Wheel,
    timeout: (oneshot::Sender<()>, Waits),
) {
    let most = tenths_left(SECOND, *start.end());
    let found = complete(wheel, timeout).await;
    let least = tenths_left(SECOND, *start.start());
    assert!((least..=most).contains(&found), "{found} tenths");
}

/// Keeps the thread busy, and so the driver from coming.
fn block(time: Duration) {
    std::thread::sleep(time);
}

#[test]
fn before_a_full_visit_all_of_the_time_is_left() {
    in_a_shard(true, async |wheel| {
        let labelled = wheel.labelled("label");
        for _ in 0..3 {
            let timeout = begin(&labelled, SECOND).await;
            block(ms(150));
            assert_eq!(complete(&wheel, timeout).await, 9);
        }
    });
}

/// The first one has a timer of its own, and the second one takes that over.
#[test]
fn after_a_full_visit_the_time_counts_from_that_visit() {
    in_a_shard(true, async |wheel| {
        let labelled = wheel.labelled("label");
        let first = begin(&labelled, SECOND).await;
        block(ms(250));
        assert_eq!(complete(&wheel, first).await, 9);
        let second = begin(&labelled, SECOND).await;
        block(ms(250));
        let (before, visits) = (Instant::now(), wheel.metrics().full_visits);
        wheel.sleep(2 * CADENCE).await;
        assert!(wheel.metrics().full_visits > visits);
        let after = Instant::now() + TICK;
        block(ms(350));
        assert_counts_from(before..=after, &wheel, second).await;
    });
}

#[test]
fn the_time_of_a_timeout_that_took_another_over_is_its_own() {
    in_a_shard(false, async |wheel| {
        let labelled = wheel.labelled("label");
        let first = begin(&labelled, SECOND).await;
        block(ms(250));
        complete(&wheel, first).await;
        let before = Instant::now();
        let second = begin(&labelled, SECOND).await;
        let after = Instant::now();
        block(ms(250));
        assert_counts_from(before..=after, &wheel, second).await;
    });
}

#[test]
fn what_is_pending_in_a_shard_that_ticks_is_refused_at_a_shutdown() {
    in_a_shard(true, async |wheel| {
        let (done, timeout) = begin(&wheel.labelled("label"), SECOND).await;
        wheel.shutdown();
        done.send(()).unwrap();
        timeout.await.unwrap().unwrap();
        assert_eq!(counts(&wheel), [0, 0, 1, 0, 0]);
    });
}

#[test]
fn headroom_counts_what_is_left_if_the_driver_has_ended() {
    for ticks in [false, true] {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        let (done, waits) = oneshot::channel();
        let mut timeout = Box::pin(wheel.labelled("label").timeout(DAY, waits));
        real_runtime().block_on(async {
            wheel.sleep(ms(1)).await;
            let busy = ticks.then(|| make_tick(&wheel));
            register(&mut timeout);
            drop(busy);
        });
        assert_eq!(wheel.snapshot().shards[0].mode, Mode::Driverless);
        let tenth = real_runtime().block_on(complete(&wheel, (done, timeout)));
        assert_eq!(tenth, 9, "{ticks}");
    }
}

/// Tenths of `total` that a timeout has left that began at `start`.
fn tenths_left(total: Duration, start: Instant) -> usize {
    let left = total.saturating_sub(start.elapsed());
    (left.as_nanos() * 10 / total.as_nanos()).min(9) as usize
}

/// The driver has not come for a while. What begins to wait before its next visit has not waited since its last one.
#[test]
fn headroom_after_a_quiet_time_counts_from_the_first_poll() {
    const QUIET: Duration = ms(500);
    let total = 2 * QUIET;
    let runtime = real_runtime();
    runtime
        .block_on(runtime.spawn(async move {
            let wheel = Wheel::builder().shards(1).build().unwrap();
            wheel.sleep(ms(1)).await;
            tokio::time::sleep(QUIET).await;
            let labelled = wheel.labelled("burst");
            let start = Instant::now();
            let mut burst: Vec<_> = (0..300)
                .map(|_| {
                    let (done, waits) = oneshot::channel::<()>();
                    let mut timeout = Box::pin(labelled.timeout(total, waits));
                    register(&mut timeout);
                    (done, timeout)
                })
                .collect();
            assert_eq!(wheel.snapshot().shards[0].mode, Mode::Ticking);
            // The driver has come meanwhile.
            wheel.sleep(2 * TICK).await;
            for (done, timeout) in burst.drain(..) {
                done.send(()).unwrap();
                timeout.await.unwrap().unwrap();
            }
            let within = start.elapsed() + 2 * TICK;
            let least = (total.saturating_sub(within).as_nanos() * 10 / total.as_nanos()).min(9) as usize;
            let headroom = stats(&wheel, "burst").headroom;
            assert_eq!(
                headroom[least..].iter().sum::<u64>(),
                300,
                "{headroom:?} within {within:?}"
            );
        }))
        .unwrap();
}

/// The second clock is a day behind the first.
#[test]
fn headroom_counts_what_is_left_by_the_clock_of_another_driver() {
    for second in [paused_runtime, real_runtime] {
        let wheel = Wheel::new();
        let (sender, receiver) = oneshot::channel();
        let mut timeout = task::spawn(wheel.labelled("label").timeout(SECOND * 10, receiver));
        let first = paused_runtime();
        first.block_on(async {
            advance(DAY).await;
            assert_pending!(timeout.poll());
            wheel.sleep(ms(6_500)).await;
        });
        drop(first);
        second().block_on(async {
            // Another driver starts.
            register(&mut wheel.sleep(SECOND));
            sender.send(()).unwrap();
            assert_ready!(timeout.poll()).unwrap().unwrap();
        });
        assert_eq!(stats(&wheel, "label").headroom, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn equal_names_are_one_label_on_one_wheel() {
    let (wheel, other) = (Wheel::new(), Wheel::new());
    let labelled = wheel.labelled("label");
    assert_eq!(labelled.name(), "label");
    labelled.timeout(SECOND, ready(())).await.unwrap();
    wheel
        .labelled(String::from("label"))
        .timeout(SECOND, ready(()))
        .await
        .unwrap();
    labelled.clone().timeout(SECOND, ready(())).await.unwrap();
    other.labelled("label").timeout(SECOND, ready(())).await.unwrap();
    wheel.labelled("").timeout(SECOND, ready(())).await.unwrap();
    assert_eq!(stats(&wheel, "label").completed, 3);
    assert_eq!(stats(&other, "label").completed, 1);
    assert_eq!(stats(&wheel, "").completed, 1);
    assert_eq!(wheel.snapshot().labels.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_thousand_names_all_others_are_one() {
    let wheel = Wheel::new();
    for n in 0..1_500 {
        let labelled = wheel.labelled(n.to_string());
        assert_eq!(
            labelled.name(),
            if n < 1_000 { n.to_string() } else { "other".into() }
        );
        labelled.timeout(SECOND, ready(())).await.unwrap();
    }
    let labels = wheel.snapshot().labels;
    assert_eq!(labels.len(), 1_001);
    assert!(labels[..1_000].iter().all(|label| label.started == 1));
    assert_eq!((&*labels[1_000].name, labels[1_000].started), ("other", 500));
    assert_eq!(wheel.labelled("7").name(), "7", "one that was there before");
}

#[tokio::test(start_paused = true)]
async fn a_label_named_other_is_that_of_all_others() {
    let wheel = Wheel::new();
    wheel.labelled("other").timeout(SECOND, ready(())).await.unwrap();
    for n in 0..1_100 {
        wheel
            .labelled(n.to_string())
            .timeout(SECOND, ready(()))
            .await
            .unwrap();
    }
    assert_eq!(stats(&wheel, "other").completed, 1 + 1_100 - 999);
    assert_eq!(wheel.snapshot().labels.len(), 1_000);
}

#[test]
fn counts_of_many_threads_add_up_also_of_those_that_have_gone() {
    let runtime = threaded_runtime(2);
    let wheel = Wheel::new();
    let other = Wheel::new();
    for _ in 0..3 {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..8)
                .map(|n| {
                    let labelled = if n == 7 {
                        other.labelled("label")
                    } else {
                        wheel.labelled("label")
                    };
                    tokio::spawn(async move {
                        for _ in 0..500 {
                            let (sender, receiver) = oneshot::channel();
                            tokio::spawn(async { sender.send(()) });
                            labelled.timeout(DAY, receiver).await.unwrap().unwrap();
                            register(&mut labelled.timeout(DAY, pending::<()>()));
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        // One registers what another ends, and both are gone.
        let _entered = runtime.enter();
        std::thread::scope(|threads| {
            let handle = runtime.handle();
            let timeout = threads.spawn(|| {
                let _entered = handle.enter();
                let mut timeout = never(&wheel);
                register(&mut timeout);
                timeout
            });
            let timeout = timeout.join().unwrap();
            assert_eq!(stats(&wheel, "label").pending, 1);
            threads.spawn(|| drop(timeout)).join().unwrap();
        });
        assert_eq!(stats(&wheel, "label").pending, 0);
    }
    let stats_here = stats(&wheel, "label");
    assert_eq!(stats_here.started, 3 * (7 * 500 * 2 + 1));
    assert_eq!(stats_here.cancelled, 3 * (7 * 500 + 1));
    assert_eq!(stats(&other, "label").completed, 3 * 500);
}

/// One of a thread's locals holds it, and those in which the thread counts have gone by then.
#[test]
fn a_timeout_that_goes_last_of_its_thread_is_cancelled() {
    thread_local! {
        static KEPT: Cell<Option<LabelledTimeout<Pending<()>>>> = const { Cell::new(None) };
    }
    let (runtime, wheel) = (real_runtime(), Wheel::new());
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            // The first to be used is the last to go.
            KEPT.set(None);
            let _entered = runtime.enter();
            let mut timeout = never(&wheel);
            register(&mut timeout);
            KEPT.set(Some(timeout));
        });
        thread.join().unwrap();
    });
    assert_eq!(counts(&wheel), [0, 0, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_may_outlive_its_wheel() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(never(&wheel));
    drop(wheel);
    assert_pending!(timeout.poll());
    advance(SECOND + TICK).await;
    assert!(assert_ready!(timeout.poll()).is_err());
}

static CHECKOUT: Label = Label::new("label");

#[test]
fn a_static_label_counts_on_whichever_wheel_is_current() {
    static SAME: Label = Label::new("label");
    static OTHER: Label = Label::new("another");
    for _ in 0..2 {
        paused_runtime().block_on(async {
            let wheel = Wheel::current();
            assert!(wheel.snapshot().labels.is_empty());
            OTHER.timeout(SECOND, ready(())).await.unwrap();
            assert_eq!(stats(&wheel, "another").completed, 1);
            let mut timeout = task::spawn(CHECKOUT.timeout(SECOND, pending::<()>()));
            assert_pending!(timeout.poll());
            assert_eq!(counts(&wheel), [0, 0, 0, 0, 1]);
            let start = Instant::now();
            let elapsed: Result<(), tickwheel::time::error::Elapsed> = timeout.await;
            elapsed.unwrap_err();
            assert_due(start, SECOND);
            SAME.timeout_at(start, ready(())).await.unwrap();
            wheel.labelled("label").timeout(SECOND, ready(())).await.unwrap();
            assert_eq!(counts(&wheel), [2, 1, 0, 0, 0]);
            assert_eq!(wheel.snapshot().labels.len(), 2);
        });
    }
}

/// In a process of its own, because its labels are those of the process.
#[test]
fn after_a_thousand_static_labels_all_others_are_one() {
    if !in_own_process(after_a_thousand_static_labels_all_others_are_one, "") {
        return;
    }
    paused_runtime().block_on(async {
        let wheel = Wheel::current();
        wheel.labelled("7").timeout(SECOND, ready(())).await.unwrap();
        for n in 0..1_500 {
            let label = Label::new(n.to_string().leak());
            label.timeout(SECOND, ready(())).await.unwrap();
        }
        assert_eq!(wheel.snapshot().labels.len(), 1_001);
        assert_eq!(stats(&wheel, "7").started, 2);
        assert_eq!(stats(&wheel, "999").started, 1);
        assert_eq!(stats(&wheel, "other").started, 500);
        assert!(Wheel::new().snapshot().labels.is_empty());
    });
}

#[tokio::test(start_paused = true)]
async fn of_any_number_of_static_labels_each_counts_under_its_name() {
    let labels: Vec<_> = (0..1_500).map(|n| Label::new(["even", "odd"][n % 2])).collect();
    for _ in 0..2 {
        for label in &labels {
            label.timeout(SECOND, ready(())).await.unwrap();
        }
    }
    let wheel = Wheel::current();
    assert_eq!(stats(&wheel, "even").completed, 1_500);
    assert_eq!(stats(&wheel, "odd").completed, 1_500);
}
