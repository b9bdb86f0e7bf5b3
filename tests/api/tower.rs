//! The timeout layer over tower's mock in paused time. tests/integrations has it in front of a real axum server.

use crate::support;

use std::{
    convert::Infallible,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use tickwheel::{
    TimeoutError, Wheel,
    tower::{ResponseFuture, Timeout, TimeoutFor, TimeoutLayer},
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
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
    // Two at a time, and whoever timed out made room, for its task dropped the response future.
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
    assert_eq!(answer.unwrap(), TimeoutError::Elapsed.to_string());
    assert!(start.elapsed() >= SECOND && start.elapsed() < SECOND + 2 * TICK);

    let prompt = service_fn(async |_: ()| Ok::<_, Infallible>(String::from("in time")));
    assert_eq!(layer.layer(prompt).oneshot(()).await.unwrap(), "in time");
    assert_eq!(wheel.metrics().registered, 1, "ready at once, it costs nothing");
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_passes_as_it_is_and_so_does_its_readiness() {
    #[derive(Debug, PartialEq)]
    struct Broken;
    let wheel = Wheel::new();
    let broken = service_fn(async |_: ()| Err::<&str, _>(Broken));
    let service = Timeout::new(&wheel, SECOND, broken).respond_with(|_| "late");
    assert_eq!(service.oneshot(()).await, Err(Broken));

    let layer = TimeoutLayer::new(&wheel, SECOND).respond_with(|_| "late");
    let (mut service, mut handle): (_, mock::Handle<&str, &str>) = mock::spawn_layer(layer);
    handle.allow(0);
    tokio_test::assert_pending!(service.poll_ready());
    handle.allow(1);
    tokio_test::assert_ready_ok!(service.poll_ready());
    let response = service.call("request");
    assert_request_eq!(handle, "request").send_error("broken");
    assert_eq!(response.await.unwrap_err().to_string(), "broken");
    handle.send_error("worn out");
    assert!(tokio_test::assert_ready!(service.poll_ready()).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_closure_is_told_what_the_wheel_refused() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let by_request = |seconds: &u64| *seconds as u32 * SECOND;
    let service = TimeoutLayer::per_request(&wheel, by_request)
        .respond_with(|error| format!("{error:?}"))
        .layer(silent());
    let mut first = tokio_test::task::spawn(service.clone().oneshot(20));
    assert!(first.poll().is_pending());
    let second = service.clone().oneshot(1).await.unwrap();
    assert_eq!(second, format!("{:?}", TimeoutError::AtCapacity { limit: 1 }));
    let start = Instant::now();
    assert_eq!(first.await.unwrap(), "Elapsed");
    assert!(start.elapsed() >= 20 * SECOND && start.elapsed() < 20 * SECOND + 2 * TICK);
    drop(wheel.shutdown());
    assert_eq!(service.oneshot(1).await.unwrap(), "Shutdown");
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

#[test]
fn what_answers_is_send_clones_and_shows_what_is_inside() {
    fn check<T: Clone + Send + Sync + Unpin + 'static>(_: &T) {}
    fn sendable<T: Future + Send + Unpin + std::fmt::Debug>(_: T) {}
    let layer = TimeoutLayer::new(&Wheel::new(), SECOND).respond_with(|_| ());
    check(&layer);
    assert!(format!("{layer:?}").contains("TimeoutLayer"));
    let mut service = layer.layer(service_fn(|_: ()| std::future::ready(Ok::<_, Infallible>(()))));
    check(&service);
    sendable(service.call(()));
    let mut service = layer.layer("inside");
    assert!(format!("{service:?}").contains("inside"));
    *service.get_mut() = "another";
    assert_eq!(*service.get_ref(), "another");
    assert_eq!(service.into_inner(), "another");
}
