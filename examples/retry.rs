//! Calls to a flaky server, each retried after 1 s, 3 s and 5 s unless an answer comes first.
//!
//! A call lays out its retries when it starts, as tasks scheduled on a wheel with a tick of 10 ms, and cancels what is
//! left of them when an answer comes: a retry that is not needed never becomes a Tokio task.
//!
//!     cargo run --release --example retry

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use tickwheel::{ScheduleError, Scheduled, TimeoutError, Wheel};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::Instant,
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
        pace.tick().await?;
        calls.spawn(call(wheel.clone(), server, number));
    }
    let outcomes = watch(&wheel, calls).await?;
    report(&outcomes);

    let metrics = wheel.metrics();
    println!(
        "timers: {} registered = {} expired + {} cancelled + {} pending",
        metrics.registered, metrics.expired, metrics.cancelled, metrics.pending
    );
    Ok(())
}

struct Outcome {
    /// Which attempt was answered first: 0 is the call itself, 1 to 3 its retries.
    answered: Option<usize>,
    retries_cancelled: usize,
    /// How late the retries that were made began.
    late: Vec<Duration>,
}

/// Fails when the wheel refuses: then there is no saying what became of the call.
async fn call(wheel: Wheel, server: SocketAddr, number: u64) -> io::Result<Outcome> {
    let (answered, mut answers) = mpsc::channel(1 + RETRIES.len());
    let retries: Vec<Scheduled<Duration>> = (1..)
        .zip(RETRIES)
        .map(|(attempt, delay)| {
            let due = Instant::now() + delay;
            let retry = try_once(wheel.clone(), server, number, attempt, answered.clone());
            wheel.schedule_at(due, async move {
                let late = due.elapsed();
                retry.await;
                late
            })
        })
        .collect();
    tokio::spawn(try_once(wheel.clone(), server, number, 0, answered));

    // Every attempt holds a sender: when all have failed there is nothing left to wait for.
    let answer = wheel.timeout(GIVE_UP, answers.recv()).await;
    // Whatever came of it: a handle that is dropped cancels nothing.
    let retries_cancelled = retries.iter().filter(|retry| retry.cancel()).count();
    let answered = match answer {
        Ok(answered) => answered,
        Err(TimeoutError::Elapsed) => None,
        Err(refused) => return Err(refused.into()),
    };
    let mut late = Vec::new();
    for retry in retries {
        match retry.await {
            Ok(began) => late.push(began),
            Err(ScheduleError::Cancelled) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Outcome {
        answered,
        retries_cancelled,
        late,
    })
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
        Ok(_) | Err(TimeoutError::Elapsed) => {}
        Err(refused) => eprintln!("call {number}, attempt {attempt}: {refused}"),
    }
}

async fn exchange(server: SocketAddr, number: u64) -> io::Result<u64> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u64(number).await?;
    stream.read_u64().await
}

/// Shows each second how far the calls are, until all have ended.
async fn watch(wheel: &Wheel, mut calls: JoinSet<io::Result<Outcome>>) -> io::Result<Vec<Outcome>> {
    let started = Instant::now();
    let mut every_second = wheel.interval(Duration::from_secs(1));
    let mut outcomes = Vec::new();
    loop {
        tokio::select! {
            ended = calls.join_next() => match ended {
                Some(outcome) => outcomes.push(outcome??),
                None => return Ok(outcomes),
            },
            tick = every_second.tick() => {
                tick?;
                println!(
                    "{:>3} s: {:>3} calls ended, {:>4} timers pending",
                    started.elapsed().as_secs(),
                    outcomes.len(),
                    wheel.pending()
                );
            }
        }
    }
}

fn report(outcomes: &[Outcome]) {
    let mut counts = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry(outcome.answered.unwrap_or(usize::MAX)).or_insert(0) += 1;
    }
    println!();
    for (attempt, count) in counts {
        match attempt {
            0 => println!("{count:>5} answered at once"),
            1..=3 => println!(
                "{count:>5} answered when retried after {:?}",
                RETRIES[attempt - 1]
            ),
            _ => println!("{count:>5} never answered"),
        }
    }
    let cancelled: usize = outcomes.iter().map(|outcome| outcome.retries_cancelled).sum();
    let late: Vec<_> = outcomes.iter().flat_map(|outcome| &outcome.late).collect();
    println!("{cancelled:>5} retries cancelled, {} made", late.len());
    if let Some(latest) = late.iter().max() {
        println!("      the latest began {latest:.1?} after its time");
    }
}

/// Squares numbers, when it is in the mood.
async fn serve(listener: TcpListener) -> io::Result<()> {
    let mut mood: u64 = 0x9E37_79B9_7F4A_7C15;
    loop {
        let (stream, _) = listener.accept().await?;
        mood ^= mood << 13;
        mood ^= mood >> 7;
        mood ^= mood << 17;
        match mood % 10 {
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
