//! A client that reads steadily but slowly, which `body_progress` of 1 KB in 10 s is not to cut off. It takes 30 s, and
//! shows what the kernel's buffer of a socket hides from the server, and that `TCP_NOTSENT_LOWAT` mends it.

use std::{convert::Infallible, io, time::Duration};

use http::Response;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use socket2::SockRef;
use tickwheel::Wheel;
use tickwheel_hyper_benches::{Frames, usual_limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    time::{Instant, sleep},
};

/// Reads 20 KB a second of 160 MB.
async fn read(not_sent: Option<u32>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(65_536)?;
    let mut client = socket.connect(listener.local_addr()?).await?;
    let (stream, _) = listener.accept().await?;
    if let Some(bytes) = not_sent {
        SockRef::from(&stream).set_tcp_notsent_lowat(bytes)?;
    }
    let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(Frames(10_000))));
    let limits = usual_limits(&Wheel::global());
    let served = limits.serve(&Builder::new(TokioExecutor::new()), TokioIo::new(stream), service);
    let served = tokio::spawn(served);
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await?;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(30) && !served.is_finished() {
        bytes += client.read(&mut [0; 400]).await?;
        sleep(Duration::from_millis(20)).await;
    }
    let open = if served.is_finished() { "cut off" } else { "open" };
    println!(
        "TCP_NOTSENT_LOWAT {not_sent:?}: {open} after {:?} and {bytes} bytes",
        start.elapsed()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    tokio::try_join!(read(None), read(Some(16_384)))?;
    Ok(())
}
