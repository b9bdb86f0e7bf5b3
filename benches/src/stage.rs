//! The runtime that a benchmark runs on.

use std::{thread, time::Duration};

use tokio::runtime::{Builder, Runtime};

use crate::{peer::Peer, process};

/// A runtime of Tokio's multi-thread kind, with one worker more than a benchmark keeps busy: Tokio's timer driver and the
/// wheel's would otherwise not run at all.
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

/// The peers of a real program, the first one without timers.
pub fn programs() -> &'static [&'static str] {
    match cfg!(tokio_unstable) {
        true => &["none", "tickwheel", "tokio", "tokio-alt"],
        false => &["none", "tickwheel", "tokio"],
    }
}

/// A builder of the runtime that a real program runs on.
///
/// # Panics
///
/// If the peer is `tokio-alt`, without `--cfg tokio_unstable`.
pub fn program(peer: &str, workers: u64) -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads((workers as usize).max(2));
    match peer {
        #[cfg(tokio_unstable)]
        "tokio-alt" => _ = builder.enable_alt_timer(),
        #[cfg(not(tokio_unstable))]
        "tokio-alt" => panic!("tokio-alt needs --cfg tokio_unstable"),
        _ => {}
    }
    builder
}

/// A runtime for timers alone, which sleeps while there is nothing to do.
pub fn quiet(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(workers).enable_time();
    builder.build().expect("the runtime starts")
}

fn raise(builder: &mut Builder) -> Runtime {
    let runtime = builder.enable_all().build().expect("the runtime starts");
    // For Tokio's benefit: with no earlier timer pending, each of its registrations would wake the worker that waits for
    // its driver, by a system call. A server always has an earlier one.
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
