//! The load of both programs, and what is measured under it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::{task::JoinSet, time};

/// A timeout that elapses.
pub const ELAPSES: Duration = Duration::from_millis(20);

const NAP: Duration = Duration::from_millis(5);
const CLIENTS: u32 = 32;
const PERIOD: Duration = Duration::from_millis(8);
/// Tasks for each kind of timeout that elapses.
const TASKS: usize = 4;

/// The argument of `--requests`, with which the program is run to be counted.
pub static REQUESTS: LazyLock<Option<u32>> = LazyLock::new(|| {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [option, requests] if option == "--requests" => {
            Some(requests.parse().expect("the number of requests"))
        }
        _ => None,
    }
});

/// Returns the timeout that requests meet. In a run that is counted no deadline comes, because how many would
/// come depends on how slow the run is.
pub fn met() -> Duration {
    Duration::from_secs(if REQUESTS.is_some() { 30 } else { 1 })
}

/// With `--requests N` as arguments, sends that many requests, of which none times out, and nothing else, so
/// that their instructions can be counted.
///
/// Otherwise sends requests at a fixed rate, and prints the CPU time of one and the requests per second.
/// Then, beside that load, lets timeouts of the server, timeouts of the client, and sleeps elapse, and prints
/// p50 and p99 of how late their callers continue. Times are in microseconds. Each kind of request comes with
/// a check of its answer.
pub async fn measure<A, R, S, C>(
    request: impl Fn() -> R + Clone + Send + 'static,
    answered: fn(A) -> bool,
    server_elapses: impl Fn() -> S + Clone + Send + 'static,
    elapsed_in_server: fn(A) -> bool,
    client_elapses: impl Fn() -> C + Clone + Send + 'static,
    elapsed_in_client: fn(A) -> bool,
) where
    A: Send + 'static,
    R: Future<Output = A> + Send + 'static,
    S: Future<Output = A> + Send + 'static,
    C: Future<Output = A> + Send + 'static,
{
    if let Some(requests) = *REQUESTS {
        return send(requests, request, answered).await;
    }
    let seconds = std::env::args().nth(1).map_or(Ok(5), |seconds| seconds.parse());
    let phase =
        Duration::from_secs(seconds.expect("the argument is how many seconds each of the two phases takes"));
    let sent = Arc::new(AtomicU64::new(0));
    let begin = time::Instant::now();
    for client in 0..CLIENTS {
        let (request, sent) = (request.clone(), sent.clone());
        tokio::spawn(async move {
            let mut interval = time::interval_at(begin + PERIOD * client / CLIENTS, PERIOD);
            loop {
                interval.tick().await;
                assert!(answered(request().await));
                sent.fetch_add(1, Relaxed);
            }
        });
    }
    // Connections open meanwhile.
    time::sleep(Duration::from_secs(1)).await;

    let (cpu, before) = (cpu_time(), sent.load(Relaxed));
    time::sleep(phase).await;
    let requests = sent.load(Relaxed) - before;
    println!(
        "cpu {:.1}",
        (cpu_time() - cpu).as_secs_f64() * 1e6 / requests as f64
    );
    println!("rate {:.0}", requests as f64 / phase.as_secs_f64());

    let until = Instant::now() + phase;
    let server = repeat(TASKS, ELAPSES, until, server_elapses, elapsed_in_server);
    let client = repeat(TASKS, ELAPSES, until, client_elapses, elapsed_in_client);
    let sleep = repeat(1, NAP, until, || time::sleep(NAP), |()| true);
    for (name, tasks) in [("server", server), ("client", client), ("sleep", sleep)] {
        let mut late = tasks.join_all().await.concat();
        late.sort();
        let percentile = |percent: usize| late[(late.len() - 1) * percent / 100].as_micros();
        println!("{name} {} {}", percentile(50), percentile(99));
    }
}

/// Lets each client send its part of the requests, one after another.
async fn send<A: 'static, R: Future<Output = A> + Send + 'static>(
    requests: u32,
    request: impl Fn() -> R + Clone + Send + 'static,
    answered: fn(A) -> bool,
) {
    let client = |_| {
        let request = request.clone();
        async move {
            for _ in 0..requests / CLIENTS {
                assert!(answered(request().await));
            }
        }
    };
    (0..CLIENTS).map(client).collect::<JoinSet<_>>().join_all().await;
}

/// Awaits `elapse` over and over in each task, until `until`, and returns how much longer than `after` each
/// took. Panics if one took less.
fn repeat<A: Send + 'static, F: Future<Output = A> + Send + 'static>(
    tasks: usize,
    after: Duration,
    until: Instant,
    elapse: impl Fn() -> F + Clone + Send + 'static,
    elapsed: fn(A) -> bool,
) -> JoinSet<Vec<Duration>> {
    let task = |_| {
        let elapse = elapse.clone();
        async move {
            let mut late = Vec::new();
            while Instant::now() < until {
                let begin = Instant::now();
                let answer = elapse().await;
                late.push(begin.elapsed() - after);
                assert!(elapsed(answer));
            }
            late
        }
    };
    (0..tasks).map(task).collect()
}

/// CPU time used so far, by all threads.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
