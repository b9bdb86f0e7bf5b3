//! What the dashboard's wheel has to do, all of it made up.

use std::{ops::Range, thread, time::Duration};

use tickwheel::{Labelled, SleepError, Wheel};
use tokio::{runtime::Handle, time::Instant};

/// Timers that the wheel has room for: all but some of a burst of reports.
pub(crate) const ROOM: usize = CONNECTIONS + 1_400;
const CONNECTIONS: usize = 8_500;

/// Starts all of it. It goes on until the runtime ends.
pub(crate) fn start(wheel: &Wheel, more: Option<&str>) {
    let mut load = vec![
        ("inventory", 6, 100, 40..115),
        ("search", 8, 5_000, 20..120),
        ("payments", 5, 400, 60..330),
        ("geocoder", 2, 800, 90..300),
    ];
    load.extend(more.map(|name| (name, 1, 300, 60..250)));
    for (name, each, timeout, answer) in load {
        let label = wheel.labelled(name);
        tokio::spawn(requests(label, wheel.clone(), each, timeout, answer));
    }
    for _ in 0..CONNECTIONS {
        tokio::spawn(connection(wheel.clone()));
    }
    tokio::spawn(bursts(wheel.labelled("reports")));
    tokio::spawn(stalls());
}

/// Requests under a label: every 20 ms so many on average, each with that timeout, whose answers take so long, in milliseconds.
async fn requests(label: Labelled, wheel: Wheel, each: usize, timeout: u64, answer: Range<u64>) {
    let mut ticks = wheel.interval(Duration::from_millis(20));
    while ticks.tick().await.is_ok() {
        for _ in 0..fastrand::usize(0..=2 * each) {
            let (label, millis) = (label.clone(), fastrand::u64(answer.clone()));
            tokio::spawn(async move {
                // One of twenty of the geocoder's is never answered.
                let hangs = label.name() == "geocoder" && fastrand::u8(0..20) == 0;
                let answer = Duration::from_millis(if hangs { 60_000 } else { millis });
                let _ = label
                    .timeout(Duration::from_millis(timeout), tokio::time::sleep(answer))
                    .await;
            });
        }
    }
}

/// More reports at once than the wheel has room for.
async fn bursts(label: Labelled) {
    loop {
        for _ in 0..1_800 {
            let (label, answer) = (label.clone(), Duration::from_millis(fastrand::u64(10..1_600)));
            tokio::spawn(async move {
                label
                    .timeout(Duration::from_secs(2), tokio::time::sleep(answer))
                    .await
            });
        }
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// A connection that is idle for a while, mostly short, and then says something.
async fn connection(wheel: Wheel) -> Result<(), SleepError> {
    loop {
        let unlikely = fastrand::f64().max(1e-6);
        let idle = if fastrand::u8(0..40) == 0 { 3_000.0 } else { 40.0 };
        wheel
            .sleep(Duration::from_secs_f64(0.1 - idle * unlikely.ln()))
            .await?;
    }
}

/// Blocks every worker of the runtime for a quarter of a second, twice a minute.
async fn stalls() {
    let workers = Handle::current().metrics().num_workers();
    let mut period =
        tokio::time::interval_at(Instant::now() + Duration::from_secs(10), Duration::from_secs(30));
    loop {
        period.tick().await;
        let end = Instant::now() + Duration::from_millis(250);
        for _ in 0..workers {
            tokio::spawn(async move { thread::sleep(end.saturating_duration_since(Instant::now())) });
        }
    }
}
