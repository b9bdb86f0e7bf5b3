//! Time limits for bodies: bare bodies in paused time, then real hyper clients and servers over pipes, by
//! HTTP/1 and HTTP/2.

use crate::support;

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, pending, ready},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, extract::Request as AxumRequest, response::IntoResponse, routing::any};
use futures::{FutureExt, Stream, StreamExt, stream};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    client::conn::{http1 as client1, http2 as client2},
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tickwheel::{
    Wheel,
    deadline::{self, LimitError},
    tower::{
        BodyElapsed, DeadlineBody, DeadlineHeader, DeadlineLayer, PropagateLayer, RequestBodyTimeout,
        RequestBodyTimeoutLayer, ResponseBodyTimeout, ResponseBodyTimeoutLayer, TimeoutBody,
    },
};
use tokio::{
    io::duplex,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinHandle, coop::consume_budget},
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use support::{SECOND, assert_due, ms, own_process::in_own_process, settle};

/// Frames of one byte, each after a pause.
fn trickle(frames: u32, pause: Duration) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::iter(0..frames).then(move |n| async move {
        sleep(pause).await;
        Ok(Frame::data(Bytes::from(vec![n as u8])))
    })
}

/// A body of `frames` frames, one after each pause, that holds a permit.
fn holding(
    permit: OwnedSemaphorePermit,
    frames: u32,
    pause: Duration,
) -> impl Body<Data = Bytes, Error = Infallible> + Send {
    StreamBody::new(trickle(frames, pause).map(move |frame| {
        let _held = &permit;
        frame
    }))
}

/// Finds the error of a time limit along the sources.
fn elapsed<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a BodyElapsed> {
    let mut error = Some(error);
    while let Some(link) = error {
        if let Some(elapsed) = link.downcast_ref() {
            return Some(elapsed);
        }
        error = link.source();
    }
    None
}

#[track_caller]
fn assert_elapsed(error: &(dyn Error + 'static), limit: LimitError, duration: Duration) {
    let elapsed = elapsed(error).unwrap_or_else(|| panic!("another error: {error:?}"));
    assert_eq!((elapsed.limit(), elapsed.duration()), (limit, duration));
}

// Bare bodies.

#[tokio::test(start_paused = true)]
async fn a_gap_that_is_too_long_ends_the_body() {
    let wheel = Wheel::new();
    let frames = trickle(3, SECOND).chain(trickle(1, 3 * SECOND));
    let mut body = pin!(TimeoutBody::new(&wheel, 2 * SECOND, StreamBody::new(frames)));
    for n in 0..3 {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), [n][..]);
    }
    let start = Instant::now();
    let error = body.frame().await.unwrap().unwrap_err();
    assert_due(start, 2 * SECOND);
    assert_elapsed(&*error, LimitError::Timeout, 2 * SECOND);
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nobody_asks_does_not_count() {
    let wheel = Wheel::new();
    let (sender, receiver) = futures::channel::mpsc::unbounded::<Bytes>();
    let frames = receiver.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
    let mut body = TimeoutBody::new(&wheel, SECOND, StreamBody::new(frames));
    sleep(60 * SECOND).await;
    for n in 0..3_u8 {
        let sender = sender.clone();
        tokio::spawn(async move {
            sleep(ms(900)).await;
            sender.unbounded_send(Bytes::from(vec![n])).unwrap();
        });
        assert!(body.frame().await.unwrap().is_ok(), "frame {n}");
        sleep(60 * SECOND).await;
    }
    let start = Instant::now();
    assert_elapsed(
        &*body.frame().await.unwrap().unwrap_err(),
        LimitError::Timeout,
        SECOND,
    );
    assert_due(start, SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_came_while_nobody_asked_counts() {
    let mut body = TimeoutBody::new(
        &Wheel::new(),
        SECOND,
        StreamBody::new(Box::pin(trickle(1, ms(500)))),
    );
    assert!(futures::poll!(pin!(body.frame())).is_pending());
    sleep(60 * SECOND).await;
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn frames_that_are_ready_cost_no_timer_and_a_body_that_ends_frees_its_timer() {
    let wheel = Wheel::new();
    let ready = StreamBody::new(stream::iter(
        (0..100).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from("x")))),
    ));
    TimeoutBody::new(&wheel, SECOND, ready).collect().await.unwrap();
    assert_eq!(wheel.metrics().registered, 0);

    // Pushed back, not registered anew.
    let mut body = pin!(TimeoutBody::new(
        &wheel,
        60 * SECOND,
        StreamBody::new(trickle(30, SECOND))
    ));
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    assert_eq!(
        (wheel.pending(), wheel.metrics().registered),
        (0, 1),
        "the ended body is still there"
    );

    let mut failing = pin!(TimeoutBody::new(
        &wheel,
        60 * SECOND,
        StreamBody::new(trickle(1, SECOND).map(|_| Err::<Frame<Bytes>, _>(io::Error::other("broken")))),
    ));
    assert_eq!(failing.frame().await.unwrap().unwrap_err().to_string(), "broken");
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_waits_for_the_tasks_budget_alone_is_not_late() {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = ReceiverStream::new(receiver).map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
    let mut body = TimeoutBody::new(&Wheel::new(), SECOND, StreamBody::new(frames));
    assert!(body.frame().now_or_never().is_none());
    sleep(2 * SECOND).await;
    sender.try_send(Bytes::from("x")).unwrap();
    let mut waits = true;
    let frame = std::future::poll_fn(|cx| {
        while waits && pin!(consume_budget()).poll(cx).is_ready() {}
        waits = false;
        Pin::new(&mut body).poll_frame(cx)
    });
    assert_eq!(frame.await.unwrap().unwrap().into_data().unwrap(), "x");
}

#[tokio::test]
async fn a_body_that_uses_up_the_budget_without_a_frame_is_late_all_the_same() {
    let greedy = || {
        StreamBody::new(stream::poll_fn(|cx| {
            while pin!(consume_budget()).poll(cx).is_ready() {}
            Poll::<Option<Result<Frame<Bytes>, Infallible>>>::Pending
        }))
    };
    let timed = TimeoutBody::new(&Wheel::new(), ms(20), greedy()).collect();
    let timed = tokio::time::timeout(60 * SECOND, timed)
        .await
        .expect("it goes on");
    assert_elapsed(&*timed.unwrap_err(), LimitError::Timeout, ms(20));
    let limited = in_time(ms(20), greedy()).await.collect();
    let limited = tokio::time::timeout(60 * SECOND, limited)
        .await
        .expect("it goes on");
    assert_elapsed(&*limited.unwrap_err(), LimitError::Deadline, ms(20));
}

/// Counts its polls, and has hints of its own.
struct Hinted(Arc<AtomicUsize>, u64);

impl Body for Hinted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if self.1 == 0 {
            return Poll::Ready(None);
        }
        self.1 -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("x")))))
    }

    fn is_end_stream(&self) -> bool {
        self.1 == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.1)
    }
}

/// Answers a request with `body`.
fn answer<B>(body: B) -> Ready<Result<Response<B>, BoxError>> {
    ready(Ok(Response::new(body)))
}

/// Returns `body` as that of a response to a request that has this long from now.
async fn in_time<B>(left: Duration, body: B) -> DeadlineBody<B> {
    let mut body = Some(body);
    let service = service_fn(|_: Request<_>| answer(body.take().unwrap()));
    let layer = DeadlineLayer::from_request(|_: &Request<()>| Some(left)).bodies(true);
    layer
        .layer(service)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .into_body()
}

#[tokio::test(start_paused = true)]
async fn hints_are_those_of_the_body_and_nothing_is_read_ahead() {
    let polls = Arc::new(AtomicUsize::new(0));
    let make = || Hinted(polls.clone(), 3);
    let timeout = TimeoutBody::new(&Wheel::new(), SECOND, make()).boxed();
    let deadline = in_time(SECOND, make()).await.boxed();
    for mut body in [timeout, deadline] {
        polls.store(0, Ordering::SeqCst);
        for left in (0..3).rev() {
            assert_eq!(body.size_hint().exact(), Some(left + 1));
            assert!(!body.is_end_stream());
            body.frame().await.unwrap().unwrap();
            assert_eq!(polls.load(Ordering::SeqCst) as u64, 3 - left);
        }
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_inside_the_scope_of_its_request() {
    struct Tells(Arc<std::sync::Mutex<Vec<Option<Duration>>>>);
    impl Tells {
        fn tell(&self) {
            self.0.lock().unwrap().push(deadline::remaining());
        }
    }
    impl Drop for Tells {
        fn drop(&mut self) {
            self.tell();
        }
    }
    let told = Arc::default();
    let tells = Tells(Arc::clone(&told));
    let body = StreamBody::new(trickle(10, SECOND).inspect(move |_| tells.tell()));
    let error = in_time(ms(2_500), body).await.collect().await.unwrap_err();
    assert_elapsed(&*error, LimitError::Deadline, ms(2_500));
    assert_eq!(
        *told.lock().unwrap(),
        [Some(ms(1_500)), Some(ms(500)), Some(Duration::ZERO)]
    );
    assert_eq!(deadline::current(), None);
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_the_sooner_of_two_deadlines() {
    let start = Instant::now();
    let endless = || in_time(20 * SECOND, StreamBody::new(trickle(1_000, SECOND)));
    let body = deadline::within(5 * SECOND, endless()).await.unwrap();
    assert_elapsed(
        &*body.collect().await.unwrap_err(),
        LimitError::Deadline,
        5 * SECOND,
    );
    assert_due(start, 5 * SECOND);

    // One around the poll of the body, which hears of it first.
    let start = Instant::now();
    let body = endless().await;
    let error = deadline::within(2 * SECOND, body.collect())
        .await
        .unwrap()
        .unwrap_err();
    assert_elapsed(&*error, LimitError::Deadline, 2 * SECOND);
    assert_due(start, 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_shield_in_a_body_completes() {
    let committed = AtomicUsize::new(0);
    let commits = async {
        deadline::shield(async {
            sleep(3 * SECOND).await;
            committed.fetch_add(1, Ordering::SeqCst);
        })
        .await;
        pending::<Result<Frame<Bytes>, Infallible>>().await
    };
    let start = Instant::now();
    let body = in_time(SECOND, StreamBody::new(stream::once(commits))).await;
    assert_elapsed(&*body.collect().await.unwrap_err(), LimitError::Deadline, SECOND);
    assert_due(start, 3 * SECOND);
    assert_eq!(committed.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn past_the_deadline_only_a_last_frame_counts() {
    let body = in_time(SECOND, Full::new(Bytes::from("all of it"))).await;
    sleep(60 * SECOND).await;
    assert_eq!(body.collect().await.unwrap().to_bytes(), "all of it");

    let always_ready = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from("x"))));
    let mut body = in_time(SECOND, StreamBody::new(always_ready)).await;
    for _ in 0..10 {
        body.frame().await.unwrap().unwrap();
        sleep(ms(100)).await;
    }
    assert!(
        body.frame().await.unwrap().is_ok(),
        "it speaks first at the same instant"
    );
    sleep(ms(1)).await;
    assert_elapsed(
        &*body.frame().await.unwrap().unwrap_err(),
        LimitError::Deadline,
        SECOND,
    );
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn without_bodies_or_a_deadline_nothing_is_limited() {
    if !in_own_process(without_bodies_or_a_deadline_nothing_is_limited, "") {
        return;
    }
    let ten_seconds = || StreamBody::new(trickle(10, SECOND));
    let heads = DeadlineLayer::from_request(|_: &Request<()>| Some(ms(2_500)));
    let service = heads
        .clone()
        .layer(service_fn(|_: Request<()>| answer(ten_seconds())));
    let body = service.oneshot(Request::new(())).await.unwrap().into_body();
    assert_eq!(BodyExt::collect(body).await.unwrap().to_bytes().len(), 10);

    let service = service_fn(|_: Request<DeadlineBody<()>>| answer(ten_seconds()));
    let body = heads
        .bodies(false)
        .layer(service)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes().len(), 10);

    // A client's, whose response is read outside the scope.
    let client = PropagateLayer::new(|_: &mut Request<()>, _| ()).bodies(false);
    let call = client.layer(service).oneshot(Request::new(()));
    let body = deadline::within(ms(2_500), call)
        .await
        .unwrap()
        .unwrap()
        .into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes().len(), 10);

    let never = DeadlineLayer::from_request(|_: &Request<()>| None).bodies(true);
    let body = never
        .layer(service)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes().len(), 10);
    assert_eq!(Wheel::global().pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_in_time_frees_the_timer_of_its_deadline() {
    if !in_own_process(a_body_that_ends_in_time_frees_the_timer_of_its_deadline, "") {
        return;
    }
    let mut body = pin!(in_time(60 * SECOND, StreamBody::new(trickle(3, SECOND))).await);
    body.frame().await.unwrap().unwrap();
    assert_eq!(Wheel::global().pending(), 1);
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    assert_eq!(Wheel::global().pending(), 0);
}

#[test]
fn the_error_says_which_limit_it_was_and_how_long() {
    support::paused_runtime().block_on(async {
        let silent = || StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let error = TimeoutBody::new(&Wheel::new(), ms(1_500), silent())
            .collect()
            .await
            .unwrap_err();
        crate::errors::assert_shows(&*error, "timeout has elapsed: no frame of the body came for 1.5s");
        let error = *error.downcast::<BodyElapsed>().unwrap();
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    });
}

// Over HTTP.

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    Http1,
    Http2,
}

const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

/// Serves one connection, and returns the client's end of it, as a service, and how the connection of the
/// server ended.
async fn connect<S, B, C>(version: Version, service: S) -> (Connection<C>, JoinHandle<hyper::Result<()>>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Future: Send, Error: Into<BoxError>>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    C: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (near, far) = duplex(1024);
    let (near, far) = (TokioIo::new(near), TokioIo::new(far));
    let service = TowerToHyperService::new(service);
    match version {
        Version::Http1 => {
            let server = tokio::spawn(http1::Builder::new().serve_connection(far, service));
            let (sender, connection) = client1::handshake(near).await.unwrap();
            tokio::spawn(connection);
            (Connection::Http1(sender), server)
        }
        Version::Http2 => {
            let server =
                tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(far, service));
            let (sender, connection) = client2::handshake(TokioExecutor::new(), near).await.unwrap();
            tokio::spawn(connection);
            (Connection::Http2(sender), server)
        }
    }
}

enum Connection<C> {
    Http1(client1::SendRequest<C>),
    Http2(client2::SendRequest<C>),
}

impl<C: Body<Data: Send, Error: Into<BoxError>> + Send + 'static> Service<Request<C>> for Connection<C> {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        match self {
            Connection::Http1(sender) => sender.poll_ready(cx),
            Connection::Http2(sender) => sender.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Request<C>) -> Self::Future {
        match self {
            Connection::Http1(sender) => Box::pin(sender.send_request(request)),
            Connection::Http2(sender) => Box::pin(sender.send_request(request)),
        }
    }
}

fn post<B>(body: B) -> Request<B> {
    Request::post("http://localhost/")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

/// Reads the body of a response, and returns how many bytes came until it ended.
async fn read(
    body: &mut (impl Body<Data = Bytes, Error: std::fmt::Debug> + Unpin),
) -> (usize, Result<Option<HeaderMap>, String>) {
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Err(error) => return (bytes, Err(format!("{error:?}"))),
            Ok(frame) => match frame.into_data() {
                Ok(data) => bytes += data.len(),
                Err(frame) => return (bytes, Ok(frame.into_trailers().ok())),
            },
        }
    }
    (bytes, Ok(None))
}

#[tokio::test(start_paused = true)]
async fn a_download_does_not_pass_the_deadline_and_gives_its_permit_back() {
    if !in_own_process(
        a_download_does_not_pass_the_deadline_and_gives_its_permit_back,
        "",
    ) {
        return;
    }
    for version in VERSIONS {
        let permits = Arc::new(Semaphore::new(1));
        let given = permits.clone();
        let downloads = service_fn(move |_: Request<_>| {
            let permit = given.clone().try_acquire_owned().unwrap();
            answer(holding(permit, 10, SECOND))
        });
        let layer = DeadlineLayer::from_request(|_: &Request<Incoming>| Some(ms(2_500))).bodies(true);
        let (mut client, server) = connect(version, layer.layer(downloads)).await;
        let start = Instant::now();
        let mut response = client.call(post(Empty::<Bytes>::new())).await.unwrap();
        assert_eq!(permits.available_permits(), 0);
        let (bytes, outcome) = read(response.body_mut()).await;
        assert_eq!(bytes, 2, "{version:?}");
        outcome.unwrap_err();
        assert_due(start, ms(2_500));
        assert_eq!(permits.available_permits(), 1);
        drop((client, response));
        let outcome = server.await.unwrap();
        if version == Version::Http1 {
            assert_elapsed(&outcome.unwrap_err(), LimitError::Deadline, ms(2_500));
        }
        assert_eq!(Wheel::global().pending(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_does_not_stretch_the_deadline() {
    for version in VERSIONS {
        let always_ready = || {
            StreamBody::new(stream::repeat_with(|| {
                Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; 4096])))
            }))
        };
        let downloads = service_fn(move |_: Request<_>| answer(always_ready()));
        let layer = DeadlineLayer::from_request(|_: &Request<Incoming>| Some(ms(2_500))).bodies(true);
        let (mut client, _server) = connect(version, layer.layer(downloads)).await;
        let start = Instant::now();
        let mut response = client.call(post(Empty::<Bytes>::new())).await.unwrap();
        let mut frames = 0;
        while response.body_mut().frame().await.unwrap().is_ok() {
            frames += 1;
            sleep(ms(100)).await;
        }
        assert!(frames > 10, "{version:?}: {frames}");
        // What was on its way by then still comes.
        assert!(
            (ms(2_500)..60 * SECOND).contains(&start.elapsed()),
            "{version:?}: {:?}",
            start.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_does_not_pass_the_deadline() {
    for version in VERSIONS {
        let (ended, end) = tokio::sync::oneshot::channel();
        let ended = Arc::new(std::sync::Mutex::new(Some(ended)));
        // The upload goes on in a task, after the response, outside the scope of the handler.
        let uploads = service_fn(move |request: Request<DeadlineBody<Incoming>>| {
            let ended = ended.lock().unwrap().take().unwrap();
            tokio::spawn(async move {
                let outcome = request.into_body().collect().await;
                ended.send((Instant::now(), outcome.map(|_| ()))).unwrap();
            });
            answer(Empty::<Bytes>::new())
        });
        let layer = DeadlineLayer::from_request(|_: &Request<Incoming>| Some(ms(2_500))).bodies(true);
        let (mut client, _server) = connect(version, layer.layer(uploads)).await;
        let start = Instant::now();
        let upload = StreamBody::new(Box::pin(trickle(10, SECOND)));
        let response = client.call(post(upload)).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO, "{version:?}");
        let (at, outcome) = end.await.unwrap();
        assert_elapsed(&*outcome.unwrap_err(), LimitError::Deadline, ms(2_500));
        assert_eq!(at - start, ms(2_500), "{version:?}");
        drop(response);
    }
}

/// A handler that answers with what became of the upload.
async fn report<B: Body<Error: Into<BoxError>>>(
    request: Request<B>,
) -> Result<Response<Full<Bytes>>, BoxError> {
    let report = match request.into_body().collect().await {
        Ok(collected) => {
            let trailers = collected.trailers().map_or(0, HeaderMap::len);
            format!("{} bytes, {trailers} trailers", collected.to_bytes().len())
        }
        Err(error) => error.into().to_string(),
    };
    Ok(Response::new(Full::from(report)))
}

/// Sends an upload, and returns what the handler says of it.
async fn upload<S, A, B>(version: Version, service: S, body: B) -> String
where
    S: Service<Request<Incoming>, Response = Response<A>, Future: Send, Error: Into<BoxError>>
        + Clone
        + Send
        + 'static,
    A: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (mut client, _server) = connect(version, service).await;
    let response = client.call(post(body)).await.unwrap();
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

/// Asserts that a request failed because its body elapsed. hyper's client tells the reason by HTTP/1 only.
#[track_caller]
fn assert_sent(version: Version, error: &hyper::Error, limit: LimitError, duration: Duration) {
    match version {
        Version::Http1 => assert_elapsed(error, limit, duration),
        Version::Http2 => assert!(format!("{error:?}").contains("Reset"), "{error:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_limits_what_it_sends_and_what_it_reads() {
    for version in VERSIONS {
        let wheel = Wheel::new();
        let silent = service_fn(|_: Request<Incoming>| {
            let silent = StreamBody::new(trickle(2, SECOND).chain(stream::pending()));
            answer(silent)
        });
        let (client, _server) = connect(version, silent).await;
        let mut client = ResponseBodyTimeout::new(&wheel, 2 * SECOND, client);
        let start = Instant::now();
        let response = client.call(post(Empty::<Bytes>::new())).await.unwrap();
        let error = response.into_body().collect().await.unwrap_err();
        assert_elapsed(&*error, LimitError::Timeout, 2 * SECOND);
        assert_due(start, 4 * SECOND);

        let (client, _server) = connect(version, service_fn(report)).await;
        let mut client = RequestBodyTimeout::new(&wheel, 2 * SECOND, client);
        let stalled = StreamBody::new(Box::pin(trickle(2, SECOND).chain(stream::pending())));
        let start = Instant::now();
        let error = client.call(post(stalled)).await.unwrap_err();
        assert_sent(version, &error, LimitError::Timeout, 2 * SECOND);
        assert_due(start, 4 * SECOND);
        settle().await;
        assert_eq!(wheel.pending(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_carries_its_scope_into_the_bodies() {
    for version in VERSIONS {
        let header = DeadlineHeader::connect_timeout_ms();
        let layer = PropagateLayer::new(header.writer()).bodies(true);
        let endless = service_fn(|request: Request<Incoming>| {
            assert_eq!(request.headers()["connect-timeout-ms"], "5000");
            answer(StreamBody::new(trickle(1_000, SECOND)))
        });
        let (client, _server) = connect(version, endless).await;
        let start = Instant::now();
        let call = deadline::within(
            5 * SECOND,
            layer.layer(client).oneshot(post(Empty::<Bytes>::new())),
        );
        let response = call.await.unwrap().unwrap();
        let error = tokio::spawn(response.into_body().collect())
            .await
            .unwrap()
            .unwrap_err();
        assert_elapsed(&*error, LimitError::Deadline, 5 * SECOND);
        assert_due(start, 5 * SECOND);

        // hyper sends the body in a task of its own; the response is awaited outside the scope.
        let (client, _server) = connect(version, service_fn(report)).await;
        let start = Instant::now();
        let remaining = Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = remaining.clone();
        let endless =
            trickle(1_000, SECOND).inspect(move |_| told.lock().unwrap().push(deadline::remaining()));
        let mut client = PropagateLayer::new(header.writer()).bodies(true).layer(client);
        let body = StreamBody::new(Box::pin(endless));
        let call = deadline::within(5 * SECOND, futures::future::lazy(|_| client.call(post(body))))
            .await
            .unwrap();
        assert_sent(
            version,
            &call.await.unwrap_err(),
            LimitError::Deadline,
            5 * SECOND,
        );
        assert_due(start, 5 * SECOND);
        let left: Vec<_> = (1..5).rev().map(|seconds| Some(seconds * SECOND)).collect();
        assert_eq!(remaining.lock().unwrap()[..4], left);
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_and_lengths_are_kept() {
    let with_trailers = || {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        let last = stream::iter([Ok::<_, Infallible>(Frame::trailers(trailers))]);
        StreamBody::new(Box::pin(trickle(3, SECOND).chain(last)))
    };
    for version in VERSIONS {
        let wheel = Wheel::new();
        let limits = ServiceBuilder::new()
            .layer(DeadlineLayer::from_request(|_: &Request<Incoming>| Some(60 * SECOND)).bodies(true))
            .layer(RequestBodyTimeoutLayer::new(&wheel, 2 * SECOND))
            .layer(ResponseBodyTimeoutLayer::new(&wheel, 2 * SECOND));
        let told = upload(
            version,
            limits.clone().service(service_fn(report)),
            with_trailers(),
        )
        .await;
        // hyper's client sends trailers by HTTP/1 only if the header `trailer` announces them.
        let trailers = usize::from(version == Version::Http2);
        assert_eq!(told, format!("3 bytes, {trailers} trailers"));

        let downloads = service_fn(move |_: Request<_>| {
            let response = Response::builder()
                .header("trailer", "x-sum")
                .body(with_trailers());
            std::future::ready(Ok::<_, BoxError>(response.unwrap()))
        });
        let (mut client, _server) = connect(version, limits.clone().service(downloads)).await;
        let mut response = client.call(post(Empty::<Bytes>::new())).await.unwrap();
        let (bytes, trailers) = read(response.body_mut()).await;
        assert_eq!(
            (bytes, &trailers.unwrap().unwrap()["x-sum"]),
            (3, &"7".parse().unwrap()),
            "{version:?}"
        );

        let full = service_fn(|_: Request<_>| answer(Full::new(Bytes::from("hello"))));
        let (mut client, _server) = connect(version, limits.service(full)).await;
        let response = client.call(post(Empty::<Bytes>::new())).await.unwrap();
        assert_eq!(response.headers()["content-length"], "5", "{version:?}");
        assert_eq!(wheel.pending(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn they_are_layers_of_an_axum_router() {
    let endless = async || axum::body::Body::new(StreamBody::new(trickle(1_000, SECOND)));
    let echo = async |request: AxumRequest| request.into_body();
    let late = async || pending::<()>().await;
    let by_seconds = |request: &AxumRequest| {
        let seconds = request.headers().get("x-seconds")?.to_str().ok()?;
        seconds.parse().ok().map(Duration::from_secs)
    };
    // A late answer is not cut off, although the deadline has passed.
    let answer = |_| {
        let slowly = axum::body::Body::new(StreamBody::new(trickle(3, SECOND)));
        (StatusCode::GATEWAY_TIMEOUT, slowly).into_response()
    };
    let router = || {
        Router::new()
            .route("/endless", any(endless))
            .route("/echo", any(echo))
            .route("/late", any(late))
    };
    let layer = DeadlineLayer::from_request(by_seconds);
    for app in [
        router().layer(layer.clone().bodies(true).respond_with(answer)),
        router().layer(layer.respond_with(answer).bodies(true)),
    ] {
        let wheel = Wheel::new();
        let app = app
            .layer(RequestBodyTimeoutLayer::new(&wheel, 10 * SECOND))
            .layer(ResponseBodyTimeoutLayer::new(&wheel, 10 * SECOND));
        let ask = async |path: &str, seconds: u64, body| {
            let start = Instant::now();
            let request = Request::post(path)
                .header("x-seconds", seconds)
                .body(body)
                .unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let outcome = response.into_body().collect().await;
            let outcome = match outcome {
                Ok(collected) => Ok(collected.to_bytes().len()),
                Err(error) => Err(*elapsed(&error).unwrap()),
            };
            (status, outcome.map_err(|error| error.duration()), start.elapsed())
        };
        let empty = axum::body::Body::empty;
        let slow = || axum::body::Body::new(StreamBody::new(trickle(3, SECOND)));
        assert_eq!(
            ask("/endless", 5, empty()).await,
            (200, Err(5 * SECOND), 5 * SECOND)
        );
        assert_eq!(ask("/echo", 5, slow()).await, (200, Ok(3), 3 * SECOND));
        assert_eq!(ask("/echo", 2, slow()).await, (200, Err(2 * SECOND), 2 * SECOND));
        assert_eq!(ask("/late", 5, empty()).await, (504, Ok(3), 8 * SECOND));
        assert_eq!(ask("/late", 0, empty()).await, (504, Ok(3), 3 * SECOND));
    }
}

#[tokio::test(start_paused = true)]
async fn an_axum_server_cuts_off_downloads_and_hears_of_uploads() {
    let report = async |body: axum::body::Body| match body.collect().await {
        Ok(body) => format!("{} bytes", body.to_bytes().len()),
        Err(error) => elapsed(&error).unwrap().to_string(),
    };
    let download = async || axum::body::Body::new(StreamBody::new(trickle(10, SECOND)));
    let deadline = DeadlineLayer::from_request(|_: &AxumRequest| Some(ms(2_500)))
        .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
        .bodies(true);
    let wheel = Wheel::new();
    let app = Router::new()
        .route("/download", any(download))
        .route("/upload", any(report))
        .layer(deadline)
        .route(
            "/gaps",
            any(report).layer(RequestBodyTimeoutLayer::new(&wheel, 2 * SECOND)),
        )
        .route(
            "/silent",
            any(async || axum::body::Body::new(StreamBody::new(trickle(2, 3 * SECOND)))),
        )
        .layer(ResponseBodyTimeoutLayer::new(&wheel, 2 * SECOND));
    for version in VERSIONS {
        let ask = async |path: &str, frames: u32, pause: Duration| {
            let (mut client, _server) = connect(version, app.clone()).await;
            let start = Instant::now();
            let mut request = post(StreamBody::new(Box::pin(trickle(frames, pause))));
            *request.uri_mut() = format!("http://localhost{path}").parse().unwrap();
            let mut response = client.call(request).await.unwrap();
            let mut text = String::new();
            let whole = loop {
                match response.body_mut().frame().await {
                    Some(Ok(frame)) => text += &String::from_utf8_lossy(frame.data_ref().unwrap()),
                    Some(Err(_)) => break false,
                    None => break true,
                }
            };
            (text, whole, start.elapsed())
        };
        let cut = ("\0\u{1}".to_owned(), false, ms(2_500));
        assert_eq!(ask("/download", 0, SECOND).await, cut, "{version:?}");
        let late = "deadline has elapsed: the request body did not end within the 2.5s of its request";
        assert_eq!(ask("/upload", 10, SECOND).await, (late.into(), true, ms(2_500)));
        assert_eq!(
            ask("/upload", 2, SECOND).await,
            ("2 bytes".into(), true, 2 * SECOND)
        );
        assert_eq!(
            ask("/gaps", 9, SECOND).await,
            ("9 bytes".into(), true, 9 * SECOND)
        );
        let stalled = "timeout has elapsed: no frame of the request body came for 2s";
        assert_eq!(
            ask("/gaps", 9, 3 * SECOND).await,
            (stalled.into(), true, 2 * SECOND)
        );
        assert_eq!(
            ask("/silent", 0, SECOND).await,
            (String::new(), false, 2 * SECOND),
            "{version:?}"
        );
    }
}
