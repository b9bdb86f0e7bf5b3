//! Idle connections in memory: what each takes, and how often it is woken: `idle COUNT none|limits [SECONDS]`.
//!
//! Each has answered one request. Memory is that of the whole process, by the difference of two runs.

use std::{
    convert::Infallible,
    env, fs,
    future::poll_fn,
    sync::atomic::{AtomicU64, Ordering},
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
use tickwheel_hyper_benches::usual_limits;

const USAGE: &str = "usage: idle COUNT none|limits [SECONDS]";

static POLLS: AtomicU64 = AtomicU64::new(0);

async fn hello<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// Counts the polls of a future.
fn counted<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        POLLS.fetch_add(1, Ordering::Relaxed);
        future.as_mut().poll(cx)
    })
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.expect("a number of KiB")
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = env::args().skip(1);
    let count: u64 = arguments.next().expect(USAGE).parse().expect(USAGE);
    let with_limits = arguments.next().expect(USAGE) == "limits";
    let seconds: u64 = arguments
        .next()
        .map_or(0, |seconds| seconds.parse().expect(USAGE));

    let (wheel, builder) = (Wheel::new(), Builder::new(TokioExecutor::new()));
    let limits = usual_limits(&wheel).idle(Duration::from_secs(600));
    let mut clients = Vec::new();
    let before = resident_kib();
    for _ in 0..count {
        let (client, io) = tokio::io::duplex(256);
        let io = TokioIo::new(io);
        if with_limits {
            let served = limits.serve(&builder, io, service_fn(hello));
            if seconds > 0 {
                tokio::spawn(counted(served));
            } else {
                tokio::spawn(served);
            }
        } else {
            let connection = builder.serve_connection_with_upgrades(io, service_fn(hello));
            tokio::spawn(connection.into_owned());
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.expect("it is there");
        tokio::spawn(connection);
        let request = Request::builder()
            .header("host", "a")
            .body(Full::<Bytes>::default());
        let response = sender
            .send_request(request.expect("it is one"))
            .await
            .expect("an answer");
        response.into_body().collect().await.expect("a body");
        clients.push(sender);
    }
    let bytes = (resident_kib() - before) * 1_024 / count;
    println!("{count} connections: {bytes} bytes each, both ends and hyper's included");
    for second in (10..=seconds).step_by(10) {
        let before = POLLS.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let polls = POLLS.load(Ordering::Relaxed) - before;
        println!("until {second} s: {polls} wake-ups, {} open", limits.stats().open);
    }
}
