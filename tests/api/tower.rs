//! The timeout layer over tower's mock in paused time. tests/integrations has it in front of a real axum
//! server.

use crate::support;

use std::{convert::Infallible, future::pending, sync::Arc};

use tickwheel::{
    Wheel,
    time::error::Elapsed,
    tower::{Timeout, TimeoutLayer},
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_test::{assert_request_eq, mock};

use support::{SECOND, TICK};

type Mock = mock::Mock<&'static str, &'static str>;

fn is_elapsed(outcome: Result<&str, BoxError>) -> bool {
    outcome.unwrap_err().is::<Elapsed>()
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
    assert!(is_elapsed(response.await));
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + 2 * TICK);
    assert_eq!(wheel.pending(), 0);
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
        assert!(error.is::<Elapsed>());
        let expected = seconds as u32 * SECOND;
        assert!(start.elapsed() >= expected && start.elapsed() < expected + 2 * TICK);
    }
}

/// Asserts that the errors and the readiness of the service inside pass through a layer, and cost no timer.
pub(crate) async fn assert_errors_and_readiness_pass<L>(layer: L)
where
    L: Layer<Mock, Service: Service<&'static str, Response = &'static str, Error = BoxError>>,
{
    let (mut service, mut handle) = mock::spawn_layer::<&str, &str, L>(layer);
    handle.allow(0);
    tokio_test::assert_pending!(service.poll_ready());
    tokio::time::sleep(60 * SECOND).await;
    tokio_test::assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    tokio_test::assert_ready_ok!(service.poll_ready());
    let response = service.call("request");
    assert_request_eq!(handle, "request").send_error("broken");
    assert_eq!(response.await.unwrap_err().to_string(), "broken");
    handle.send_error("worn out");
    assert!(tokio_test::assert_ready!(service.poll_ready()).is_err());
}

#[tokio::test(start_paused = true)]
async fn errors_and_readiness_are_those_of_the_service_inside() {
    let wheel = Wheel::new();
    let layer = TimeoutLayer::new(&wheel, SECOND);
    assert_errors_and_readiness_pass(layer.clone()).await;
    assert_errors_and_readiness_pass(layer.respond_with(|_| "late")).await;
    assert_eq!(wheel.metrics().registered, 0);
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
        outcomes.push(call.await.unwrap().map_err(|error| error.is::<Elapsed>()));
    }
    assert_eq!(
        outcomes,
        [Ok(0), Err(true), Ok(0), Err(true), Err(true), Err(true)]
    );
    // Two at a time, and whoever timed out made room, for its task dropped the response future.
    assert!(start.elapsed() >= 2 * SECOND && start.elapsed() < 2 * SECOND + 4 * TICK);
    assert_eq!(wheel.pending(), 0);
}

// Services that answer themselves.

fn silent() -> impl Service<u64, Response = String, Error = Infallible, Future: Send> + Clone {
    service_fn(|_| pending::<Result<String, Infallible>>())
}

#[tokio::test(start_paused = true)]
async fn a_late_response_is_answered_for_and_one_in_time_passes() {
    let wheel = Wheel::new();
    let layer = TimeoutLayer::new(&wheel, SECOND).respond_with(|error| error.to_string());
    let start = Instant::now();
    let answer = layer.layer(silent()).oneshot(0).await;
    assert_eq!(answer.unwrap(), "deadline has elapsed");
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + 2 * TICK);

    let prompt = service_fn(|_: ()| async { Ok::<_, Infallible>(String::from("in time")) });
    assert_eq!(layer.layer(prompt).oneshot(()).await.unwrap(), "in time");
    assert_eq!(wheel.metrics().registered, 1, "ready at once, it costs nothing");
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_future_inside_goes_with_the_response_future_and_no_sooner() {
    let wheel = Wheel::new();
    let permit = Arc::new(());
    let holding = |permit: &Arc<()>| {
        let permit = permit.clone();
        service_fn(move |_: ()| {
            let permit = permit.clone();
            async move {
                pending::<()>().await;
                drop(permit);
                Ok::<_, Infallible>("never")
            }
        })
    };
    let mut failing = Timeout::new(&wheel, SECOND, holding(&permit));
    let mut answering = failing.clone().respond_with(|_| "late");
    let idle = Arc::strong_count(&permit);
    let mut failing = tokio_test::task::spawn(failing.call(()));
    let mut answering = tokio_test::task::spawn(answering.call(()));
    tokio_test::assert_pending!(failing.poll());
    tokio_test::assert_pending!(answering.poll());
    tokio::time::sleep(SECOND + 2 * TICK).await;
    assert!(tokio_test::assert_ready!(failing.poll()).is_err());
    assert_eq!(tokio_test::assert_ready!(answering.poll()).unwrap(), "late");
    assert_eq!(Arc::strong_count(&permit), idle + 2);
    drop((failing, answering));
    assert_eq!(Arc::strong_count(&permit), idle);
    assert_eq!(wheel.pending(), 0);
}
