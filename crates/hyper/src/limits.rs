//! `ConnectionLimits`: the limits of a server's connections.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body;
use hyper::{
    rt::{Read, Write},
    service::Service,
};
use hyper_util::server::conn::auto::{Builder, HttpServerConnExec, UpgradeableConnection};
use tickwheel::Wheel;
use tickwheel_exported::Source;

use crate::{
    connection::Connection,
    control::Control,
    io::LimitedIo,
    request_body::RequestBody,
    response_body::ResponseBody,
    served::Served,
    service::{LimitedService, ResponseFuture},
    settings::{ProgressLimit, Settings},
    source::LimitSource,
    stats::LimitStats,
    time::Span,
    watcher::Watcher,
};

/// Limits for the connections of a server, on a wheel.
///
/// Each limit but [`grace`](ConnectionLimits::grace) is off until it is set. Clones share the limits, so that
/// each accept loop has one: what is set on one of them applies to all connections of all.
///
/// Limits are never early, and less than one tick of the wheel late plus its slack and the runtime's own
/// delay. Times count on the wheel's clock, which a test may have paused.
///
/// A connection costs one entry in the wheel and some 400 bytes, and a request one to five percent of the
/// instructions that hyper takes for it. Nothing is buffered, and a request takes no allocation and no timer.
///
/// # Examples
///
/// The limits of a server that is open to the internet:
///
/// ```
/// use hyper::{Request, Response, service::service_fn};
/// use hyper_util::{rt::{TokioExecutor, TokioIo}, server::conn::auto::Builder};
/// use std::{convert::Infallible, io, time::Duration};
/// use tickwheel::Wheel;
/// use tickwheel_hyper::{ConnectionLimits, RequestBody};
/// use tokio::net::TcpListener;
///
/// async fn hello(_: Request<RequestBody>) -> Result<Response<String>, Infallible> {
///     Ok(Response::new("hello".into()))
/// }
///
/// async fn accept(listener: TcpListener, limits: ConnectionLimits) -> io::Result<()> {
///     let builder = Builder::new(TokioExecutor::new());
///     loop {
///         let (stream, _) = listener.accept().await?;
///         tokio::spawn(limits.serve(&builder, TokioIo::new(stream), service_fn(hello)));
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> io::Result<()> {
/// # use tokio::{io::{AsyncReadExt, AsyncWriteExt}, net::TcpStream};
/// let limits = ConnectionLimits::new(&Wheel::global())
///     .header(Duration::from_secs(10))
///     .idle(Duration::from_secs(60))
///     .body_progress(Duration::from_secs(10), 1_000)
///     .lifetime(Duration::from_secs(3600), Duration::from_secs(600));
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// # let server =
/// tokio::spawn(accept(listener, limits.clone()));
/// # client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await?;
/// # let mut answer = [0; 12];
/// # client.read_exact(&mut answer).await?;
/// # assert_eq!(&answer, b"HTTP/1.1 200");
/// # assert_eq!(limits.stats().open, 1);
/// # server.abort();
///
/// limits.shutdown().await; // at most 30 s
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ConnectionLimits {
    control: Arc<Control>,
}

impl ConnectionLimits {
    /// Creates limits whose timers are on `wheel`, and of which none is set.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_hyper::ConnectionLimits;
    ///
    /// let limits = ConnectionLimits::new(&Wheel::global());
    /// ```
    pub fn new(wheel: &Wheel) -> ConnectionLimits {
        let control = Arc::new(Control::new(wheel));
        ConnectionLimits { control }
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> ConnectionLimits {
        self.control.change(change);
        self
    }

    /// Limits the time that a client may take for the head of a request.
    ///
    /// The head of a connection's first request has to be complete this long after
    /// [`serve`](ConnectionLimits::serve), whichever protocol the client speaks: one that sends nothing, half
    /// a preface of HTTP/2 or its pings is cut off too. A later head of HTTP/1 has this long from its first
    /// byte, or from the end of the response before it if that is later. A later head of HTTP/2 counts as
    /// [`idle`](ConnectionLimits::idle) time, because pings look like it, and so does half a head of HTTP/1
    /// that came in the packet of the request before it.
    ///
    /// The bytes of a head do not restart the time. A client that is too slow is cut off without a response,
    /// as [`Ended::Header`](crate::Ended::Header).
    ///
    /// The TLS handshake comes before `serve`; put it under [`Wheel::timeout`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// let limits = ConnectionLimits::new(&Wheel::global()).header(Duration::from_secs(10));
    /// ```
    pub fn header(self, duration: Duration) -> ConnectionLimits {
        self.with(|settings| settings.header = Span::of(duration))
    }

    /// Changes or removes the limit of [`header`](ConnectionLimits::header), for all connections at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// # let limits = ConnectionLimits::new(&Wheel::global());
    /// limits.set_header(Some(Duration::from_secs(2)));
    /// limits.set_header(None);
    /// ```
    pub fn set_header(&self, duration: Option<Duration>) {
        self.control
            .change(|settings| settings.header = or_unlimited(duration));
    }

    /// Limits the time for which no request is in flight on a connection.
    ///
    /// It counts from [`serve`](ConnectionLimits::serve), and then from when the last response has been
    /// written, which is when the socket has taken it. A request is in flight from its complete head, so a
    /// slow handler, a long upload and a response that is streamed are never idle, while a client that sends
    /// nothing but pings is. While a head is awaited, [`header`](ConnectionLimits::header) applies in place
    /// of this limit if it is set.
    ///
    /// An idle connection is ended gracefully, as [`Ended::Idle`](crate::Ended::Idle): HTTP/2 sends `GOAWAY`
    /// and has [`grace`](ConnectionLimits::grace) for what crosses with it, and HTTP/1 is closed. A client
    /// whose request crosses with the close of HTTP/1 sees an error, as with every server: of POSTs that came
    /// within 3 ms of this limit, one in eight failed on HTTP/1 and none on HTTP/2. So the pool of a client has
    /// to give up its connections sooner than this.
    ///
    /// A stream of HTTP/2 that an extended `CONNECT` has made a tunnel keeps its connection from being idle
    /// for good, because nothing tells when the tunnel ends.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// let limits = ConnectionLimits::new(&Wheel::global()).idle(Duration::from_secs(75));
    /// ```
    pub fn idle(self, duration: Duration) -> ConnectionLimits {
        self.with(|settings| settings.idle = Span::of(duration))
    }

    /// Changes or removes the limit of [`idle`](ConnectionLimits::idle), for all connections at once.
    ///
    /// Zero ends all idle connections, and each other one when it has answered its requests, or up to 10 ms
    /// later.
    ///
    /// # Examples
    ///
    /// Under overload, a server needs its idle connections for others:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_hyper::ConnectionLimits;
    ///
    /// fn relieve(limits: &ConnectionLimits) {
    ///     let secs = if limits.stats().open > 50_000 { 1 } else { 60 };
    ///     limits.set_idle(Some(Duration::from_secs(secs)));
    /// }
    /// # relieve(&ConnectionLimits::new(&tickwheel::Wheel::global()));
    /// ```
    pub fn set_idle(&self, duration: Option<Duration>) {
        self.control
            .change(|settings| settings.idle = or_unlimited(duration));
    }

    /// Requires a client to send and read bodies at `min_bytes` in each `duration` for which the connection
    /// waits for it.
    ///
    /// Only waits count, so a slow handler costs a client nothing: the time in which a handler waits for the
    /// body of a request, and that in which the connection has more of a response than the client takes, each
    /// for itself. On HTTP/2 all streams of a connection count together, and a client that makes progress on
    /// one of them may stall on others. A `duration` of less than 1 ms is taken as 1 ms, and a `min_bytes` of 0
    /// as 1. A client that is too slow is cut off without a response, as
    /// [`Ended::BodyProgress`](crate::Ended::BodyProgress). Where several waits add up to `duration`, that may
    /// be a sixteenth of `duration` later than otherwise.
    ///
    /// The server sees what the socket takes, not what the client reads. Linux buffers megabytes for a
    /// connection and asks for more only when much of that is gone, so a client that reads a steady 100 KB/s
    /// may look stalled for ten seconds. Set the socket's `TCP_NOTSENT_LOWAT` to 16 KB, as the example
    /// `axum_server` does; then a client that reads 20 KB/s is not cut off by 1 KB in 10 s. A socket that has
    /// been dropped still keeps its buffer until the client has read it: `TCP_USER_TIMEOUT` limits that.
    ///
    /// Leave this limit off, or long, where clients stream at will, as gRPC's client streams do: a handler
    /// that has asked for a frame waits until it has one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// // 1 KB in 10 s.
    /// let limits = ConnectionLimits::new(&Wheel::global()).body_progress(Duration::from_secs(10), 1_000);
    /// ```
    pub fn body_progress(self, duration: Duration, min_bytes: u64) -> ConnectionLimits {
        self.with(|settings| settings.body_progress = ProgressLimit::of(duration, min_bytes))
    }

    /// Changes or removes the limit of [`body_progress`](ConnectionLimits::body_progress), for all
    /// connections at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// # let limits = ConnectionLimits::new(&Wheel::global());
    /// limits.set_body_progress(Some((Duration::from_secs(5), 10_000)));
    /// limits.set_body_progress(None);
    /// ```
    pub fn set_body_progress(&self, limit: Option<(Duration, u64)>) {
        let limit = limit.map_or(ProgressLimit::NONE, |(duration, bytes)| {
            ProgressLimit::of(duration, bytes)
        });
        self.control.change(|settings| settings.body_progress = limit);
    }

    /// Limits the lifetime of a connection, so that clients spread anew over the servers behind a balancer.
    ///
    /// A connection ends at a random time in the last `jitter` of `lifetime`, so that those which were opened
    /// together are not all opened again together. It counts from [`serve`](ConnectionLimits::serve).
    ///
    /// It is ended gracefully, as [`Ended::Lifetime`](crate::Ended::Lifetime), and no request fails that
    /// takes less than [`grace`](ConnectionLimits::grace): HTTP/2 sends `GOAWAY`, and HTTP/1 says
    /// `connection: close` in its next response. If no request comes in that time, HTTP/1 is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// // 50 to 60 minutes.
    /// let (lifetime, jitter) = (Duration::from_secs(3_600), Duration::from_secs(600));
    /// let limits = ConnectionLimits::new(&Wheel::global()).lifetime(lifetime, jitter);
    /// ```
    pub fn lifetime(self, lifetime: Duration, jitter: Duration) -> ConnectionLimits {
        self.with(|settings| settings.set_lifetime(lifetime, jitter))
    }

    /// Changes or removes the limit of [`lifetime`](ConnectionLimits::lifetime), for all connections at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// # let limits = ConnectionLimits::new(&Wheel::global());
    /// limits.set_lifetime(Some((Duration::from_secs(60), Duration::from_secs(30))));
    /// limits.set_lifetime(None);
    /// ```
    pub fn set_lifetime(&self, limit: Option<(Duration, Duration)>) {
        self.control.change(|settings| match limit {
            Some((lifetime, jitter)) => settings.set_lifetime(lifetime, jitter),
            None => settings.lifetime = Span::UNLIMITED,
        });
    }

    /// Sets the time that requests in flight have after a graceful end has begun. It is 30 s unless set.
    ///
    /// What is in flight after that is cut off, as [`Ended::Grace`](crate::Ended::Grace). On HTTP/2 the
    /// client's answer to `GOAWAY` has to come within that time too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// let limits = ConnectionLimits::new(&Wheel::global()).grace(Duration::from_secs(5));
    /// ```
    pub fn grace(self, duration: Duration) -> ConnectionLimits {
        self.with(|settings| settings.grace = Span::of(duration))
    }

    /// Changes the time of [`grace`](ConnectionLimits::grace), for all connections at once, also where a
    /// graceful end has begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// use std::time::Duration;
    ///
    /// # let limits = ConnectionLimits::new(&Wheel::global());
    /// limits.set_grace(Duration::from_secs(1));
    /// ```
    pub fn set_grace(&self, duration: Duration) {
        self.control
            .change(|settings| settings.grace = Span::of(duration));
    }

    /// Serves a connection by hyper-util's builder, under these limits.
    ///
    /// Upgrades are possible, and end the limits: the future then resolves to
    /// [`Ended::Upgraded`](crate::Ended::Upgraded), while the upgraded stream lives on. For a server of one
    /// protocol, use a builder that is [`http1_only`](Builder::http1_only) or
    /// [`http2_only`](Builder::http2_only). The limits count from this call.
    ///
    /// # Examples
    ///
    /// axum's router is a service by `TowerToHyperService`, and so is tonic's:
    ///
    /// ```
    /// use axum::Router;
    /// use hyper_util::{
    ///     rt::{TokioExecutor, TokioIo},
    ///     server::conn::auto::Builder,
    ///     service::TowerToHyperService,
    /// };
    /// use tickwheel_hyper::ConnectionLimits;
    /// use tokio::net::TcpStream;
    ///
    /// fn serve(limits: &ConnectionLimits, stream: TcpStream, app: Router) {
    ///     let mut builder = Builder::new(TokioExecutor::new());
    ///     builder.http2().enable_connect_protocol(); // websockets over HTTP/2
    ///     tokio::spawn(limits.serve(&builder, TokioIo::new(stream), TowerToHyperService::new(app)));
    /// }
    /// ```
    ///
    /// Any service that hyper would serve:
    ///
    /// ```
    /// use http_body::Body;
    /// use hyper::{Request, Response, service::Service};
    /// use hyper_util::{rt::{TokioExecutor, TokioIo}, server::conn::auto::Builder};
    /// use tickwheel_hyper::{ConnectionLimits, RequestBody};
    /// use tokio::net::TcpStream;
    ///
    /// type Error = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// fn serve<S, B>(limits: &ConnectionLimits, stream: TcpStream, service: S)
    /// where
    ///     S: Service<Request<RequestBody>, Response = Response<B>> + Send + 'static,
    ///     S::Future: Send + 'static,
    ///     S::Error: Into<Error>,
    ///     B: Body + Send + 'static,
    ///     B::Data: Send,
    ///     B::Error: Into<Error>,
    /// {
    ///     let builder = Builder::new(TokioExecutor::new());
    ///     tokio::spawn(limits.serve(&builder, TokioIo::new(stream), service));
    /// }
    /// ```
    pub fn serve<I, S, B, E>(
        &self,
        builder: &Builder<E>,
        io: I,
        service: S,
    ) -> Served<UpgradeableConnection<'static, LimitedIo<I>, LimitedService<S>, E>>
    where
        I: Read + Write + Unpin + Send + 'static,
        S: Service<Request<RequestBody>, Response = Response<B>>,
        S::Future: 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
        E: HttpServerConnExec<ResponseFuture<S::Future>, ResponseBody<B>> + Clone,
    {
        let (io, service, watcher) = self.wrap(io, service);
        let connection = builder.serve_connection_with_upgrades(io, service);
        watcher.watch(connection.into_owned())
    }

    /// Wraps the IO and the service of a connection that another builder makes, for its [`Watcher`] to watch.
    ///
    /// # Examples
    ///
    /// A server of HTTP/2 alone, by hyper's own builder:
    ///
    /// ```
    /// use hyper::{server::conn::http2, service::service_fn};
    /// use hyper_util::rt::{TokioExecutor, TokioIo};
    /// use std::convert::Infallible;
    /// use tickwheel_hyper::ConnectionLimits;
    /// use tokio::net::TcpStream;
    ///
    /// fn serve(limits: &ConnectionLimits, stream: TcpStream) {
    ///     let service = service_fn(async |_| Ok::<_, Infallible>(http::Response::new(String::from("hello"))));
    ///     let (io, service, watcher) = limits.wrap(TokioIo::new(stream), service);
    ///     let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(io, service);
    ///     tokio::spawn(watcher.watch(connection));
    /// }
    /// ```
    pub fn wrap<I, S>(&self, io: I, service: S) -> (LimitedIo<I>, LimitedService<S>, Watcher) {
        let connection = Arc::new(Connection::new(self.control.clone()));
        let io = LimitedIo::new(io, connection.clone());
        let service = LimitedService::new(service, connection.clone());
        (io, service, Watcher::new(connection))
    }

    /// Ends all connections gracefully, those to come too, and waits until none is open.
    ///
    /// Stop accepting first. HTTP/2 sends `GOAWAY`; HTTP/1 ends after the response in progress, and at once
    /// if there is none. It takes at most [`grace`](ConnectionLimits::grace), if the futures of all
    /// connections are polled. Connections that have been upgraded are not waited for.
    ///
    /// # Cancel safety
    ///
    /// The shutdown goes on if the future is dropped. It begins at its first poll, and cannot be taken back.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let limits = ConnectionLimits::new(&Wheel::new());
    /// limits.shutdown().await;
    /// assert_eq!(limits.stats().open, 0);
    /// # }
    /// ```
    pub async fn shutdown(&self) {
        self.control.change(|settings| settings.is_shut_down = true);
        self.control.members.none_open().await;
    }

    /// Returns how many connections are open, and how many each limit has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # let limits = tickwheel_hyper::ConnectionLimits::new(&tickwheel::Wheel::new());
    /// println!("{} idle connections closed", limits.stats().idle);
    /// ```
    pub fn stats(&self) -> LimitStats {
        self.control.stats()
    }

    /// Names the server, as the label `server` of what is [exported](ConnectionLimits::source).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::ConnectionLimits;
    /// let limits = ConnectionLimits::new(&Wheel::global()).name("public");
    /// ```
    pub fn name(self, name: impl Into<String>) -> ConnectionLimits {
        self.with(|settings| settings.name = name.into())
    }

    /// Returns what an exporter reports of the connections, as a source for `WheelCollector::and_source` of
    /// `tickwheel-prometheus` and `Reporter::and_source` of `tickwheel-metrics`.
    ///
    /// | name | kind | labels | |
    /// | --- | --- | --- | --- |
    /// | `tickwheel_connections_open` | gauge | `server` | open connections |
    /// | `tickwheel_connections_ended_total` | counter | `server`, `limit` | connections that a limit has ended: `header`, `idle`, `body_progress`, `lifetime`, `grace` |
    ///
    /// It reports nothing once these limits, their clones and their connections have been dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::Source;
    /// use tickwheel_hyper::ConnectionLimits;
    ///
    /// let limits = ConnectionLimits::new(&Wheel::new()).name("public");
    /// let values = limits.source().exported().unwrap();
    /// assert_eq!(values[0].labels[0], ("server", "public".to_owned()));
    /// ```
    pub fn source(&self) -> impl Source + Clone + use<> {
        LimitSource(Arc::downgrade(&self.control))
    }
}

fn or_unlimited(duration: Option<Duration>) -> Span {
    duration.map_or(Span::UNLIMITED, Span::of)
}

impl fmt::Debug for ConnectionLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionLimits")
            .field("settings", &self.control.settings())
            .field("stats", &self.stats())
            .finish()
    }
}
