//! QUIC endpoints whose timers are on a wheel: real handshakes and transfers over UDP on loopback.

use std::{
    future::poll_fn,
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use quinn::{
    AsyncTimer, AsyncUdpSocket, ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, Runtime,
    ServerConfig, TokioRuntime, TransportConfig, UdpPoller,
    rustls::{
        RootCertStore,
        pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    },
    udp::{RecvMeta, Transmit},
};
use tickwheel::Wheel;
use tickwheel_quinn::WheelRuntime;
use tokio::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Tokio's runtime, which counts the timers that it was asked for, and may lose every nth datagram.
#[derive(Debug, Default)]
struct Observed {
    timers: AtomicUsize,
    lose_each: Option<usize>,
}

impl Runtime for Observed {
    fn new_timer(&self, deadline: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        self.timers.fetch_add(1, Ordering::Relaxed);
        TokioRuntime.new_timer(deadline)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(match self.lose_each {
            None => socket,
            Some(each) => Arc::new(Lossy {
                socket,
                each,
                sent: AtomicUsize::new(0),
            }),
        })
    }
}

#[derive(Debug)]
struct Lossy {
    socket: Arc<dyn AsyncUdpSocket>,
    each: usize,
    sent: AtomicUsize,
}

impl AsyncUdpSocket for Lossy {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        if sent % self.each == 0 {
            return Ok(());
        }
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// A connection between two endpoints of one process, all timers on one wheel, and the endpoints.
struct Pair {
    client: Connection,
    server: Connection,
    endpoints: [Endpoint; 2],
}

impl Pair {
    async fn connect(wheel: &Wheel, runtime: Arc<dyn Runtime>, transport: TransportConfig) -> Pair {
        let transport = Arc::new(transport);
        let runtime: Arc<dyn Runtime> = Arc::new(WheelRuntime::new(wheel, runtime));
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let certificate = CertificateDer::from(certified.cert);
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();

        let mut server = ServerConfig::with_single_cert(vec![certificate], key.into()).unwrap();
        server.transport_config(transport.clone());
        let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
        client.transport_config(transport);

        let endpoint = |server| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            Endpoint::new(EndpointConfig::default(), server, socket, runtime.clone()).unwrap()
        };
        let endpoints = [endpoint(None), endpoint(Some(server))];
        let address = endpoints[1].local_addr().unwrap();
        let connecting = endpoints[0].connect_with(client, address, "localhost").unwrap();
        let accepting = async { endpoints[1].accept().await.unwrap().await };
        let (client, server) = tokio::try_join!(connecting, accepting).unwrap();
        Pair {
            client,
            server,
            endpoints,
        }
    }

    /// Sends so many bytes to the server, which sends them back.
    async fn echo(&self, bytes: usize) {
        let message: Arc<[u8]> = (0..bytes).map(|n| (n * 31 + n / 251) as u8).collect();
        let server = self.server.clone();
        let echoing = tokio::spawn(async move {
            let (mut back, mut heard) = server.accept_bi().await.unwrap();
            let heard = heard.read_to_end(bytes).await.unwrap();
            back.write_all(&heard).await.unwrap();
            back.finish().unwrap();
        });
        let (mut there, mut back) = self.client.open_bi().await.unwrap();
        there.write_all(&message).await.unwrap();
        there.finish().unwrap();
        assert!(back.read_to_end(bytes).await.unwrap() == *message, "garbled");
        echoing.await.unwrap();
    }

    async fn close(self) {
        self.client.close(0u8.into(), b"done");
        drop((self.client, self.server));
        for endpoint in self.endpoints {
            endpoint.wait_idle().await;
        }
    }
}

fn idle_after(timeout: Duration) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(timeout.try_into().unwrap()));
    transport
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_and_a_transfer_with_all_timers_on_the_wheel() {
    let wheel = Wheel::new();
    let around = Arc::new(Observed::default());
    let pair = Pair::connect(&wheel, around.clone(), TransportConfig::default()).await;
    pair.echo(1 << 20).await;
    for _ in 0..20 {
        pair.echo(1_000).await;
    }
    assert!(wheel.metrics().registered >= 2, "{:?}", wheel.metrics());
    assert!(wheel.pending() <= 2, "one timer for each end of a connection");
    pair.close().await;
    assert_eq!(around.timers.load(Ordering::Relaxed), 0, "none on the runtime");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_times_out_at_both_ends_and_leaves_the_wheel() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let pair = Pair::connect(&wheel, Arc::new(TokioRuntime), idle_after(ms(200))).await;
    assert_eq!(pair.client.closed().await, ConnectionError::TimedOut);
    assert_eq!(pair.server.closed().await, ConnectionError::TimedOut);
    assert!(start.elapsed() >= ms(200));
    pair.close().await;
    while wheel.pending() > 0 {
        tokio::time::sleep(ms(1)).await; // until the connections' tasks have gone
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_alives_are_sent() {
    let wheel = Wheel::new();
    let mut transport = idle_after(60 * SECOND);
    transport.keep_alive_interval(Some(ms(10)));
    transport.mtu_discovery_config(None); // it sends pings too
    let pair = Pair::connect(&wheel, Arc::new(TokioRuntime), transport).await;
    let quiet = pair.client.stats().frame_tx.ping;
    while pair.client.stats().frame_tx.ping < quiet + 5 {
        wheel.sleep(ms(5)).await;
    }
    assert!(pair.client.close_reason().is_none());
    pair.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_on_the_way_is_sent_again() {
    let wheel = Wheel::new();
    let around = Arc::new(Observed {
        lose_each: Some(5),
        ..Observed::default()
    });
    let pair = Pair::connect(&wheel, around.clone(), idle_after(60 * SECOND)).await;
    pair.echo(100_000).await;
    let path = pair.client.stats().path;
    assert!(path.lost_packets > 0, "{path:?}");
    assert!(wheel.metrics().expired > 0, "{:?}", wheel.metrics());
    pair.close().await;
    assert_eq!(around.timers.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_wheel_refuses_no_connection() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let mut occupant = Box::pin(wheel.try_sleep(SECOND * 3600));
    let polled = poll_fn(|cx| Poll::Ready(occupant.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    let pair = Pair::connect(&wheel, Arc::new(TokioRuntime), idle_after(ms(200))).await;
    pair.echo(10_000).await;
    assert_eq!(pair.client.closed().await, ConnectionError::TimedOut);
    assert_eq!(wheel.metrics().rejected, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_no_connection() {
    let wheel = Wheel::new();
    let pair = Pair::connect(&wheel, Arc::new(TokioRuntime), idle_after(60 * SECOND)).await;
    pair.echo(1_000).await;
    drop(wheel.shutdown());
    for _ in 0..20 {
        pair.echo(10_000).await;
    }
    assert!(pair.client.close_reason().is_none());
    pair.close().await;
}

// The timer alone.

async fn expire(timer: &mut Pin<Box<dyn AsyncTimer>>) {
    poll_fn(|cx| timer.as_mut().poll(cx)).await;
}

#[tokio::test(start_paused = true)]
async fn a_timer_is_due_at_its_instant_and_at_every_one_it_is_reset_to() {
    let wheel = Wheel::new();
    let runtime = WheelRuntime::new(&wheel, Arc::new(TokioRuntime));
    let start = Instant::now();
    assert_eq!(runtime.now(), start.into_std());
    let mut timer = runtime.new_timer((start + SECOND).into_std());
    expire(&mut timer).await;
    assert_eq!(start.elapsed(), SECOND);

    // Later and earlier, while it waits, and again after it has expired.
    for (first, then) in [(1, 3), (3600, 2), (2, 2)] {
        let start = Instant::now();
        timer.as_mut().reset((start + first * SECOND).into_std());
        assert!(
            timer
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        assert_eq!(wheel.pending(), 1);
        timer.as_mut().reset((start + then * SECOND).into_std());
        expire(&mut timer).await;
        assert_eq!(start.elapsed(), then * SECOND);
    }
    assert_eq!(wheel.pending(), 0);
}
