//! How the driver wakes many tasks: with no lock held, and with the help of other workers.
//!
//! Waking a task unparks an idle worker, which runs it and parks again. A thousand wakes can cost a thousand unparks. So the
//! first 32 are woken here. The rest are woken by spawned tasks, 32 each. A worker that wakes up then finds more work. While no worker
//! is idle, all are woken here.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use tokio::runtime::Handle;

use super::shared::Shared;
use crate::{events, shard::Wakers};

/// Wakers that are woken by one task.
const CHUNK: usize = 32;

/// Wakers that are woken when this is dropped, even by a runtime that drops a task instead of running it.
struct Chunk {
    shared: Arc<Shared>,
    wakers: Vec<Waker>,
}

/// Has other tasks of the current runtime wake all but the first few.
///
/// Not if every worker is busy: then a wake is cheap, and a spawned task would stand behind all that is ready.
pub(super) fn share(shared: &Arc<Shared>, wakers: &mut Vec<Waker>) {
    if wakers.len() <= CHUNK || !a_worker_is_idle() {
        return;
    }
    let mut others = wakers.drain(CHUNK.min(wakers.len())..);
    loop {
        let wakers: Vec<Waker> = others.by_ref().take(CHUNK).collect();
        if wakers.is_empty() {
            return;
        }
        let shared = shared.clone();
        let chunk = Chunk { shared, wakers };
        tokio::spawn(async { drop(chunk) });
    }
}

/// Whether a worker of the current runtime is parked, because it found nothing to run.
pub(super) fn a_worker_is_idle() -> bool {
    let metrics = Handle::current().metrics();
    // Tokio counts each time that a worker parks or is unparked. Odd is parked.
    (0..metrics.num_workers()).any(|worker| metrics.worker_park_unpark_count(worker) % 2 == 1)
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.wake(&mut Wakers {
            due: mem::take(&mut self.wakers),
            spent: Vec::new(),
        });
    }
}

impl Shared {
    /// Wakes and drops what was taken out of shards, with no lock held, and survives whatever the wakers do.
    pub(crate) fn wake(&self, wakers: &mut Wakers) {
        self.catch_panics(wakers.due.drain(..), Waker::wake);
        self.catch_panics(wakers.spent.drain(..), drop);
    }

    fn catch_panics(&self, mut wakers: impl Iterator<Item = Waker>, act: impl Fn(Waker)) {
        while panics(|| wakers.by_ref().for_each(&act)) {
            self.stats.waker_panicked();
            // A subscriber that panics must not cost the other wakers.
            panics(|| events::waker_panicked(&self.name));
        }
    }
}

fn panics(act: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    // The payload of a panic may itself panic when it is dropped.
    outcome.map_err(mem::forget).is_err()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
        time::Duration,
    };

    use super::*;
    use crate::metrics::Metrics;

    #[derive(Default)]
    struct Counting {
        woken: AtomicUsize,
        panics: bool,
    }

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "this waker panics, as it should");
        }
    }

    fn two_workers() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).build().unwrap()
    }

    #[test]
    fn who_finds_every_worker_busy_wakes_all_by_itself() {
        let runtime = two_workers();
        let shared = Arc::new(Shared::new(String::new(), Duration::from_millis(10), None));
        let mut wakers = vec![Waker::noop().clone(); 1_000];
        let (busy, over) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
        for _ in 0..2 {
            let (busy, over) = (busy.clone(), over.clone());
            runtime.spawn(async move {
                busy.wait();
                over.wait();
            });
        }
        busy.wait();
        runtime.block_on(async { share(&shared, &mut wakers) });
        over.wait();
        assert_eq!(wakers.len(), 1_000);
    }

    #[test]
    fn every_waker_is_woken_once_though_the_runtime_goes() {
        for (woken_at_once, panics) in [
            (0, false),
            (1, false),
            (CHUNK, false),
            (CHUNK + 1, false),
            (1_000, false),
            (100, true),
        ] {
            let runtime = two_workers();
            let shared = Arc::new(Shared::new(String::new(), Duration::from_millis(10), None));
            let counting = Arc::new(Counting {
                panics,
                ..Counting::default()
            });
            let mut wakers = Wakers {
                due: vec![Waker::from(counting.clone()); woken_at_once],
                spent: Vec::new(),
            };
            runtime.block_on(async {
                while !a_worker_is_idle() {
                    std::thread::yield_now();
                }
                share(&shared, &mut wakers.due)
            });
            assert_eq!(wakers.due.len(), woken_at_once.min(CHUNK));
            shared.wake(&mut wakers);
            drop(runtime);
            assert_eq!(counting.woken.load(Ordering::SeqCst), woken_at_once);
            assert_eq!(Arc::strong_count(&counting), 1);
            let mut metrics = Metrics::default();
            shared.add_metrics(&mut metrics);
            assert_eq!(metrics.panics, if panics { woken_at_once as u64 } else { 0 });
        }
    }
}
