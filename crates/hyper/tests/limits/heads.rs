//! The limit of a request's head.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use futures::poll;
use hyper::{
    rt::{Read, ReadBufCursor, Write},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended};
use tokio::{
    task::coop,
    time::{advance, timeout},
};

use crate::support::{
    Client, GET, builder, frames::*, handlers::handle, ms, open, open_with, pause, serving, usual_limits,
};

#[tokio::test(start_paused = true)]
async fn who_sends_nothing_is_cut_off() {
    for builder in [builder(), builder().http1_only(), builder().http2_only()] {
        let (mut client, server) = open_with(&usual_limits(), &builder, 65_536);
        server.ends(Ended::Header, 300).await;
        client.read_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_preface_or_a_preface_alone_is_no_request() {
    let ack = [frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, ACK, 0, &[])].concat();
    let all = [PREFACE.as_bytes(), &ack].concat();
    for length in [1, 12, PREFACE.len(), all.len()] {
        let (mut client, server) = open(&usual_limits());
        client.send(&all[..length]).await;
        server.ends(Ended::Header, 300).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pings_are_no_request() {
    let (client, server) = open(&usual_limits());
    let client = Http2Client::new(client, 65_535).await;
    let pinging = tokio::spawn(client.repeat(ping(), 10));
    server.ends(Ended::Header, 300).await;
    assert!(pinging.await.unwrap().count(PING) > 10);
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_head_do_not_restart_its_time() {
    let (mut client, server) = open(&usual_limits());
    let sending = tokio::spawn(async move { client.send_each(GET.bytes().map(|byte| [byte]), 50).await });
    server.ends(Ended::Header, 300).await;
    assert!(!sending.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn continuations_of_the_first_head_do_not_restart_its_time() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, 65_535).await;
    let head = request_head("GET", "/");
    client.send(frame(HEADERS, END_STREAM, 1, &head[..3])).await;
    tokio::spawn(async move {
        for byte in &head[3..] {
            client.send(frame(CONTINUATION, 0, 1, &[*byte])).await;
            client.read_for(90).await;
        }
    });
    server.ends(Ended::Header, 300).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_complete_in_time_is_served() {
    let (mut client, server) = open(&usual_limits());
    assert!(client.send_each([&GET[..1], &GET[1..10]], 140).await);
    client.send(&GET[10..]).await;
    client.read_to("hello").await;
    drop(client);
    server.ends(Ended::Done, 280).await;
}

#[tokio::test(start_paused = true)]
async fn a_later_head_has_its_time_from_its_first_byte() {
    let (mut client, server) = open(&usual_limits());
    client.send(GET).await;
    client.read_to("hello").await;
    pause(400).await;
    tokio::spawn(async move { client.send_each(GET.bytes().map(|byte| [byte]), 50).await });
    server.ends(Ended::Header, 700).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_while_the_handler_works_has_its_time_from_the_response() {
    let (mut client, server) = open(&usual_limits());
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    pause(100).await;
    client.send(&GET[..10]).await;
    server.ends(Ended::Header, 1_300).await;
}

#[tokio::test(start_paused = true)]
async fn half_a_head_in_the_packet_of_the_last_is_idle_until_its_next_byte() {
    let both = format!("{GET}{}", &GET[..10]);
    let (mut client, server) = open(&usual_limits());
    client.send(&both).await;
    server.ends(Ended::Idle, 600).await;

    let (mut client, server) = open(&usual_limits());
    client.send(&both).await;
    pause(400).await;
    client.send(&GET[10..11]).await;
    server.ends(Ended::Header, 700).await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_that_the_handler_did_not_read_is_no_head() {
    let (mut client, server) = open(&usual_limits());
    client
        .send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 20\r\n\r\n")
        .await;
    assert!(client.send_each(["xxxxxxxxxx", "xxxxxxxxxx"], 50).await);
    client.read_to("slow").await;
    client
        .send("POST /slow HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    assert!(client.send_each(["1\r\nx\r\n", "0\r\n\r\n"], 50).await);
    client.read_to("slow").await;
    server.ends(Ended::Idle, 2_600).await;
}

/// Every kind of connection that hyper and hyper-util can end gracefully.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_wrapped_has_the_same_limits() {
    let limits = usual_limits();
    let open = |kind: &str| {
        let (client, io) = tokio::io::duplex(65_536);
        let (io, service, watcher) = limits.wrap(TokioIo::new(io), service_fn(handle));
        let auto = builder();
        let server = match kind {
            "http1" => serving(watcher.watch(http1::Builder::new().serve_connection(io, service))),
            "http2" => {
                let builder = http2::Builder::new(TokioExecutor::new());
                serving(watcher.watch(builder.serve_connection(io, service)))
            }
            "auto" => serving(watcher.watch(auto.serve_connection(io, service).into_owned())),
            _ => {
                let connection = auto.serve_connection_with_upgrades(io, service);
                serving(watcher.watch(connection.into_owned()))
            }
        };
        (client, server)
    };
    for kind in ["http1", "http2", "auto", "with upgrades"] {
        let (mut client, server) = open(kind);
        client.send(&PREFACE[..4]).await;
        server.ends(Ended::Header, 300).await;

        let (mut client, server) = open(kind);
        if kind == "http2" {
            let mut client = Http2Client::new(client, 65_535).await;
            client.send(get(1, "/")).await;
            tokio::spawn(client.repeat([], 1_000));
        } else {
            client.send(GET).await;
            client.read_to("hello").await;
        }
        server.ends(Ended::Idle, 600).await;
    }
}

#[tokio::test(start_paused = true)]
async fn where_heads_have_no_limit_they_are_idle_time() {
    let limits = ConnectionLimits::new(&Wheel::new()).idle(ms(600));
    let (_client, server) = open(&limits);
    server.ends(Ended::Idle, 600).await;

    let (mut client, server) = open(&limits);
    client.send(GET).await;
    client.read_to("hello").await;
    pause(100).await;
    client.send(&GET[..10]).await;
    server.ends(Ended::Idle, 600).await;
}

#[tokio::test(start_paused = true)]
async fn without_limits_a_connection_lives_on() {
    let (mut client, server) = open(&ConnectionLimits::new(&Wheel::new()));
    pause(86_400_000).await;
    client.send(GET).await;
    client.read_to("hello").await;
    pause(86_400_000).await;
    assert!(server.is_open());
}

/// The IO of a client that sends and sends, so that each read uses up all that a task may do in one poll.
struct Greedy<I>(I);

impl<I: Read + Unpin> Read for Greedy<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        while let Poll::Ready(budget) = coop::poll_proceed(cx) {
            budget.made_progress();
        }
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<I: Write + Unpin> Write for Greedy<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_uses_up_the_budget_keeps_the_limits() {
    let (_client, io) = tokio::io::duplex(65_536);
    let io = Greedy(TokioIo::new(io));
    let mut served = pin!(usual_limits().serve(&builder(), io, service_fn(handle)));
    // The connection is woken for as long as it has no budget, and so is never polled by the alarm alone.
    for _ in 0..300 {
        assert!(poll!(&mut served).is_pending());
        advance(ms(1)).await;
    }
    let ended = timeout(ms(1), served).await.expect("it has ended");
    assert_eq!(ended.unwrap(), Ended::Header);
}
