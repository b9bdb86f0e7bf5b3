//! Clients of the AWS SDK, whose timeouts and retries wait on a wheel.

use crate::support;

use std::{
    future::{Future, pending, ready},
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering},
};

use aws_smithy_async::rt::sleep::{AsyncSleep, SharedAsyncSleep};
use aws_smithy_runtime::client::{
    orchestrator::operation::Operation,
    retries::classifiers::{HttpStatusCodeClassifier, TransientErrorClassifier},
};
use aws_smithy_runtime_api::{
    client::{
        http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
        orchestrator::{HttpRequest, HttpResponse, OrchestratorError},
        result::SdkError,
    },
    http::StatusCode,
};
use aws_smithy_types::{body::SdkBody, retry::RetryConfig, timeout::TimeoutConfig};
use tickwheel::Wheel;
use tokio::time::Instant;

use support::{SECOND, assert_at_rest, assert_due, ms};

type Answer = Pin<Box<dyn Future<Output = u16> + Send>>;

/// A server in place of the network; request number n, from 0, is answered with a status, sooner or later.
struct Server<F> {
    requests: AtomicU32,
    answer: F,
}

impl<F> std::fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl<F: Fn(u32) -> Answer + Send + Sync> HttpConnector for Server<F> {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let answer = (self.answer)(self.requests.fetch_add(1, Ordering::Relaxed));
        HttpConnectorFuture::new(async {
            let status = StatusCode::try_from(answer.await).unwrap();
            Ok(HttpResponse::new(status, SdkBody::empty()))
        })
    }
}

#[derive(Debug)]
struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

type Client = Operation<(), u16, Failed>;

/// What smithy-rs makes of an API with one operation: its real orchestrator, with retries and timeouts.
fn client<F>(wheel: &Wheel, retry: RetryConfig, timeout: TimeoutConfig, answer: F) -> Client
where
    F: Fn(u32) -> Answer + Send + Sync + 'static,
{
    let server = SharedHttpConnector::new(Server {
        requests: AtomicU32::new(0),
        answer,
    });
    Operation::builder()
        .service_name("service")
        .operation_name("operation")
        .http_client(http_client_fn(move |_, _| server.clone()))
        .endpoint_url("http://localhost:1")
        .no_auth()
        .standard_retry(&retry)
        .retry_classifier(HttpStatusCodeClassifier::default())
        .retry_classifier(TransientErrorClassifier::<Failed>::new())
        .timeout_config(timeout)
        .sleep_impl(SharedAsyncSleep::new(wheel.clone()))
        .serializer(|()| Ok(HttpRequest::new(SdkBody::empty())))
        .deserializer(|response| match response.status().as_u16() {
            status @ 200..=299 => Ok(status),
            _ => Err(OrchestratorError::operation(Failed)),
        })
        .build()
}

fn attempts(attempts: u32) -> RetryConfig {
    RetryConfig::standard()
        .with_max_attempts(attempts)
        .with_initial_backoff(SECOND)
        .with_use_static_exponential_base(true)
}

fn statuses(statuses: &'static [u16]) -> impl Fn(u32) -> Answer {
    |n| Box::pin(ready(statuses[n as usize]))
}

#[tokio::test(start_paused = true)]
async fn pauses_between_retries_are_on_the_wheel_and_last_their_time() {
    let wheel = Wheel::new();
    let client = client(
        &wheel,
        attempts(4),
        TimeoutConfig::disabled(),
        statuses(&[503, 500, 503, 200]),
    );
    let start = Instant::now();
    assert_eq!(client.invoke(()).await.unwrap(), 200);
    // 1, 2 and 4 s, each late by less than a tick.
    let elapsed = start.elapsed();
    assert!(
        elapsed >= 7 * SECOND && elapsed < 7 * SECOND + ms(30),
        "{elapsed:?}"
    );
    assert_eq!(wheel.metrics().expired, 3);
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_hangs_times_out() {
    let wheel = Wheel::new();
    let timeout = TimeoutConfig::builder().operation_timeout(5 * SECOND).build();
    let client = client(&wheel, attempts(1), timeout, |_| Box::pin(pending()));
    let start = Instant::now();
    let error = client.invoke(()).await.unwrap_err();
    assert!(matches!(error, SdkError::TimeoutError(_)), "{error:?}");
    assert_due(start, 5 * SECOND);
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn timeouts_of_operations_in_time_leave_the_wheel() {
    let wheel = Wheel::new();
    let timeout = TimeoutConfig::builder()
        .operation_timeout(60 * SECOND)
        .operation_attempt_timeout(30 * SECOND)
        .build();
    let client = client(&wheel, attempts(3), timeout, |_| {
        Box::pin(async {
            tokio::time::sleep(ms(100)).await;
            200
        })
    });
    for _ in 0..100 {
        assert_eq!(client.invoke(()).await.unwrap(), 200);
    }
    let metrics = wheel.metrics();
    assert_eq!((metrics.expired, metrics.cancelled), (0, 200), "{metrics:?}");
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn a_wheel_that_refuses_makes_no_timeout_early_and_no_retry() {
    let (wheel, _occupant) = support::full_wheel();
    for shut_down in [false, true] {
        if shut_down {
            drop(wheel.shutdown());
        }
        let timeout = TimeoutConfig::builder().operation_timeout(5 * SECOND).build();
        let hangs = client(&wheel, attempts(1), timeout, |_| Box::pin(pending()));
        let start = Instant::now();
        assert!(hangs.invoke(()).await.is_err());
        assert_due(start, 5 * SECOND);

        let fails = client(
            &wheel,
            attempts(2),
            TimeoutConfig::disabled(),
            statuses(&[500, 200]),
        );
        let start = Instant::now();
        assert_eq!(fails.invoke(()).await.unwrap(), 200);
        assert_due(start, SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_sleep_cancels_it() {
    let wheel = Wheel::new();
    let mut sleep = AsyncSleep::sleep(&wheel, SECOND);
    support::register(&mut sleep);
    assert_eq!(wheel.pending(), 1);
    drop(sleep);
    assert_at_rest(&wheel);
}
