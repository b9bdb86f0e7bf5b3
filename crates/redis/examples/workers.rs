//! Delayed jobs on three worker processes, one of which is killed halfway, on a server that is restarted.
//!
//! It starts a server of its own whose append-only file is written before each answer (`--redis URL` uses a
//! running one and does not restart it), schedules jobs with delays of up to two seconds, shows the progress,
//! and ends with one table. It fails if an acknowledged job is not done, or if a job is delivered twice
//! without a lost lease that explains it.
//!
//!     cargo run --release -p tickwheel-redis --example workers -- --jobs 50000 --seconds 20 --workers 3

use std::{collections::HashMap, mem, process::ExitCode, sync::Mutex, time::Duration};

use fleet::{Fleet, Said};
use futures::{StreamExt, stream};
use options::{Options, Task, usage};
use redis::Client;
use support::{connect, server::Server};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Notifications};
use tokio::time::Instant;

#[path = "workers/fleet.rs"]
mod fleet;
#[path = "workers/options.rs"]
mod options;
#[path = "workers/report.rs"]
mod report;
#[path = "../tests/support/mod.rs"]
mod support;

/// How long a job stays with a worker that was killed.
const LEASE: Duration = Duration::from_secs(3);
const PARTITIONS: usize = 3;

fn main() -> ExitCode {
    match options::parse() {
        Task::Manage(options) => run(manage(options)),
        Task::Work(queue) => run(fleet::work(queue)),
    }
}

fn run(future: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

async fn manage(options: Options) -> ExitCode {
    let mut server = options.redis.is_none().then(Server::start_aof);
    let url = options
        .redis
        .clone()
        .or(server.as_ref().map(|server| server.url()))
        .expect("one of the two");
    let client = match Client::open(&*url) {
        Ok(client) => client,
        Err(error) => usage(&format!("--redis {url}: {error}")),
    };
    // A name of its own: what an earlier run left on a server that is there is no business of this one.
    let name = format!("workers-{}", std::process::id());
    let wheel = Wheel::new();
    let jobs = DelayedJobs::new(&wheel, connect(&url).await, &*name)
        .partitions(PARTITIONS)
        .notifications(&Notifications::of(client.clone()));
    if let Err(error) = jobs.counts().await {
        eprintln!("{url}: {error}");
        return ExitCode::FAILURE;
    }

    let mut fleet = Fleet::start(options.workers, &format!("{url} {name}"));
    let mut commands = report::Commands::new(&client);
    let began = Instant::now();
    println!(
        "{} jobs in {} s, {} workers, {url}",
        options.jobs, options.seconds, options.workers
    );
    let scheduling = tokio::spawn(schedule(
        jobs.clone(),
        wheel.clone(),
        options.jobs,
        options.seconds,
    ));

    let half = Duration::from_secs(options.seconds) / 2;
    let mut disturbed = false;
    let mut last = 0;
    let mut quiet_since = Instant::now();
    let mut ticks = wheel.interval(Duration::from_millis(500));
    let acknowledged = loop {
        ticks.tick().await;
        let counts = jobs.counts().await;
        let done = fleet.said().iter().filter(|said| said.is_done()).count();
        match &counts {
            Ok(counts) => println!(
                "{:5.1} s   {done:6} done   {:6} waiting   {:5} running   {} dead",
                began.elapsed().as_secs_f64(),
                counts.waiting,
                counts.running,
                counts.dead
            ),
            Err(error) => println!("{:5.1} s   {error}", began.elapsed().as_secs_f64()),
        }
        let (again, error) = mem::take(&mut *AGAIN.lock().unwrap());
        if again > 0 {
            println!("          {again} jobs are scheduled again: {error}");
        }
        if !disturbed && began.elapsed() >= half {
            disturbed = true;
            println!("          a worker is killed");
            fleet.kill_one();
            if let Some(server) = &mut server {
                // Its statistics go with it.
                commands.add(&client);
                println!("          the server is killed, and started again");
                tokio::task::block_in_place(|| server.restart());
                commands.restart();
            }
        }
        if fleet.said().len() > last {
            last = fleet.said().len();
            quiet_since = Instant::now();
        }
        let empty = counts.is_ok_and(|counts| counts.waiting + counts.running == 0);
        if scheduling.is_finished() && (empty || quiet_since.elapsed() > Duration::from_secs(60)) {
            break scheduling.await.expect("scheduling does not panic");
        }
    };
    commands.add(&client);
    // What a worker said last may still be on its way.
    wheel.sleep(Duration::from_millis(300)).await;
    let dead = jobs.counts().await.map_or(0, |counts| counts.dead);
    report::print(&fleet, &acknowledged, dead, commands.sum())
}

/// How many calls of `schedule` have failed and are made again since that was last shown, and how the last
/// one failed.
static AGAIN: Mutex<(u64, String)> = Mutex::new((0, String::new()));

/// Schedules evenly over the time, each job due up to two seconds later. Returns the ids that were
/// acknowledged.
async fn schedule<C: tickwheel_redis::Connection>(
    jobs: DelayedJobs<C>,
    wheel: Wheel,
    count: usize,
    seconds: u64,
) -> Vec<String> {
    let start = Instant::now();
    stream::iter(0..count)
        .map(|n| {
            let (jobs, wheel) = (jobs.clone(), wheel.clone());
            async move {
                let at = start + Duration::from_secs(seconds).mul_f64(n as f64 / count as f64);
                let _ = wheel.sleep_until(at).await;
                let id = format!("{n}");
                // Spread without order, the same in each run.
                let delay = Duration::from_micros((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 2_000_000);
                loop {
                    match jobs.schedule(&id, delay, b"work").await {
                        // False: an earlier try, whose answer never came, was carried out.
                        Ok(_) => return id,
                        Err(error) => {
                            let mut again = AGAIN.lock().unwrap();
                            *again = (again.0 + 1, error.to_string());
                        }
                    }
                }
            }
        })
        .buffer_unordered(4096)
        .collect()
        .await
}

/// What each id was said of, in order.
fn by_id(said: &[Said]) -> HashMap<&str, Vec<&Said>> {
    let mut by_id: HashMap<&str, Vec<&Said>> = HashMap::new();
    for said in said {
        by_id.entry(said.id()).or_default().push(said);
    }
    by_id
}
