//! Waking so many tasks that one worker should not do it alone.
//!
//! A worker that wakes a task has another one, if there is one asleep, come for it. That one takes the task, finds no other, and is asleep
//! again when the next is woken: a thousand tasks, a thousand times, and where both share a core the first has to wait for it
//! every time. So most of the waking is left to tasks that do a part of it each: whoever comes finds work for longer.

use std::{mem, sync::Arc, task::Waker};

use crate::{link::Link, shard::Wakers};

/// Wakers that are woken by one task.
pub(crate) const FEW: usize = 32;

/// Wakers that are woken by dropping this: also by a runtime that drops it in place of running it.
struct Crowd {
    link: Arc<Link>,
    wakers: Vec<Waker>,
}

/// Has other tasks of the current runtime wake all but the first few.
pub(crate) fn share(link: &Arc<Link>, wakers: &mut Vec<Waker>) {
    let mut others = wakers.drain(FEW.min(wakers.len())..);
    loop {
        let wakers: Vec<Waker> = others.by_ref().take(FEW).collect();
        if wakers.is_empty() {
            return;
        }
        let link = link.clone();
        let crowd = Crowd { link, wakers };
        tokio::spawn(async { drop(crowd) });
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.link.wake(&mut Wakers {
            due: mem::take(&mut self.wakers),
            spent: Vec::new(),
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
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

    #[test]
    fn every_waker_is_woken_once_though_the_runtime_goes() {
        for (crowded, panics) in [
            (0, false),
            (1, false),
            (FEW, false),
            (FEW + 1, false),
            (1_000, false),
            (100, true),
        ] {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .build()
                .unwrap();
            let link = Arc::new(Link::new(String::new(), Duration::from_millis(10), None));
            let counting = Arc::new(Counting {
                panics,
                ..Counting::default()
            });
            let mut wakers = Wakers {
                due: vec![Waker::from(counting.clone()); crowded],
                spent: Vec::new(),
            };
            runtime.block_on(async { share(&link, &mut wakers.due) });
            assert_eq!(wakers.due.len(), crowded.min(FEW));
            link.wake(&mut wakers);
            drop(runtime);
            assert_eq!(counting.woken.load(Ordering::SeqCst), crowded);
            assert_eq!(Arc::strong_count(&counting), 1);
            let mut metrics = Metrics::default();
            link.add_metrics(&mut metrics);
            assert_eq!(metrics.panics, if panics { crowded as u64 } else { 0 });
        }
    }
}
