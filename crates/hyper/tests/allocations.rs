//! What a connection and a request allocate, counted by the allocator itself.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    convert::Infallible,
    sync::atomic::{AtomicIsize, AtomicUsize, Ordering},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Bytes, client::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tickwheel::Wheel;
use tickwheel_hyper::ConnectionLimits;

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

async fn hello<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

async fn request(client: &mut http1::SendRequest<Full<Bytes>>) {
    let request = Request::builder().header("host", "a").body(Full::default());
    let response = client.send_request(request.unwrap()).await.unwrap();
    response.into_body().collect().await.unwrap();
}

/// Opens connections that have answered a request, under limits if there are any.
async fn open(count: usize, limits: Option<&ConnectionLimits>) -> Vec<http1::SendRequest<Full<Bytes>>> {
    let builder = Builder::new(TokioExecutor::new());
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        let (client, io) = tokio::io::duplex(256);
        let io = TokioIo::new(io);
        if let Some(limits) = limits {
            tokio::spawn(limits.serve(&builder, io, service_fn(hello)));
        } else {
            let connection = builder.serve_connection_with_upgrades(io, service_fn(hello));
            tokio::spawn(connection.into_owned());
        }
        let (mut client, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
        tokio::spawn(connection);
        request(&mut client).await;
        clients.push(client);
    }
    clients
}

/// Returns the bytes of a connection, and the allocations of a thousand requests.
async fn costs(limits: Option<&ConnectionLimits>) -> (isize, usize) {
    const CONNECTIONS: usize = 2_000;
    // The first connection sets up the engine and the runtime.
    let first = open(1, limits).await;
    let before = LIVE.load(Ordering::Relaxed);
    let mut clients = open(CONNECTIONS, limits).await;
    let bytes = LIVE.load(Ordering::Relaxed) - before;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1_000 {
        request(&mut clients[0]).await;
    }
    drop(first);
    (
        bytes / CONNECTIONS as isize,
        ALLOCATIONS.load(Ordering::Relaxed) - before,
    )
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
    // Of a thousand requests. The runtime allocates now and then.
    assert!(
        requests.abs_diff(requests_without) < 10,
        "{requests}, {requests_without}"
    );
}
