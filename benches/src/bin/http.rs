//! HTTP/1 keep-alive by hyper: `http [--connections N] [--seconds N] [--rounds N]`.
//!
//! There are four timers: hyper's own for the head of a request, a timeout around each request, one for each read that has to wait, and
//! one for the idle time of the connection, which every request restarts.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tickwheel_benches::{
    pair::{self, Program},
    timers::Timers,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
};

const HEAD: Duration = Duration::from_secs(10);
const REQUEST: Duration = Duration::from_secs(5);
const READ: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(60);
const BODY: &[u8] = b"hello, world";

#[derive(Clone)]
struct Http;

impl Program for Http {
    const NAME: &'static str = "http";
    const CONNECTIONS: u64 = 64;
    const BUSY: u64 = 64;

    async fn serve<T: Timers>(stream: TcpStream, timers: T) {
        let served = AtomicU64::new(0);
        let service = service_fn(|request| {
            served.fetch_add(1, Ordering::Relaxed);
            let answered = timers.timeout(REQUEST, answer(request));
            async move { Ok::<_, Infallible>(answered.await.ok().expect("in time")) }
        });
        let mut builder = http1::Builder::new();
        if let Some(timer) = timers.hyper() {
            builder.timer(timer).header_read_timeout(HEAD);
        }
        let io = TokioIo::new(TimedReads::new(stream, &timers));
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut idle = pin!(timers.sleep(IDLE));
        let mut seen = 0;
        poll_fn(|cx| {
            // A client that has gone is no fault of the server's.
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let now = served.load(Ordering::Relaxed);
            if now != seen {
                seen = now;
                T::restart(idle.as_mut(), IDLE);
            }
            idle.as_mut().poll(cx).map(drop)
        })
        .await;
    }

    /// A request, and an answer read to its end.
    async fn ask(stream: &mut TcpStream) -> io::Result<()> {
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await?;
        let mut answer = [0; 512];
        let mut length = 0;
        while !answer[..length].ends_with(BODY) {
            match stream.read(&mut answer[length..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => length += read,
            }
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        Ok(())
    }
}

fn main() {
    pair::main::<Http>();
}

/// A handler that waits once, as one that asks a database does.
async fn answer(_: Request<Incoming>) -> Response<Full<Bytes>> {
    tokio::task::yield_now().await;
    Response::new(Full::new(Bytes::from_static(BODY)))
}

/// A stream of which no read may wait for too long.
struct TimedReads<T: Timers> {
    stream: TcpStream,
    sleep: Pin<Box<T::Sleep>>,
    waiting: bool,
}

impl<T: Timers> TimedReads<T> {
    fn new(stream: TcpStream, timers: &T) -> TimedReads<T> {
        TimedReads {
            stream,
            sleep: Box::pin(timers.sleep(READ)),
            waiting: false,
        }
    }
}

impl<T: Timers> AsyncRead for TimedReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let waited = std::mem::replace(&mut self.waiting, read.is_pending());
        if read.is_ready() {
            return read;
        }
        if !waited {
            T::restart(self.sleep.as_mut(), READ);
        }
        let elapsed = self.sleep.as_mut().poll(cx);
        elapsed.map(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Timers> AsyncWrite for TimedReads<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
