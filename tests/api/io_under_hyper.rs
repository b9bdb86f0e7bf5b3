//! What the timeouts of a stream do under hyper, over pipes in paused time, and what is used instead of a
//! read timeout.

use std::{convert::Infallible, future::ready, io, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    client::conn::http1 as client,
    server::conn::http1,
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tickwheel::{
    Wheel,
    io::TimeoutStream,
    tower::{BodyElapsed, DeadlineLayer, RequestBodyTimeout, TimeoutBody},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower::{BoxError, Layer, service_fn};

use crate::support::{SECOND, assert_due};

type Stream = TimeoutStream<DuplexStream>;

/// A client that sends `body` to a server whose handler reads it, works for `work` and answers with a page of
/// 64 KiB.
async fn exchange<B>(
    body: B,
    work: Duration,
    configure: impl FnOnce(&mut Stream, &mut Stream),
) -> (hyper::Result<usize>, JoinHandle<hyper::Result<()>>)
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let wheel = Wheel::new();
    let (near, far) = duplex(1024);
    let mut near = TimeoutStream::new(&wheel, near);
    let mut far = TimeoutStream::new(&wheel, far);
    configure(&mut near, &mut far);
    let handler = hyper::service::service_fn(move |request: Request<Incoming>| async move {
        request.into_body().collect().await?;
        sleep(work).await;
        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(vec![0; 65_536]))))
    });
    let server = tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(far), handler));
    let (mut sender, connection) = client::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let outcome = match sender.send_request(request).await {
        Ok(response) => response
            .into_body()
            .collect()
            .await
            .map(|body| body.to_bytes().len()),
        Err(error) => Err(error),
    };
    (outcome, server)
}

/// Five frames in five seconds.
fn upload() -> impl Body<Data = Bytes, Error = Infallible> + Send {
    StreamBody::new(stream::iter(0..5).then(|_| async {
        sleep(SECOND).await;
        Ok(Frame::data(Bytes::from("x")))
    }))
}

fn is_timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let link = error.downcast_ref::<io::Error>();
    link.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        || error.source().is_some_and(is_timed_out)
}

#[tokio::test(start_paused = true)]
async fn a_read_or_idle_timeout_cuts_off_a_server_whose_handler_is_slower() {
    let two = Some(2 * SECOND);
    let configures: [fn(&mut Stream, Option<Duration>); 2] =
        [Stream::set_read_timeout, Stream::set_idle_timeout];
    for set in configures {
        let start = Instant::now();
        let (outcome, server) =
            exchange(Full::<Bytes>::default(), 5 * SECOND, |_, server| set(server, two)).await;
        outcome.unwrap_err();
        assert!(is_timed_out(&server.await.unwrap().unwrap_err()));
        assert_due(start, 2 * SECOND);
    }
    let (outcome, _server) = exchange(Full::<Bytes>::default(), 5 * SECOND, |_, server| {
        server.set_write_timeout(two)
    })
    .await;
    assert_eq!(outcome.unwrap(), 65_536);
}

#[tokio::test(start_paused = true)]
async fn a_read_timeout_cuts_off_a_client_that_still_uploads() {
    let two = Some(2 * SECOND);
    let start = Instant::now();
    let (outcome, _server) =
        exchange(upload(), Duration::ZERO, |client, _| client.set_read_timeout(two)).await;
    assert!(is_timed_out(&outcome.unwrap_err()));
    assert_due(start, 2 * SECOND);

    // What it sends counts for the idle timeout, until it has sent all and waits for a slow handler.
    let idle = |client: &mut Stream, _: &mut Stream| client.set_idle_timeout(two);
    assert!(exchange(upload(), Duration::ZERO, idle).await.0.is_ok());
    assert!(is_timed_out(
        &exchange(upload(), 5 * SECOND, idle).await.0.unwrap_err()
    ));
    let (outcome, _server) = exchange(upload(), 5 * SECOND, |client, _| client.set_write_timeout(two)).await;
    assert_eq!(outcome.unwrap(), 65_536);
}

/// The server of the documentation: it waits as long as it must for its handlers, and for nobody else.
#[tokio::test(start_paused = true)]
async fn a_header_timeout_a_write_timeout_and_a_body_timeout_cut_off_silent_clients_alone() {
    let serve = || {
        let wheel = Wheel::new();
        let (client, stream) = duplex(1024);
        let mut stream = TimeoutStream::new(&wheel, stream);
        stream.set_write_timeout(Some(2 * SECOND));
        let handler = service_fn(async |request: Request<TimeoutBody<Incoming>>| {
            match request.into_body().collect().await {
                Ok(_) => sleep(60 * SECOND).await,
                Err(error) => assert!(error.is::<BodyElapsed>(), "{error}"),
            }
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; 65_536]))))
        });
        let service = TowerToHyperService::new(RequestBodyTimeout::new(&wheel, 2 * SECOND, handler));
        let mut server = http1::Builder::new();
        server.timer(wheel).header_read_timeout(2 * SECOND);
        (
            client,
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service)),
        )
    };
    let start = Instant::now();
    let (mut client, server) = serve();
    client.write_all(b"POST / HT").await.unwrap();
    assert!(server.await.unwrap().unwrap_err().is_timeout());
    assert_due(start, 2 * SECOND);

    let start = Instant::now();
    let (mut client, _server) = serve();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel")
        .await
        .unwrap();
    client.read_u8().await.unwrap();
    assert_due(start, 2 * SECOND);

    let start = Instant::now();
    let (mut client, _server) = serve();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello")
        .await
        .unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_due(start, 60 * SECOND);
    assert!(answer.ends_with(&[b'x'; 65_536]));

    let start = Instant::now();
    let (mut client, server) = serve();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello")
        .await
        .unwrap();
    // It does not read the answer.
    assert!(is_timed_out(&server.await.unwrap().unwrap_err()));
    assert_due(start, 62 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_write_timeout_gives_back_what_a_download_holds_that_nobody_reads() {
    let permits = Arc::new(Semaphore::new(1));
    let given = permits.clone();
    let endless = service_fn(move |_: Request<_>| {
        let permit = given.clone().try_acquire_owned().unwrap();
        let frames = stream::repeat_with(move || {
            let _held = &permit;
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; 4_096])))
        });
        ready(Ok::<_, BoxError>(Response::new(StreamBody::new(frames))))
    });
    let (mut client, stream) = duplex(1024);
    let mut stream = TimeoutStream::new(&Wheel::new(), stream);
    stream.set_write_timeout(Some(5 * SECOND));
    let layer = DeadlineLayer::from_request(|_: &Request<Incoming>| Some(2 * SECOND)).bodies(true);
    let service = TowerToHyperService::new(layer.layer(endless));
    let server = tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    let start = Instant::now();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    // hyper does not ask the body for a frame while it cannot write, not even at the deadline.
    sleep(3 * SECOND).await;
    assert_eq!(permits.available_permits(), 0);
    assert!(is_timed_out(&server.await.unwrap().unwrap_err()));
    assert_due(start, 5 * SECOND);
    assert_eq!(permits.available_permits(), 1);
}
