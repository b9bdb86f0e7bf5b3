//! The cost of schedule, take and done with many jobs waiting.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Notifications};

use crate::{
    measure::Used,
    support::{connect, server::Server},
};

const SAMPLE: u64 = 5000;
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Fills a queue tenfold, step by step, and measures at each.
pub(crate) async fn run(most: u64) {
    let server = Server::start();
    let jobs = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "scale")
        .notifications(&Notifications::of(server.client()));
    let mut waiting = 0;
    let mut step = 1000;
    println!(
        "microseconds for a job, and in brackets those of redis-server's processor time\n\n{:>12}{:>18}{:>24}{:>16}",
        "waiting", "schedule", "take, start and done", "memory"
    );
    loop {
        fill(&jobs, waiting..step).await;
        waiting = step;
        let put = Cost::begin(&server);
        fill_due(&jobs).await;
        let put = put.of_each(&server);
        let done = Cost::begin(&server);
        let worker = jobs.worker().concurrency(64).prefetch(256).start();
        worker
            .take(SAMPLE as usize)
            .for_each_concurrent(64, async |job| {
                assert!(job.expect("a job").done().await.expect("an answer"));
            })
            .await;
        let done = done.of_each(&server);
        let info: String = server.command(&["INFO", "memory"]);
        let memory = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory_human:"));
        println!("{waiting:>12}{put:>18}{done:>24}{:>16}", memory.unwrap_or("?"));
        assert_eq!(jobs.counts().await.expect("an answer").waiting, waiting);
        if waiting >= most {
            return;
        }
        step = (step * 10).min(most);
    }
}

struct Cost {
    began: Instant,
    used: Used,
}

impl Cost {
    fn begin(server: &Server) -> Cost {
        Cost {
            used: Used::by(server),
            began: Instant::now(),
        }
    }

    fn of_each(self, server: &Server) -> String {
        let micros = self.began.elapsed().as_secs_f64() * 1e6 / SAMPLE as f64;
        let (_, server) = Used::by(server).since(self.used, SAMPLE);
        format!("{micros:.1} ({server:.1})")
    }
}

async fn fill<C: tickwheel_redis::Connection>(jobs: &DelayedJobs<C>, ids: std::ops::Range<u64>) {
    stream::iter(ids)
        .for_each_concurrent(512, async |n| {
            let delay = YEAR + Duration::from_millis(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 10_000_000_000);
            let id = format!("waiting-{n}");
            assert!(
                jobs.schedule(&id, delay, b"a payload of 24 bytes...")
                    .await
                    .expect("an answer")
            );
        })
        .await;
}

async fn fill_due<C: tickwheel_redis::Connection>(jobs: &DelayedJobs<C>) {
    stream::iter(0..SAMPLE)
        .for_each_concurrent(64, async |n| {
            let id = format!("due-{n}");
            assert!(
                jobs.schedule(&id, Duration::ZERO, b"a payload of 24 bytes...")
                    .await
                    .expect("an answer")
            );
        })
        .await;
}
