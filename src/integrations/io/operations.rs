//! The operations of a `TimeoutStream`. Each calls the inner stream and reports the outcome to [`Watch`](super::watch).

use std::{
    io::{self, IoSlice, SeekFrom},
    pin::Pin,
    task::{Context, Poll},
};

#[cfg(feature = "hyper-util")]
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use super::{TimeoutStream, watch::Operation};

impl<S: AsyncRead> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buffer.filled().len();
        let outcome = this.stream.poll_read(cx, buffer);
        let bytes = |_: &()| buffer.filled().len() - before;
        this.watch.watched(Operation::Read, outcome, bytes, cx)
    }
}

impl<S: AsyncWrite> AsyncWrite for TimeoutStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let outcome = this.stream.poll_write(cx, buffer);
        this.watch.watched(Operation::Write, outcome, |&bytes| bytes, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let outcome = this.stream.poll_write_vectored(cx, buffers);
        this.watch.watched(Operation::Write, outcome, |&bytes| bytes, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let outcome = this.stream.poll_flush(cx);
        this.watch.watched(Operation::Flush, outcome, |()| 0, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let outcome = this.stream.poll_shutdown(cx);
        this.watch.watched(Operation::Shutdown, outcome, |()| 0, cx)
    }
}

/// Seeks are forwarded to the inner stream, and no timeout applies to them.
impl<S: AsyncSeek> AsyncSeek for TimeoutStream<S> {
    fn start_seek(self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.project().stream.start_seek(position)
    }

    fn poll_complete(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.project().stream.poll_complete(cx)
    }
}

/// hyper-util's clients require this trait of a connection, so with it the streams of a connector can be wrapped.
///
/// # Examples
///
/// A client that gives up on a server that reads nothing for ten seconds, or has not begun to answer after ten seconds, or is silent for as
/// long in the middle of its answer. A read timeout would [cut off long uploads](crate::io#under-hyper):
///
/// ```
/// use http_body_util::BodyExt;
/// use hyper::{Request, Response, Uri, server::conn::http1, service::service_fn};
/// use hyper_util::{client::legacy::{Client, connect::HttpConnector}, rt::{TokioExecutor, TokioIo}};
/// use std::{convert::Infallible, time::Duration};
/// use tickwheel::{Wheel, io::TimeoutStream, tower::{ResponseBodyTimeoutLayer, TimeoutLayer}};
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
///
/// const TEN_SECONDS: Duration = Duration::from_secs(10);
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let wheel = Wheel::new();
/// let connector = HttpConnector::new().map_response({
///     let wheel = wheel.clone();
///     move |connection| {
///         let mut stream = TimeoutStream::new(&wheel, connection.into_inner());
///         stream.set_write_timeout(Some(TEN_SECONDS));
///         TokioIo::new(stream)
///     }
/// });
/// let mut client = ServiceBuilder::new()
///     .layer(TimeoutLayer::new(&wheel, TEN_SECONDS))
///     .layer(ResponseBodyTimeoutLayer::new(&wheel, TEN_SECONDS))
///     .service(Client::builder(TokioExecutor::new()).build(connector));
/// #
/// # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let uri: Uri = format!("http://{}", listener.local_addr()?).parse()?;
/// # tokio::spawn(async move {
/// #     let stream = TokioIo::new(listener.accept().await.unwrap().0);
/// #     let hello = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::from("hello"))));
/// #     http1::Builder::new().serve_connection(stream, hello).await
/// # });
/// let response = client.call(Request::get(uri).body(String::new())?).await?;
/// assert_eq!(response.into_body().collect().await?.to_bytes(), "hello");
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "hyper-util")]
impl<S: Connection> Connection for TimeoutStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}
