//! Clients and programs that do their worst.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::{JoinSet, yield_now},
    time::timeout,
};

use crate::support::{Client, GET, builder, frames::*, ms, open, open_with, pause, usual_limits};

const OPEN: u32 = 65_535;

#[tokio::test(start_paused = true)]
async fn a_storm_of_connections_is_over_when_its_time_is() {
    let wheel = Wheel::new();
    let limits = ConnectionLimits::new(&wheel).header(ms(300)).idle(ms(600));
    let storm: Vec<_> = (0..5_000).map(|_| open_with(&limits, &builder(), 64)).collect();
    let (mut client, good) = open(&limits);
    client.send(GET).await;
    client.read_to("hello").await;
    pause(310).await;
    assert_eq!((limits.stats().open, limits.stats().header), (1, 5_000));
    for (_client, server) in storm {
        server.ends(Ended::Header, 300).await;
    }
    good.ends(Ended::Idle, 600).await;
    assert_eq!(wheel.pending(), 0);
}

/// hyper takes that for a client that has gone.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_closed_its_half_holds_nothing() {
    for request in ["", &GET[..10], GET, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let (mut client, server) = open(&usual_limits());
        client.send(request).await;
        client.shutdown().await.unwrap();
        let (_, at) = server.end().await;
        assert!(at <= 1_001, "{request:?} after {at} ms");
    }
}

/// HTTP/1 has no pings, but hyper skips empty lines before a head.
#[tokio::test(start_paused = true)]
async fn empty_lines_are_a_head_that_is_not_complete() {
    let (mut client, server) = open(&usual_limits());
    client.send(GET).await;
    client.read_to("hello").await;
    pause(100).await;
    tokio::spawn(async move { client.send_each(iter::repeat("\r\n"), 50).await });
    server.ends(Ended::Header, 100 + 300).await;
}

/// What h2 holds of a response goes with its stream.
#[tokio::test(start_paused = true)]
async fn a_response_that_the_client_resets_is_over() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, 0).await;
    client.send(get(1, "/big")).await;
    client.read_for(50).await;
    client.send(frame(RST_STREAM, 0, 1, &8u32.to_be_bytes())).await;
    tokio::spawn(client.repeat([], 2_000));
    server.ends(Ended::Idle, 50 + 600).await;
}

#[tokio::test(start_paused = true)]
async fn limits_of_no_time_or_of_all_time_end_no_program() {
    for duration in [Duration::ZERO, Duration::MAX] {
        let limits = usual_limits();
        let (mut client, server) = open(&limits);
        client.send(GET).await;
        client.read_to("hello").await;
        limits.set_header(Some(duration));
        limits.set_body_progress(Some((duration, u64::MAX)));
        limits.set_lifetime(Some((duration, duration)));
        limits.set_grace(duration);
        limits.set_idle(Some(duration));
        if duration.is_zero() {
            server.ends(Ended::Lifetime, 0).await;
        } else {
            pause(1_000_000).await;
            client.send(GET).await;
            client.read_to("hello").await;
            assert!(server.is_open());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_what_a_limit_is_ending() {
    let limits = usual_limits().lifetime(ms(500), Duration::ZERO);
    let (mut client, server) = open(&limits);
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (vanished, idle) = open(&limits);
    let mut vanished = Http2Client::new(vanished, OPEN).await;
    vanished.answers_pings = false;
    vanished.send(get(1, "/")).await;
    let vanished = tokio::spawn(vanished.repeat([], 2_000));
    // Both have been told to end at 500 ms, and have until 900 ms.
    pause(600).await;
    timeout(ms(301), limits.shutdown())
        .await
        .expect("it ends with the grace");
    server.ends(Ended::Grace, 900).await;
    idle.ends(Ended::Lifetime, 900).await;
    vanished.await.unwrap();
}

/// A wheel on which nothing can be started any more is no reason to look at a connection all the time.
#[tokio::test(start_paused = true)]
async fn the_limits_outlive_a_wheel_that_is_shut_down_or_full() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let limits = ConnectionLimits::new(&wheel).header(ms(300)).idle(ms(600));
    let open_two = || [open(&limits), open(&limits)];
    let mut full = open_two();
    pause(10).await;
    wheel.shutdown();
    let shut_down = open_two();
    for (client, _) in &mut full {
        client.send(GET).await;
        client.read_to("hello").await;
    }
    for (_client, server) in shut_down {
        server.ends(Ended::Header, 300).await;
    }
    for (_client, server) in full {
        server.ends(Ended::Idle, 610).await;
    }
}

/// On several threads, where a change, a request, the end of a connection and the shutdown cross anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_that_cross_with_requests_lose_no_connection() {
    const FAR: Duration = Duration::from_secs(3_600);
    let limits = ConnectionLimits::new(&Wheel::new()).grace(Duration::from_secs(60));
    let mut clients = JoinSet::new();
    let answered = Arc::new(AtomicU32::new(0));
    for number in 0..32 {
        let (limits, answered) = (limits.clone(), answered.clone());
        clients.spawn(async move {
            while answered.load(Ordering::Relaxed) < 5_000 {
                let (mut client, _server) = open(&limits);
                for _ in 0..=number % 8 {
                    // Its connection may have been ended between two requests.
                    if !client.send(GET).await || client.read(&mut [0; 200]).await.unwrap_or(0) == 0 {
                        break;
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let mut changes = 0;
    while answered.load(Ordering::Relaxed) < 5_000 {
        changes += 1;
        limits.set_header((changes % 5 != 0).then_some(FAR));
        limits.set_body_progress((changes % 7 != 0).then_some((FAR, 1)));
        limits.set_idle((changes % 3 != 0).then_some(FAR));
        yield_now().await;
        // Now and then, all that are idle end at once.
        if changes % 50 == 0 {
            let before = limits.stats().idle;
            limits.set_idle(Some(Duration::ZERO));
            while limits.stats().idle == before && answered.load(Ordering::Relaxed) < 5_000 {
                yield_now().await;
            }
        }
    }
    clients.join_all().await;
    let shutdown = timeout(Duration::from_secs(30), limits.shutdown());
    shutdown.await.expect("all connections end");
    let stats = limits.stats();
    assert_eq!(
        (stats.open, stats.grace, stats.header, stats.body_progress),
        (0, 0, 0, 0)
    );
    assert!(stats.idle > 0, "{changes} changes");
}
