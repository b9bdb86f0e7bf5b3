//! Connections and streams that become another protocol's.

use bytes::Bytes;
use http_body_util::Empty;
use hyper::service::service_fn;
use hyper_util::{rt::TokioIo, server::conn::auto::upgrade::downcast};
use tickwheel_hyper::{Ended, LimitedIo, RequestBody};
use tokio::io::{AsyncWriteExt, DuplexStream};

use crate::support::{Client, builder, frames::*, ms, open, pause, serving, usual_limits};

const UPGRADE: &str = "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
const CONNECT: &str = "CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn an_upgrade_of_http1_ends_the_limits() {
    for request in [UPGRADE, CONNECT] {
        let limits = usual_limits();
        let (mut client, server) = open(&limits);
        client.send(format!("{request}early")).await;
        client.read_to("early").await;
        server.ends(Ended::Upgraded, 0).await;
        assert_eq!(limits.stats().open, 0);
        pause(1_000_000).await;
        client.send("late").await;
        client.read_to("late").await;
    }
}

/// It lives on, so nothing has ended it.
#[tokio::test(start_paused = true)]
async fn an_upgrade_after_the_lifetime_is_an_upgrade() {
    let limits = usual_limits().lifetime(ms(100), ms(0));
    let (mut client, server) = open(&limits);
    pause(150).await;
    client.send(format!("{UPGRADE}early")).await;
    client.read_to("early").await;
    server.ends(Ended::Upgraded, 150).await;
    assert_eq!(limits.stats().lifetime, 0);
}

#[tokio::test(start_paused = true)]
async fn the_io_comes_back_out_of_an_upgrade() {
    let (sender, mut upgraded) = tokio::sync::mpsc::channel(1);
    let service = service_fn(move |mut request: http::Request<RequestBody>| {
        let sender = sender.clone();
        async move {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move { sender.send(upgrade.await.unwrap()).await });
            http::Response::builder().status(101).body(Empty::<Bytes>::new())
        }
    });
    let (mut client, io) = tokio::io::duplex(4_096);
    client.send(UPGRADE).await;
    let served = usual_limits().serve(&builder(), TokioIo::new(io), service);
    serving(served).ends(Ended::Upgraded, 0).await;
    let upgraded = upgraded.recv().await.unwrap();
    let parts = downcast::<LimitedIo<TokioIo<DuplexStream>>>(upgraded).unwrap();
    let mut io = parts.io.into_inner().into_inner();
    io.write_all(b"raw").await.unwrap();
    client.read_to("raw").await;
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_of_http2_is_never_idle() {
    let (client, server) = open(&usual_limits());
    let mut client = Http2Client::new(client, 65_535).await;
    client.send(connect(1)).await;
    client.send(frame(DATA, 0, 1, b"hello")).await;
    client.read_for(10).await;
    assert_eq!(client.data(), 5);
    client.read_for(100_000).await;
    client.send(frame(DATA, END_STREAM, 1, b"hello")).await;
    client.read_for(100_000).await;
    assert_eq!(client.data(), 10);
    assert!(server.is_open(), "nothing tells when a tunnel ends");
}
