//! The limit of a connection without requests.

use tickwheel_hyper::Ended;

use crate::support::{Client, GET, frames::*, open, pause, usual_limits};

const OPEN: u32 = 65_535;

/// Without a limit it stays open for ever after its first request, as in hyper's #3828.
#[tokio::test(start_paused = true)]
async fn it_counts_from_the_last_response() {
    let (mut client, server) = open(&usual_limits());
    for _ in 0..3 {
        client.send(GET).await;
        client.read_to("hello").await;
        pause(500).await;
    }
    server.ends(Ended::Idle, 1_000 + 600).await;
    client.read_all().await;
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_all_answered() {
    let (mut client, server) = open(&usual_limits());
    client.send(GET.repeat(20)).await;
    server.ends(Ended::Idle, 600).await;
    assert_eq!(client.read_all().await.matches("hello").count(), 20);
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_body_end_too() {
    let (mut client, server) = open(&usual_limits());
    client.send("HEAD /big HTTP/1.1\r\nhost: a\r\n\r\n").await;
    client.read_to("\r\n\r\n").await;
    pause(100).await;
    client.send("GET /empty HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.ends(Ended::Idle, 700).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_and_a_silent_stream_are_not_idle() {
    let (mut client, server) = open(&usual_limits());
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    client.read_to("slow").await;
    client.send("GET /events HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let events = client.read_to("0\r\n\r\n").await;
    assert_eq!(events.matches("event").count(), 4);
    server.ends(Ended::Idle, 1_000 + 1_600 + 600).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_response_is_when_the_socket_has_it() {
    let (mut client, server) = open(&usual_limits());
    client.send("GET /big HTTP/1.1\r\nhost: a\r\n\r\n").await;
    // 1 MB in some 1.5 s.
    let mut read = String::new();
    while !read.ends_with("xxx") || read.len() < 1_000_000 {
        read += &client.read_to("x").await;
        if read.len() % 65_536 == 0 {
            pause(100).await;
        }
    }
    let (ended, at) = server.end().await;
    assert_eq!(ended, Ok(Ended::Idle));
    // What the socket has buffered comes later to the client.
    assert!((1_400 + 600..1_500 + 602).contains(&at), "{at}");
}

/// Its task ends, where in hyper's #3685 those of idle connections live on for hours.
#[tokio::test(start_paused = true)]
async fn http2_says_goaway() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(get(1, "/")).await;
    client.read_for(100).await;
    client.send(get(3, "/slow")).await;
    client.read_for(1_100).await;
    assert_eq!(client.data(), "hello".len() + "slow".len());
    assert!(!client.read_for(1_000).await);
    server.ends(Ended::Idle, 100 + 1_000 + 600).await;
    assert_eq!(client.last_streams(), [u32::MAX >> 1, 3]);
}

/// Nothing is read meanwhile, so a timeout of the stream would cut the request off, as in hyper's #1628.
#[tokio::test(start_paused = true)]
async fn a_silent_stream_of_http2_is_not_idle() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(get(1, "/events")).await;
    assert!(!client.read_for(3_000).await);
    assert_eq!(client.data(), 4 * "event\n".len());
    server.ends(Ended::Idle, 1_600 + 600).await;
}

/// It is asked whether it has got the `GOAWAY`.
#[tokio::test(start_paused = true)]
async fn a_client_of_http2_that_has_vanished_has_the_grace() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.answers_pings = false;
    client.send(get(1, "/")).await;
    client.read_for(2_000).await;
    assert_eq!(client.last_streams(), [u32::MAX >> 1]);
    server.ends(Ended::Idle, 600 + 400).await;
}

#[tokio::test(start_paused = true)]
async fn pings_and_half_a_later_head_of_http2_are_idle_time() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(get(1, "/")).await;
    let pinging = tokio::spawn(client.repeat(ping(), 10));
    server.ends(Ended::Idle, 600).await;
    assert!(pinging.await.unwrap().count(PING) > 50);

    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(get(1, "/")).await;
    client.read_for(100).await;
    client
        .send(frame(HEADERS, END_STREAM, 3, &request_head("GET", "/")[..3]))
        .await;
    tokio::spawn(client.repeat(frame(CONTINUATION, 0, 3, &[]), 150));
    let (ended, at) = server.end().await;
    assert_eq!(ended, Ok(Ended::Idle));
    assert!((600..=1_001).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn streams_that_the_client_resets_are_over() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    for request in 0..100 {
        let stream = 2 * request + 1;
        client.send(get(stream, "/slow")).await;
        client.read_for(1).await;
        client
            .send(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()))
            .await;
    }
    tokio::spawn(client.repeat([], 1_000));
    server.ends(Ended::Idle, 100 + 600).await;
}

/// hyper's own pings, which a client answers that is there.
#[tokio::test(start_paused = true)]
async fn pings_of_hypers_are_idle_time() {
    use crate::support::{builder, ms, open_with};
    let mut builder = builder();
    let timer = hyper_util::rt::TokioTimer::new();
    builder
        .http2()
        .timer(timer)
        .keep_alive_interval(ms(100))
        .keep_alive_timeout(ms(50));
    let (client, server) = open_with(&usual_limits(), &builder, 65_536);
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(get(1, "/")).await;
    client.read_for(2_000).await;
    assert!(client.count(PING) >= 5);
    server.ends(Ended::Idle, 600).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_the_client_or_the_handler_closes_is_done() {
    let (mut client, server) = open(&usual_limits());
    client.send(GET).await;
    client.read_to("hello").await;
    drop(client);
    server.ends(Ended::Done, 0).await;

    let (mut client, server) = open(&usual_limits());
    client.send("GET /last HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(client.read_all().await.ends_with("last"));
    server.ends(Ended::Done, 0).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_http_is_an_error() {
    let huge = "x".repeat(500_000);
    for (request, status) in [
        ("nonsense\r\n\r\n".to_owned(), "HTTP/1.1 400"),
        (format!("GET / HTTP/1.1\r\na: {huge}"), "HTTP/1.1 431"),
        (
            format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101)),
            "HTTP/1.1 431",
        ),
    ] {
        let (mut client, server) = open(&usual_limits());
        client.send(request).await;
        let (ended, at) = server.end().await;
        assert!(ended.is_err() && at == 0, "{ended:?} after {at} ms");
        assert!(client.read_all().await.starts_with(status));
    }
}
