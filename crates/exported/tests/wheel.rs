//! `exported`: the list of what a wheel reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, exported};

const TICK: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Polls once, which has to be too early.
fn register(future: &mut (impl Future + Unpin)) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(future).poll(&mut cx).is_pending());
}

async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// The values of a counter or gauge, by its labels after the first.
fn values(wheel: &Wheel, name: &str) -> BTreeMap<Vec<String>, f64> {
    exported(wheel)
        .into_iter()
        .filter(|exported| exported.name == name)
        .map(|exported| {
            let labels = exported.labels[1..].iter();
            let value = match exported.value {
                ExportedValue::Count(count) => count as f64,
                ExportedValue::Number(number) => number,
                ref other => panic!("{name} is {other:?}"),
            };
            (labels.map(|(key, word)| format!("{key}={word}")).collect(), value)
        })
        .collect()
}

#[track_caller]
fn value(wheel: &Wheel, name: &str) -> f64 {
    values(wheel, name)[&Vec::new()]
}

/// The buckets of a histogram, and its sum.
fn histogram(wheel: &Wheel, name: &str) -> (Vec<(f64, u64)>, f64) {
    let found = exported(wheel).into_iter().find(|exported| exported.name == name);
    match found.unwrap().value {
        ExportedValue::Histogram { buckets, sum, .. } => (buckets, sum),
        other => panic!("{name} is {other:?}"),
    }
}

/// A wheel with something to report everywhere.
async fn used() -> Wheel {
    let wheel = Wheel::builder().name("requests").max_pending(1).build().unwrap();
    let database = wheel.labelled("database");
    database.timeout(SECOND, async {}).await.unwrap();
    database
        .timeout(SECOND, tokio::time::sleep(ms(450)))
        .await
        .unwrap();
    database.timeout(SECOND, pending::<()>()).await.unwrap_err();
    let mut occupant = wheel.try_sleep(SECOND);
    register(&mut occupant);
    wheel.try_sleep(SECOND).await.unwrap_err();
    let mut given_up = wheel.labelled("cache").timeout(SECOND, pending::<()>());
    register(&mut given_up);
    drop((occupant, given_up));
    wheel
}

#[tokio::test(start_paused = true)]
async fn it_says_what_metrics_and_snapshot_say() {
    let wheel = used().await;
    let mut sleep = wheel.sleep(ms(50));
    register(&mut sleep);
    let metrics = wheel.metrics();
    for (name, expected) in [
        ("tickwheel_pending", metrics.pending as u64),
        ("tickwheel_registered_total", metrics.registered),
        ("tickwheel_expired_total", metrics.expired),
        ("tickwheel_cancelled_total", metrics.cancelled),
        ("tickwheel_rejected_total", metrics.rejected),
        ("tickwheel_cascaded_total", metrics.cascaded),
        ("tickwheel_turns_total", metrics.turns),
        ("tickwheel_panics_total", metrics.panics),
        ("tickwheel_engines", 1),
        ("tickwheel_arena_bytes", metrics.arena_bytes as u64),
    ] {
        assert_eq!(value(&wheel, name), expected as f64, "{name}");
    }
    assert_eq!((metrics.pending, metrics.rejected), (1, 1));
    assert_eq!(value(&wheel, "tickwheel_tick_seconds"), 0.001);
    assert_eq!(
        value(&wheel, "tickwheel_lag_max_seconds"),
        metrics.max_lag.as_secs_f64()
    );
    let due = values(&wheel, "tickwheel_due");
    assert_eq!(due.len(), 9);
    assert_eq!(due[&vec!["within=100ms".to_owned()]], 1.0);
    assert_eq!(due.values().sum::<f64>(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn it_says_what_became_of_labelled_timeouts() {
    let wheel = used().await;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let started = values(&wheel, "tickwheel_timeouts_started_total");
    assert_eq!(started[&words(&["label=database"])], 3.0);
    let ended = values(&wheel, "tickwheel_timeouts_total");
    assert_eq!(ended.len(), 6);
    assert_eq!(ended[&words(&["label=database", "outcome=completed"])], 2.0);
    assert_eq!(ended[&words(&["label=database", "outcome=elapsed"])], 1.0);
    assert_eq!(ended[&words(&["label=cache", "outcome=cancelled"])], 1.0);
    assert_eq!(ended.values().sum::<f64>(), 4.0);
    assert_eq!(
        values(&wheel, "tickwheel_timeouts_pending").values().sum::<f64>(),
        0.0
    );
    let (headroom, sum) = histogram(&wheel, "tickwheel_timeouts_headroom_ratio");
    let seen: Vec<_> = headroom.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(seen.iter().map(|(_, count)| count).sum::<u64>(), 2);
    assert!(
        seen.iter().any(|(limit, _)| (0.55..=0.6).contains(limit)),
        "{seen:?}"
    );
    assert!(seen.iter().any(|(limit, _)| *limit >= 1.0), "{seen:?}");
    assert!((sum - 1.5).abs() < 0.01, "the middles of two tenths: {sum}");
}

#[tokio::test(start_paused = true)]
async fn a_histograms_limits_never_change_and_its_counts_only_grow() {
    let wheel = Wheel::new();
    let (mut before, mut sum_before) = histogram(&wheel, "tickwheel_lag_seconds");
    assert!(before.len() <= 12 && before.last().unwrap().0.is_infinite());
    assert!(before.is_sorted_by(|one, other| one.0 < other.0));
    for late in [0, 1, 7, 300, 5_000, 3] {
        let mut sleep = wheel.sleep(TICK);
        register(&mut sleep);
        settle().await;
        tokio::time::advance(TICK + ms(late)).await;
        settle().await;
        let (after, sum) = histogram(&wheel, "tickwheel_lag_seconds");
        assert_eq!(after.len(), before.len());
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.0, after.0);
            assert!(before.1 <= after.1);
        }
        assert!(sum >= sum_before);
        (before, sum_before) = (after, sum);
    }
    assert_eq!(
        before.iter().map(|(_, count)| count).sum::<u64>(),
        wheel.metrics().turns
    );
    assert!((5.0..6.0).contains(&sum_before), "{sum_before}");
}

/// As exporters rely on.
#[tokio::test(start_paused = true)]
async fn names_tell_units_and_kinds_and_agree() {
    let list = exported(&used().await);
    let mut kinds: BTreeMap<&str, (ExportedUnit, ExportedKind, &str)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for Exported {
        name,
        help,
        unit,
        kind,
        labels,
        value,
        ..
    } in list
    {
        assert!(name.starts_with("tickwheel_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == ExportedKind::Counter, "{name}");
        assert_eq!(
            name.ends_with("_seconds"),
            unit == ExportedUnit::Seconds,
            "{name}"
        );
        assert_eq!(name.ends_with("_bytes"), unit == ExportedUnit::Bytes, "{name}");
        assert_eq!(name.ends_with("_ratio"), unit == ExportedUnit::Ratio, "{name}");
        assert_eq!(
            matches!(value, ExportedValue::Histogram { .. }),
            kind == ExportedKind::Histogram
        );
        assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
        assert_eq!(labels[0], ("wheel", "requests".to_owned()));
        let former = kinds.insert(name, (unit, kind, help));
        assert!(former.is_none_or(|former| former == (unit, kind, help)), "{name}");
        assert!(seen.insert((name, labels)), "{name} twice");
    }
}

#[test]
fn a_wheel_without_a_name_has_an_empty_one_and_needs_no_runtime() {
    for wheel in [Wheel::new(), Wheel::global()] {
        let list = exported(&wheel);
        assert!(
            list.iter()
                .all(|exported| exported.labels[0] == ("wheel", String::new()))
        );
    }
}
