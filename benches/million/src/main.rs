//! The main job: a server's timers, a million of them, on `tickwheel` and on `tokio::time`.
//!
//! Clients and a server exchange requests over real TCP connections on loopback. Each request has a timeout, each
//! connection a heartbeat and an idle deadline that traffic pushes back, and the process holds a million further
//! idle deadlines. The same work runs once on each clock, each time in a process of its own, so that neither pays for
//! the other's memory or CPU time; then one table shows both.
//!
//!     cargo run --release -p million -- --connections 2000 --timers 1000000 --seconds 10 --tick 10

use std::{
    env, io,
    net::SocketAddr,
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tickwheel::Wheel;
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet, time::Instant};

use crate::{
    clockwork::{Clockwork, TokioTime},
    hoard::arm_all,
    machine::{cores, cpu_time, grouped, resident},
    options::Options,
    random::Random,
    tally::{Report, Tally},
    traffic::{Client, Connection, accept},
};

mod clockwork;
mod hoard;
mod machine;
mod options;
#[path = "../../../tests/support/random.rs"]
mod random;
mod tally;
mod traffic;

/// In the environment of a child process: the name of the clock it is to work on.
const ONLY: &str = "TICKWHEEL_MILLION_ONLY";
const REST: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", Options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("{mistake}");
            return ExitCode::from(2);
        }
    };
    let outcome = match env::var(ONLY).ok().as_deref() {
        Some(Wheel::NAME) => work_alone(options, options.wheel()),
        Some(_) => work_alone(options, TokioTime),
        None => compare(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("million: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> io::Result<()> {
    let wheel = in_a_child(Wheel::NAME, options)?;
    let tokio = in_a_child(TokioTime::NAME, options)?;
    println!(
        "\n{} connections, {} further deadlines, {} s of traffic, a tick of {} ms, {} cores\n",
        grouped(options.connections as u64),
        grouped(options.timers as u64),
        options.seconds,
        options.tick,
        cores(),
    );
    println!("{:<42}{:>28}{:>28}", "", Wheel::NAME, TokioTime::NAME);
    for (wheel, tokio) in wheel
        .lines()
        .zip(tokio.lines())
        .take_while(|(row, _)| !row.is_empty())
    {
        let (name, wheel) = wheel.split_once('\t').unwrap_or((wheel, ""));
        let (_, tokio) = tokio.split_once('\t').unwrap_or((tokio, ""));
        println!("{name:<42}{wheel:>28}{tokio:>28}");
    }
    println!(
        "\nLate: from a deadline to when the task that waited for it runs. A wheel wakes that task at a tick: within one, of\n\
         {} ms, for a sleep or heartbeat; within two for a timeout, which reads no clock when it starts. tokio::time wakes\n\
         it at a millisecond. What exceeds that is the runtime's, busy with the requests.",
        options.tick
    );
    if let Some((_, remark)) = wheel.split_once("\n\n") {
        print!("\n{remark}");
    }
    Ok(())
}

fn in_a_child(name: &str, options: &Options) -> io::Result<String> {
    let child = Command::new(env::current_exe()?)
        .args(options.arguments())
        .env(ONLY, name)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !child.status.success() {
        return Err(io::Error::other(format!("the work on {name} failed")));
    }
    String::from_utf8(child.stdout).map_err(io::Error::other)
}

fn work_alone<C: Clockwork>(options: Options, clock: C) -> io::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    // In a task, since the main thread is no worker of the runtime's: what it polls takes another way.
    let report = runtime.block_on(async { tokio::spawn(work(options, clock)).await })??;
    print!("{report}");
    Ok(())
}

async fn work<C: Clockwork>(options: Options, clock: C) -> io::Result<String> {
    // Whatever starts with the first timer starts before anything is measured.
    clock.sleep_until(Instant::now() + REST).await;

    progress::<C>(&format!("arming {} deadlines", grouped(options.timers as u64)));
    let (started, resident_before) = (Instant::now(), resident());
    let hoards = arm_all(&clock, options).await;
    let armed_in = started.elapsed();
    clock.sleep_until(Instant::now() + REST).await;
    let bytes = resident()
        .zip(resident_before)
        .map(|(after, before)| after.saturating_sub(before));

    progress::<C>(&format!(
        "opening {} connections",
        grouped(options.connections as u64)
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let (stop_server, server_stops) = oneshot::channel();
    let serving = tokio::spawn(accept(clock.clone(), listener, server_stops));
    let stop = Arc::new(AtomicBool::new(false));
    let clients = open_all(&clock, server, &stop, options).await?;
    let answered: Vec<_> = clients.iter().map(|client| client.answered.clone()).collect();

    let (started, cpu_before) = (Instant::now(), cpu_time());
    let holding: JoinSet<_> = hoards
        .into_iter()
        .map(|hoard| hoard.hold(clock.clone(), stop.clone()))
        .collect();
    let requesting: JoinSet<_> = clients.into_iter().map(Client::run).collect();
    watch(&clock, &answered, options).await;
    let (took, requests) = (started.elapsed(), sum(&answered));
    let cpu = cpu_time().zip(cpu_before).map(|(after, before)| after - before);

    progress::<C>("closing");
    stop.store(true, Ordering::Relaxed);
    let mut tally = Tally::default();
    for client in requesting.join_all().await {
        tally.add(client?);
    }
    let _ = stop_server.send(());
    tally.add(serving.await??);
    for held in holding.join_all().await {
        tally.add(held);
    }

    let remark = clock.remark();
    let report = Report {
        armed_in,
        bytes,
        requests,
        took,
        cpu,
        tally,
        remark,
    };
    Ok(report.report(options))
}

async fn open_all<C: Clockwork>(
    clock: &C,
    server: SocketAddr,
    stop: &Arc<AtomicBool>,
    options: Options,
) -> io::Result<Vec<Client<C>>> {
    let mut clients = Vec::new();
    for number in 0..options.connections {
        clients.push(Client {
            clock: clock.clone(),
            server,
            connection: Connection::open(server).await?,
            random: Random::new(number as u64),
            answered: Arc::default(),
            stop: stop.clone(),
            tally: Tally::default(),
        });
    }
    Ok(clients)
}

async fn watch<C: Clockwork>(clock: &C, answered: &[Arc<AtomicU64>], options: Options) {
    let (started, mut before) = (Instant::now(), sum(answered));
    for second in 1..=options.seconds {
        clock.sleep_until(started + Duration::from_secs(second)).await;
        let now = sum(answered);
        let rate = grouped(now - before);
        progress::<C>(&format!(
            "second {second} of {}: {rate} requests",
            options.seconds
        ));
        before = now;
    }
}

fn sum(counts: &[Arc<AtomicU64>]) -> u64 {
    counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

fn progress<C: Clockwork>(what: &str) {
    eprintln!("{:>11}  {what}", C::NAME);
}
