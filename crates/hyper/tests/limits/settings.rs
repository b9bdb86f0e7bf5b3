//! Limits that change while connections live, and what is counted.

use std::{
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tickwheel::Wheel;
use tickwheel_exported::{ExportedValue, Source};
use tickwheel_hyper::{ConnectionLimits, Ended};

use crate::support::{
    Client, GET, Server, builder, handlers::handle, ms, open, pause, serving, usual_limits,
};

/// Opens a connection, which is idle after a request.
async fn open_idle(limits: &ConnectionLimits) -> (tokio::io::DuplexStream, Server) {
    let (mut client, server) = open(limits);
    client.send(GET).await;
    client.read_to("hello").await;
    (client, server)
}

#[tokio::test(start_paused = true)]
async fn a_change_applies_at_once_to_all_connections() {
    let limits = ConnectionLimits::new(&Wheel::new()).idle(ms(60_000));
    let idle = [open_idle(&limits).await, open_idle(&limits).await];
    pause(200).await;
    limits.clone().set_idle(Some(ms(300)));
    for (_client, server) in idle {
        server.ends(Ended::Idle, 300).await;
    }

    let (_client, server) = open_idle(&limits).await;
    pause(200).await;
    limits.set_idle(Some(ms(100)));
    server.ends(Ended::Idle, 200).await;

    let (_client, server) = open_idle(&limits).await;
    pause(50).await;
    limits.set_idle(None);
    pause(1_000_000).await;
    assert!(server.is_open());
}

#[tokio::test(start_paused = true)]
async fn each_limit_can_be_changed() {
    let limits = ConnectionLimits::new(&Wheel::new()).grace(ms(100));
    let (_client, server) = open(&limits);
    pause(50).await;
    limits.set_header(Some(ms(200)));
    // It counts from the change.
    server.ends(Ended::Header, 250).await;
    limits.set_header(None);

    let (mut client, server) = open(&limits);
    client
        .send("POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n")
        .await;
    pause(50).await;
    limits.set_body_progress(Some((ms(200), 1)));
    server.ends(Ended::BodyProgress, 200).await;
    limits.set_body_progress(None);

    let (mut client, server) = open(&limits);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    pause(50).await;
    limits.set_lifetime(Some((ms(200), Duration::ZERO)));
    pause(200).await;
    limits.set_grace(ms(300));
    server.ends(Ended::Grace, 500).await;
    limits.set_lifetime(None);

    let (mut client, server) = open(&limits);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    client.read_to("slow").await;
    assert!(server.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_zero_duration_ends_what_it_applies_to() {
    let limits = usual_limits();
    let (_idle_client, idle) = open_idle(&limits).await;
    let (mut client, busy) = open(&limits);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    pause(10).await;
    limits.set_idle(Some(Duration::ZERO));
    idle.ends(Ended::Idle, 10).await;
    client.read_to("slow").await;
    busy.ends(Ended::Idle, 1_000).await;
}

#[tokio::test(start_paused = true)]
async fn every_connection_is_counted_by_what_ended_it() {
    let limits = usual_limits().lifetime(ms(5_000), Duration::ZERO);
    let count = || {
        let stats = limits.stats();
        [
            stats.open,
            stats.header,
            stats.idle,
            stats.body_progress,
            stats.lifetime,
            stats.grace,
        ]
    };
    assert_eq!(count(), [0; 6]);
    let (_client, server) = open(&limits);
    assert_eq!(count(), [1, 0, 0, 0, 0, 0]);
    server.ends(Ended::Header, 300).await;
    assert_eq!(count(), [0, 1, 0, 0, 0, 0]);
    let (_client, server) = open_idle(&limits).await;
    server.ends(Ended::Idle, 600).await;
    assert_eq!(count(), [0, 1, 1, 0, 0, 0]);
    let (mut client, server) = open(&limits);
    client.send("GET /big HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.ends(Ended::BodyProgress, 200).await;
    assert_eq!(count(), [0, 1, 1, 1, 0, 0]);
    let (mut client, server) = open(&limits);
    while server.is_open() {
        client.send(GET).await;
        pause(250).await;
    }
    assert_eq!(server.end().await.0, Ok(Ended::Lifetime));
    assert_eq!(count(), [0, 1, 1, 1, 1, 0]);
    let (mut client, server) = open(&limits);
    for _ in 0..3 {
        client.send(GET.replace(" /", " /events")).await;
        client.read_to("0\r\n\r\n").await;
    }
    client.send(GET.replace(" /", " /events")).await;
    server.ends(Ended::Grace, 5_400).await;
    assert_eq!(count(), [0, 1, 1, 1, 1, 1]);
    // Neither of these is a limit's.
    let (client, server) = open(&limits);
    drop(client);
    server.ends(Ended::Done, 0).await;
    let (mut client, server) = open(&limits);
    client.send("nonsense\r\n\r\n").await;
    assert!(server.end().await.0.is_err());
    let (_client, server) = open(&limits);
    drop(server);
    assert_eq!(count(), [1, 1, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_counts_are_exported() {
    let limits = usual_limits().name("public");
    let source = limits.source();
    assert_eq!(source.identity(), limits.clone().source().identity());
    let (client, server) = open(&limits);
    let (_open_client, open) = open(&limits);
    drop(client);
    server.ends(Ended::Done, 0).await;
    open.ends(Ended::Header, 300).await;
    let (_client, open_server) = self::open_idle(&limits).await;
    let values = source.exported().unwrap().into_iter().map(|exported| {
        assert_eq!(exported.labels[0], ("server", "public".to_owned()));
        let limit = exported
            .labels
            .get(1)
            .map(|(key, limit)| format!("{key} {limit}"));
        (exported.name, limit.unwrap_or_default(), exported.value)
    });
    let ended = |limit: &str, count| {
        let limit = format!("limit {limit}");
        (
            "tickwheel_connections_ended_total",
            limit,
            ExportedValue::Count(count),
        )
    };
    assert_eq!(
        values.collect::<Vec<_>>(),
        [
            ended("body_progress", 0),
            ended("grace", 0),
            ended("header", 1),
            ended("idle", 0),
            ended("lifetime", 0),
            (
                "tickwheel_connections_open",
                String::new(),
                ExportedValue::Count(1)
            ),
        ]
    );
    drop(limits);
    assert!(source.exported().is_some(), "a connection is open");
    open_server.ends(Ended::Idle, 600).await;
    assert_eq!(source.exported(), None);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_woken_once_before_its_limit() {
    let limits = usual_limits()
        .idle(ms(60_000))
        .lifetime(ms(3_600_000), ms(600_000));
    let (mut client, io) = tokio::io::duplex(65_536);
    let mut served = Box::pin(limits.serve(&builder(), TokioIo::new(io), service_fn(handle)));
    let polls = Arc::new(AtomicU32::new(0));
    let counted = polls.clone();
    let server = serving(poll_fn(move |cx| {
        counted.fetch_add(1, Ordering::Relaxed);
        served.as_mut().poll(cx)
    }));
    pause(100).await;
    client.send(GET).await;
    client.read_to("hello").await;
    pause(1).await;
    polls.store(0, Ordering::Relaxed);
    pause(59_000).await;
    // When the limit of the first head would have been over.
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    server.ends(Ended::Idle, 60_100).await;
    assert_eq!(polls.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_has_one_entry_in_the_wheel() {
    let wheel = Wheel::new();
    let limits = ConnectionLimits::new(&wheel)
        .header(ms(300))
        .idle(ms(60_000))
        .body_progress(ms(300), 1);
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(open_idle(&limits).await);
    }
    pause(1).await;
    assert_eq!(wheel.pending(), 10);
    let registered = wheel.metrics().registered;
    for _ in 0..100 {
        for (client, _) in &mut clients {
            client.send(GET).await;
            client.read_to("hello").await;
        }
    }
    assert_eq!(wheel.metrics().registered, registered, "requests cost no timer");
    clients.clear();
    pause(1).await;
    assert_eq!((wheel.pending(), limits.stats().open), (0, 0));
}
