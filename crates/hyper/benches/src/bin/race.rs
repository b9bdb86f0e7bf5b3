//! Clients that mean well and whose pause is just `idle`, 100 ms and up to 3 ms less or more, or whose
//! requests fall to the end of `lifetime`: how many of their POSTs fail, of 2,000 by reqwest. It takes 40 s.

use std::{convert::Infallible, io, time::Duration};

use futures::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Bytes, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use reqwest::Client;
use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, RequestBody};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};

const CLIENTS: u64 = 20;
const REQUESTS: u64 = 100;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn answer(request: Request<RequestBody>) -> hyper::Result<Response<Full<Bytes>>> {
    request.into_body().collect().await?;
    Ok(Response::new(Full::from("hello")))
}

async fn accept(listener: TcpListener, limits: ConnectionLimits) -> io::Result<Infallible> {
    let builder = Builder::new(TokioExecutor::new());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(limits.serve(&builder, TokioIo::new(stream), service_fn(answer)));
    }
}

/// Returns how many requests fail.
async fn visit(client: Client, url: String, number: u64, pause: impl Fn(u64) -> Duration) -> usize {
    let mut failed = 0;
    for request in 0..REQUESTS {
        let sent = async { client.post(&url).body("hello").send().await?.bytes().await };
        // hyper's own client may wait for ever where a request crosses with the server's close.
        if !matches!(timeout(ms(8_000), sent).await, Ok(Ok(_))) {
            failed += 1;
        }
        sleep(pause(request * 7_919 + number * 104_729)).await;
    }
    failed
}

async fn race(
    name: &str,
    limits: &ConnectionLimits,
    pause: impl Fn(u64) -> Duration + Copy,
) -> io::Result<()> {
    for version in ["HTTP/1", "HTTP/2"] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        tokio::spawn(accept(listener, limits.clone()));
        let clients = (0..CLIENTS).map(|number| {
            let builder = Client::builder();
            let builder = if version == "HTTP/1" {
                builder.http1_only()
            } else {
                builder.http2_prior_knowledge()
            };
            let client = builder.build().expect("it can be built");
            visit(client, url.clone(), number, pause)
        });
        let failed: usize = join_all(clients).await.into_iter().sum();
        println!(
            "{name}, {version}: {failed} of {} failed, {:?}",
            CLIENTS * REQUESTS,
            limits.stats()
        );
    }
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let limits = || ConnectionLimits::new(&Wheel::new()).grace(ms(500));
    let around_idle = |number| Duration::from_micros(97_000 + number % 6_000);
    race("pauses of idle", &limits().idle(ms(100)), around_idle).await?;
    let short = |number| Duration::from_micros(number % 3_000);
    race(
        "a lifetime of 50 to 100 ms",
        &limits().lifetime(ms(100), ms(50)),
        short,
    )
    .await
}
