//! The runtime that a benchmark runs on.

use std::{thread, time::Duration};

use tokio::runtime::{Builder, Runtime};

use crate::{peer::Peer, process};

/// A runtime of Tokio's multi-thread kind, with one worker more than a benchmark keeps busy: Tokio's timer
/// driver and the wheel's would otherwise not run at all.
pub struct Stage {
    runtime: Runtime,
    #[cfg(tokio_unstable)]
    alt: Runtime,
}

impl Stage {
    /// A runtime on which `workers` tasks can each have a worker, and the drivers another.
    pub fn new(workers: usize) -> Stage {
        Stage {
            runtime: raise(Builder::new_multi_thread().worker_threads(workers + 1)),
            #[cfg(tokio_unstable)]
            alt: raise(
                Builder::new_multi_thread()
                    .worker_threads(workers + 1)
                    .enable_alt_timer(),
            ),
        }
    }

    pub fn runtime(&self, peer: Peer) -> &Runtime {
        match peer {
            #[cfg(tokio_unstable)]
            Peer::TokioAlt => &self.alt,
            _ => &self.runtime,
        }
    }
}

fn raise(builder: &mut Builder) -> Runtime {
    let runtime = builder.enable_all().build().expect("the runtime starts");
    // For Tokio's benefit: with no earlier timer pending, each of its registrations would wake the worker
    // that waits for its driver, by a system call. A server always has an earlier one.
    runtime.spawn(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    runtime
}

/// Waits for background threads to have done what they were given.
pub fn quiesce() {
    for _ in 0..200 {
        let before = process::cpu_time();
        thread::sleep(Duration::from_millis(50));
        if process::cpu_time() - before < Duration::from_millis(5) {
            return;
        }
    }
}
