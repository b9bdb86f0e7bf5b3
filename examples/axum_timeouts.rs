//! An axum server with request timeouts: one duration for a route, one chosen by the request, and the wheel's
//! metrics on `/metrics`. It sends itself a few requests and ends.
//!
//! ```text
//! cargo run --release -p examples --bin axum_timeouts
//! ```

use std::{
    error::Error,
    future::IntoFuture,
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use tickwheel::{Wheel, time::error::Elapsed, tower::TimeoutLayer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A handler that takes as long as it is told to.
async fn work(Path(millis): Path<u64>) -> String {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    format!("{millis} ms of work done")
}

/// What a client hears where the work takes too long.
fn explain(_: Elapsed) -> Response {
    (StatusCode::GATEWAY_TIMEOUT, "took too long").into_response()
}

/// The time a client asks for, in milliseconds; half a second if it does not say.
fn patience(request: &Request) -> Duration {
    let asked = request.headers().get("x-timeout-ms");
    let millis = asked.and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_millis(millis.unwrap_or(500))
}

/// The wheel's metrics in Prometheus' text format.
async fn metrics(State(wheel): State<Wheel>) -> String {
    let metrics = wheel.metrics();
    format!(
        "tickwheel_pending {}\ntickwheel_registered_total {}\ntickwheel_expired_total {}\n\
         tickwheel_cancelled_total {}\ntickwheel_rejected_total {}\n",
        metrics.pending, metrics.registered, metrics.expired, metrics.cancelled, metrics.rejected,
    )
}

fn app(wheel: &Wheel) -> Router {
    let quick = TimeoutLayer::new(wheel, Duration::from_millis(100)).respond_with(explain);
    let as_asked = TimeoutLayer::per_request(wheel, patience).respond_with(explain);
    Router::new()
        .route("/quick/{millis}", get(work).layer(quick))
        .route("/asked/{millis}", get(work).layer(as_asked))
        .route("/metrics", get(metrics))
        .with_state(wheel.clone())
}

/// Asks the server and shows what it says, and after how long.
async fn ask(server: SocketAddr, path: &str, timeout: Option<u64>) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let header = timeout.map_or(String::new(), |millis| format!("x-timeout-ms: {millis}\r\n"));
    let mut stream = TcpStream::connect(server).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let status = response
        .lines()
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .unwrap_or("?");
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let asked = timeout.map_or(String::new(), |millis| format!("x-timeout-ms: {millis}"));
    println!(
        "{:>5} ms  GET {path:<14} {asked:<19} {status}  {}",
        start.elapsed().as_millis(),
        body.trim_end()
            .replace('\n', "\n                                                     "),
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let wheel = Wheel::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    println!("listening on http://{server}; /quick has 100 ms, /asked what x-timeout-ms says, or 500 ms\n");
    tokio::spawn(axum::serve(listener, app(&wheel)).into_future());

    ask(server, "/quick/0", None).await?;
    ask(server, "/quick/50", None).await?;
    ask(server, "/quick/5000", None).await?;
    ask(server, "/asked/5000", Some(300)).await?;
    ask(server, "/asked/5000", None).await?;
    ask(server, "/asked/200", Some(10_000)).await?;
    ask(server, "/metrics", None).await?;
    Ok(())
}
