//! `Sources`: several sources read into one list.

use std::{
    future::pending,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Waker},
    time::Duration,
};

use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source, Sources, exported};

/// A queue, of which there may be several handles in a process.
struct Queue {
    deliveries: u64,
    /// What a server says, so that all handles of the queue report the same.
    waiting: f64,
}

#[derive(Clone)]
struct QueueSource(Weak<Queue>);

fn value(name: &'static str, kind: ExportedKind, value: ExportedValue) -> Exported {
    let labels = vec![("queue", "q".to_owned())];
    Exported::new(
        name,
        "It is of a queue.",
        ExportedUnit::Count,
        kind,
        labels,
        value,
    )
}

impl Source for QueueSource {
    fn exported(&self) -> Option<Vec<Exported>> {
        let queue = self.0.upgrade()?;
        let lateness = ExportedValue::Histogram {
            buckets: vec![(1.0, 0), (f64::INFINITY, queue.deliveries)],
            sum: 2.0 * queue.deliveries as f64,
        };
        Some(vec![
            value(
                "waiting",
                ExportedKind::Gauge,
                ExportedValue::Number(queue.waiting),
            ),
            value(
                "deliveries_total",
                ExportedKind::Counter,
                ExportedValue::Count(queue.deliveries),
            ),
            value("lateness", ExportedKind::Histogram, lateness),
        ])
    }

    fn identity(&self) -> Option<usize> {
        Some(self.0.as_ptr().addr())
    }
}

fn queue(deliveries: u64, waiting: f64) -> (Arc<Queue>, QueueSource) {
    let queue = Arc::new(Queue { deliveries, waiting });
    let source = QueueSource(Arc::downgrade(&queue));
    (queue, source)
}

/// The names, labels and values.
fn list(sources: &Sources) -> Vec<(String, ExportedValue)> {
    let list = sources.exported().into_iter();
    list.map(|exported| {
        let labels: Vec<_> = exported
            .labels
            .iter()
            .map(|(key, word)| format!("{key}={word}"))
            .collect();
        (format!("{} {}", exported.name, labels.join(" ")), exported.value)
    })
    .collect()
}

fn counted(name: &str, count: u64) -> (String, ExportedValue) {
    (name.to_owned(), ExportedValue::Count(count))
}

fn lateness(name: &str, count: u64) -> (String, ExportedValue) {
    let buckets = vec![(1.0, 0), (f64::INFINITY, count)];
    let sum = 2.0 * count as f64;
    (name.to_owned(), ExportedValue::Histogram { buckets, sum })
}

fn measured(name: &str, number: f64) -> (String, ExportedValue) {
    (name.to_owned(), ExportedValue::Number(number))
}

#[test]
fn two_handles_of_one_queue_are_one_series_in_which_only_counts_are_added_up() {
    let ((_first, one), (_second, other)) = (queue(2, 20.0), queue(3, 23.0));
    let mut sources = Sources::default();
    sources.add(one);
    sources.add(other);
    let expected = [
        counted("deliveries_total queue=q", 5),
        lateness("lateness queue=q", 5),
        measured("waiting queue=q", 23.0),
    ];
    assert_eq!(list(&sources), expected);
}

#[test]
fn what_is_added_twice_counts_once() {
    let ((_first, one), (_second, other)) = (queue(2, 20.0), queue(3, 20.0));
    let mut sources = Sources::default();
    for source in [&one, &other, &one, &one, &other] {
        sources.add(source.clone());
    }
    let wheel = Wheel::builder().name("w").build().unwrap();
    sources.add_wheel(&wheel);
    sources.add_wheel(&wheel.clone());
    let wheels = exported(&wheel).len();
    assert_eq!(list(&sources)[0], counted("deliveries_total queue=q", 5));
    assert_eq!(sources.exported().len(), wheels + 3);
}

#[test]
fn a_label_tells_two_queues_of_one_name_apart() {
    let ((_first, one), (_second, other)) = (queue(2, 20.0), queue(3, 23.0));
    let mut sources = Sources::default();
    for _ in 0..2 {
        sources.add(one.clone().with_label("server", "north"));
        sources.add(other.clone().with_label("server", "south"));
    }
    let expected = [
        counted("deliveries_total queue=q server=north", 2),
        counted("deliveries_total queue=q server=south", 3),
        lateness("lateness queue=q server=north", 2),
        lateness("lateness queue=q server=south", 3),
        measured("waiting queue=q server=north", 20.0),
        measured("waiting queue=q server=south", 23.0),
    ];
    assert_eq!(list(&sources), expected);
}

#[test]
fn wheels_of_one_name_are_one_series() {
    let wheels = [Wheel::new(), Wheel::new()];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _guard = runtime.enter();
    let mut sources = Sources::default();
    let pending = wheels.each_ref().map(|wheel| {
        sources.add_wheel(wheel);
        let mut timeout = Box::pin(wheel.timeout(Duration::from_secs(50), pending::<()>()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(&mut timeout).poll(&mut cx).is_pending());
        timeout
    });
    let list = list(&sources);
    let of = |name: &str| list.iter().filter(|(key, _)| key == name).collect::<Vec<_>>();
    assert_eq!(
        of("tickwheel_pending wheel="),
        [&counted("tickwheel_pending wheel=", 2)]
    );
    let due = "tickwheel_due wheel= within=1m";
    assert_eq!(of(due), [&counted(due, 2)]);
    let tick = "tickwheel_tick_seconds wheel=";
    assert_eq!(of(tick), [&measured(tick, 0.001)]);
    drop(pending);
}

#[test]
fn a_source_that_is_gone_ends_its_series() {
    let (kept, source) = queue(2, 20.0);
    let wheel = Wheel::new();
    let mut sources = Sources::default();
    sources.add_wheel(&wheel);
    sources.add(source);
    let closure = move || {
        Some(vec![value(
            "always",
            ExportedKind::Gauge,
            ExportedValue::Count(1),
        )])
    };
    sources.add(closure);
    drop(kept);
    assert!(
        list(&sources)
            .iter()
            .all(|(name, _)| name != "deliveries_total queue=q")
    );
    assert_eq!(sources.wheels().count(), 1);
    drop(wheel);
    assert_eq!(list(&sources), [counted("always queue=q", 1)]);
    assert_eq!(sources.wheels().count(), 0);
}

#[test]
fn a_source_is_used_from_any_thread_and_survives_a_panic() {
    fn check<T: Clone + Send + Sync + Unpin + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<Sources>();
    let wheel = Wheel::new();
    assert_eq!(wheel.downgrade().exported().unwrap(), exported(&wheel));
}

#[test]
fn a_wheel_counts_once_however_it_was_added() {
    let wheel = Wheel::new();
    let mut sleep = pin!(wheel.sleep(Duration::from_secs(60)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    assert!(
        sleep
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let mut sources = Sources::default();
    sources.add_wheel(&wheel);
    sources.add(wheel.downgrade());
    sources.add(wheel.downgrade());
    let list = sources.exported();
    let registered = list
        .iter()
        .find(|value| value.name == "tickwheel_registered_total")
        .unwrap();
    assert_eq!(registered.value, ExportedValue::Count(1));
}
