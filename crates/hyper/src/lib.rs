//! Limits for the connections of a [hyper](https://docs.rs/hyper) server, on a timing wheel.
//!
//! What Netty's `IdleStateHandler` and its read and write timeouts are for: a server that is open to the
//! internet has to close connections on which nothing goes on, and cut off clients that are slow on purpose.
//! hyper tells neither from a handler that takes its time; [`ConnectionLimits`] does.
//!
//! ```
//! use hyper::{Request, Response, service::service_fn};
//! use hyper_util::{rt::{TokioExecutor, TokioIo}, server::conn::auto::Builder};
//! use std::{convert::Infallible, time::Duration};
//! use tickwheel::Wheel;
//! use tickwheel_hyper::{ConnectionLimits, RequestBody};
//! use tokio::net::TcpListener;
//!
//! async fn hello(_: Request<RequestBody>) -> Result<Response<String>, Infallible> {
//!     Ok(Response::new("hello".into()))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let limits = ConnectionLimits::new(&Wheel::global())
//!     .header(Duration::from_secs(10)) // for the head of a request
//!     .idle(Duration::from_secs(60)); // without a request
//! let builder = Builder::new(TokioExecutor::new());
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # use tokio::{io::{AsyncReadExt, AsyncWriteExt}, net::TcpStream};
//! # let mut client = TcpStream::connect(listener.local_addr()?).await?;
//!
//! let (stream, _) = listener.accept().await?; // in a loop
//! tokio::spawn(limits.serve(&builder, TokioIo::new(stream), service_fn(hello)));
//! # client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
//! # let mut response = String::new();
//! # client.read_to_string(&mut response).await?;
//! # assert!(response.ends_with("hello"));
//!
//! limits.shutdown().await; // gracefully, in at most 30 s
//! # Ok(())
//! # }
//! ```
//!
//! The README has a server for axum, and says which of these limits hyper itself has.
//!
//! # Limits
//!
//! | limit | the client | ended |
//! | --- | --- | --- |
//! | [`header`](ConnectionLimits::header) | takes too long for the head of a request, or sends nothing at all | cut off |
//! | [`idle`](ConnectionLimits::idle) | has no request in flight for too long | gracefully |
//! | [`body_progress`](ConnectionLimits::body_progress) | sends a body or reads a response too slowly | cut off |
//! | [`lifetime`](ConnectionLimits::lifetime) | has been connected for long enough | gracefully |
//! | [`grace`](ConnectionLimits::grace) | has requests in flight for too long after a graceful end began | cut off |
//!
//! [`serve`](ConnectionLimits::serve) takes hyper-util's `auto::Builder`, which speaks HTTP/1 and HTTP/2, so it
//! fits the accept loop of plain hyper, axum and tonic. [`wrap`](ConnectionLimits::wrap) is for hyper's own
//! builders. `axum::serve` takes no builder. A `Listener` for it could look at the limits whenever hyper polls its
//! stream, but could neither send `GOAWAY` nor see a client of HTTP/2 that gives no window, so there is none: the
//! example `axum_server` has the loop to write in its place, in ten lines.
//!
//! Not limited here are a TLS handshake, which comes before, and a handler's own time, which is a request's and not
//! a connection's: use [`Wheel::timeout`](tickwheel::Wheel::timeout) for the one and
//! [`TimeoutLayer`](https://docs.rs/tickwheel/latest/tickwheel/tower/struct.TimeoutLayer.html) for the other.
#![forbid(unsafe_code)]

mod alarm;
mod connection;
mod control;
mod ended;
mod in_flight;
mod io;
mod limits;
mod members;
mod progress;
mod request_body;
mod response_body;
mod served;
mod service;
mod settings;
mod source;
mod stats;
mod time;
mod uploads;
mod watch;
mod watcher;

pub use crate::{
    ended::Ended, io::LimitedIo, limits::ConnectionLimits, request_body::RequestBody, served::Served,
    service::LimitedService, stats::LimitStats, watcher::Watcher,
};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
