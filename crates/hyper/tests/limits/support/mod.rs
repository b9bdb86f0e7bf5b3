//! Connections in memory, on a clock that a test has paused: a limit of 300 ms ends them 300 ms later, or one
//! tick more, however slow the machine is.

pub(crate) mod frames;
pub(crate) mod handlers;

use std::{future::Future, io::ErrorKind, time::Duration};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

pub(crate) const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn pause(millis: u64) {
    sleep(ms(millis)).await;
}

/// Limits that are told apart by their times.
pub(crate) fn usual_limits() -> ConnectionLimits {
    ConnectionLimits::new(&Wheel::new())
        .header(ms(300))
        .idle(ms(600))
        .body_progress(ms(200), 100)
        .grace(ms(400))
}

pub(crate) fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().enable_connect_protocol();
    builder
}

/// A served connection.
pub(crate) struct Server {
    opened: Instant,
    served: JoinHandle<(Result<Ended, String>, Instant)>,
}

impl Server {
    pub(crate) fn is_open(&self) -> bool {
        !self.served.is_finished()
    }

    /// Waits for the end, and returns it with its time in milliseconds since the connection was opened.
    pub(crate) async fn end(self) -> (Result<Ended, String>, u64) {
        let (ended, at) = timeout(ms(100_000), self.served)
            .await
            .expect("it does not end")
            .unwrap();
        (ended, (at - self.opened).as_millis() as u64)
    }

    pub(crate) async fn ends(self, how: Ended, at: u64) {
        let (ended, millis) = self.end().await;
        assert_eq!(ended, Ok(how), "after {millis} ms");
        assert!(
            (at..=at + 1).contains(&millis),
            "{how} after {millis} ms, not {at}"
        );
    }
}

pub(crate) fn serving(served: impl Future<Output = Result<Ended, impl ToString>> + Send + 'static) -> Server {
    let opened = Instant::now();
    let served = tokio::spawn(async move {
        let ended = served.await.map_err(|error| error.to_string());
        (ended, Instant::now())
    });
    Server { opened, served }
}

/// Opens a connection whose socket takes `buffer` bytes in each direction.
pub(crate) fn open_with(
    limits: &ConnectionLimits,
    builder: &Builder<TokioExecutor>,
    buffer: usize,
) -> (DuplexStream, Server) {
    let (client, io) = tokio::io::duplex(buffer);
    let service = service_fn(handlers::handle);
    (client, serving(limits.serve(builder, TokioIo::new(io), service)))
}

pub(crate) fn open(limits: &ConnectionLimits) -> (DuplexStream, Server) {
    open_with(limits, &builder(), 65_536)
}

/// A client that writes and reads bytes.
pub(crate) trait Client {
    /// Returns `false` if the connection is closed.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool;
    async fn send_each(&mut self, pieces: impl IntoIterator<Item = impl AsRef<[u8]>>, millis: u64) -> bool;
    /// Reads until `end`.
    async fn read_to(&mut self, end: &str) -> String;
    /// Reads until the connection is closed.
    async fn read_all(&mut self) -> String;
}

impl Client for DuplexStream {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        match self.write_all(bytes.as_ref()).await {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                false
            }
        }
    }

    async fn send_each(&mut self, pieces: impl IntoIterator<Item = impl AsRef<[u8]>>, millis: u64) -> bool {
        for piece in pieces {
            if !self.send(piece).await {
                return false;
            }
            pause(millis).await;
        }
        true
    }

    async fn read_to(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        while !all.ends_with(end.as_bytes()) {
            match self.read_u8().await {
                Ok(byte) => all.push(byte),
                Err(error) => panic!("{error}, after {}", String::from_utf8_lossy(&all)),
            }
        }
        String::from_utf8(all).unwrap()
    }

    async fn read_all(&mut self) -> String {
        let mut all = Vec::new();
        self.read_to_end(&mut all).await.unwrap();
        String::from_utf8(all).unwrap()
    }
}
