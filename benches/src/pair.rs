//! A server and its client, each in a process of its own, over TCP on this machine.

use std::{
    env,
    future::Future,
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tickwheel::Wheel;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    children::{Arguments, Line, in_turn},
    process, stage,
    timers::{Nothing, Timers, Tokio},
};

/// One connection, on the server's side and on the client's.
pub trait Program: Clone + Send + 'static {
    const NAME: &'static str;
    const CONNECTIONS: u64;
    /// How many of the connections ask; the others are silent.
    const BUSY: u64;

    fn serve<T: Timers>(stream: TcpStream, timers: T) -> impl Future<Output = ()> + Send;

    /// Asks once, and reads the answer.
    fn ask(stream: &mut TcpStream) -> impl Future<Output = std::io::Result<()>> + Send;
}

/// Runs the program without timers, on the wheel's and on Tokio's, or does the part that the arguments give to a child.
pub fn main<P: Program>() {
    let arguments = Arguments::read();
    match arguments.rest.first().map(String::as_str) {
        None => in_turn(&arguments, stage::programs()),
        Some("server") => match arguments.text("peer").expect("--peer") {
            "none" => serve::<P, _>(&arguments, Nothing),
            "tickwheel" => serve::<P, _>(&arguments, Wheel::new()),
            "tokio" | "tokio-alt" => serve::<P, _>(&arguments, Tokio),
            peer => panic!("there is no {peer}"),
        },
        Some("client") => load::<P>(&arguments),
        Some(peer) => measure::<P>(peer, &arguments),
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
fn measure<P: Program>(peer: &str, arguments: &Arguments) {
    let named = |name: &str, value: &str| [format!("--{name}"), value.to_owned()];
    let mut server = start("server", arguments.again().chain(named("peer", peer)));
    let port = line_of(&mut server);
    let port = port.get("port").expect("a port");
    let mut client = start("client", arguments.again().chain(named("port", port)));
    let loaded = line_of(&mut client);
    // The end of its input has the server say what it used; the connections are there still.
    drop(server.stdin.take());
    let served = line_of(&mut server);
    assert!(server.wait().expect("it ends").success(), "the server failed");
    drop(client.stdin.take());
    assert!(client.wait().expect("it ends").success(), "the client failed");

    let requests = loaded.number("requests").expect("requests");
    let seconds = loaded.number("seconds").expect("seconds");
    let asked = loaded.number("asked").expect("asked");
    let cpu = served.number("cpu_s").expect("cpu_s");
    let line = Line::new("program")
        .with("peer", peer)
        .with("program", P::NAME)
        .with_number("requests_per_s", requests / seconds)
        .with_number("cpu_us", cpu * 1e6 / asked)
        .with_number("bytes", served.number("bytes").expect("bytes"));
    println!("{line}");
}

fn serve<P: Program, T: Timers>(arguments: &Arguments, timers: T) {
    let connections = arguments.number("connections", P::CONNECTIONS);
    let workers = arguments.number("workers", process::cores() as u64);
    let peer = arguments.text("peer").expect("--peer");
    let runtime = stage::program(peer, workers)
        .enable_all()
        .build()
        .expect("the runtime starts");
    let listener = runtime
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let before = process::resident_bytes();
    println!("{}", Line::new("server").with("port", port));
    // With `accept` done, all connections are there, and the client begins to ask.
    let accept = async move {
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.expect("it listens");
            stream.set_nodelay(true).expect("it is a TCP socket");
            tokio::spawn(P::serve(stream, timers.clone()));
        }
        process::cpu_time()
    };
    let accepted = runtime
        .block_on(runtime.spawn(accept))
        .expect("the acceptor does not panic");
    let mut rest = Vec::new();
    std::io::stdin()
        .read_to_end(&mut rest)
        .expect("its input is piped");
    let cpu = process::cpu_time() - accepted;
    let bytes = process::resident_bytes().saturating_sub(before) as f64 / connections as f64;
    let line = Line::new("server").with("cpu_s", cpu.as_secs_f64());
    println!("{}", line.with("bytes", bytes));
    std::io::stdout().flush().expect("its output is piped");
    std::process::exit(0);
}

fn load<P: Program>(arguments: &Arguments) {
    let port = arguments.number("port", 0) as u16;
    let connections = arguments.number("connections", P::CONNECTIONS) as usize;
    let busy = arguments.number("busy", P::BUSY) as usize;
    let seconds = arguments.number("seconds", 4);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("the runtime starts");
    let (_streams, requests, took) = runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(AtomicU64::new(0));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut streams = Vec::new();
        while streams.len() < connections {
            // No more than the listener keeps for the server. Each asks once, so that whatever a connection needs is there.
            let connecting: Vec<_> = (streams.len()..connections)
                .take(500)
                .map(|_| tokio::spawn(connect::<P>(address)))
                .collect();
            for task in connecting {
                streams.push(task.await.expect("no panic").expect("the server answers"));
            }
        }
        let began = Instant::now();
        let asking: Vec<_> = streams
            .drain(connections.saturating_sub(busy)..)
            .map(|mut stream| {
                let (stop, requests) = (stop.clone(), requests.clone());
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        P::ask(&mut stream).await?;
                        requests.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<_, std::io::Error>(stream)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        stop.store(true, Ordering::Relaxed);
        for task in asking {
            streams.push(task.await.expect("no panic").expect("the server answers"));
        }
        (streams, requests.load(Ordering::Relaxed), began.elapsed())
    });
    let line = Line::new("client").with("requests", requests);
    let line = line.with("asked", requests + connections as u64);
    println!("{}", line.with("seconds", took.as_secs_f64()));
    std::io::stdout().flush().expect("its output is piped");
    // The connections stay until the server has counted.
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
}

async fn connect<P: Program>(address: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    P::ask(&mut stream).await?;
    Ok(stream)
}
