//! The limit of progress of bodies: 100 bytes in 200 ms.

use tickwheel::Wheel;
use tickwheel_hyper::{ConnectionLimits, Ended};
use tokio::io::AsyncReadExt;

use crate::support::{Client, builder, frames::*, ms, open, open_with, pause, usual_limits};

const POST: &str = "POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
const CHUNKED: &str = "POST /length HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
const OPEN: u32 = 65_535;

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_cut_off() {
    let (mut client, server) = open(&usual_limits());
    client.send(POST).await;
    server.ends(Ended::BodyProgress, 200).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_body_or_too_few_are_no_progress() {
    // A byte each 10 ms is 20 in 200 ms. Extensions of a chunk are no body.
    for (head, piece) in [
        (POST, "x".to_owned()),
        (CHUNKED, format!("1;{}\r\nx\r\n", "e".repeat(200))),
    ] {
        let (mut client, server) = open(&usual_limits());
        client.send(head).await;
        let sending = tokio::spawn(async move {
            while client.send(&piece).await {
                pause(10).await;
            }
        });
        let (ended, at) = server.end().await;
        assert_eq!(ended, Ok(Ended::BodyProgress));
        // The waits add up to 200 ms: the handler waits but for a moment of each 10 ms.
        assert!((200..=210).contains(&at), "{at}");
        sending.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_but_steady_body_is_received() {
    let (mut client, server) = open(&usual_limits());
    client.send(CHUNKED).await;
    for _ in 0..100 {
        client.send(format!("19\r\n{}\r\n", "x".repeat(25))).await;
        pause(49).await;
    }
    client.send("0\r\n\r\n").await;
    client.read_to("2500 bytes").await;
    assert!(server.is_open());
}

#[tokio::test(start_paused = true)]
async fn each_window_wants_its_bytes() {
    let (mut client, server) = open(&usual_limits());
    client.send(format!("{POST}{}", "x".repeat(500))).await;
    // 500 bytes were there before the wait.
    server.ends(Ended::BodyProgress, 200).await;

    let (mut client, server) = open(&usual_limits());
    client.send(POST).await;
    pause(100).await;
    client.send("x".repeat(500)).await;
    server.ends(Ended::BodyProgress, 400).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_read_costs_the_client_nothing() {
    let (mut client, server) = open(&usual_limits());
    client.send(CHUNKED.replace("/length", "/work")).await;
    // Each frame is there when the handler asks for it, 400 ms later.
    for _ in 0..4 {
        client.send("1\r\nx\r\n").await;
        pause(400).await;
    }
    client.send("0\r\n\r\n").await;
    client.read_to("4 frames").await;
    assert!(server.is_open());
}

#[tokio::test(start_paused = true)]
async fn waits_for_many_small_bodies_do_not_add_up() {
    let (mut client, server) = open(&usual_limits());
    for _ in 0..20 {
        client.send(POST.replace("1000", "5")).await;
        pause(100).await;
        client.send("hello").await;
        client.read_to("5 bytes").await;
    }
    assert!(server.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_told_to_continue_has_to() {
    let (mut client, server) = open(&usual_limits());
    let post = POST
        .replace("host: a", "host: a\r\nexpect: 100-continue")
        .replace("1000", "5");
    client.send(&post).await;
    client.read_to("HTTP/1.1 100 Continue\r\n\r\n").await;
    client.send("hello").await;
    client.read_to("5 bytes").await;
    pause(300).await;
    client.send(&post).await;
    server.ends(Ended::BodyProgress, 300 + 200).await;

    // The handler of this one does not ask for the body.
    let (mut client, server) = open(&usual_limits());
    client.send(post.replace("/length", "/")).await;
    client.read_to("hello").await;
    server.ends(Ended::Done, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_read_is_cut_off() {
    for path in ["/big", "/pieces"] {
        let (mut client, server) = open(&usual_limits());
        client
            .send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        server.ends(Ended::BodyProgress, 200).await;
        assert!(client.read_all().await.len() < 70_000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_read_slowly_but_steadily_is_not() {
    for path in ["/big", "/pieces"] {
        let (mut client, server) = open_with(&usual_limits(), &builder(), 64);
        client
            .send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        for _ in 0..200 {
            client.read_exact(&mut [0; 50]).await.unwrap();
            pause(50).await;
        }
        assert!(server.is_open());
        server.ends(Ended::BodyProgress, 200 * 50 + 200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_of_hypers_own_that_is_not_read_is_cut_off() {
    let (mut client, server) = open_with(&usual_limits(), &builder(), 16);
    client.send("nonsense\r\n\r\n").await;
    server.ends(Ended::BodyProgress, 200).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_of_http2_that_does_not_come_is_cut_off() {
    // Nothing; a byte each 10 ms; pings.
    for frames in [Vec::new(), frame(DATA, 0, 1, b"x"), ping()] {
        let (client, server) = open(&usual_limits());
        let mut client = Http2Client::new(client, OPEN).await;
        client.send(post(1, "/length")).await;
        tokio::spawn(client.repeat(frames, 10));
        let (ended, at) = server.end().await;
        assert_eq!(ended, Ok(Ended::BodyProgress));
        assert!((200..=210).contains(&at), "{at}");
    }
}

/// All bytes of the body are there, but not its end, for which the handler waits.
#[tokio::test(start_paused = true)]
async fn a_stream_of_http2_that_is_not_ended_is_cut_off() {
    for body in ["", "hello"] {
        for others in [Vec::new(), frame(DATA, 0, 1, &[])] {
            let (client, server) = open(&usual_limits());
            let mut client = Http2Client::new(client, OPEN).await;
            client.send(post_of(&body.len().to_string(), 1, "/length")).await;
            pause(50).await;
            client.send(frame(DATA, 0, 1, body.as_bytes())).await;
            tokio::spawn(client.repeat(others, 10));
            let (ended, at) = server.end().await;
            assert_eq!(ended, Ok(Ended::BodyProgress));
            let waits_since = if body.is_empty() { 0 } else { 50 };
            assert!((200..=213).contains(&(at - waits_since)), "{at}");
        }
    }
}

/// One that keeps its request after the response.
#[tokio::test(start_paused = true)]
async fn a_handler_that_keeps_a_body_that_has_ended_keeps_no_connection_busy() {
    let post = [post_of("5", 1, "/keep"), frame(DATA, END_STREAM, 1, b"hello")].concat();
    for request in [get(1, "/keep"), post] {
        let (client, server) = open(&usual_limits());
        let mut client = Http2Client::new(client, OPEN).await;
        client.send(request).await;
        tokio::spawn(client.repeat([], 1_000));
        server.ends(Ended::Idle, 600).await;
    }
    let post = format!("{}hello", POST.replace("1000", "5").replace("/length", "/keep"));
    for request in ["GET /keep HTTP/1.1\r\nhost: a\r\n\r\n", &post] {
        let (mut client, server) = open(&usual_limits());
        client.send(request).await;
        server.ends(Ended::Idle, 600).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_bodies_of_a_connection_count_together() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(post(1, "/length")).await;
    client.send(post(3, "/length")).await;
    for _ in 0..50 {
        assert!(client.send(frame(DATA, 0, 3, &[b'x'; 50])).await);
        client.read_for(40).await;
    }
    client.send(frame(DATA, END_STREAM, 3, &[])).await;
    assert!(
        client.read_for(10).await,
        "one that stalls beside one that goes on"
    );
    tokio::spawn(client.repeat([], 1_000));
    let (ended, at) = server.end().await;
    assert_eq!(ended, Ok(Ended::BodyProgress));
    assert!((2_000..=2_400).contains(&at), "{at}");
}

/// The other handler still waits.
#[tokio::test(start_paused = true)]
async fn bodies_that_end_do_not_cover_for_one_that_stalls() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(post(1, "/length")).await;
    tokio::spawn(async move {
        for stream in (3..).step_by(2) {
            client.send(post(stream, "/length")).await;
            client.read_for(20).await;
            client.send(frame(DATA, END_STREAM, stream, b"x")).await;
            if !client.read_for(20).await {
                break;
            }
        }
    });
    let (ended, at) = server.end().await;
    assert_eq!(ended, Ok(Ended::BodyProgress));
    assert!((200..=201).contains(&at), "{at}");
}

/// Nor does one for which no handler has waited make the time of the others begin anew.
#[tokio::test(start_paused = true)]
async fn a_body_that_was_there_does_not_cover_for_one_that_stalls() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(post(1, "/work")).await;
    client.read_for(150).await;
    client.send(frame(DATA, 0, 1, b"x")).await;
    // The handler works for 400 ms.
    client.read_for(100).await;
    let whole = [post(3, "/"), frame(DATA, END_STREAM, 3, b"x")].concat();
    client.send(whole).await;
    tokio::spawn(client.repeat([], 1_000));
    let (ended, at) = server.end().await;
    assert_eq!(ended, Ok(Ended::BodyProgress));
    // 50 ms more, and at most a sixteenth of the window.
    assert!((600..=613).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn a_client_of_http2_that_gives_no_window_is_cut_off() {
    for path in ["/", "/big", "/pieces"] {
        for others in [Vec::new(), ping()] {
            let (client, server) = open(&usual_limits());
            let mut client = Http2Client::new(client, 0).await;
            client.send(get(1, path)).await;
            tokio::spawn(client.repeat(others, 10));
            server.ends(Ended::BodyProgress, 200).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_of_a_few_bytes_is_no_progress() {
    for path in ["/big", "/pieces"] {
        let (client, server) = open(&usual_limits());
        let mut client = Http2Client::new(client, 0).await;
        client.send(get(1, path)).await;
        tokio::spawn(client.repeat(window(1, 1), 10));
        server.ends(Ended::BodyProgress, 200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_grows_slowly_but_steadily_is() {
    for path in ["/big", "/pieces"] {
        let (client, server) = open(&usual_limits());
        let mut client = Http2Client::new(client, 0).await;
        client.send(get(1, path)).await;
        for _ in 0..100 {
            client.send(window(1, 50)).await;
            assert!(client.read_for(50).await);
        }
        assert_eq!(client.data(), 5_000);
        tokio::spawn(client.repeat([], 1_000));
        let (ended, at) = server.end().await;
        assert_eq!(ended, Ok(Ended::BodyProgress));
        assert!((5_200..=5_400).contains(&at), "{at}");
    }
}

/// h2 has taken a body whole, and hyper knows of no more.
#[tokio::test(start_paused = true)]
async fn a_response_that_h2_holds_is_in_flight() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, 0).await;
    client.send(get(1, "/")).await;
    pause(150).await;
    client.send(window(1, 5)).await;
    client.read_for(1).await;
    assert_eq!(client.data(), 5);
    tokio::spawn(client.repeat([], 2_000));
    server.ends(Ended::Idle, 150 + 600).await;
}

#[tokio::test(start_paused = true)]
async fn pings_whose_answers_are_not_read_are_cut_off() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    client.send(get(1, "/")).await;
    client.read_for(50).await;
    tokio::spawn(async move { while client.send(ping()).await {} });
    server.ends(Ended::BodyProgress, 50 + 200).await;
}

/// Floods that h2 ends by itself.
#[tokio::test(start_paused = true)]
async fn floods_are_errors() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, OPEN).await;
    tokio::spawn(async move {
        for batch in 0..200 {
            let mut frames = Vec::new();
            for request in 0..100 {
                let stream = 2 * (100 * batch + request) + 1;
                frames.extend(get(stream, "/slow"));
                frames.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
            }
            if !client.send(frames).await || !client.read_for(1).await {
                return;
            }
        }
        panic!("20,000 streams were reset");
    });
    let (ended, _) = server.end().await;
    assert!(ended.is_err(), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_may_be_slow_where_there_is_no_limit() {
    let (mut client, server) = open(&ConnectionLimits::new(&Wheel::new()).idle(ms(600)));
    client.send(POST).await;
    pause(3_600_000).await;
    client.send("x".repeat(1_000)).await;
    client.read_to("1000 bytes").await;
    server.ends(Ended::Idle, 3_600_000 + 600).await;
}
