//! The limit of a connection's life, and the grace after it.

use std::time::Duration;

use http_body_util::Full;
use hyper::{body::Bytes, service::service_fn};
use hyper_util::rt::TokioIo;
use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended, RequestBody};

use crate::support::{Client, GET, builder, frames::*, ms, open, pause, serving};

fn limits() -> ConnectionLimits {
    ConnectionLimits::new(&Wheel::new())
        .lifetime(ms(500), Duration::ZERO)
        .grace(ms(400))
}

#[tokio::test(start_paused = true)]
async fn the_next_response_of_http1_is_the_last() {
    let (mut client, server) = open(&limits());
    client.send(GET).await;
    assert!(!client.read_to("hello").await.contains("connection: close"));
    pause(800).await;
    client.send(GET).await;
    let last = client.read_all().await;
    assert!(
        last.contains("connection: close") && last.ends_with("hello"),
        "{last}"
    );
    server.ends(Ended::Lifetime, 800).await;
}

#[tokio::test(start_paused = true)]
async fn without_another_request_http1_is_closed_after_the_grace() {
    let (mut client, server) = open(&limits());
    client.send(GET).await;
    server.ends(Ended::Lifetime, 500 + 400).await;
    assert!(client.read_all().await.ends_with("hello"));
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_has_the_grace() {
    let (mut client, server) = open(&limits());
    pause(450).await;
    client
        .send("POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 200\r\n\r\n")
        .await;
    client.send_each(["x".repeat(100), "x".repeat(100)], 150).await;
    let last = client.read_all().await;
    assert!(
        last.contains("connection: close") && last.ends_with("200 bytes"),
        "{last}"
    );
    server.ends(Ended::Lifetime, 450 + 150).await;

    let (mut client, server) = open(&limits());
    pause(450).await;
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.ends(Ended::Grace, 500 + 400).await;
    assert_eq!(client.read_all().await, "");
}

#[tokio::test(start_paused = true)]
async fn http2_says_goaway_and_ends_its_streams() {
    let (client, server) = open(&limits().grace(ms(600)));
    let mut client = Http2Client::new(client, 65_535).await;
    client.send(get(1, "/slow")).await;
    client.read_for(600).await;
    assert_eq!(client.last_streams(), [u32::MAX >> 1, 1]);
    // Too late.
    client.send(get(3, "/")).await;
    assert!(!client.read_for(1_000).await);
    assert_eq!(client.data(), "slow".len());
    server.ends(Ended::Lifetime, 1_000).await;

    let (client, server) = open(&limits());
    let mut client = Http2Client::new(client, 65_535).await;
    client.send(get(1, "/slow")).await;
    tokio::spawn(client.repeat([], 10_000));
    server.ends(Ended::Grace, 500 + 400).await;
}

/// Its lifetime is over before its protocol is known.
#[tokio::test(start_paused = true)]
async fn http2_says_goaway_when_it_is_known() {
    let (client, server) = open(&limits());
    pause(600).await;
    let mut client = Http2Client::new(client, 65_535).await;
    client.send(get(1, "/")).await;
    assert!(!client.read_for(1_000).await);
    assert_eq!(client.data(), "hello".len());
    assert_eq!(client.last_streams()[0], u32::MAX >> 1);
    server.ends(Ended::Lifetime, 600).await;
}

#[tokio::test(start_paused = true)]
async fn it_ends_at_random_in_its_jitter() {
    let limits = ConnectionLimits::new(&Wheel::new())
        .lifetime(ms(10_000), ms(4_000))
        .grace(ms(0));
    let mut ends = Vec::new();
    let open = (0..200).map(|_| open(&limits)).collect::<Vec<_>>();
    for (_client, server) in open {
        let (ended, at) = server.end().await;
        assert_eq!(ended, Ok(Ended::Lifetime));
        assert!((6_000..=10_001).contains(&at), "{at}");
        ends.push(at);
    }
    for quarter in 0..4 {
        let from = 6_000 + quarter * 1_000;
        let there = ends
            .iter()
            .filter(|end| (from..from + 1_000).contains(*end))
            .count();
        // 50 of 200, on average: less than 20 once in ten million runs.
        assert!(there >= 20, "{there} from {from} ms on");
    }
}

/// The executor runs the handlers of HTTP/2 in tasks of their own.
#[tokio::test(start_paused = true)]
async fn handlers_that_are_cut_off_are_dropped() {
    let (dropped, count) = std::sync::mpsc::channel();
    let service = service_fn(move |_: http::Request<RequestBody>| {
        let dropped = dropped.clone();
        async move {
            let _guard = CallOnDrop(|| dropped.send(()).unwrap());
            std::future::pending::<()>().await;
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
        }
    });
    let (client, io) = tokio::io::duplex(65_536);
    let server = serving(limits().serve(&builder(), TokioIo::new(io), service));
    let mut client = Http2Client::new(client, 65_535).await;
    for stream in [1, 3, 5] {
        client.send(get(stream, "/")).await;
    }
    tokio::spawn(client.repeat([], 10_000));
    server.ends(Ended::Grace, 500 + 400).await;
    pause(1).await;
    assert_eq!(count.try_iter().count(), 3);
}

struct CallOnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
