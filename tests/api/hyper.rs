//! hyper's timers on a wheel: the trait itself, then real servers and clients, over pipes in paused time and
//! over loopback.

use crate::support;

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    rt::{Sleep, Timer},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tickwheel::Wheel;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep},
};

use support::{SECOND, assert_due};

// The trait.

#[tokio::test(start_paused = true)]
async fn now_follows_a_paused_clock() {
    let wheel = Wheel::new();
    let before = Timer::now(&wheel);
    assert_eq!(before, Instant::now().into_std());
    tokio::time::advance(3600 * SECOND).await;
    assert_eq!(Timer::now(&wheel), before + 3600 * SECOND);
    wheel.sleep(SECOND).await;
    assert_eq!(Timer::now(&wheel), Instant::now().into_std());
}

#[tokio::test]
async fn now_is_the_machines_clock_where_it_runs() {
    let before = std::time::Instant::now();
    let now = Timer::now(&Wheel::new());
    assert!((before..=std::time::Instant::now()).contains(&now));
}

#[tokio::test(start_paused = true)]
async fn reset_rearms_in_place() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut sleep = Timer::sleep(&wheel, SECOND);
    assert!(futures::poll!(&mut sleep).is_pending());
    let place: *const dyn Sleep = &*sleep;

    for second in 2..1000 {
        wheel.reset(&mut sleep, (start + second * SECOND).into_std());
    }
    assert!(std::ptr::addr_eq(place, &*sleep as *const dyn Sleep));
    assert_eq!(
        (wheel.pending(), wheel.metrics().registered),
        (1, 1),
        "a later deadline is a store"
    );

    wheel.reset(&mut sleep, (start + 10 * SECOND).into_std());
    sleep.as_mut().await;
    assert_due(start, 10 * SECOND);

    // Also after it has completed, as hyper does with every ping.
    wheel.reset(&mut sleep, (start + 30 * SECOND).into_std());
    sleep.as_mut().await;
    assert_due(start, 30 * SECOND);
    assert!(std::ptr::addr_eq(place, &*sleep as *const dyn Sleep));
}

#[tokio::test(start_paused = true)]
async fn reset_of_another_timers_sleep_replaces_it() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut sleep = Timer::sleep(&hyper_util::rt::TokioTimer::new(), 3600 * SECOND);
    wheel.reset(&mut sleep, (start + SECOND).into_std());
    sleep.await;
    assert_due(start, SECOND);
    assert_eq!(wheel.metrics().expired, 1);
}

// HTTP/1.

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"hello"))))
}

type Outcome = hyper::Result<()>;

fn serve_http1<S>(wheel: &Wheel, header_read_timeout: Duration, stream: S) -> JoinHandle<Outcome>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(
        http1::Builder::new()
            .timer(wheel.clone())
            .header_read_timeout(header_read_timeout)
            .serve_connection(TokioIo::new(stream), service_fn(hello)),
    )
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// Sends a request and reads the response, over a connection that is kept.
async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.write_all(REQUEST).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"hello") {
        assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0, "cut off");
    }
}

#[tokio::test(start_paused = true)]
async fn http1_cuts_off_a_client_that_sends_half_a_header() {
    let wheel = Wheel::new();
    let (mut client, stream) = duplex(1024);
    let server = serve_http1(&wheel, 5 * SECOND, stream);
    let start = Instant::now();
    client.write_all(&REQUEST[..10]).await.unwrap();
    assert!(server.await.unwrap().unwrap_err().is_timeout());
    assert_due(start, 5 * SECOND);
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn http1_keeps_a_client_that_asks_in_time() {
    let wheel = Wheel::new();
    let (mut client, stream) = duplex(1024);
    let server = serve_http1(&wheel, 5 * SECOND, stream);
    for _ in 0..1000 {
        exchange(&mut client).await;
        sleep(4 * SECOND).await;
    }
    drop(client);
    server.await.unwrap().unwrap();
    let metrics = wheel.metrics();
    assert_eq!((metrics.pending, metrics.expired), (0, 0));
    assert!(
        metrics.registered <= 1001,
        "one for each header waited for: {metrics:?}"
    );
}

/// A real server on loopback; for each connection, its outcome.
async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(serve(stream));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hyper_client_drops_pooled_connections_that_idle_out() {
    let wheel = Wheel::new();
    let (gone, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
    let address = listen({
        let wheel = wheel.clone();
        move |stream| {
            let server = serve_http1(&wheel, 3600 * SECOND, stream);
            let gone = gone.clone();
            tokio::spawn(async move { gone.send(server.await.unwrap()) })
        }
    })
    .await;
    // Also on a wheel shut down: the pool's task must not spin.
    for shut_down in [false, true] {
        if shut_down {
            drop(wheel.shutdown());
        }
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .pool_timer(wheel.clone())
            .pool_idle_timeout(Duration::from_millis(50))
            .build_http();
        let start = std::time::Instant::now();
        let response = client
            .get(format!("http://{address}/").parse().unwrap())
            .await
            .unwrap();
        let body = http_body_util::BodyExt::collect(response.into_body())
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(body, "hello");
        outcomes.recv().await.unwrap().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(50));
        drop(client);
    }
}

// HTTP/2.

fn serve_http2<S>(wheel: &Wheel, interval: Duration, timeout: Duration, stream: S) -> JoinHandle<Outcome>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(
        http2::Builder::new(TokioExecutor::new())
            .timer(wheel.clone())
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .serve_connection(TokioIo::new(stream), service_fn(hello)),
    )
}

/// A client that speaks as much HTTP/2 as it takes to hear pings.
struct Pinged<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Pinged<S> {
    const PING: u8 = 6;
    const SETTINGS: u8 = 4;
    const ACK: u8 = 1;

    async fn connect(mut stream: S) -> Pinged<S> {
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        let mut client = Pinged(stream);
        client.send(Self::SETTINGS, 0, &[]).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 0];
        frame.extend_from_slice(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    /// Waits for the next ping; `None` when the server has hung up.
    async fn ping(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut header = [0; 9];
            self.0.read_exact(&mut header).await.ok()?;
            let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            match (header[3], header[4] & Self::ACK) {
                (Self::PING, 0) => return Some(payload),
                (Self::SETTINGS, 0) => self.send(Self::SETTINGS, Self::ACK, &[]).await,
                _ => {}
            }
        }
    }

    async fn pong(&mut self, payload: &[u8]) {
        self.send(Self::PING, Self::ACK, payload).await;
    }
}

#[tokio::test(start_paused = true)]
async fn http2_pings_a_live_client_and_cuts_off_a_dead_one() {
    let wheel = Wheel::new();
    let (client, stream): (DuplexStream, _) = duplex(64 * 1024);
    let mut last = Instant::now();
    let server = serve_http2(&wheel, 10 * SECOND, 3 * SECOND, stream);
    let mut client = Pinged::connect(client).await;
    for _ in 0..100 {
        let payload = client.ping().await.unwrap();
        assert_due(last, 10 * SECOND);
        last = Instant::now();
        client.pong(&payload).await;
    }
    client.ping().await.unwrap();
    last = Instant::now();
    assert_eq!(client.ping().await, None);
    assert_due(last, 3 * SECOND);
    assert!(server.await.unwrap().unwrap_err().is_timeout());
    assert_eq!(wheel.pending(), 0);
}
