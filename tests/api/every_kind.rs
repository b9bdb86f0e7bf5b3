//! The same scenes for every kind of timer that is never refused.

use std::{
    future::{pending, poll_fn, ready},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use futures::{FutureExt, future::LocalBoxFuture, poll};
use tickwheel::{DelayQueue, Wheel, deadline};
use tokio::{runtime::Builder, sync::oneshot, time::Instant};
use tokio_test::{assert_pending, task};

use crate::{
    panics::panic_of,
    support::{
        DAY, SECOND, TICK, advance, assert_at_rest, counting_waker, full_wheel, own_process::in_own_process,
        paused_runtime, register_for,
    },
};

type Kind = (&'static str, LocalBoxFuture<'static, ()>);

/// A kind, with its `.await` in this file.
macro_rules! kind {
    ($name:expr, $waits:expr) => {
        ($name, {
            let waits = $waits;
            async move { _ = waits.await }.boxed_local()
        })
    };
}

/// What waits for `duration` on a wheel.
fn kinds(wheel: &Wheel, duration: Duration) -> Vec<Kind> {
    let (at, label) = (Instant::now() + duration, wheel.labelled("label"));
    let mut interval = wheel.interval_at(at, DAY);
    let mut queue = DelayQueue::on(wheel);
    queue.insert_at((), at);
    vec![
        kind!("sleep", wheel.sleep(duration)),
        kind!("sleep_until", wheel.sleep_until(at)),
        kind!("timeout", wheel.timeout(duration, pending::<()>())),
        kind!("timeout_at", wheel.timeout_at(at, pending::<()>())),
        kind!("idle timer", wheel.idle_timer(duration)),
        kind!("interval", async move { interval.tick().await }),
        kind!("labelled timeout", label.timeout(duration, pending::<()>())),
        kind!("labelled scope", label.within(duration, pending::<()>())),
        kind!("labelled scope until", label.until(at, pending::<()>())),
        kind!("delay queue", poll_fn(move |cx| queue.poll_expired(cx))),
    ]
}

#[cfg(not(all(feature = "hyper", feature = "io", feature = "stream", feature = "tower")))]
fn integrations(_: &Wheel) -> Vec<Kind> {
    Vec::new()
}

/// What waits for a second on a wheel in other crates' traits.
#[cfg(all(feature = "hyper", feature = "io", feature = "stream", feature = "tower"))]
fn integrations(wheel: &Wheel) -> Vec<Kind> {
    use std::convert::Infallible;

    use futures::{
        StreamExt,
        stream::{iter, pending as silence},
    };
    use http_body_util::{BodyExt, StreamBody};
    use hyper::{
        body::{Bytes, Frame},
        rt::Timer,
    };
    use tickwheel::{
        io::TimeoutStream,
        stream::WheelStreamExt,
        tower::{Timeout, TimeoutBody},
    };
    use tokio::io::AsyncReadExt;
    use tower::{ServiceExt, service_fn};

    let [(peer, mut read), (other, mut idle)] = [(); 2].map(|()| {
        let (peer, stream) = tokio::io::duplex(16);
        (peer, TimeoutStream::new(wheel, stream))
    });
    read.set_read_timeout(Some(SECOND));
    idle.set_idle_timeout(Some(SECOND));
    let mut interval = wheel.interval_at(Instant::now() + SECOND, SECOND);
    let mut timed = Box::pin(silence::<()>().timeout(wheel, SECOND));
    let mut chunks = Box::pin(iter([()]).chain(silence()).chunks_timeout(wheel, 2, SECOND));
    let throttled = iter([(); 2]).throttle(wheel, SECOND);
    let answers = service_fn(|()| pending::<Result<(), Infallible>>());
    let service = Timeout::new(wheel, SECOND, answers);
    let body = StreamBody::new(silence::<Result<Frame<Bytes>, Infallible>>());
    let body = TimeoutBody::new(wheel, SECOND, body);
    let sleep = Timer::sleep(wheel, SECOND);
    vec![
        kind!("read", async move { (read.read_u8().await, peer) }),
        kind!(
            "stream without traffic",
            async move { (idle.read_u8().await, other) }
        ),
        kind!("stream of an interval", async move { interval.next().await }),
        kind!("timeout of a stream", async move { timed.next().await }),
        kind!("chunks of a stream", async move { chunks.next().await }),
        kind!("throttle", throttled.take(2).collect::<Vec<_>>()),
        kind!("service", service.oneshot(())),
        kind!("body", body.collect()),
        kind!("timer of hyper", sleep),
    ]
}

fn all_kinds(wheel: &Wheel) -> Vec<Kind> {
    kinds(wheel, SECOND)
        .into_iter()
        .chain(integrations(wheel))
        .collect()
}

async fn assert_takes_a_second(kinds: Vec<Kind>, scene: &str) {
    let start = Instant::now();
    let waits = kinds.into_iter().map(|(name, waits)| async move {
        waits.await;
        let took = start.elapsed();
        assert!(
            took >= SECOND && took < SECOND + TICK * 2,
            "{name}, {scene}: {took:?}"
        );
    });
    futures::future::join_all(waits).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_wheel_refuses_none_and_none_takes_a_place() {
    let (wheel, occupant) = full_wheel();
    assert_takes_a_second(all_kinds(&wheel), "on a full wheel").await;
    assert_eq!((wheel.metrics().rejected, wheel.pending()), (0, 1));
    drop(occupant);
    let mut waiting: Vec<_> = all_kinds(&wheel);
    for (name, waits) in &mut waiting {
        assert!(poll!(waits).is_pending(), "{name}");
    }
    assert!(wheel.pending() >= waiting.len());
    assert!(
        poll!(&mut wheel.try_sleep(SECOND)).is_pending(),
        "there is room for one"
    );
}

/// In a process of its own, whose global wheel it shuts down.
#[test]
fn a_shutdown_concerns_neither_those_that_wait_nor_those_to_come() {
    if !in_own_process(a_shutdown_concerns_neither_those_that_wait_nor_those_to_come, "") {
        return;
    }
    for wheel in [Wheel::new(), Wheel::global()] {
        paused_runtime().block_on(assert_unconcerned_by_a_shutdown(wheel));
    }
}

async fn assert_unconcerned_by_a_shutdown(wheel: Wheel) {
    let start = Instant::now();
    let mut waiting: Vec<_> = all_kinds(&wheel)
        .into_iter()
        .map(|(name, waits)| (name, task::spawn(waits)))
        .collect();
    for (_, waits) in &mut waiting {
        assert_pending!(waits.poll());
    }
    drop(wheel.shutdown());
    for (name, waits) in &waiting {
        assert!(!waits.is_woken(), "{name}");
    }
    for (name, waits) in waiting {
        waits.await;
        assert!(start.elapsed() >= SECOND, "{name}");
    }
    assert!(start.elapsed() < SECOND + TICK * 2);
    assert_takes_a_second(all_kinds(&wheel), "after a shutdown").await;
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn a_drop_cancels_at_once() {
    let wheel = Wheel::new();
    for (name, mut waits) in all_kinds(&wheel) {
        assert!(poll!(&mut waits).is_pending(), "{name}");
        assert_eq!(wheel.pending(), 1, "{name}");
        drop(waits);
        assert_eq!(wheel.pending(), 0, "{name}");
    }
    assert_at_rest(&wheel);
}

/// Also while the future lives on.
#[tokio::test(start_paused = true)]
async fn what_completes_in_time_frees_its_timer_at_once() {
    let wheel = Wheel::new();
    let label = wheel.labelled("label");
    macro_rules! assert_frees {
        ($limits:expr, $method:ident) => {
            let (sender, receiver) = oneshot::channel();
            let mut waits = task::spawn($limits.$method(SECOND, receiver));
            assert_pending!(waits.poll());
            assert_eq!(wheel.pending(), 1, stringify!($limits.$method));
            sender.send(()).unwrap();
            assert!(waits.poll().is_ready());
            assert_eq!(wheel.pending(), 0, stringify!($limits.$method));
        };
    }
    assert_frees!(wheel, timeout);
    assert_frees!(wheel, try_timeout);
    assert_frees!(label, timeout);
    assert_frees!(label, within);
}

#[tokio::test(start_paused = true)]
async fn no_time_at_all_is_over_at_the_first_poll() {
    let wheel = Wheel::new();
    for (name, waits) in kinds(&wheel, Duration::ZERO) {
        assert!(task::spawn(waits).poll().is_ready(), "{name}");
    }
    assert_eq!(wheel.metrics().registered, 0);
}

#[test]
fn a_future_that_is_ready_needs_no_runtime() {
    let wheel = Wheel::new();
    let (label, at) = (wheel.labelled("label"), Instant::now() + DAY);
    let of_no_runtime = [
        kind!("timeout", wheel.timeout(DAY, ready(7))),
        kind!("timeout_at", wheel.timeout_at(at, ready(7))),
        kind!("try_timeout", wheel.try_timeout(DAY, ready(7))),
        kind!("labelled timeout", label.timeout(DAY, ready(7))),
        kind!("labelled scope", label.within(DAY, ready(7))),
        kind!("scope of the global wheel", deadline::within(DAY, ready(7))),
        kind!("timeout that says which limit", deadline::timeout(DAY, ready(7))),
    ];
    for (name, waits) in of_no_runtime {
        assert!(waits.now_or_never().is_some(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_task_that_polled_last_is_woken_and_no_other() {
    let wheel = Wheel::new();
    let mut waiting = Vec::new();
    for (name, mut waits) in kinds(&wheel, SECOND) {
        let [(first, first_woken), (last, last_woken)] = [(); 2].map(|()| counting_waker());
        for waker in [&first, &last, &first, &last] {
            register_for(waker, &mut waits);
        }
        waiting.push((name, waits, [first_woken, last_woken]));
    }
    advance(SECOND).await;
    for (name, _, woken) in waiting {
        let woken = woken.map(|woken| woken.load(Relaxed) > 0);
        assert_eq!(woken, [false, true], "{name}");
    }
}

#[test]
fn a_first_poll_where_there_is_no_timer_panics_in_tokios_words_and_names_the_await() {
    let wheel = Wheel::new();
    let without_timers = Builder::new_current_thread().build().unwrap();
    for (runtime, tokios) in [
        (
            None,
            "there is no reactor running, must be called from the context of a Tokio 1.x runtime",
        ),
        (Some(without_timers), "timers are disabled"),
    ] {
        let _entered = runtime.as_ref().map(|runtime| runtime.enter());
        let others = [
            kind!(
                "scope of the global wheel",
                deadline::within(SECOND, pending::<()>())
            ),
            kind!(
                "timeout that says which limit",
                deadline::timeout(SECOND, pending::<()>())
            ),
            kind!("try_sleep", wheel.try_sleep(SECOND)),
            kind!("try_timeout", wheel.try_timeout(SECOND, pending::<()>())),
        ];
        for (name, waits) in kinds(&wheel, DAY).into_iter().chain(others) {
            let mut waits = task::spawn(waits);
            let (words, place) = panic_of(|| _ = waits.poll());
            assert!(words.contains(tokios), "{name}: {words}");
            assert_eq!(place, file!(), "{name}");
        }
        let (words, place) = panic_of(|| drop(wheel.schedule(SECOND, async {})));
        assert!(words.contains(tokios), "scheduled task: {words}");
        assert_eq!(place, file!(), "scheduled task");
        if runtime.is_none() {
            let spawn = || drop(wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {}));
            let (words, place) = panic_of(spawn);
            assert!(words.contains(tokios), "series: {words}");
            assert_eq!(place, file!(), "series");
            let (words, _) = panic_of(|| _ = task::spawn(wheel.sleep(DAY)).poll());
            assert!(words.contains("Builder::handle"), "it says what to do: {words}");
        }
    }
    paused_runtime()
        .block_on(async { assert_takes_a_second(kinds(&wheel, SECOND), "after the panics").await });
    assert_at_rest(&wheel);
}
