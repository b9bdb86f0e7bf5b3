//! The timeout layer: over tower's mock in paused time, and before a real axum server.

mod support;

use std::{
    convert::Infallible,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Request, StatusCode},
    routing::get,
};
use tickwheel::{
    TimeoutError, Wheel,
    tower::{ResponseFuture, Timeout, TimeoutFor, TimeoutLayer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_test::{assert_request_eq, mock};

use support::{SECOND, TICK};

type Mock = mock::Mock<&'static str, &'static str>;

fn error(outcome: Result<&str, BoxError>) -> TimeoutError {
    *outcome.unwrap_err().downcast().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_response_in_time_passes_and_a_late_one_elapses() {
    let wheel = Wheel::new();
    let (mut service, mut handle) = mock::spawn_with(|inner: Mock| Timeout::new(&wheel, SECOND, inner));
    tokio_test::assert_ready_ok!(service.poll_ready());

    let response = service.call("prompt");
    assert_request_eq!(handle, "prompt").send_response("in time");
    assert_eq!(response.await.unwrap(), "in time");
    assert_eq!(wheel.metrics().registered, 0, "ready at once, it costs nothing");

    tokio_test::assert_ready_ok!(service.poll_ready());
    let start = Instant::now();
    let response = service.call("slow");
    let (_request, _unanswered) = handle.next_request().await.unwrap();
    assert_eq!(error(response.await), TimeoutError::Elapsed);
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + 2 * TICK);
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_passes() {
    let (mut service, mut handle) = mock::spawn_layer(TimeoutLayer::new(&Wheel::new(), SECOND));
    tokio_test::assert_ready_ok!(service.poll_ready());
    let response = service.call("request");
    assert_request_eq!(handle, "request").send_error("broken");
    let outcome: Result<&str, _> = response.await;
    assert_eq!(outcome.unwrap_err().to_string(), "broken");

    handle.send_error("worn out");
    let outcome = tokio_test::assert_ready!(service.poll_ready());
    assert!(outcome.is_err());
}

#[tokio::test(start_paused = true)]
async fn readiness_is_that_of_the_service_inside_and_costs_no_timer() {
    let wheel = Wheel::new();
    let (mut service, mut handle): (_, mock::Handle<&str, &str>) =
        mock::spawn_layer(TimeoutLayer::new(&wheel, SECOND));
    handle.allow(0);
    tokio_test::assert_pending!(service.poll_ready());
    tokio::time::sleep(60 * SECOND).await;
    tokio_test::assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    tokio_test::assert_ready_ok!(service.poll_ready());
    assert_eq!(wheel.metrics().registered, 0);
}

#[tokio::test(start_paused = true)]
async fn a_closure_chooses_the_time_of_each_request() {
    // Not `async |_|`: rustc 1.95 crashes over that one when it compiles this test incrementally.
    let silent = service_fn(|_: u64| pending::<Result<(), Infallible>>());
    let service =
        TimeoutLayer::per_request(&Wheel::new(), |seconds: &u64| *seconds as u32 * SECOND).layer(silent);
    for seconds in [1, 20, 300] {
        let start = Instant::now();
        let error = service.clone().oneshot(seconds).await.unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&TimeoutError::Elapsed));
        let expected = seconds as u32 * SECOND;
        assert!(start.elapsed() >= expected && start.elapsed() < expected + 2 * TICK);
    }
}

/// A type that chooses.
#[derive(Clone)]
struct ByLength;

impl TimeoutFor<&str> for ByLength {
    fn timeout_for(&self, request: &&str) -> Duration {
        request.len() as u32 * SECOND
    }
}

#[test]
fn a_duration_a_closure_and_a_type_of_ones_own_choose() {
    assert_eq!(SECOND.timeout_for(&"request"), SECOND);
    assert_eq!(
        (|request: &&str| request.len() as u32 * SECOND).timeout_for(&"four"),
        4 * SECOND
    );
    assert_eq!(ByLength.timeout_for(&"four"), 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_wheel_that_refuses_says_so() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let silent = service_fn(async |_: &str| pending::<Result<&'static str, Infallible>>().await);
    let service = Timeout::new(&wheel, SECOND, silent);
    let mut first = tokio_test::task::spawn(service.clone().oneshot("first"));
    assert!(first.poll().is_pending());
    assert_eq!(
        error(service.clone().oneshot("second").await),
        TimeoutError::AtCapacity { limit: 1 }
    );
    drop(wheel.shutdown());
    assert!(first.is_woken());
    assert_eq!(error(first.await), TimeoutError::Shutdown);
    let prompt = Timeout::new(
        &wheel,
        SECOND,
        service_fn(async |_: ()| Ok::<_, Infallible>("ready")),
    );
    assert_eq!(prompt.oneshot(()).await.unwrap(), "ready");
}

#[tokio::test(start_paused = true)]
async fn it_stacks_under_a_service_builder() {
    let wheel = Wheel::new();
    let service = ServiceBuilder::new()
        .buffer(8)
        .concurrency_limit(2)
        .layer(TimeoutLayer::new(&wheel, SECOND))
        .service(service_fn(async |request: u64| {
            tokio::time::sleep(request as u32 * SECOND).await;
            Ok::<_, Infallible>(request)
        }));
    let calls = [0, 5, 0, 5, 5, 5].map(|request| tokio::spawn(service.clone().oneshot(request)));
    let start = Instant::now();
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(call.await.unwrap().map_err(|error| error.is::<TimeoutError>()));
    }
    assert_eq!(
        outcomes,
        [Ok(0), Err(true), Ok(0), Err(true), Err(true), Err(true)]
    );
    // Two at a time, and whoever timed out made room: the service's own futures were dropped.
    assert!(start.elapsed() >= 2 * SECOND && start.elapsed() < 2 * SECOND + 4 * TICK);
    assert_eq!(wheel.pending(), 0);
}

#[test]
fn futures_are_send_and_unpin_and_services_clone_where_what_is_inside_is() {
    fn check<T: Send + Sync + Unpin>() {}
    check::<ResponseFuture<std::future::Ready<Result<(), BoxError>>>>();
    fn sendable<T: Future + Send>(_: T) {}
    sendable(
        Timeout::new(
            &Wheel::new(),
            SECOND,
            service_fn(async |_: ()| Ok::<_, Infallible>(())),
        )
        .call(()),
    );
    fn clonable<T: Clone + Send + Sync + 'static>(_: &T) {}
    clonable(&TimeoutLayer::new(&Wheel::new(), SECOND));
    assert!(format!("{:?}", Timeout::new(&Wheel::new(), SECOND, "inside")).contains("inside"));
}

/// Waits on `slow` routes for ever; each route has its own time.
fn app(wheel: &Wheel) -> Router {
    let status = async |error: BoxError| match error.downcast_ref::<TimeoutError>() {
        Some(TimeoutError::Elapsed) => StatusCode::GATEWAY_TIMEOUT,
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::INTERNAL_SERVER_ERROR,
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

    drop(wheel.shutdown());
    assert_eq!(exchange(address, "/fast", 0).await.0, StatusCode::OK);
    assert_eq!(
        exchange(address, "/slow", 0).await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    stop.notify_one();
    server.await.unwrap().unwrap();
}
