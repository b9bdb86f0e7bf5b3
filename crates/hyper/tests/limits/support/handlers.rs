//! What the server under test answers.

use std::{convert::Infallible, error::Error, sync::LazyLock};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper_util::rt::TokioIo;
use tickwheel_hyper::RequestBody;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pause;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) static BIG: LazyLock<Bytes> = LazyLock::new(|| vec![b'x'; 1_000_000].into());

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn streamed(frames: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(frames.map(|data| Ok(Frame::data(data)))).boxed_unsync()
}

pub(crate) async fn handle(
    mut request: Request<RequestBody>,
) -> Result<Response<Body>, Box<dyn Error + Send + Sync>> {
    let path = request.uri().path().to_owned();
    let body = match path.as_str() {
        "/" => full("hello"),
        "/empty" => full(""),
        // Whole, and in pieces.
        "/big" => full(BIG.clone()),
        "/pieces" => streamed(stream::iter(BIG.chunks(16_384).map(Bytes::from_static))),
        "/slow" => {
            pause(1_000).await;
            full("slow")
        }
        // One each 400 ms.
        "/events" => streamed(stream::iter(0..4).then(|_| async {
            pause(400).await;
            Bytes::from_static(b"event\n")
        })),
        "/length" => {
            let body = request.into_body().collect().await?.to_bytes();
            full(format!("{} bytes", body.len()))
        }
        // Reads a frame, works for 400 ms, and reads the next.
        "/work" => {
            let mut frames = 0;
            while let Some(frame) = request.body_mut().frame().await {
                frame?;
                frames += 1;
                pause(400).await;
            }
            full(format!("{frames} frames"))
        }
        // Reads the body to its last byte, and works on with the request for an hour.
        "/keep" => {
            while !request.body().is_end_stream() {
                request.body_mut().frame().await.transpose()?;
            }
            tokio::spawn(async move {
                pause(3_600_000).await;
                drop(request);
            });
            full("hello")
        }
        "/last" => {
            let mut last = Response::new(full("last"));
            last.headers_mut().insert("connection", "close".parse()?);
            return Ok(last);
        }
        "/fails" => return Err("the handler has failed".into()),
        "/upgrade" => {
            tokio::spawn(echo(request));
            let mut switching = Response::new(full(""));
            *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            switching.headers_mut().insert("upgrade", "echo".parse()?);
            switching.headers_mut().insert("connection", "upgrade".parse()?);
            return Ok(switching);
        }
        // By `CONNECT`.
        _ => {
            tokio::spawn(echo(request));
            full("")
        }
    };
    Ok(Response::new(body))
}

/// Takes the stream over, and sends back what comes.
async fn echo(mut request: Request<RequestBody>) {
    let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
    let mut io = TokioIo::new(upgraded);
    let mut buffer = [0; 100];
    while let Ok(length @ 1..) = io.read(&mut buffer).await {
        if io.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
}
