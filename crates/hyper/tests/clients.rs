//! Clients that mean well, in memory: no limit gets in their way.

use std::{
    convert::Infallible,
    error::Error,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, WebSocketUpgrade},
    routing::{any, get, post},
};
use bytes::Bytes;
use futures::{SinkExt, StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended};
use tokio::{io::DuplexStream, task::JoinHandle, time::sleep};
use tokio_tungstenite::tungstenite::Message;
use tonic::transport::{Endpoint, Uri};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
    server::health_reporter,
};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Served = JoinHandle<Result<Ended, Box<dyn Error + Send + Sync>>>;

fn connect(limits: &ConnectionLimits, app: Router) -> (DuplexStream, Served) {
    let (client, io) = tokio::io::duplex(65_536);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().enable_connect_protocol();
    let served = limits.serve(&builder, TokioIo::new(io), TowerToHyperService::new(app));
    (client, tokio::spawn(served))
}

fn app() -> Router {
    let slow = async || {
        sleep(ms(5_000)).await;
        "slow"
    };
    let events = async || {
        let events = stream::iter(0..5).then(async |_| {
            sleep(ms(2_000)).await;
            Ok::<_, Infallible>("event")
        });
        axum::body::Body::from_stream(events.boxed())
    };
    let length = async |request: Request| {
        let body = request.into_body().collect().await;
        body.map_or("broken".to_owned(), |body| body.to_bytes().len().to_string())
    };
    Router::new()
        .route("/", get(async || "hello"))
        .route("/slow", get(slow))
        .route("/events", get(events))
        .route("/big", get(async || vec![b'x'; 2_000_000]))
        .route("/length", post(length))
}

fn limits() -> ConnectionLimits {
    ConnectionLimits::new(&Wheel::new())
        .header(ms(300))
        .idle(ms(1_000))
        .body_progress(ms(300), 1_000)
        .grace(ms(500))
}

type Sent = Result<http::Response<Incoming>, hyper::Error>;

/// Sends a request, by a pool of one connection that opens another where that is closed.
trait Pool {
    async fn open(stream: DuplexStream) -> Self;
    async fn send(&mut self, request: http::Request<Full<Bytes>>) -> Sent;
    async fn is_open(&mut self) -> bool;
}

impl Pool for http1::SendRequest<Full<Bytes>> {
    async fn open(stream: DuplexStream) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
    async fn send(&mut self, request: http::Request<Full<Bytes>>) -> Sent {
        self.send_request(request).await
    }
    async fn is_open(&mut self) -> bool {
        self.ready().await.is_ok()
    }
}

impl Pool for http2::SendRequest<Full<Bytes>> {
    async fn open(stream: DuplexStream) -> Self {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }
    async fn send(&mut self, request: http::Request<Full<Bytes>>) -> Sent {
        self.send_request(request).await
    }
    async fn is_open(&mut self) -> bool {
        self.ready().await.is_ok()
    }
}

fn request(path: &str) -> http::Request<Full<Bytes>> {
    let builder = http::Request::builder()
        .uri(format!("http://a{path}"))
        .header("host", "a");
    if path == "/length" {
        builder
            .method("POST")
            .body(Full::from(vec![b'x'; 200_000]))
            .unwrap()
    } else {
        builder.body(Full::default()).unwrap()
    }
}

async fn all_kinds_of_requests<P: Pool>() {
    let limits = limits();
    let (stream, served) = connect(&limits, app());
    let mut client = P::open(stream).await;
    for round in 0..5 {
        for (path, length) in [
            ("/", 5),
            ("/slow", 4),
            ("/events", 25),
            ("/big", 2_000_000),
            ("/length", 6),
        ] {
            assert!(client.is_open().await, "{path}");
            let response = client.send(request(path)).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), length, "{path}");
            sleep(ms(round * 200)).await;
        }
    }
    assert!(!served.is_finished());
    drop(client);
    assert_eq!(served.await.unwrap().unwrap(), Ended::Done);
}

#[tokio::test(start_paused = true)]
async fn hypers_client_is_not_cut_off() {
    all_kinds_of_requests::<http1::SendRequest<_>>().await;
    all_kinds_of_requests::<http2::SendRequest<_>>().await;
}

async fn load<P: Pool>(client: &mut P, path: &str) -> Bytes {
    let response = client.send(request(path)).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn clients<P: Pool>(limits: &ConnectionLimits, count: usize) -> Vec<(P, Served)> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let (stream, served) = connect(limits, app());
        let mut client = P::open(stream).await;
        assert_eq!(load(&mut client, "/").await, "hello");
        clients.push((client, served));
    }
    clients
}

/// "The client can set up a large number of idle connections with the hyper server, exhausting the hyper
/// resources", as hyper's #2355 says.
async fn idle_connections_are_released<P: Pool>() {
    let limits = limits();
    let idle: Vec<(P, Served)> = clients(&limits, 200).await;
    assert_eq!(limits.stats().open, 200);
    sleep(ms(1_010)).await;
    assert_eq!((limits.stats().open, limits.stats().idle), (0, 200));
    for (mut client, served) in idle {
        assert!(!client.is_open().await);
        assert_eq!(served.await.unwrap().unwrap(), Ended::Idle);
    }

    // Under overload, and sooner than all had agreed on.
    let idle: Vec<(P, Served)> = clients(&limits, 200).await;
    let (stream, _busy) = connect(&limits, app());
    let mut busy = P::open(stream).await;
    let overload = async {
        sleep(ms(100)).await;
        limits.set_idle(Some(ms(50)));
        sleep(ms(10)).await;
        assert_eq!((limits.stats().open, limits.stats().idle), (1, 400));
    };
    let (slow, ()) = tokio::join!(load(&mut busy, "/slow"), overload);
    assert_eq!(slow, "slow");
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_released_to_clients_of_both_versions() {
    idle_connections_are_released::<http1::SendRequest<_>>().await;
    idle_connections_are_released::<http2::SendRequest<_>>().await;
}

/// "Browsers sometimes open 6 or more H1 connections and keep them alive and idle after resources are loaded":
/// what hyper's #3743 wanted is a limit for these, which is not that of a head.
#[tokio::test(start_paused = true)]
async fn a_browser_keeps_the_one_connection_of_six_that_it_uses() {
    // Three times as long as a head may take, and more than the pauses below.
    let limits = limits();
    let mut open: Vec<(http1::SendRequest<_>, _)> = clients(&limits, 6).await;
    let (mut used, served) = open.pop().unwrap();
    for _ in 0..10 {
        sleep(ms(900)).await;
        assert_eq!(load(&mut used, "/").await, "hello");
    }
    assert_eq!((limits.stats().open, limits.stats().idle), (1, 5));
    assert!(!served.is_finished());

    let unlimited = ConnectionLimits::new(&Wheel::new()).header(ms(300));
    let mut open: Vec<(http1::SendRequest<_>, _)> = clients(&unlimited, 6).await;
    sleep(ms(100_000_000)).await;
    assert_eq!(unlimited.stats().open, 6);
    assert_eq!(load(&mut open[0].0, "/").await, "hello");
}

fn is_refused(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| cause.is_go_away() && cause.reason() == Some(h2::Reason::NO_ERROR))
}

/// Each pauses for less than the grace period.
async fn no_request_fails_at_the_end_of_a_lifetime<P: Pool>() {
    let limits = limits().lifetime(ms(1_000), ms(700));
    let mut opened = 0;
    let mut client: Option<P> = None;
    for count in 0..1_000 {
        let is_open = match &mut client {
            Some(client) => client.is_open().await,
            None => false,
        };
        if !is_open {
            opened += 1;
            client = Some(P::open(connect(&limits, app()).0).await);
        }
        let open = client.as_mut().expect("it is open");
        let path = if count % 3 == 0 { "/length" } else { "/" };
        let response = match open.send(request(path)).await {
            // It has crossed with the `GOAWAY`, which says that it is not served, so that a pool sends it
            // again.
            Err(error) if is_refused(&error) => {
                opened += 1;
                let open = client.insert(P::open(connect(&limits, app()).0).await);
                open.send(request(path)).await
            }
            sent => sent,
        };
        let response = response.unwrap();
        response.into_body().collect().await.unwrap();
        sleep(ms(count * 7_919 % 490)).await;
    }
    let stats = limits.stats();
    assert_eq!((stats.header, stats.body_progress, stats.grace), (0, 0, 0));
    assert!(
        stats.lifetime + 1 >= opened && opened > 100,
        "{opened} opened, {stats:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn no_request_of_http1_fails_at_the_end_of_a_lifetime() {
    no_request_fails_at_the_end_of_a_lifetime::<http1::SendRequest<_>>().await;
}

#[tokio::test(start_paused = true)]
async fn no_request_of_http2_fails_at_the_end_of_a_lifetime() {
    no_request_fails_at_the_end_of_a_lifetime::<http2::SendRequest<_>>().await;
}

#[tokio::test(start_paused = true)]
async fn a_websocket_has_no_limits() {
    let echo = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                socket.send(message).await.unwrap();
            }
        })
    };
    let (stream, served) = connect(
        &limits().lifetime(ms(2_000), ms(0)),
        Router::new().route("/", any(echo)),
    );
    let (mut socket, _) = tokio_tungstenite::client_async("ws://a/", stream).await.unwrap();
    assert_eq!(served.await.unwrap().unwrap(), Ended::Upgraded);
    for _ in 0..3 {
        sleep(ms(100_000)).await;
        socket.send(Message::text("hello")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
    }
}

/// A stream on which the server is silent for hours, and a channel that opens connections as they end.
#[tokio::test(start_paused = true)]
async fn a_client_of_tonics_streams_and_connects_again() {
    let (reporter, health) = health_reporter();
    reporter.set_service_status("shop", ServingStatus::Serving).await;
    let app = tonic::service::Routes::new(health).into_axum_router();
    let limits = limits();
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let connector = {
        let limits = limits.clone();
        tower::service_fn(move |_: Uri| {
            OPENED.fetch_add(1, Ordering::Relaxed);
            let (stream, _) = connect(&limits, app.clone());
            async { Ok::<_, Infallible>(TokioIo::new(stream)) }
        })
    };
    let channel = Endpoint::from_static("http://shop")
        .connect_with_connector(connector)
        .await
        .unwrap();
    let mut client = HealthClient::new(channel);
    let shop = || HealthCheckRequest {
        service: "shop".into(),
    };

    let mut statuses = client.watch(shop()).await.unwrap().into_inner();
    let serving = ServingStatus::Serving as i32;
    assert_eq!(statuses.message().await.unwrap().unwrap().status, serving);
    sleep(ms(100_000)).await;
    reporter
        .set_service_status("shop", ServingStatus::NotServing)
        .await;
    assert_ne!(statuses.message().await.unwrap().unwrap().status, serving);
    assert_eq!((limits.stats().open, OPENED.load(Ordering::Relaxed)), (1, 1));
    drop(statuses);

    // Idle for too long between any two.
    for _ in 0..10 {
        sleep(ms(1_600)).await;
        client.check(shop()).await.unwrap();
    }
    assert_eq!((limits.stats().idle, OPENED.load(Ordering::Relaxed)), (10, 11));
}
