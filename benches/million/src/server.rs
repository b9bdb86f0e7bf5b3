//! The server: each connection has an idle deadline, a heartbeat and a timeout for each request, beside deadlines that only stay pending.

use std::{
    future::{Future, poll_fn},
    io::{self, BufRead},
    net::Ipv4Addr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fastrand::Rng;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    task::yield_now,
    time::Instant,
};

use crate::{
    clockwork::Clockwork,
    machine::{cores, cpu_time, resident},
};

pub(crate) const MESSAGE: usize = 8;
const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);
const HEARTBEAT: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(30);
/// The held deadlines lie farther ahead than a run lasts.
const HELD: Duration = Duration::from_secs(120);
/// Tasks that sleep again and again, and note how late each sleep ends.
const PROBES: u64 = 64;
const REST: Duration = Duration::from_millis(300);

#[derive(Default)]
struct Counts {
    /// A counter for each connection, so that no two workers share one.
    requests: Mutex<Vec<Arc<AtomicU64>>>,
    measuring: AtomicBool,
    late: Mutex<Vec<u64>>,
}

impl Counts {
    fn requests(&self) -> u64 {
        let counters = self.requests.lock().expect("no panic under it");
        counters
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    }
}

/// Serves until its standard input ends, and answers each line there: `begin` and `end` of what is measured.
pub(crate) fn run<C: Clockwork>(clock: C, timers: usize) -> io::Result<()> {
    let runtime = Runtime::new()?;
    let counts = Arc::new(Counts::default());
    let (made, started) = (counts.clone(), clock.clone());
    // In a task, since the main thread is no worker of the runtime: its timers take another way.
    let start = async move { tokio::spawn(start(started, timers, made)).await };
    let (_held, port, armed_in, bytes) = runtime.block_on(start)??;
    println!("{port} {} {bytes}", armed_in.as_nanos());
    let mut before = (Duration::ZERO, 0);
    for line in io::stdin().lock().lines() {
        let now = (cpu_time()?, counts.requests());
        match line?.as_str() {
            "begin" => {
                before = now;
                counts.measuring.store(true, Ordering::SeqCst);
                println!();
            }
            _ => {
                counts.measuring.store(false, Ordering::SeqCst);
                let late = std::mem::take(&mut *counts.late.lock().expect("no panic under it"));
                let late: Vec<_> = late.iter().map(u64::to_string).collect();
                println!(
                    "{} {} {}",
                    (now.0 - before.0).as_nanos(),
                    now.1 - before.1,
                    late.join(" ")
                );
            }
        }
    }
    runtime.shutdown_background();
    Ok(())
}

type Held<C> = Vec<Pin<Box<<C as Clockwork>::Sleep>>>;

async fn start<C: Clockwork>(
    clock: C,
    timers: usize,
    counts: Arc<Counts>,
) -> io::Result<(Vec<Held<C>>, u16, Duration, u64)> {
    // Whatever starts with the first timer starts before anything is measured.
    if C::TIMES {
        clock.sleep_until(Instant::now() + REST).await;
    }
    let (before, started) = (resident(), Instant::now());
    let held = if C::TIMES {
        arm(&clock, timers).await
    } else {
        Vec::new()
    };
    let armed_in = started.elapsed();
    let bytes = resident().saturating_sub(before);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    if C::TIMES {
        for number in 0..PROBES {
            tokio::spawn(probe(clock.clone(), Rng::with_seed(number), counts.clone()));
        }
    }
    tokio::spawn(accept(clock, listener, counts));
    Ok((held, port, armed_in, bytes))
}

/// Deadlines as a connection's state would hold them: each a boxed sleep, polled once.
async fn arm<C: Clockwork>(clock: &C, timers: usize) -> Vec<Held<C>> {
    let tasks: Vec<_> = (0..cores())
        .map(|number| {
            let count = timers / cores() + usize::from(number < timers % cores());
            let (clock, mut random) = (clock.clone(), Rng::with_seed(number as u64));
            tokio::spawn(async move {
                let mut held = Vec::with_capacity(count);
                while held.len() < count {
                    let deadline = Instant::now() + HELD + within(&mut random, HELD);
                    let mut sleep = Box::pin(clock.sleep_until(deadline));
                    poll_fn(|cx| {
                        assert!(sleep.as_mut().poll(cx).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                    held.push(sleep);
                    // A sleep polled without budget would be pending, and not registered.
                    if held.len() % 64 == 0 {
                        yield_now().await;
                    }
                }
                held
            })
        })
        .collect();
    let mut held = Vec::new();
    for task in tasks {
        held.push(task.await.expect("arming does not panic"));
    }
    held
}

async fn probe<C: Clockwork>(clock: C, mut random: Rng, counts: Arc<Counts>) {
    loop {
        let deadline =
            Instant::now() + Duration::from_millis(10) + within(&mut random, Duration::from_millis(190));
        clock.sleep_until(deadline).await;
        let late = deadline.elapsed();
        assert!(Instant::now() >= deadline, "a sleep ended early");
        if counts.measuring.load(Ordering::Relaxed) {
            counts
                .late
                .lock()
                .expect("no panic under it")
                .push(late.as_micros() as u64);
        }
    }
}

async fn accept<C: Clockwork>(clock: C, listener: TcpListener, counts: Arc<Counts>) -> io::Result<()> {
    loop {
        let (stream, client) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let counter = Arc::new(AtomicU64::new(0));
        counts
            .requests
            .lock()
            .expect("no panic under it")
            .push(counter.clone());
        let random = Rng::with_seed(client.port().into());
        tokio::spawn(serve(clock.clone(), stream, random, counter));
    }
}

async fn serve<C: Clockwork>(
    clock: C,
    mut stream: TcpStream,
    mut random: Rng,
    served: Arc<AtomicU64>,
) -> io::Result<()> {
    let mut idle = pin!(clock.sleep_until(Instant::now() + IDLE));
    let mut heartbeat = clock.interval_at(Instant::now() + within(&mut random, HEARTBEAT), HEARTBEAT);
    let (mut buffer, mut filled) = ([0; MESSAGE], 0);
    loop {
        tokio::select! {
            biased;
            read = stream.read(&mut buffer[filled..]) => {
                match read? {
                    0 => return Ok(()),
                    read => filled += read,
                }
                if filled < MESSAGE {
                    continue;
                }
                filled = 0;
                if C::TIMES {
                    C::reset(idle.as_mut(), Instant::now() + IDLE);
                }
                // The work of a request: it waits once.
                if clock.timeout(REQUEST_TIMEOUT, yield_now()).await.is_some() {
                    stream.write_all(&buffer).await?;
                    served.fetch_add(1, Ordering::Relaxed);
                }
            }
            () = C::tick(&mut heartbeat) => stream.write_all(&[0; MESSAGE]).await?,
            _ = idle.as_mut() => return Ok(()),
        }
    }
}

fn within(random: &mut Rng, duration: Duration) -> Duration {
    Duration::from_micros(random.u64(..=duration.as_micros() as u64))
}
