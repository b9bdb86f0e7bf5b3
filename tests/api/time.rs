//! `tickwheel::time`, used by code that was written for `tokio::time`.

use crate::{panics::panic_of, support};

use std::{
    error::Error,
    future::{Future, pending, poll_fn, ready},
    io,
    pin::{Pin, pin},
};

use futures::FutureExt;
use support::*;
use tickwheel::{
    Wheel,
    time::{self, Duration, Instant, Interval, MissedTickBehavior, Sleep, Timeout, error},
};
use tokio_test::{assert_pending, assert_ready_ok, task};

/// As programs hold Tokio's: behind pins and boxes, by name.
struct Connection {
    idle: Pin<Box<Sleep>>,
    beats: Interval,
}

#[tokio::test(start_paused = true)]
async fn it_is_used_as_tokios_is() -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut connection = Connection {
        idle: Box::pin(time::sleep(Duration::from_secs(1))),
        beats: time::interval(Duration::from_secs(1)),
    };
    connection
        .beats
        .set_missed_tick_behavior(MissedTickBehavior::Skip);
    connection
        .idle
        .as_mut()
        .reset(Instant::now() + Duration::from_secs(3));
    let mut beats = 0;
    loop {
        tokio::select! {
            biased;
            _ = &mut connection.idle => break,
            at = connection.beats.tick() => {
                let _: Instant = at;
                beats += 1;
            }
        }
    }
    assert_eq!(beats, 3 + usize::from(connection.beats.period() < SECOND));
    assert_due(start, SECOND * 3);

    let answer: Result<u8, error::Elapsed> = time::timeout(SECOND, ready(7)).await;
    assert_eq!(answer?, 7);
    let Err(elapsed) = time::timeout(SECOND, pending::<()>()).await else {
        panic!("nothing came");
    };
    assert_eq!(elapsed.to_string(), "deadline has elapsed");
    assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
    let _: fn() -> time::error::Error = tokio::time::error::Error::shutdown;

    let sleep = time::sleep_until(Instant::now() + SECOND);
    tokio::pin!(sleep);
    sleep.as_mut().await;
    assert!(sleep.is_elapsed());
    sleep.as_mut().reset(Instant::now() + SECOND);
    assert!(!sleep.is_elapsed());
    assert!(futures::poll!(sleep.as_mut()).is_pending());
    // As `IntoFuture`, and with the type argument given.
    let timeout: Timeout<_> = time::timeout::<std::future::Ready<()>>(SECOND, ready(()));
    timeout.await?;
    time::timeout_at(Instant::now(), ready(())).await?;
    Ok(())
}

#[test]
fn its_futures_are_what_tokios_are_and_unpin() {
    fn is<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    is::<Sleep>();
    is::<Interval>();
    is::<Timeout<std::future::Ready<()>>>();
    is::<error::Elapsed>();
    fn is_future<T: Future<Output = ()>>() {}
    is_future::<Sleep>();
}

#[tokio::test(start_paused = true)]
async fn what_it_makes_waits_on_the_global_wheel() {
    if !own_process::in_own_process(what_it_makes_waits_on_the_global_wheel, "") {
        return;
    }
    let wheel = Wheel::global();
    let mut sleep = time::sleep(DAY);
    let mut timeout = time::timeout(DAY, pending::<()>());
    let mut interval = time::interval_at(Instant::now() + DAY, DAY);
    assert_eq!(wheel.pending(), 0);
    register(&mut sleep);
    register(&mut timeout);
    assert!(futures::poll!(poll_fn(|cx| interval.poll_tick(cx))).is_pending());
    assert_eq!(wheel.pending(), 3);
    assert!(timeout.into_inner().now_or_never().is_none());
    drop((sleep, interval));
    assert_at_rest(&wheel);
    assert_eq!(wheel.metrics().cancelled, 3);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_hands_its_future_back() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut timeout = task::spawn(time::timeout(SECOND, receiver));
    assert_pending!(timeout.poll());
    assert!(!timeout.get_ref().is_terminated());
    sender.send(7).unwrap();
    assert!(timeout.is_woken());
    assert_eq!(assert_ready_ok!(timeout.poll()), Ok(7));
}

#[test]
fn constructors_panic_in_tokios_words_and_name_the_line_of_the_caller() {
    const OUTSIDE: &str =
        "there is no reactor running, must be called from the context of a Tokio 1.x runtime";
    const OF_ZERO: &str = "`period` must be non-zero.";
    static LABEL: time::Label = time::Label::new("label");
    let constructors: [fn(); 9] = [
        || drop(time::sleep(SECOND)),
        || drop(time::sleep_until(Instant::now())),
        || drop(time::timeout(SECOND, ready(()))),
        || drop(time::timeout_at(Instant::now(), ready(()))),
        || drop(time::interval(SECOND)),
        || drop(time::interval_at(Instant::now(), SECOND)),
        || drop(time::idle_timer(SECOND)),
        || drop(LABEL.timeout(SECOND, ready(()))),
        || drop(LABEL.timeout_at(Instant::now(), ready(()))),
    ];
    let of_zero: [fn(); 4] = [
        || drop(time::interval(Duration::ZERO)),
        || drop(time::interval_at(Instant::now(), Duration::ZERO)),
        || drop(Wheel::new().interval(Duration::ZERO)),
        || drop(Wheel::new().interval_at(Instant::now(), Duration::ZERO)),
    ];
    let of_zero = of_zero.map(panic_of);
    let outside = constructors.map(panic_of);
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (tokios, without_timers, timeouts) = {
        let _entered = bare.enter();
        let first_poll = || register(&mut Box::pin(tokio::time::sleep(SECOND)));
        let first_polls: [fn(); 3] = [
            || register(&mut time::sleep(SECOND)),
            || register(&mut time::timeout(SECOND, pending::<()>())),
            || {
                register(&mut pin!(
                    time::interval_at(Instant::now() + SECOND, SECOND).tick()
                ))
            },
        ];
        let [sleep, sleep_until, timeout, timeout_at, others @ ..] = constructors;
        let panic_nowhere = [sleep, sleep_until].into_iter().chain(others);
        panic_nowhere.for_each(|construct| construct());
        (
            panic_of(first_poll).0,
            first_polls.map(|poll| panic_of(poll).0),
            [timeout, timeout_at].map(panic_of),
        )
    };
    let here = |words: &str| (words.to_owned(), file!().to_owned());
    assert_eq!(of_zero, [(); 4].map(|()| here(OF_ZERO)));
    assert_eq!(outside, [(); 9].map(|()| here(OUTSIDE)));
    // There it is not the constructor that panics but the first poll, except of a timeout.
    assert_eq!(without_timers, [(); 3].map(|()| tokios.clone()));
    assert_eq!(timeouts, [(); 2].map(|()| here(&tokios)));
}

#[cfg(feature = "test-util")]
#[tokio::test]
async fn its_clock_can_be_paused_and_advanced() {
    time::pause();
    let mut sleep = task::spawn(time::sleep(SECOND));
    assert_pending!(sleep.poll());
    time::advance(SECOND / 2).await;
    assert!(!sleep.is_woken());
    time::advance(SECOND / 2 + TICK).await;
    assert!(sleep.is_woken(), "the driver has come by the end of an advance");
    tokio_test::assert_ready!(sleep.poll());
    time::resume();
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn an_advance_wakes_thousands() {
    let mut sleeps: Vec<_> = (0..5_000).map(|_| task::spawn(time::sleep(SECOND))).collect();
    for sleep in &mut sleeps {
        assert_pending!(sleep.poll());
    }
    time::advance(SECOND + TICK).await;
    let woken = sleeps.iter().filter(|sleep| sleep.is_woken()).count();
    assert_eq!(woken, sleeps.len());
}

/// As Tokio's does, where nobody wakes the tasks that wait.
#[cfg(feature = "test-util")]
#[test]
fn an_advance_ends_in_a_runtime_that_nobody_drives() {
    within(SECOND * 20, || {
        let runtime = paused_runtime();
        let mut sleep = runtime.block_on(async { task::spawn(time::sleep(SECOND)) });
        runtime.block_on(async { assert_pending!(sleep.poll()) });
        runtime.handle().block_on(time::advance(SECOND * 2));
        assert!(!sleep.is_woken());
        runtime.block_on(sleep);
    });
}

/// Tokio rounds deadlines up to milliseconds since the start of the runtime, so a sleep of a second that
/// begins between two of them is not due after `advance` by a second. Neither is the wheel's.
#[tokio::test]
async fn on_a_clock_paused_between_two_milliseconds_it_waits_for_the_next() {
    let started = Instant::now();
    while started.elapsed().subsec_micros() % 1_000 < 300 {
        std::hint::spin_loop();
    }
    tokio::time::pause();
    let mut sleep = task::spawn(time::sleep(SECOND));
    let mut tokios = task::spawn(tokio::time::sleep(SECOND));
    assert_pending!(sleep.poll());
    assert_pending!(tokios.poll());
    for step in [SECOND, Duration::from_micros(1)] {
        tokio::time::advance(step).await;
        tokio::task::yield_now().await;
        assert_eq!(sleep.is_woken(), tokios.is_woken());
    }
    let paused = Instant::now();
    futures::join!(sleep, tokios);
    assert!(paused.elapsed() <= TICK);
}
