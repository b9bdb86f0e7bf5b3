//! Calls to a flaky server, each retried for as long as its budget lasts, with pauses that grow and jitter.
//!
//! The budget is a deadline around the whole call. Each attempt has a timeout of its own, and
//! `deadline::timeout` says which of the two has elapsed, so a call that has no time left does not try again.
//!
//!     cargo run --release -p examples --bin retry

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use tickwheel::{
    Wheel,
    deadline::{self, LimitError},
    time::{interval, sleep},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

const CALLS: u64 = 400;
const BUDGET: Duration = Duration::from_secs(2);
const ATTEMPT: Duration = Duration::from_millis(300);
const FIRST_PAUSE: Duration = Duration::from_millis(50);

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener));

    println!("{CALLS} calls to {server}, which drops one connection in five and lets one in ten hang");
    // All calls at once would overrun the server's backlog, which is another story.
    let mut pace = interval(Duration::from_millis(10));
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        pace.tick().await;
        calls.spawn(deadline::within(BUDGET, call(server, number)));
    }
    let mut outcomes = BTreeMap::new();
    while let Some(ended) = calls.join_next().await {
        // The scope itself ends a call that is between two attempts when its time is up.
        let answered = ended?.unwrap_or(None);
        *outcomes.entry(answered).or_insert(0) += 1;
    }
    for (answered, count) in outcomes {
        match answered {
            None => println!("{count:>5} not answered within {BUDGET:?}"),
            Some(0) => println!("{count:>5} answered at once"),
            Some(retries) => println!("{count:>5} answered by retry {retries}"),
        }
    }

    let metrics = Wheel::global().metrics();
    println!(
        "timers: {} registered = {} expired + {} cancelled + {} pending",
        metrics.registered, metrics.expired, metrics.cancelled, metrics.pending
    );
    Ok(())
}

/// Returns which attempt was answered, or `None` if the budget did not last.
async fn call(server: SocketAddr, number: u64) -> Option<u32> {
    for attempt in 0.. {
        match deadline::timeout(ATTEMPT, exchange(server, number)).await {
            Ok(Ok(answer)) if answer == number * number => return Some(attempt),
            Err(LimitError::Deadline) => return None,
            // A broken connection, a wrong answer, or none in time.
            _ => {}
        }
        let pause = FIRST_PAUSE * 2_u32.pow(attempt.min(5));
        sleep(pause.mul_f64(fastrand::f64())).await;
    }
    None
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
