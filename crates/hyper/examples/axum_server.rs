//! An axum server to put on the internet: TLS, limits for every connection, and a graceful shutdown.
//!
//! `axum_server 0.0.0.0:8443` serves until Ctrl-C or SIGTERM; try it by `curl -k https://localhost:8443/`.
//! Without an address, it is its own client, and ends.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::WebSocketUpgrade,
    routing::{any, get},
    serve::Listener,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tickwheel::Wheel;
use tickwheel_hyper::ConnectionLimits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    select, signal,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    },
};

const SECOND: Duration = Duration::from_secs(1);

fn app() -> Router {
    let echo = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        })
    };
    Router::new()
        .route("/", get(async || "hello"))
        .route("/echo", any(echo))
}

fn limits(wheel: &Wheel) -> ConnectionLimits {
    ConnectionLimits::new(wheel)
        .header(10 * SECOND)
        .idle(75 * SECOND)
        .body_progress(10 * SECOND, 1_000)
        .lifetime(3_600 * SECOND, 600 * SECOND)
        .grace(30 * SECOND)
        .name("axum_server")
}

/// Makes the kernel tell how far a client has read, and give up what a client does not read.
fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        let socket = socket2::SockRef::from(stream);
        socket.set_tcp_notsent_lowat(16_384)?;
        socket.set_tcp_user_timeout(Some(30 * SECOND))?;
    }
    Ok(())
}

/// Serves until `stop`, and then what is in flight.
async fn serve(mut listener: TcpListener, tls: TlsAcceptor, stop: impl Future) {
    let (wheel, app) = (Wheel::global(), app());
    let limits = limits(&wheel);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().enable_connect_protocol(); // for websockets, as `axum::serve` does
    let builder = Arc::new(builder);
    let mut stop = pin!(stop);
    loop {
        let (stream, _) = select! {
            // axum's `accept` waits where that of Tokio fails, as when there are too many open files.
            accepted = Listener::accept(&mut listener) => accepted,
            _ = &mut stop => break,
        };
        if configure(&stream).is_err() {
            continue; // the client has gone
        }
        let handshake = wheel.timeout(10 * SECOND, tls.accept(stream));
        let (limits, builder, app) = (limits.clone(), builder.clone(), app.clone());
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = handshake.await {
                // A task of its own, because to await it here would take twice its memory.
                tokio::spawn(limits.serve(&builder, TokioIo::new(stream), TowerToHyperService::new(app)));
            }
        });
    }
    drop(listener);
    limits.shutdown().await;
    println!("{:?}", limits.stats());
}

/// Waits for Ctrl-C, or for what an orchestrator sends.
async fn told_to_stop() -> io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate())?;
        select! {
            _ = terminate.recv() => Ok(()),
            result = signal::ctrl_c() => result,
        }
    }
    #[cfg(not(unix))]
    signal::ctrl_c().await
}

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    // In place of a certificate that others trust.
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(config));

    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    if address.is_some() {
        serve(listener, tls, told_to_stop()).await;
    } else {
        let stream = TcpStream::connect(listener.local_addr()?).await?;
        serve(listener, tls, visit(stream, certificate)).await;
    }
    Ok(())
}

/// A client of one request, whose answer it prints.
async fn visit(stream: TcpStream, certificate: CertificateDer<'static>) -> Result<(), Error> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector
        .connect(ServerName::try_from("localhost")?, stream)
        .await?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await?;
    let mut answer = vec![0; 1_024];
    let length = stream.read(&mut answer).await?;
    println!("{}", String::from_utf8_lossy(&answer[..length]));
    Ok(())
}
