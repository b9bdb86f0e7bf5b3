//! `periodic`: series at a fixed rate and with a fixed delay.

use crate::support;

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tickwheel::{Periodic, PeriodicBuilder, ScheduleError, Wheel};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Duration, Instant, MissedTickBehavior},
};
use tokio_test::{assert_pending, assert_ready_eq, task};

use support::{advance, ms, settle, threaded_runtime};

/// When runs started, in milliseconds since the log was made.
#[derive(Clone)]
struct Log {
    since: Instant,
    starts: Arc<Mutex<Vec<u64>>>,
}

impl Log {
    fn new() -> Log {
        Log {
            since: Instant::now(),
            starts: Arc::default(),
        }
    }

    fn record(&self) -> usize {
        let mut starts = self.starts.lock().unwrap();
        starts.push(self.since.elapsed().as_millis() as u64);
        starts.len()
    }

    fn starts(&self) -> Vec<u64> {
        self.starts.lock().unwrap().clone()
    }
}

/// A series whose run number n, from 1, lasts as long as `lasts` says, in milliseconds of Tokio's clock.
fn runs_that_last(
    log: &Log,
    lasts: impl Fn(usize) -> u64 + Send + 'static,
) -> impl FnMut() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + 'static {
    let log = log.clone();
    move || {
        let lasts = lasts(log.record());
        Box::pin(async move {
            if lasts > 0 {
                tokio::time::sleep(ms(lasts)).await;
            }
        })
    }
}

#[test]
fn its_types_can_go_anywhere() {
    fn anywhere<T: Send + Sync + Unpin + 'static>() {}
    anywhere::<Periodic>();
    anywhere::<PeriodicBuilder>();
}

/// The two kinds of series.
#[derive(Clone, Copy, Debug)]
enum Kind {
    FixedRate,
    FixedDelay,
}

use Kind::{FixedDelay, FixedRate};

impl Kind {
    const EACH: [Kind; 2] = [FixedRate, FixedDelay];

    fn spawn<F, R>(self, builder: PeriodicBuilder, run: F) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        match self {
            FixedRate => builder.spawn_at_fixed_rate(run),
            FixedDelay => builder.spawn_with_fixed_delay(run),
        }
    }
}

/// When the runs of a series start that is made, with these settings, for every 100 ms, and stopped after
/// `within` milliseconds.
async fn starts_within(
    within: u64,
    kind: Kind,
    settings: impl Fn(PeriodicBuilder) -> PeriodicBuilder,
    lasts: impl Fn(usize) -> u64 + Send + 'static,
) -> Vec<u64> {
    let wheel = Wheel::new();
    let log = Log::new();
    let builder = settings(wheel.periodic(ms(100)));
    let series = kind.spawn(builder, runs_that_last(&log, lasts));
    tokio::time::sleep(ms(within)).await;
    series.stop();
    log.starts()
}

#[tokio::test(start_paused = true)]
async fn a_fixed_rate_counts_from_start_to_start_and_a_fixed_delay_from_the_end_of_a_run() {
    // The second run takes longer than the others.
    let cases: [(Kind, [u64; 2], &[u64]); 4] = [
        (FixedRate, [0, 0], &[100, 200, 300, 400, 500, 600, 700, 800, 900]),
        (
            FixedRate,
            [70, 70],
            &[100, 200, 300, 400, 500, 600, 700, 800, 900],
        ),
        (FixedDelay, [70, 250], &[100, 270, 620, 790]),
        (FixedDelay, [350, 350], &[100, 550]),
    ];
    for (kind, [most, second], expected) in cases {
        for behavior in [
            MissedTickBehavior::Burst,
            MissedTickBehavior::Delay,
            MissedTickBehavior::Skip,
        ] {
            let settings = |builder: PeriodicBuilder| builder.missed_tick_behavior(behavior);
            let lasts = move |run| if run == 2 { second } else { most };
            let starts = starts_within(955, kind, settings, lasts).await;
            assert_eq!(starts, expected, "{kind:?}, {behavior:?}");
        }
    }
}

/// The second run lasts from 200 to 550, beyond those of 300, 400 and 500.
#[tokio::test(start_paused = true)]
async fn what_an_overrun_missed_is_one_late_run_or_what_the_behavior_says() {
    let cases: [(Option<MissedTickBehavior>, &[u64]); 4] = [
        // One for all three, at once. The grid goes on.
        (None, &[100, 200, 550, 600, 700, 800]),
        (Some(MissedTickBehavior::Skip), &[100, 200, 550, 600, 700, 800]),
        (
            Some(MissedTickBehavior::Burst),
            &[100, 200, 550, 550, 550, 600, 700, 800],
        ),
        // The grid moves to the late run.
        (Some(MissedTickBehavior::Delay), &[100, 200, 550, 650, 750, 850]),
    ];
    for (behavior, expected) in cases {
        let settings = |builder: PeriodicBuilder| match behavior {
            Some(behavior) => builder.missed_tick_behavior(behavior),
            None => builder,
        };
        let lasts = |run| if run == 2 { 350 } else { 0 };
        let starts = starts_within(890, FixedRate, settings, lasts).await;
        assert_eq!(starts, expected, "{behavior:?}");
    }
}

/// To abort a task does not end the poll that it is in.
#[tokio::test(start_paused = true)]
async fn aborted_by_its_own_run_it_starts_no_run_that_was_missed() {
    let wheel = Wheel::new();
    let log = Log::new();
    let handle = Arc::new(Mutex::new(None));
    let (runs, dropped) = (log.clone(), handle.clone());
    let series = wheel
        .periodic(ms(10))
        .missed_tick_behavior(MissedTickBehavior::Burst)
        .spawn_at_fixed_rate(move || {
            runs.record();
            drop(dropped.lock().unwrap().take());
            async {}
        })
        .abort_on_drop();
    *handle.lock().unwrap() = Some(series);
    settle().await;
    advance(ms(100)).await;
    assert_eq!(log.starts(), [100]);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_process_makes_one_late_run_and_no_burst() {
    let wheel = Wheel::new();
    let log = Log::new();
    let series = wheel
        .periodic(ms(100))
        .spawn_at_fixed_rate(runs_that_last(&log, |_| 0));
    settle().await;
    advance(Duration::from_secs(100) + ms(50)).await;
    assert_eq!(log.starts(), [100_050]);
    tokio::time::sleep(ms(200)).await;
    assert_eq!(log.starts(), [100_050, 100_100, 100_200]);
    assert_eq!(series.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn first_after_sets_when_the_first_run_starts_and_the_grid_follows() {
    let cases: [(u64, &[u64]); 3] = [
        (0, &[0, 100, 200, 300]),
        (30, &[30, 130, 230, 330]),
        (250, &[250, 350]),
    ];
    for (first_after, expected) in cases {
        for kind in Kind::EACH {
            let settings = |builder: PeriodicBuilder| builder.first_after(ms(first_after));
            let starts = starts_within(360, kind, settings, |_| 0).await;
            assert_eq!(starts, expected, "first after {first_after}, {kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_run_in_the_far_future_does_not_panic() {
    let wheel = Wheel::new();
    let series = wheel
        .periodic(Duration::MAX)
        .first_after(Duration::MAX)
        .jitter(Duration::MAX)
        .spawn_at_fixed_rate(|| async {});
    advance(Duration::from_secs(86_400 * 365)).await;
    assert_eq!((series.runs(), series.is_finished()), (0, false));
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_first_runs_of_one_builders_series_over_all_of_it_and_none_beyond() {
    let wheel = Wheel::new();
    let log = Log::new();
    let builder = wheel.periodic(ms(1_000)).jitter(ms(1_000));
    let spawn = |_| builder.clone().spawn_at_fixed_rate(runs_that_last(&log, |_| 0));
    let series: Vec<_> = (0..1_000).map(spawn).collect();
    tokio::time::sleep(ms(2_000)).await;
    series.iter().for_each(Periodic::stop);
    let starts = log.starts();
    assert!(starts.iter().all(|start| (1_000..=2_000).contains(start)));
    let mut tenths = [0; 10];
    for start in starts.iter().filter(|start| **start < 2_000) {
        tenths[(start - 1_000) as usize / 100] += 1;
    }
    // A hundred each on average; out of 1,000 fair draws, one tenth below 40 or above 180 is one chance in a
    // billion.
    assert!(tenths.iter().all(|tenth| (40..180).contains(tenth)), "{tenths:?}");
}

#[tokio::test(start_paused = true)]
async fn the_grid_moves_with_the_jitter() {
    let wheel = Wheel::new();
    let logs: Vec<_> = (0..32).map(|_| Log::new()).collect();
    let _series: Vec<_> = logs
        .iter()
        .map(|log| {
            let run = runs_that_last(log, |_| 0);
            wheel.periodic(ms(1_000)).jitter(ms(500)).spawn_at_fixed_rate(run)
        })
        .collect();
    tokio::time::sleep(ms(10_000)).await;
    for log in &logs {
        let starts = log.starts();
        assert!(starts.len() >= 9, "{starts:?}");
        let (first, last) = (starts[0], starts[starts.len() - 1]);
        assert!((1_000..=1_510).contains(&first), "{starts:?}");
        // No run gets a jitter of its own: the ninth comes eight periods after the first, to the tick.
        let periods = 1_000 * (starts.len() as u64 - 1);
        assert!((last - first).abs_diff(periods) <= 10, "{starts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_between_runs_ends_the_series_at_once() {
    let wheel = Wheel::new();
    for (kind, abort_on_drop) in [(FixedRate, false), (FixedDelay, false), (FixedRate, true)] {
        let log = Log::new();
        let mut series = kind.spawn(wheel.periodic(ms(100)), runs_that_last(&log, |_| 0));
        if abort_on_drop {
            series = series.abort_on_drop();
        }
        tokio::time::sleep(ms(250)).await;
        assert!(!series.is_finished());
        series.stop();
        series.stop();
        assert_eq!((series.runs(), series.is_finished()), (2, true));
        settle().await;
        assert_eq!(wheel.pending(), 0, "its entry has left the wheel");
        let mut series = task::spawn(series);
        assert_ready_eq!(series.poll(), Ok(()));
        tokio::time::sleep(ms(500)).await;
        assert_eq!(log.starts(), [100, 200]);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_before_the_first_run_leaves_none() {
    let wheel = Wheel::new();
    let log = Log::new();
    let series = wheel
        .periodic(ms(100))
        .first_after(Duration::ZERO)
        .spawn_at_fixed_rate(runs_that_last(&log, |_| 0));
    series.stop();
    assert!(series.is_finished());
    assert_eq!(series.await, Ok(()));
    tokio::time::sleep(ms(500)).await;
    assert!(log.starts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn stop_during_a_run_lets_it_finish_and_ends_the_series_then() {
    let wheel = Wheel::new();
    let (release, held) = oneshot::channel::<()>();
    let (finished, mut is_finished) = oneshot::channel::<()>();
    let mut once = Some((held, finished));
    let series = wheel.periodic(ms(100)).spawn_at_fixed_rate(move || {
        let (held, finished) = once.take().expect("a run after the stop");
        async move {
            held.await.unwrap();
            finished.send(()).unwrap();
        }
    });
    advance(ms(100)).await;
    series.stop();
    assert!(!series.is_finished(), "a run is in progress");
    advance(ms(1_000)).await;
    assert_eq!((series.runs(), series.is_finished()), (0, false));
    release.send(()).unwrap();
    settle().await;
    assert_eq!(is_finished.try_recv(), Ok(()));
    assert_eq!((series.runs(), series.is_finished()), (1, true));
    assert_eq!(series.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_run_can_stop_its_own_series() {
    let wheel = Wheel::new();
    let own = Arc::new(Mutex::new(None::<Periodic>));
    let within = own.clone();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let series = wheel.periodic(ms(100)).spawn_at_fixed_rate(move || {
        let (own, counted) = (within.clone(), counted.clone());
        async move {
            if counted.fetch_add(1, Ordering::Relaxed) == 2 {
                own.lock().unwrap().as_ref().unwrap().stop();
            }
        }
    });
    *own.lock().unwrap() = Some(series);
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    let series = own.lock().unwrap().take().unwrap();
    assert_eq!(series.runs(), 3);
    assert_eq!(series.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_handle_detaches_the_series() {
    let wheel = Wheel::new();
    let log = Log::new();
    let run = runs_that_last(&log, |_| 0);
    drop(wheel.periodic(ms(100)).spawn_at_fixed_rate(run));
    drop(wheel);
    tokio::time::sleep(ms(350)).await;
    assert_eq!(log.starts(), [100, 200, 300]);
}

#[tokio::test(start_paused = true)]
async fn abort_on_drop_ends_the_series_between_runs() {
    let wheel = Wheel::new();
    for kind in Kind::EACH {
        let log = Log::new();
        let series = kind
            .spawn(wheel.periodic(ms(100)), runs_that_last(&log, |_| 0))
            .abort_on_drop();
        tokio::time::sleep(ms(250)).await;
        drop(series);
        settle().await;
        assert_eq!(wheel.pending(), 0);
        tokio::time::sleep(ms(500)).await;
        assert_eq!(log.starts(), [100, 200]);
    }
}

#[tokio::test(start_paused = true)]
async fn abort_on_drop_ends_a_run_in_progress() {
    let wheel = Wheel::new();
    let (alive, mut ended) = oneshot::channel::<()>();
    let mut once = Some(alive);
    let series = wheel
        .periodic(ms(100))
        .spawn_at_fixed_rate(move || {
            let alive = once.take().expect("a run after the drop");
            async move {
                pending::<()>().await;
                drop(alive);
            }
        })
        .abort_on_drop();
    advance(ms(100)).await;
    assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    drop(series);
    settle().await;
    assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_series_and_is_what_the_handle_reports() {
    let wheel = Wheel::new();
    for kind in Kind::EACH {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let run = move || {
            let run = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(run < 2, "run number {run} failed") }
        };
        let series = kind.spawn(wheel.periodic(ms(100)), run);
        tokio::time::sleep(ms(1_000)).await;
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        assert_eq!(series.runs(), 2, "the run that panicked did not complete");
        assert!(series.is_finished());
        let Err(ScheduleError::Panicked(message)) = series.await else {
            panic!("the handle must report the panic");
        };
        assert!(message.contains("run number 2 failed"), "{message}");
        assert_eq!(wheel.pending(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_closure_itself_is_reported_as_one_of_its_run() {
    let wheel = Wheel::new();
    let series = wheel
        .periodic(ms(100))
        .spawn_at_fixed_rate(|| -> std::future::Ready<()> {
            panic!("could not even start");
        });
    let ended = series.await;
    assert!(
        matches!(&ended, Err(ScheduleError::Panicked(message)) if message == "could not even start"),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_costs_one_entry_in_the_wheel_and_one_task() {
    let wheel = Wheel::new();
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let series: Vec<_> = (0..100)
        .map(|number| {
            let kind = Kind::EACH[number % 2];
            kind.spawn(wheel.periodic(ms(100)), || async {})
        })
        .collect();
    settle().await;
    for _ in 0..5 {
        advance(ms(100)).await;
        assert_eq!(wheel.pending(), 100);
        assert_eq!(alive(), before + 101, "one task each, and the driver");
    }
    assert!(series.iter().all(|series| series.runs() == 5));
    let metrics = wheel.metrics();
    assert_eq!(metrics.registered, 600, "one registration each for every wait");
    assert_eq!(metrics.expired, 500);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_progress_costs_no_entry_with_a_fixed_delay() {
    let wheel = Wheel::new();
    let series = wheel.periodic(ms(100)).spawn_with_fixed_delay(pending::<()>);
    advance(ms(100)).await;
    assert_eq!((wheel.pending(), series.is_finished()), (0, false));
}

#[tokio::test(start_paused = true)]
async fn whoever_awaits_the_series_is_woken_by_its_end() {
    let wheel = Wheel::new();
    let stopped = Arc::new(Mutex::new(
        wheel.periodic(ms(100)).spawn_at_fixed_rate(|| async {}),
    ));
    let awaited = stopped.clone();
    let mut awaiting = task::spawn(std::future::poll_fn(move |cx| {
        std::pin::Pin::new(&mut *awaited.lock().unwrap()).poll(cx)
    }));
    assert_pending!(awaiting.poll());
    tokio::time::sleep(ms(250)).await;
    assert_pending!(awaiting.poll());
    stopped.lock().unwrap().stop();
    settle().await;
    assert!(awaiting.is_woken());
    assert_ready_eq!(awaiting.poll(), Ok(()));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "`period` must be non-zero.")]
async fn a_zero_period_panics_as_tokios_interval_does() {
    let _builder = Wheel::new().periodic(Duration::ZERO);
}

#[test]
fn with_a_handle_it_can_be_spawned_and_awaited_outside_a_runtime() {
    let runtime = threaded_runtime(1);
    let wheel = Wheel::builder().handle(runtime.handle().clone()).build().unwrap();
    let (sender, receiver) = oneshot::channel();
    let mut sender = Some(sender);
    let series = wheel.periodic(ms(10)).spawn_at_fixed_rate(move || {
        if let Some(sender) = sender.take() {
            sender.send(()).unwrap();
        }
        async {}
    });
    assert_eq!(futures::executor::block_on(receiver), Ok(()));
    series.stop();
    assert_eq!(futures::executor::block_on(series), Ok(()));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled after completion")]
async fn polled_again_after_its_end_it_panics_as_a_join_handle_does() {
    let mut series = Wheel::new().periodic(ms(10)).spawn_at_fixed_rate(|| async {});
    series.stop();
    assert_eq!((&mut series).await, Ok(()));
    let _ = series.await;
}
