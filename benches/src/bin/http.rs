//! A real server: HTTP/1 keep-alive by hyper, each request under a timeout of five seconds, under load from a client in
//! another process: `http [--connections N] [--seconds N] [--rounds N]`.

use std::{
    convert::Infallible,
    env,
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const TIMEOUT: Duration = Duration::from_secs(5);
const BODY: &[u8] = b"hello, world";

fn main() {
    let arguments = Arguments::read();
    match arguments.rest.first().map(String::as_str) {
        None => in_turn(&arguments, &["none", "tickwheel", "tokio"]),
        Some("server") => serve(&arguments),
        Some("client") => load(&arguments),
        Some(peer) => measure(peer, &arguments),
    }
}

fn start(role: &str, arguments: impl IntoIterator<Item = String>) -> Child {
    Command::new(env::current_exe().expect("the program has a path"))
        .arg(role)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts again")
}

fn line_of(child: &mut Child) -> Line {
    let mut text = String::new();
    let mut output = BufReader::new(child.stdout.as_mut().expect("its output is piped"));
    output.read_line(&mut text).expect("the child prints");
    Line::parse(&text).unwrap_or_else(|| panic!("a child printed {text:?}"))
}

/// A server, a client, and what they say.
fn measure(peer: &str, arguments: &Arguments) {
    let named = |name: &str, value: &str| [format!("--{name}"), value.to_owned()];
    let mut server = start("server", arguments.again().chain(named("peer", peer)));
    let port = line_of(&mut server);
    let port = port.get("port").expect("a port");
    let mut client = start("client", arguments.again().chain(named("port", port)));
    let loaded = line_of(&mut client);
    assert!(client.wait().expect("it ends").success(), "the client failed");
    // The end of its input ends the server.
    drop(server.stdin.take());
    let served = line_of(&mut server);
    assert!(server.wait().expect("it ends").success(), "the server failed");

    let requests = loaded.number("requests").expect("requests");
    let seconds = loaded.number("seconds").expect("seconds");
    let cpu = served.number("cpu_s").expect("cpu_s");
    let connections = loaded.get("connections").expect("connections");
    let line = Line::new("http")
        .with("peer", peer)
        .with("connections", connections);
    let line = line.with_number("requests_per_s", requests / seconds);
    println!("{}", line.with_number("server_cpu_us", cpu * 1e6 / requests));
}

fn serve(arguments: &Arguments) {
    let peer = arguments.text("peer").expect("--peer").to_owned();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let workers = arguments.number("workers", process::cores() as u64) as usize;
    let runtime = builder
        .worker_threads(workers.max(2))
        .enable_all()
        .build()
        .expect("the runtime starts");
    let listener = runtime
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    println!("{}", Line::new("server").with("port", port));
    let before = process::cpu_time();
    match peer.as_str() {
        "none" => drop(runtime.spawn(accept(listener, |request| async move { answer(request).await }))),
        "tickwheel" => {
            let wheel = Wheel::new();
            drop(runtime.spawn(accept(listener, move |request| {
                let wheel = wheel.clone();
                async move { wheel.timeout(TIMEOUT, answer(request)).await.expect("in time") }
            })));
        }
        "tokio" => drop(runtime.spawn(accept(listener, |request| async move {
            tokio::time::timeout(TIMEOUT, answer(request))
                .await
                .expect("in time")
        }))),
        peer => panic!("there is no {peer}"),
    }
    let mut rest = Vec::new();
    std::io::stdin()
        .read_to_end(&mut rest)
        .expect("its input is piped");
    let cpu = process::cpu_time() - before;
    println!("{}", Line::new("server").with("cpu_s", cpu.as_secs_f64()));
}

async fn accept<H, A>(listener: TcpListener, handle: H)
where
    H: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await.expect("it listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        let handle = handle.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answered = handle(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            // A client that has gone is no fault of the server's.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// A handler that waits once, as one that asks a database does.
async fn answer(_: Request<Incoming>) -> Response<Full<Bytes>> {
    tokio::task::yield_now().await;
    Response::new(Full::new(Bytes::from_static(BODY)))
}

fn load(arguments: &Arguments) {
    let port = arguments.number("port", 0) as u16;
    let connections = arguments.number("connections", 64);
    let seconds = arguments.number("seconds", 4);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("the runtime starts");
    let (requests, took) = runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(AtomicU64::new(0));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut clients = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("it is a TCP socket");
            clients.push(tokio::spawn(ask(stream, stop.clone(), requests.clone())));
        }
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.expect("no panic").expect("the server answers");
        }
        (requests.load(Ordering::Relaxed), began.elapsed())
    });
    let line = Line::new("client")
        .with("requests", requests)
        .with("seconds", took.as_secs_f64());
    println!("{}", line.with("connections", connections));
    std::io::stdout().flush().expect("its output is piped");
}

/// Asks again as soon as it is answered.
async fn ask(mut stream: TcpStream, stop: Arc<AtomicBool>, requests: Arc<AtomicU64>) -> std::io::Result<()> {
    let mut answer = Vec::with_capacity(512);
    while !stop.load(Ordering::Relaxed) {
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await?;
        answer.clear();
        while !answer.ends_with(BODY) {
            if stream.read_buf(&mut answer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        requests.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
