//! Sends requests in memory, one after the other, for callgrind to count their instructions, client and server
//! together: `cost h1|h2 none|limits|header_read_timeout get|later|post|big COUNT`. The script `cost` runs it.
//!
//! The handler of `get` answers at once, that of `later` waits once, `post` sends back a body of 1 KB, and
//! `big` answers 100 frames of 16 KB.

use std::{env, hint::black_box, time::Duration};

use http::{Request, Response};
use http_body_util::{BodyExt, Either, Full};
use hyper::{
    body::{Body, Bytes, Incoming},
    client::conn,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tickwheel::Wheel;
use tickwheel_hyper_benches::{Frames, usual_limits};
use tokio::{io::DuplexStream, runtime, task::yield_now};

const USAGE: &str = "usage: cost h1|h2 none|limits|header_read_timeout get|later|post|big COUNT";

type Answer = Response<Either<Full<Bytes>, Frames>>;

async fn handle<B: Body<Error = hyper::Error>>(request: Request<B>) -> Result<Answer, hyper::Error> {
    let body = match request.uri().path() {
        "/get" => Bytes::from_static(b"hello"),
        "/later" => {
            yield_now().await;
            Bytes::from_static(b"hello")
        }
        "/post" => request.into_body().collect().await?.to_bytes(),
        _ => return Ok(Response::new(Either::Right(Frames(100)))),
    };
    Ok(Response::new(Either::Left(Full::new(body))))
}

fn serve(limits: &str, io: DuplexStream) {
    let (wheel, io) = (Wheel::new(), TokioIo::new(io));
    let mut builder = Builder::new(TokioExecutor::new());
    if limits == "limits" {
        tokio::spawn(usual_limits(&wheel).serve(&builder, io, service_fn(handle)));
        return;
    }
    if limits == "header_read_timeout" {
        builder
            .http1()
            .timer(wheel)
            .header_read_timeout(Duration::from_secs(10));
    }
    let connection = builder.serve_connection_with_upgrades(io, service_fn(handle::<Incoming>));
    tokio::spawn(connection.into_owned());
}

fn request(work: &str) -> Request<Full<Bytes>> {
    let uri = format!("http://a/{work}");
    let builder = Request::builder().uri(uri).header("host", "a");
    let request = if work == "post" {
        builder.method("POST").body(Full::from(&[b'x'; 1_000][..]))
    } else {
        builder.body(Full::default())
    };
    request.expect("it is a request")
}

async fn read(response: Response<Incoming>) {
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        black_box(frame.expect("the body goes on"));
    }
}

async fn run(version: &str, limits: &str, work: &str, count: u32) -> Result<(), hyper::Error> {
    let (client, io) = tokio::io::duplex(1 << 16);
    serve(limits, io);
    let client = TokioIo::new(client);
    if version == "h1" {
        let (mut sender, connection) = conn::http1::handshake(client).await?;
        tokio::spawn(connection);
        for _ in 0..count {
            read(sender.send_request(request(work)).await?).await;
        }
    } else {
        let (mut sender, connection) = conn::http2::handshake(TokioExecutor::new(), client).await?;
        tokio::spawn(connection);
        for _ in 0..count {
            read(sender.send_request(request(work)).await?).await;
        }
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Ok([version, limits, work, count]) = <[String; 4]>::try_from(arguments) else {
        panic!("{USAGE}");
    };
    let count = count.parse().expect(USAGE);
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    // A task, as a client is, and not the future of `block_on`, which is woken in another way.
    let client = async move { run(&version, &limits, &work, count).await };
    let runtime = runtime.expect("it starts");
    let answered = runtime.block_on(async { tokio::spawn(client).await.expect("it ends") });
    answered.expect("every request is answered");
}
