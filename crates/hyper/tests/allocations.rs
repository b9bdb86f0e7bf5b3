//! What a connection and a request allocate, counted by the allocator itself.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, AtomicUsize, Ordering},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body, Bytes, Incoming},
    client::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tickwheel::Wheel;
use tickwheel_hyper::ConnectionLimits;
use tokio::io::DuplexStream;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Counts what the process allocates, which runs one test.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(allocations: usize, bytes: isize) {
    ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
    LIVE.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: all is left to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

async fn echo<B: Body<Error = hyper::Error>>(request: Request<B>) -> hyper::Result<Response<Full<Bytes>>> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::from(body)))
}

/// Opens a connection of HTTP/1 or HTTP/2, under limits if there are any, and returns the client's side.
fn connect(limits: Option<&ConnectionLimits>) -> TokioIo<DuplexStream> {
    let mut builder = Builder::new(TokioExecutor::new());
    // A date is made anew with each second of the real clock, and so more often where the machine is slow.
    builder.http1().auto_date_header(false);
    builder.http2().auto_date_header(false);
    let (client, io) = tokio::io::duplex(256);
    let io = TokioIo::new(io);
    if let Some(limits) = limits {
        tokio::spawn(limits.serve(&builder, io, service_fn(echo)));
    } else {
        let connection = builder.serve_connection_with_upgrades(io, service_fn(echo));
        tokio::spawn(connection.into_owned());
    }
    TokioIo::new(client)
}

/// One without a body and one with.
fn requests() -> impl Iterator<Item = Request<Full<Bytes>>> {
    ["", "hello"].into_iter().map(|body| {
        let request = Request::post("http://a/").header("host", "a");
        request.body(Full::from(body)).unwrap()
    })
}

async fn read(response: Response<Incoming>) {
    response.into_body().collect().await.unwrap();
}

/// Opens connections that have answered a request.
async fn open(count: usize, limits: Option<&ConnectionLimits>) -> Vec<http1::SendRequest<Full<Bytes>>> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        let (mut client, connection) = http1::handshake(connect(limits)).await.unwrap();
        tokio::spawn(connection);
        read(client.send_request(requests().next().unwrap()).await.unwrap()).await;
        clients.push(client);
    }
    clients
}

/// Returns the bytes of a connection, and the allocations of a thousand requests of HTTP/1 and of HTTP/2.
async fn costs(limits: Option<&ConnectionLimits>) -> (isize, [usize; 2]) {
    const CONNECTIONS: usize = 2_000;
    // The first connection sets up the engine and the runtime.
    let first = open(1, limits).await;
    let before = LIVE.load(Ordering::Relaxed);
    let mut clients = open(CONNECTIONS, limits).await;
    let bytes = LIVE.load(Ordering::Relaxed) - before;

    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..500 {
        for request in requests() {
            read(clients[0].send_request(request).await.unwrap()).await;
        }
    }
    let http1 = ALLOCATIONS.load(Ordering::Relaxed) - before;
    drop((first, clients));

    let executor = TokioExecutor::new();
    let (mut client, connection) = http2::handshake(executor, connect(limits)).await.unwrap();
    tokio::spawn(connection);
    let mut before = 0;
    for round in 0..600 {
        // The first hundred fill h2's tables.
        if round == 100 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        for request in requests() {
            read(client.send_request(request).await.unwrap()).await;
        }
    }
    let http2 = ALLOCATIONS.load(Ordering::Relaxed) - before;
    (bytes / CONNECTIONS as isize, [http1, http2])
}

#[tokio::test(start_paused = true)]
async fn a_connection_takes_less_than_480_bytes_and_a_request_no_allocation() {
    let (bytes_without, requests_without) = costs(None).await;
    let limits = ConnectionLimits::new(&Wheel::new())
        .header(Duration::from_secs(10))
        .idle(Duration::from_secs(600))
        .body_progress(Duration::from_secs(10), 1_000)
        .lifetime(Duration::from_secs(3_600), Duration::from_secs(600));
    let (bytes, requests) = costs(Some(&limits)).await;
    let more = bytes - bytes_without;
    assert!(more <= 480, "{more} bytes");
    for (with, without) in requests.into_iter().zip(requests_without) {
        // Of a thousand requests. The runtime allocates now and then.
        assert!(with.abs_diff(without) < 10, "{with}, {without}");
    }
}
