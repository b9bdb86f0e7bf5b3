//! Tasks that are always ready, so that a runtime never idles.

use std::{
    future::poll_fn,
    hint::spin_loop,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;

/// Keeps the thread from anything else for so long.
pub(crate) fn work_for(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        spin_loop();
    }
}

/// Tasks that are always ready, and work for a while each time that they are polled.
#[derive(Clone)]
pub(crate) struct ReadyTasks {
    pub(crate) tasks: usize,
    work: Duration,
    /// Whether they go through `yield_now`, or wake themselves.
    yields: bool,
    pub(crate) polls: Arc<AtomicUsize>,
    pub(crate) over: Arc<AtomicBool>,
}

impl ReadyTasks {
    pub(crate) fn new(tasks: usize, work: Duration, yields: bool) -> ReadyTasks {
        ReadyTasks {
            tasks,
            work,
            yields,
            polls: Arc::default(),
            over: Arc::default(),
        }
    }

    /// Spawns them. Outside of the runtime's own threads they come by its global queue.
    pub(crate) fn spawn(&self) -> Vec<JoinHandle<()>> {
        (0..self.tasks)
            .map(|_| tokio::spawn(self.clone().run()))
            .collect()
    }

    async fn run(self) {
        while !self.over.load(Ordering::SeqCst) {
            self.polls.fetch_add(1, Ordering::SeqCst);
            work_for(self.work);
            if self.yields {
                tokio::task::yield_now().await;
            } else {
                wake_oneself().await;
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Becomes ready again at once, as the last one of its worker's queue.
async fn wake_oneself() {
    let mut woken = false;
    poll_fn(|cx| {
        if mem::replace(&mut woken, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
