//! Read, write and idle timeouts for any [`AsyncRead`](tokio::io::AsyncRead) and
//! [`AsyncWrite`](tokio::io::AsyncWrite), on a wheel.
//!
//! # Under hyper
//!
//! hyper reads while it has nothing to read: its HTTP/1 server waits for the client to hang up while a
//! handler works, its client waits for the response while it still uploads, and its HTTP/2 connections always
//! read. So under hyper
//!
//! - a **read timeout** cuts off a server whose handler is slower than the timeout, and a client that uploads
//!   for longer;
//! - an **idle timeout** cuts off a server and its client while the handler is silent for longer;
//! - a **write timeout** does what it says, because hyper writes only when it has something to write.
//!
//! For a server, use the package [`tickwheel-hyper`](https://docs.rs/tickwheel-hyper), whose
//! `ConnectionLimits` know for whom hyper waits. Without it, set a write timeout, and let hyper and the
//! layers of [`tower`](crate::tower) limit what they can:
//!
//! | a server waits for | without `tickwheel-hyper` | what that misses | `ConnectionLimits` |
//! | --- | --- | --- | --- |
//! | the head of a request | hyper's `header_read_timeout`, with the wheel as its timer | with `auto::Builder`, a client that sends nothing or half a preface; any on HTTP/2 | `header` |
//! | the next request | the same, and so for as long | HTTP/2; one time for two things | `idle` |
//! | the body of a request | [`RequestBodyTimeoutLayer`](crate::tower::RequestBodyTimeoutLayer) | a byte now and then | `body_progress` |
//! | its handler | [`TimeoutLayer`](crate::tower::TimeoutLayer), [`DeadlineLayer`](crate::tower::DeadlineLayer) | | |
//! | a client that does not read | [`set_write_timeout`](TimeoutStream::set_write_timeout) | HTTP/2 without a window; a byte now and then | `body_progress` |
//! | an HTTP/2 client that has vanished | hyper's `keep_alive_interval`, with the wheel as its timer | | `idle`, or the same |
//!
//! A client uses a `TimeoutLayer` for the head of the response and a
//! [`ResponseBodyTimeoutLayer`](crate::tower::ResponseBodyTimeoutLayer) for its body.
//!
//! ```
//! use http_body_util::{BodyExt, Full};
//! use hyper::{Request, Response, StatusCode, body::{Bytes, Incoming}, server::conn::http1};
//! use hyper_util::{rt::TokioIo, service::TowerToHyperService};
//! use std::{convert::Infallible, time::Duration};
//! use tickwheel::{Wheel, io::TimeoutStream, tower::{RequestBodyTimeout, TimeoutBody}};
//! use tokio::net::{TcpListener, TcpStream};
//! use tower::service_fn;
//!
//! const TEN_SECONDS: Duration = Duration::from_secs(10);
//!
//! async fn upload(request: Request<TimeoutBody<Incoming>>) -> Result<Response<Full<Bytes>>, Infallible> {
//!     let mut response = Response::default();
//!     if request.into_body().collect().await.is_err() {
//!         *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
//!     }
//!     Ok(response)
//! }
//!
//! async fn serve(wheel: Wheel, stream: TcpStream) -> hyper::Result<()> {
//!     let mut stream = TimeoutStream::new(&wheel, stream);
//!     stream.set_write_timeout(Some(TEN_SECONDS));
//!     let service = RequestBodyTimeout::new(&wheel, TEN_SECONDS, service_fn(upload));
//!     http1::Builder::new()
//!         .timer(wheel)
//!         .header_read_timeout(TEN_SECONDS)
//!         .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
//!         .await
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! # let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # let mut client = TcpStream::connect(listener.local_addr()?).await?;
//! # tokio::spawn(serve(Wheel::new(), listener.accept().await?.0));
//! # client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello").await?;
//! # let mut answer = String::new();
//! # client.read_to_string(&mut answer).await?;
//! # assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
//! # Ok(())
//! # }
//! ```

mod watch;

use std::{
    io::{self, IoSlice, SeekFrom},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

#[cfg(feature = "hyper-util")]
use hyper_util::client::legacy::connect::{Connected, Connection};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::wheel::Wheel;
use watch::{Operation, TimeoutKind, Watch};

pin_project! {
    /// A stream whose reads and writes fail when they make no progress for too long.
    ///
    /// There are three timeouts, all of which are off at first. Each can be set, changed and switched off at
    /// any time.
    ///
    /// - The **read timeout** fails a read that has waited this long for a byte, as Netty's
    ///   `ReadTimeoutHandler` does.
    /// - The **write timeout** fails a write, flush or shutdown that has waited this long for progress.
    /// - The **idle timeout** fails any operation that has waited this long while no byte moved in either
    ///   direction, as Netty's `IdleStateHandler` does. As long as the peer still reads the bytes written to
    ///   it, a read may wait forever.
    ///
    /// Only the time during which the polled operation itself waits counts, so neither the time between two
    /// reads nor the wait of another operation does. Every byte restarts the timeout, so slow but steady
    /// progress never times out. For a deadline of a whole message, use [`Wheel::timeout`]. After a timeout
    /// the stream is unchanged, and the next read or write starts a new wait, as with
    /// [`TcpStream::set_read_timeout`](std::net::TcpStream::set_read_timeout).
    ///
    /// A timeout can be changed while an operation waits. It still counts from the same moment as before, and
    /// the waiting task is woken to use the new timeout. A timeout that was off counts from the first poll
    /// after it is switched on, and one that is switched off frees its timers at once.
    ///
    /// Timeouts are never early and never refused, and less than one tick late plus their slack and the
    /// runtime's own delay. A byte costs one store and at most one clock reading, because the timers stay in
    /// place in the wheel, and are started anew only when their old deadline comes.
    ///
    /// Put this wrapper next to the socket, below TLS and buffers, because it cannot see the bytes that those
    /// layers move inside one flush. Under hyper, use only the write timeout: [the others cut off slow
    /// handlers and uploads](crate::io#under-hyper).
    ///
    /// # Cancel safety
    ///
    /// Reads and writes are as cancel safe as those of the inner stream. When a `select!` drops a waiting
    /// read or write, its time continues to count until the next such operation completes or times out.
    /// Dropping the stream cancels its timers at once.
    ///
    /// # Panics
    ///
    /// With a timeout set, the first read or write that has to wait panics outside a Tokio runtime, as the
    /// first poll of [`Wheel::sleep`] does.
    ///
    /// # Errors
    ///
    /// An operation fails with [`TimedOut`](std::io::ErrorKind::TimedOut) when the time runs out. The error
    /// contains a [`TimeoutError`](crate::TimeoutError).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use tickwheel::{Wheel, io::TimeoutStream};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> io::Result<()> {
    /// let (mut client, server) = tokio::io::duplex(64);
    /// let mut server = TimeoutStream::new(&Wheel::new(), server);
    /// server.set_read_timeout(Some(Duration::from_millis(20)));
    ///
    /// client.write_all(b"hello").await?;
    /// let mut buffer = [0; 64];
    /// assert_eq!(server.read(&mut buffer).await?, 5);
    /// let error = server.read(&mut buffer).await.unwrap_err();
    /// assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct TimeoutStream<S> {
        #[pin]
        stream: S,
        watch: Watch,
    }
}

impl<S> TimeoutStream<S> {
    /// Creates a `TimeoutStream` around `stream`, with no timeout set.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Wheel, io::TimeoutStream};
    ///
    /// let stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// assert_eq!(stream.read_timeout(), None);
    /// ```
    pub fn new(wheel: &Wheel, stream: S) -> TimeoutStream<S> {
        TimeoutStream {
            stream,
            watch: Watch::new(wheel),
        }
    }

    /// Returns the read timeout, or `None` if it is off.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// stream.set_read_timeout(Some(Duration::from_secs(30)));
    /// assert_eq!(stream.read_timeout(), Some(Duration::from_secs(30)));
    /// ```
    pub fn read_timeout(&self) -> Option<Duration> {
        self.watch.timeout(TimeoutKind::Read)
    }

    /// Sets how long a read may wait for a byte, or switches the read timeout off.
    ///
    /// The new timeout also applies to a read that is already waiting. hyper reads while a handler works and
    /// while it uploads, so [a read timeout under hyper](crate::io#under-hyper) cuts those off.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// stream.set_read_timeout(Some(Duration::from_secs(30)));
    /// stream.set_read_timeout(None);
    /// ```
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.watch.set_timeout(TimeoutKind::Read, timeout);
    }

    /// Sets the read timeout of a pinned stream, as [`set_read_timeout`](TimeoutStream::set_read_timeout)
    /// does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{pin::pin, time::Duration};
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = pin!(TimeoutStream::new(&Wheel::new(), tokio::io::empty()));
    /// stream.as_mut().set_read_timeout_pinned(Some(Duration::from_secs(30)));
    /// assert_eq!(stream.read_timeout(), Some(Duration::from_secs(30)));
    /// ```
    pub fn set_read_timeout_pinned(self: Pin<&mut Self>, timeout: Option<Duration>) {
        self.project().watch.set_timeout(TimeoutKind::Read, timeout);
    }

    /// Returns the write timeout, or `None` if it is off.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let stream = TimeoutStream::new(&Wheel::new(), tokio::io::sink());
    /// assert_eq!(stream.write_timeout(), None);
    /// ```
    pub fn write_timeout(&self) -> Option<Duration> {
        self.watch.timeout(TimeoutKind::Write)
    }

    /// Sets how long a write, flush or shutdown may wait for progress, or switches the write timeout off.
    ///
    /// The new timeout also applies to an operation that is already waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::sink());
    /// stream.set_write_timeout(Some(Duration::from_secs(30)));
    /// ```
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.watch.set_timeout(TimeoutKind::Write, timeout);
    }

    /// Sets the write timeout of a pinned stream, as [`set_write_timeout`](TimeoutStream::set_write_timeout)
    /// does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{pin::pin, time::Duration};
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = pin!(TimeoutStream::new(&Wheel::new(), tokio::io::empty()));
    /// stream.as_mut().set_write_timeout_pinned(Some(Duration::from_secs(30)));
    /// assert_eq!(stream.write_timeout(), Some(Duration::from_secs(30)));
    /// ```
    pub fn set_write_timeout_pinned(self: Pin<&mut Self>, timeout: Option<Duration>) {
        self.project().watch.set_timeout(TimeoutKind::Write, timeout);
    }

    /// Returns the idle timeout, or `None` if it is off.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// assert_eq!(stream.idle_timeout(), None);
    /// ```
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.watch.timeout(TimeoutKind::Idle)
    }

    /// Sets how long an operation may wait while no byte moves in either direction, or switches the idle
    /// timeout off.
    ///
    /// The new timeout also applies to an operation that is already waiting. hyper reads while a handler
    /// works, so [an idle timeout under hyper](crate::io#under-hyper) cuts off a handler that is silent for
    /// longer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// stream.set_idle_timeout(Some(Duration::from_secs(30)));
    /// ```
    pub fn set_idle_timeout(&mut self, timeout: Option<Duration>) {
        self.watch.set_timeout(TimeoutKind::Idle, timeout);
    }

    /// Sets the idle timeout of a pinned stream, as [`set_idle_timeout`](TimeoutStream::set_idle_timeout)
    /// does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{pin::pin, time::Duration};
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = pin!(TimeoutStream::new(&Wheel::new(), tokio::io::empty()));
    /// stream.as_mut().set_idle_timeout_pinned(Some(Duration::from_secs(30)));
    /// assert_eq!(stream.idle_timeout(), Some(Duration::from_secs(30)));
    /// ```
    pub fn set_idle_timeout_pinned(self: Pin<&mut Self>, timeout: Option<Duration>) {
        self.project().watch.set_timeout(TimeoutKind::Idle, timeout);
    }

    /// Returns a reference to the inner stream.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// assert_eq!(*TimeoutStream::new(&Wheel::new(), "a stream").get_ref(), "a stream");
    /// ```
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns a mutable reference to the inner stream.
    ///
    /// Bytes that are read and written through this reference do not restart the timeouts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// *TimeoutStream::new(&Wheel::new(), "a stream").get_mut() = "another";
    /// ```
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Returns a pinned mutable reference to the inner stream.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let stream = pin!(TimeoutStream::new(&Wheel::new(), "a stream"));
    /// assert_eq!(*stream.get_pin_mut(), "a stream");
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().stream
    }

    /// Consumes this wrapper, cancels its timers, and returns the inner stream.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// assert_eq!(TimeoutStream::new(&Wheel::new(), "a stream").into_inner(), "a stream");
    /// ```
    pub fn into_inner(self) -> S {
        self.stream
    }
}

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

/// hyper-util's clients require this trait of a connection, so with it the streams of a connector can be
/// wrapped.
///
/// # Examples
///
/// A client that gives up on a server that reads nothing for ten seconds, or has not begun to answer after
/// ten seconds, or is silent for as long in the middle of its answer. A read timeout would [cut off long
/// uploads](crate::io#under-hyper):
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
