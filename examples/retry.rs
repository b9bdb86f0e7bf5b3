//! Calls to a flaky server, each retried after 1 s, 3 s and 5 s unless an answer comes first.
//!
//! When a call starts, it schedules all its retries on a wheel with a tick of 10 ms. When an answer comes, it
//! cancels the remaining ones, so a retry that is not needed never becomes a Tokio task.
//!
//!     cargo run --release -p examples --bin retry

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use tickwheel::{Scheduled, Wheel};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

const CALLS: u64 = 400;
const TICK: Duration = Duration::from_millis(10);
const RETRIES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
];
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(800);
const GIVE_UP: Duration = Duration::from_secs(6);

#[tokio::main]
async fn main() -> io::Result<()> {
    let wheel = Wheel::builder()
        .tick_duration(TICK)
        .name("retries")
        .build()
        .expect("10 ms are within a tick's limits");
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener));

    println!("{CALLS} calls to {server}, which drops one connection in five and lets one in ten hang");
    // All calls at once would overrun the server's backlog, which is another story.
    let mut pace = wheel.interval(TICK);
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        pace.tick().await;
        calls.spawn(call(wheel.clone(), server, number));
    }
    let mut outcomes = BTreeMap::new();
    while let Some(ended) = calls.join_next().await {
        *outcomes.entry(ended?).or_insert(0) += 1;
    }
    for (answered, count) in outcomes {
        match answered {
            None => println!("{count:>5} never answered"),
            Some(0) => println!("{count:>5} answered at once"),
            Some(attempt) => println!(
                "{count:>5} answered when retried after {:?}",
                RETRIES[attempt - 1]
            ),
        }
    }

    let metrics = wheel.metrics();
    println!(
        "timers: {} registered = {} expired + {} cancelled + {} pending",
        metrics.registered, metrics.expired, metrics.cancelled, metrics.pending
    );
    Ok(())
}

/// Which attempt was answered first: 0 is the call itself, 1 to 3 its retries.
async fn call(wheel: Wheel, server: SocketAddr, number: u64) -> Option<usize> {
    let (answered, mut answers) = mpsc::channel(1 + RETRIES.len());
    // Dropped with this call, they start no more, and what has started ends.
    let _retries: Vec<Scheduled<()>> = (1..)
        .zip(RETRIES)
        .map(|(attempt, delay)| {
            let retry = try_once(wheel.clone(), server, number, attempt, answered.clone());
            wheel.schedule(delay, retry).abort_on_drop()
        })
        .collect();
    tokio::spawn(try_once(wheel.clone(), server, number, 0, answered));

    // Every attempt holds a sender: when all have failed there is nothing left to wait for.
    wheel.timeout(GIVE_UP, answers.recv()).await.unwrap_or(None)
}

async fn try_once(
    wheel: Wheel,
    server: SocketAddr,
    number: u64,
    attempt: usize,
    answered: mpsc::Sender<usize>,
) {
    match wheel.timeout(ATTEMPT_TIMEOUT, exchange(server, number)).await {
        Ok(Ok(answer)) if answer == number * number => {
            // Nobody listens any more when another attempt was faster.
            let _ = answered.send(attempt).await;
        }
        // What the retries are for.
        _ => {}
    }
}

async fn exchange(server: SocketAddr, number: u64) -> io::Result<u64> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u64(number).await?;
    stream.read_u64().await
}

/// Squares numbers, when it is in the mood.
async fn serve(listener: TcpListener) -> io::Result<()> {
    let mut mood = fastrand::Rng::with_seed(7);
    loop {
        let (stream, _) = listener.accept().await?;
        match mood.u8(..10) {
            0 | 1 => drop(stream),
            2 => drop(tokio::spawn(hang(stream))),
            _ => drop(tokio::spawn(answer(stream))),
        }
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let number = stream.read_u64().await?;
    stream.write_u64(number * number).await
}

/// Reads and says nothing, until the client gives up.
async fn hang(mut stream: TcpStream) {
    let mut ignored = [0; 64];
    while let Ok(1..) = stream.read(&mut ignored).await {}
}
