//! What a timeout costs while every core does nothing but set timeouts.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::yield_now};

use crate::{clockwork::Clockwork, machine::cores};

const LASTS: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeouts between two looks at the clock.
const BATCH: u64 = 256;

/// Prints the nanoseconds that a worker takes for a future that waits once, in a timeout.
pub(crate) fn run<C: Clockwork>(clock: C) -> io::Result<()> {
    let runtime = Runtime::new()?;
    let each = runtime.block_on(async {
        let tasks: Vec<_> = (0..cores())
            .map(|_| {
                let clock = clock.clone();
                tokio::spawn(async move {
                    set(&clock, LASTS / 8).await;
                    set(&clock, LASTS).await
                })
            })
            .collect();
        let mut sum = 0.0;
        for task in tasks {
            sum += task.await.expect("setting timeouts does not panic");
        }
        sum / cores() as f64
    });
    println!("{each}");
    runtime.shutdown_background();
    Ok(())
}

async fn set<C: Clockwork>(clock: &C, lasts: Duration) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < lasts {
        for _ in 0..BATCH {
            clock.timeout(TIMEOUT, yield_now()).await;
        }
        count += BATCH;
    }
    start.elapsed().as_nanos() as f64 / count as f64
}
