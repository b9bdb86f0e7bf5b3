//! The graceful end of one connection, and of all.

use std::{future::Future, pin::pin, task::Poll};

use futures::poll;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended};
use tokio::time::Instant;

use crate::support::{Client, GET, builder, frames::*, handlers::handle, ms, open, pause, usual_limits};

#[tokio::test(start_paused = true)]
async fn it_waits_for_what_is_in_flight() {
    let limits = ConnectionLimits::new(&Wheel::new());
    let (_silent_client, silent) = open(&limits);
    let (mut idle_client, idle) = open(&limits);
    idle_client.send(GET).await;
    let (mut client, busy) = open(&limits);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (http2_client, http2) = open(&limits);
    let mut http2_client = Http2Client::new(http2_client, 65_535).await;
    http2_client.send(get(1, "/slow")).await;
    let http2_client = tokio::spawn(http2_client.repeat([], 10_000));
    pause(300).await;
    limits.shutdown().await;
    assert_eq!(limits.stats().open, 0);
    silent.ends(Ended::Shutdown, 300).await;
    idle.ends(Ended::Shutdown, 300).await;
    busy.ends(Ended::Shutdown, 1_000).await;
    http2.ends(Ended::Shutdown, 1_000).await;
    assert!(client.read_all().await.ends_with("slow"));
    let http2_client = http2_client.await.unwrap();
    assert_eq!((http2_client.data(), http2_client.last_streams().len()), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn it_takes_no_longer_than_the_grace() {
    let limits = usual_limits();
    let (mut client, server) = open(&limits);
    client.send("GET /events HTTP/1.1\r\nhost: a\r\n\r\n").await;
    pause(300).await;
    let start = Instant::now();
    limits.shutdown().await;
    assert_eq!(start.elapsed(), ms(400));
    server.ends(Ended::Grace, 700).await;
}

#[tokio::test(start_paused = true)]
async fn without_connections_it_is_over_at_once() {
    let limits = usual_limits();
    let mut shutdown = pin!(limits.shutdown());
    assert_eq!(poll!(&mut shutdown), Poll::Ready(()));
    limits.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn it_ends_connections_to_come_too() {
    let limits = usual_limits();
    limits.shutdown().await;
    let (mut client, server) = open(&limits);
    client.send(GET).await;
    server.ends(Ended::Shutdown, 0).await;
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_if_its_future_is_dropped() {
    let limits = usual_limits();
    let (mut client, server) = open(&limits);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    pause(700).await;
    {
        let mut shutdown = pin!(limits.shutdown());
        assert_eq!(poll!(&mut shutdown), Poll::Pending);
    }
    server.ends(Ended::Shutdown, 1_000).await;
    assert!(client.read_all().await.ends_with("slow"));
}

/// hyper has not been told of the end of its life, because a request may be on its way.
#[tokio::test(start_paused = true)]
async fn it_ends_a_connection_whose_lifetime_is_over() {
    let limits = ConnectionLimits::new(&Wheel::new()).lifetime(ms(500), ms(0));
    let (mut client, server) = open(&limits);
    client.send(GET).await;
    pause(600).await;
    limits.shutdown().await;
    server.ends(Ended::Lifetime, 600).await;
}

#[tokio::test(start_paused = true)]
async fn one_connection_can_be_ended_gracefully() {
    let limits = usual_limits();
    for (path, ended, after) in [
        ("/slow", Ended::Shutdown, 1_000),
        ("/events", Ended::Grace, 1_300),
    ] {
        let (mut client, io) = tokio::io::duplex(65_536);
        let mut served = pin!(limits.serve(&builder(), TokioIo::new(io), service_fn(handle)));
        client
            .send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        let start = Instant::now();
        assert!(poll!(&mut served).is_pending());
        pause(900).await;
        assert!(poll!(&mut served).is_pending());
        served.as_mut().graceful_shutdown();
        assert_eq!(served.as_mut().await.unwrap(), ended);
        assert_eq!(start.elapsed(), ms(after));
        // It has ended.
        served.as_mut().graceful_shutdown();
    }
}

#[tokio::test]
#[should_panic(expected = "polled after completion")]
async fn a_poll_after_its_end_panics() {
    let (client, io) = tokio::io::duplex(16);
    drop(client);
    let mut served = pin!(usual_limits().serve(&builder(), TokioIo::new(io), service_fn(handle)));
    served.as_mut().await.unwrap();
    let _ = poll!(served as std::pin::Pin<&mut dyn Future<Output = _>>);
}

/// Whoever selects on a pinned connection still has it when it has ended.
#[tokio::test(start_paused = true)]
async fn it_does_not_wait_for_a_connection_that_has_ended_and_is_kept() {
    let limits = usual_limits();
    let (_silent_client, io) = tokio::io::duplex(65_536);
    let mut served = pin!(limits.serve(&builder(), TokioIo::new(io), service_fn(handle)));
    assert_eq!(served.as_mut().await.unwrap(), Ended::Header);
    assert_eq!(limits.stats().open, 0);
    let mut shutdown = pin!(limits.shutdown());
    assert_eq!(poll!(&mut shutdown), Poll::Ready(()));
}

/// No other limit has the connection looked at in time.
#[tokio::test(start_paused = true)]
async fn the_grace_is_kept_without_other_limits() {
    let limits = ConnectionLimits::new(&Wheel::new()).grace(ms(400));
    let (mut client, server) = open(&limits);
    client.send("GET /events HTTP/1.1\r\nhost: a\r\n\r\n").await;
    pause(300).await;
    limits.shutdown().await;
    server.ends(Ended::Grace, 700).await;
}
