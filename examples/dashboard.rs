//! A wheel to look at: its buckets as they fill and empty, what is due when, how late the driver comes, and how much of their
//! time the timeouts of each label had left. The load is made up: one timeout is too tight, one too lax, one right; one waits for
//! a peer that hangs; bursts of reports meet a full wheel; and half a minute apart, everything stalls.
//!
//! ```text
//! cargo run --release -p examples --bin dashboard -- --seconds 600
//!
//! --seconds N     ends after N seconds; 60, unless told otherwise
//! --port N        serves on that port; on a free one, unless told otherwise
//! --label NAME    one more label, with a timeout that is right
//! ```

#[path = "dashboard/load.rs"]
mod load;

use std::{collections::VecDeque, convert::Infallible, env, error::Error, time::Duration};

use axum::{
    Router,
    response::{Html, Sse, sse::Event},
    routing::get,
};
use futures::stream;
use serde_json::json;
use tickwheel::Wheel;
use tokio::{net::TcpListener, sync::watch, time::Instant};

const PAGE: &str = include_str!("dashboard/page.html");
/// How often the page hears of the wheel.
const PERIOD: Duration = Duration::from_millis(200);

/// Takes a picture of the wheel five times a second, for all who look.
async fn observe(wheel: Wheel, pictures: watch::Sender<String>) {
    let start = Instant::now();
    let mut lags = VecDeque::from([wheel.snapshot().lag]);
    let mut period = tokio::time::interval(PERIOD);
    loop {
        period.tick().await;
        let snapshot = wheel.snapshot();
        // The lag of so many seconds, up to ten; nothing where the driver has not come.
        let lag = |seconds: usize, quantile| {
            let earlier = &lags[lags.len().saturating_sub(seconds * 5)];
            let lag = snapshot.lag.since(earlier);
            (lag.count() > 0).then(|| lag.quantile(quantile).as_secs_f64() * 1e3)
        };
        let picture = json!({
            "at": start.elapsed().as_millis() as u64,
            "wheel": {
                "name": "dashboard",
                "tick_ms": wheel.tick_duration().as_secs_f64() * 1e3,
                "ticks_per_wheel": wheel.ticks_per_wheel(),
            },
            "metrics": wheel.metrics(),
            "lag_ms": { "max": lag(1, 1.0), "p99": lag(10, 0.99), "p50": lag(10, 0.5) },
            "snapshot": snapshot,
        });
        lags.push_back(snapshot.lag);
        if lags.len() > 50 {
            lags.pop_front();
        }
        pictures.send_replace(picture.to_string());
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
            "--seconds" => seconds = value.parse::<u32>().map_err(wrong)?,
            "--port" => port = value.parse::<u16>().map_err(wrong)?,
            "--label" => more = Some(value),
            _ => {
                return Err(
                    format!("unknown argument {argument}; there are --seconds, --port and --label").into(),
                );
            }
        }
    }

    // Of 256 ticks, so that one sees it turn: a round of the finest level takes 2.56 s.
    let wheel = Wheel::builder()
        .ticks_per_wheel(256)
        .levels(3)
        .max_pending(load::ROOM)
        .build()?;
    load::start(&wheel, more.as_deref());

    let (sender, pictures) = watch::channel(String::new());
    tokio::spawn(observe(wheel, sender));
    let events = async move || {
        Sse::new(stream::unfold(pictures, |mut pictures| async {
            pictures.changed().await.ok()?;
            let picture = pictures.borrow_and_update().clone();
            Some((Ok::<_, Infallible>(Event::default().data(picture)), pictures))
        }))
    };
    let app = Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/events", get(events));
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}/ for {seconds} seconds", listener.local_addr()?);
    tokio::select! {
        served = axum::serve(listener, app) => served?,
        () = tokio::time::sleep(Duration::from_secs(seconds.into())) => {}
    }
    Ok(())
}
