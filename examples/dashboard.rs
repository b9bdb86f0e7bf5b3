//! A page that shows a running wheel: its buckets, when its timers are due, the driver's lag, and the
//! headroom of timeouts.
//!
//! The load is simulated. One label's timeout is too tight, one too lax, one right, and one waits for a peer
//! that hangs. Bursts of scheduled tasks meet a full wheel. Twice a minute everything stalls.
//!
//! ```text
//! cargo run --release -p examples --bin dashboard -- --seconds 600
//!
//! --seconds N     ends after N seconds, 60 by default
//! --port N        serves on that port, a free one by default
//! --label NAME    adds a label, with a timeout that is right
//! ```

use std::{collections::VecDeque, convert::Infallible, env, error::Error, ops::Range, thread};

use axum::response::{Html, Sse, sse::Event};
use axum::{Router, routing::get};
use futures::stream;
use serde_json::json;
use tickwheel::{Labelled, Wheel};
use tokio::time::{Duration, Instant, interval, interval_at, sleep, timeout};
use tokio::{net::TcpListener, runtime::Handle, sync::watch};

const CONNECTIONS: usize = 8_500;
/// Of scheduled tasks. Connections and timeouts are never refused.
const LIMIT: usize = 1_400;

/// Takes a picture of the wheel five times a second, for all who look. Its ticks count from `start`.
async fn observe(wheel: Wheel, start: Instant, pictures: watch::Sender<String>) {
    let mut lags = VecDeque::from(vec![wheel.snapshot().lag; 50]);
    let mut period = interval(Duration::from_millis(200));
    loop {
        period.tick().await;
        let snapshot = wheel.snapshot();
        // The lag of so many seconds, up to ten. There is none if the driver has not come.
        let lag = |seconds: usize, quantile| {
            let lag = snapshot.lag.since(&lags[50 - 5 * seconds]);
            (lag.count() > 0).then(|| lag.quantile(quantile).as_secs_f64() * 1e3)
        };
        let tick_ms = wheel.tick_duration().as_secs_f64() * 1e3;
        let at = start.elapsed();
        let picture = json!({
            "at": at.as_millis() as u64,
            "tick": at.div_duration_f64(wheel.tick_duration()) as u64,
            "wheel": { "name": "dashboard", "tick_ms": tick_ms, "ticks_per_wheel": wheel.ticks_per_wheel() },
            "metrics": wheel.metrics(),
            "lag_ms": { "max": lag(1, 1.0), "p99": lag(10, 0.99), "p50": lag(10, 0.5) },
            "snapshot": snapshot,
        });
        lags.pop_front();
        lags.push_back(snapshot.lag);
        pictures.send_replace(picture.to_string());
    }
}

/// Every `period` some requests, each with a limit in time, whose answers take so long; in milliseconds.
async fn requests(label: Labelled, period: u64, some: Range<usize>, limit: u64, answer: Range<u64>) {
    let mut period = interval(Duration::from_millis(period));
    loop {
        period.tick().await;
        for _ in 0..fastrand::usize(some.clone()) {
            let label = label.clone();
            // One of twenty of the geocoder's is never answered.
            let hangs = label.name() == "geocoder" && fastrand::u8(0..20) == 0;
            let answer = if hangs {
                60_000
            } else {
                fastrand::u64(answer.clone())
            };
            let answer = async move { sleep(Duration::from_millis(answer)).await };
            tokio::spawn(async move { label.timeout(Duration::from_millis(limit), answer).await });
        }
    }
}

/// A connection that is idle for a while, mostly short, and then says something.
async fn connection(wheel: Wheel) {
    loop {
        let unlikely = fastrand::f64().max(1e-6);
        let idle = if fastrand::u8(0..40) == 0 { 3_000.0 } else { 40.0 };
        let idle = Duration::from_secs_f64(0.1 - idle * unlikely.ln());
        wheel.sleep(idle).await;
    }
}

/// Schedules more tasks at once than the wheel admits, four times a minute.
async fn bursts(wheel: Wheel) {
    let mut period = interval_at(Instant::now() + Duration::from_secs(2), Duration::from_secs(15));
    loop {
        period.tick().await;
        for _ in 0..LIMIT + LIMIT / 4 {
            let delay = Duration::from_millis(fastrand::u64(10..1_600));
            drop(wheel.schedule(delay, async {}));
        }
    }
}

/// Blocks every worker of the runtime for a quarter of a second, twice a minute.
async fn stalls() {
    let mut period = interval_at(Instant::now() + Duration::from_secs(10), Duration::from_secs(30));
    loop {
        let end = period.tick().await + Duration::from_millis(250);
        for _ in 0..Handle::current().metrics().num_workers() {
            tokio::spawn(async move { thread::sleep(end.saturating_duration_since(Instant::now())) });
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut seconds, mut port, mut more) = (60, 0, None);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument} needs a value"))?;
        let wrong = |error| format!("{argument} takes a whole number, not {value:?}: {error}");
        match argument.as_str() {
            "--seconds" => seconds = value.parse::<u64>().map_err(wrong)?,
            "--port" => port = value.parse::<u16>().map_err(wrong)?,
            "--label" => more = Some(value),
            _ => Err(format!(
                "unknown argument {argument}; there are --seconds, --port and --label"
            ))?,
        }
    }

    // Of 256 ticks, so that one sees it turn: a round of the finest level takes 256 ms.
    let builder = Wheel::builder().ticks_per_wheel(256).levels(3);
    let wheel = builder.max_pending(LIMIT).build()?;
    // Ticks count from the first timer.
    let start = Instant::now();
    wheel.sleep(Duration::from_millis(1)).await;
    for (label, period, some, limit, answer) in [
        ("inventory", 20, 0..13, 100, 40..115),
        ("search", 20, 0..17, 5_000, 20..120),
        ("payments", 20, 0..11, 400, 60..330),
        ("geocoder", 20, 0..5, 800, 90..300),
        ("reports", 15_000, 1_000..1_001, 2_000, 10..1_600),
    ] {
        tokio::spawn(requests(wheel.labelled(label), period, some, limit, answer));
    }
    if let Some(label) = more {
        tokio::spawn(requests(wheel.labelled(label), 20, 0..3, 300, 60..250));
    }
    (0..CONNECTIONS).for_each(|_| drop(tokio::spawn(connection(wheel.clone()))));
    tokio::spawn(bursts(wheel.clone()));
    tokio::spawn(stalls());

    let (sender, pictures) = watch::channel(String::new());
    tokio::spawn(observe(wheel, start, sender));
    let events = async move || {
        Sse::new(stream::unfold(pictures, |mut pictures| async {
            pictures.changed().await.ok()?;
            let picture = pictures.borrow_and_update().clone();
            Some((Ok::<_, Infallible>(Event::default().data(picture)), pictures))
        }))
    };
    let page = get(async || Html(include_str!("dashboard/page.html")));
    let app = Router::new().route("/", page).route("/events", get(events));
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}/ for {seconds} seconds", listener.local_addr()?);
    let serve = axum::serve(listener, app).into_future();
    timeout(Duration::from_secs(seconds), serve)
        .await
        .unwrap_or(Ok(()))?;
    Ok(())
}
