//! The timeout layer in front of a real axum server.

use std::{
    future::{IntoFuture, pending},
    sync::Arc,
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use tickwheel::{Wheel, time::error::Elapsed, tower::TimeoutLayer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::ServiceBuilder;

/// A layer made by a function, as a program would factor it out: nothing of it is borrowed from the wheel.
fn answering(wheel: &Wheel) -> TimeoutLayer<Duration, impl Fn(Elapsed) -> Response + Clone + use<>> {
    TimeoutLayer::new(wheel, Duration::from_millis(50))
        .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
}

/// Waits on `slow` routes for ever; each route has its own time.
fn app(wheel: &Wheel) -> Router {
    let status = async |error: BoxError| {
        if error.is::<Elapsed>() {
            StatusCode::GATEWAY_TIMEOUT
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let by_header = |request: &Request<Body>| {
        let patience = request
            .headers()
            .get("x-patience-ms")
            .and_then(|value| value.to_str().ok()?.parse().ok());
        patience.map_or(Duration::MAX, Duration::from_millis)
    };
    let slow = async || pending::<&str>().await;
    Router::new()
        .route("/fast", get(async || "fast"))
        .route("/slow", get(slow))
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(status))
                .layer(TimeoutLayer::new(wheel, Duration::from_millis(50))),
        )
        .merge(
            Router::new().route("/patient", get(slow)).layer(
                ServiceBuilder::new()
                    .layer(HandleErrorLayer::new(status))
                    .layer(TimeoutLayer::per_request(wheel, by_header)),
            ),
        )
        .route("/answered", get(slow).layer(answering(wheel)))
        .route("/answered/fast", get(async || "fast").layer(answering(wheel)))
}

async fn exchange(address: std::net::SocketAddr, path: &str, patience: u64) -> (StatusCode, Duration) {
    let start = std::time::Instant::now();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-patience-ms: {patience}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, start.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_a_real_axum_server_each_route_has_its_own_time() {
    let wheel = Wheel::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = stop.clone();
    let server = tokio::spawn(
        axum::serve(listener, app(&wheel))
            .with_graceful_shutdown(async move { stopped.notified().await })
            .into_future(),
    );

    assert_eq!(exchange(address, "/fast", 0).await.0, StatusCode::OK);
    let (status, elapsed) = exchange(address, "/slow", 0).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(elapsed >= Duration::from_millis(50));
    let (status, elapsed) = exchange(address, "/patient", 120).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(elapsed >= Duration::from_millis(120));

    let (status, elapsed) = exchange(address, "/answered", 0).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(elapsed >= Duration::from_millis(50));

    drop(wheel.shutdown());
    for path in ["/fast", "/answered/fast"] {
        assert_eq!(exchange(address, path, 0).await.0, StatusCode::OK);
    }
    for path in ["/slow", "/answered"] {
        assert_eq!(exchange(address, path, 0).await.0, StatusCode::GATEWAY_TIMEOUT);
    }
    stop.notify_one();
    server.await.unwrap().unwrap();
}
