//! `labelled`: every timeout of a label is counted exactly once, by its outcome and by the share of its time
//! that was left.

use crate::support;

use std::{
    cell::Cell,
    future::{Future, Pending, pending, poll_fn, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use tickwheel::{LabelStats, LabelledTimeout, Wheel, time::Label};
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, advance, assert_due, full_wheel, ms, own_process::in_own_process, paused_runtime,
    real_runtime, register, register_for, threaded_runtime,
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
        cancelled,
        pending,
        headroom,
        ..
    } = stats;
    assert_eq!(started, completed + elapsed + cancelled + pending);
    assert_eq!(headroom.iter().sum::<u64>(), completed);
    stats
}

/// Completed, elapsed, cancelled, pending.
#[track_caller]
fn counts(wheel: &Wheel) -> [u64; 4] {
    let stats = stats(wheel, "label");
    [stats.completed, stats.elapsed, stats.cancelled, stats.pending]
}

fn never(wheel: &Wheel) -> LabelledTimeout<Pending<()>> {
    wheel.labelled("label").timeout(SECOND, pending())
}

#[tokio::test(start_paused = true)]
async fn a_timeout_counts_from_its_first_poll() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(never(&wheel));
    assert_eq!(counts(&wheel), [0; 4]);
    assert_pending!(timeout.poll());
    assert_eq!(counts(&wheel), [0, 0, 0, 1]);
    assert_pending!(timeout.poll());
    assert_eq!(counts(&wheel), [0, 0, 0, 1]);
    drop(timeout);
    assert_eq!(counts(&wheel), [0, 0, 1, 0]);
    drop(never(&wheel));
    assert_eq!(stats(&wheel, "label").started, 1, "one that was never polled");
}

#[tokio::test(start_paused = true)]
async fn each_outcome_counts_once() {
    let wheel = Wheel::new();
    let labelled = wheel.labelled("label");

    assert_eq!(labelled.timeout(Duration::ZERO, ready(1)).await, Ok(1));
    assert_eq!(counts(&wheel), [1, 0, 0, 0]);
    assert!(labelled.timeout(Duration::ZERO, pending::<()>()).await.is_err());
    assert_eq!(counts(&wheel), [1, 1, 0, 0]);

    let mut timeout = task::spawn(never(&wheel));
    assert_pending!(timeout.poll());
    advance(SECOND).await;
    assert!(timeout.is_woken());
    assert_eq!(counts(&wheel), [1, 1, 0, 1], "nobody has looked yet");
    assert!(assert_ready!(timeout.poll()).is_err());
    assert!(assert_ready!(timeout.poll()).is_err());
    drop(timeout);
    assert_eq!(counts(&wheel), [1, 2, 0, 0]);

    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(labelled.timeout_at(Instant::now() + SECOND, receiver));
    assert_pending!(timeout.poll());
    sender.send(()).unwrap();
    assert_ready!(timeout.poll()).unwrap().unwrap();
    drop(timeout);
    assert_eq!(counts(&wheel), [2, 2, 0, 0]);

    let mut timeout = never(&wheel);
    register(&mut timeout);
    let _future = timeout.into_inner();
    assert_eq!(counts(&wheel), [2, 2, 1, 0]);
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_full_wheel_does_not_refuse_counts_as_ever() {
    let (wheel, _occupant) = full_wheel();
    let labelled = wheel.labelled("label");
    let start = Instant::now();
    assert!(labelled.timeout(SECOND, pending::<()>()).await.is_err());
    assert_due(start, SECOND);
    assert_eq!(counts(&wheel), [0, 1, 0, 0]);
    let in_time = labelled
        .timeout(SECOND * 10, tokio::time::sleep(SECOND * 4))
        .await;
    assert_eq!(in_time, Ok(()));
    assert_eq!(counts(&wheel), [1, 1, 0, 0]);
    assert_eq!(wheel.snapshot().labels[0].headroom[6], 1);
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
    assert_eq!(counts(&wheel), [0, 0, 1, 1]);
    panics_at(2);
    assert_eq!(counts(&wheel), [0, 0, 2, 1]);
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
    assert_eq!(counts(&wheel), [0, 0, 1, 0]);

    let mut timeout = never(&wheel);
    let waker = Waker::from(Arc::new(PanicsAsItGoes));
    register_for(&waker, &mut timeout);
    drop(waker);
    catch_unwind(AssertUnwindSafe(|| drop(timeout))).unwrap_err();
    assert_eq!(counts(&wheel), [0, 0, 2, 0]);
    assert_eq!(wheel.pending(), 0);
}

/// Completes a timeout of `duration` when `passed` of it has passed; returns the tenth that this counted in.
async fn headroom(wheel: &Wheel, at: bool, duration: Duration, passed: Duration) -> Option<usize> {
    let labelled = wheel.labelled("label");
    let before = stats(wheel, "label").headroom;
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(if at {
        labelled.timeout_at(Instant::now() + duration, receiver)
    } else {
        labelled.timeout(duration, receiver)
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

/// On a real clock, where a spare is taken over.
#[test]
fn the_time_of_a_timeout_that_took_another_over_is_its_own() {
    let runtime = threaded_runtime(1);
    let scene = async {
        let wheel = Wheel::new();
        let labelled = wheel.labelled("label");
        let begin = async || {
            let (done, waits) = oneshot::channel();
            let mut timeout = Box::pin(labelled.timeout(SECOND, waits));
            // In the task that waits.
            poll_fn(|cx| {
                assert_pending!(timeout.as_mut().poll(cx));
                Poll::Ready(())
            })
            .await;
            (done, timeout)
        };
        let (done, first) = begin().await;
        std::thread::sleep(ms(250));
        done.send(()).unwrap();
        first.await.unwrap().unwrap();
        let (counted, before) = (stats(&wheel, "label").headroom, Instant::now());
        let (done, second) = begin().await;
        let after = Instant::now();
        std::thread::sleep(ms(250));
        done.send(()).unwrap();
        let most = tenths_left(SECOND, after);
        second.await.unwrap().unwrap();
        let least = tenths_left(SECOND, before);
        let headroom = stats(&wheel, "label").headroom;
        let found = (0..10).find(|n| headroom[*n] > counted[*n]).unwrap();
        assert!((least..=most).contains(&found), "{found} tenths");
    };
    runtime.block_on(async { tokio::spawn(scene).await.unwrap() });
}

/// Tenths of `total` that a timeout has left that began at `start`.
fn tenths_left(total: Duration, start: Instant) -> usize {
    let left = total.saturating_sub(start.elapsed());
    (left.as_nanos() * 10 / total.as_nanos()).min(9) as usize
}

/// The deadline is an instant, whichever runtime polls.
#[test]
fn headroom_counts_what_is_left_also_on_another_runtime() {
    let wheel = Wheel::new();
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(wheel.labelled("label").timeout(SECOND * 10, receiver));
    let first = paused_runtime();
    let start = first.block_on(async {
        let start = Instant::now();
        assert_pending!(timeout.poll());
        start
    });
    drop(first);
    paused_runtime().block_on(async {
        assert_pending!(timeout.poll());
        tokio::time::sleep_until(start + ms(6_500)).await;
        sender.send(()).unwrap();
        assert_ready!(timeout.poll()).unwrap().unwrap();
    });
    assert_eq!(stats(&wheel, "label").headroom, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
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
    assert_eq!(counts(&wheel), [0, 0, 1, 0]);
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
fn a_static_label_counts_on_the_global_wheel() {
    if !in_own_process(a_static_label_counts_on_the_global_wheel, "") {
        return;
    }
    static SAME: Label = Label::new("label");
    static OTHER: Label = Label::new("another");
    let wheel = Wheel::global();
    assert!(wheel.snapshot().labels.is_empty());
    for rounds in 1..=2 {
        paused_runtime().block_on(async {
            OTHER.timeout(SECOND, ready(())).await.unwrap();
            assert_eq!(stats(&wheel, "another").completed, rounds);
            let mut timeout = task::spawn(CHECKOUT.timeout(SECOND, pending::<()>()));
            assert_pending!(timeout.poll());
            assert_eq!(stats(&wheel, "label").pending, 1);
            let start = Instant::now();
            let elapsed: Result<(), tickwheel::time::error::Elapsed> = timeout.await;
            elapsed.unwrap_err();
            assert_due(start, SECOND);
            SAME.timeout_at(start, ready(())).await.unwrap();
            wheel.labelled("label").timeout(SECOND, ready(())).await.unwrap();
            SAME.within(SECOND, ready(())).await.unwrap();
            let now = Instant::now();
            CHECKOUT.until(now, pending::<()>()).await.unwrap_err();
            assert_eq!(counts(&wheel), [3 * rounds, 2 * rounds, 0, 0]);
            assert_eq!(wheel.snapshot().labels.len(), 2);
        });
    }
}
