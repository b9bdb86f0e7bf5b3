//! A TCP server that echoes lines. It closes silent connections, limits the time of each request, and shuts
//! down gracefully. One client that behaves and two that do not show how it reacts; then it ends.
//!
//!     cargo run --release -p examples --bin echo_server

use std::{
    io,
    net::SocketAddr,
    sync::OnceLock,
    time::{Duration, Instant},
};

use tickwheel::Wheel;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A connection on which no line comes for so long is closed.
const IDLE: Duration = Duration::from_millis(600);
/// A request may take so long.
const REQUEST: Duration = Duration::from_millis(200);
/// How long connections have, when the server shuts down, to finish what they are at.
const GRACE: Duration = Duration::from_secs(1);

/// Prints a line with the time since the start.
fn say(who: &str, what: impl std::fmt::Display) {
    static START: OnceLock<Instant> = OnceLock::new();
    let millis = START.get_or_init(Instant::now).elapsed().as_millis();
    println!("{millis:>5} ms  {who:<9} {what}");
}

/// Answers one line; a line that says "sleep" takes its time.
async fn answer(line: &str) -> String {
    if let Some(millis) = line.strip_prefix("sleep ").and_then(|millis| millis.parse().ok()) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    format!("{line}\n")
}

/// Serves one connection until its end, and tells what ended it.
async fn serve(
    wheel: Wheel,
    stream: TcpStream,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<&'static str> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let mut idle = wheel.idle_timer(IDLE);
    let activity = idle.handle();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => line,
                None => return Ok("the client has closed it"),
            },
            () = &mut idle => return Ok("idle"),
            _ = stopping.wait_for(|stopping| *stopping) => return Ok("the server shuts down"),
        };
        let response = match wheel.timeout(REQUEST, answer(&line)).await {
            Ok(response) => response,
            Err(error) => format!("error: {error}\n"),
        };
        writer.write_all(response.as_bytes()).await?;
        // A store; the timer stays where it is in the wheel.
        activity.touch();
    }
}

/// Accepts connections until told to stop, then waits for those open.
async fn listen(wheel: Wheel, listener: TcpListener, mut stopping: watch::Receiver<bool>) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let stopping_too = stopping.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, peer) = accepted?;
                let connection = serve(wheel.clone(), stream, stopping_too.clone());
                connections.spawn(async move {
                    match connection.await {
                        Ok(reason) => say("server", format_args!("closes {peer}: {reason}")),
                        Err(error) => say("server", format_args!("lost {peer}: {error}")),
                    }
                });
            }
            Some(_) = connections.join_next() => {}
            _ = stopping.wait_for(|stopping| *stopping) => break,
        }
    }
    let finished = async { while connections.join_next().await.is_some() {} };
    match wheel.timeout(GRACE, finished).await {
        Ok(()) => say("server", "every connection has finished"),
        Err(error) => say("server", format_args!("gives up {}: {error}", connections.len())),
    }
    Ok(())
}

/// Connects and says something now and then, until the server hangs up or there is nothing left to say.
async fn client(name: &'static str, server: SocketAddr, sayings: &'static [&str]) -> io::Result<()> {
    let (reader, mut writer) = TcpStream::connect(server).await?.into_split();
    let mut lines = BufReader::new(reader).lines();
    for saying in sayings {
        writer.write_all(format!("{saying}\n").as_bytes()).await?;
        let Some(line) = lines.next_line().await? else {
            break;
        };
        say(name, format_args!("says {saying:?}, hears {line:?}"));
        tokio::time::sleep(IDLE / 2).await;
    }
    if lines.next_line().await?.is_none() {
        say(name, "finds that the server has hung up");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let wheel = Wheel::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let (stop, stopping) = watch::channel(false);
    say("server", format_args!("listens on {server}; idle after {IDLE:?}"));
    let listening = tokio::spawn(listen(wheel.clone(), listener, stopping));

    let mut clients = JoinSet::new();
    // One that speaks often enough to be kept for longer than the idle deadline.
    let sayings = ["one", "two", "sleep 100", "three", "four", "five", "six"].as_slice();
    clients.spawn(client("lively", server, sayings));
    // One that asks for too much, and then says nothing any more.
    clients.spawn(client("stalling", server, &["hello", "sleep 5000"]));
    // One that never says a word.
    clients.spawn(client("silent", server, &[]));

    tokio::time::sleep(Duration::from_millis(2500)).await;
    say("server", "shuts down");
    stop.send_replace(true);
    listening.await??;
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    say("wheel", format_args!("{} timers left", wheel.pending()));
    Ok(())
}
