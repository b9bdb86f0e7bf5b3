//! Waking so many tasks that one worker should not do it alone.
//!
//! A worker that wakes a task has another one, if there is one asleep, come for it. That one takes the task, finds no other, and is asleep
//! again when the next is woken: a thousand tasks, a thousand times, and where both share a core the first has to wait for it
//! every time. So wakers are halved first, and halved again, into tasks that do their part of it: whoever comes finds work enough
//! to stay awake.

use std::{mem, sync::Arc, task::Waker};

use crate::{link::Link, shard::Wakers};

/// Wakers that are woken by one task.
pub(crate) const FEW: usize = 32;

/// Wakers to be woken, if only by dropping this.
pub(crate) struct Crowd {
    link: Arc<Link>,
    wakers: Vec<Waker>,
}

impl Crowd {
    pub(crate) fn new(link: &Arc<Link>, wakers: &mut Vec<Waker>) -> Crowd {
        Crowd {
            link: link.clone(),
            wakers: mem::take(wakers),
        }
    }

    /// Wakes them on the current runtime, the first ones here and now.
    pub(crate) fn wake(mut self) {
        while self.wakers.len() > FEW {
            let mut others = self.wakers.split_off(self.wakers.len() / 2);
            let others = Crowd::new(&self.link, &mut others);
            drop(tokio::spawn(async { others.wake() }));
        }
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

    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn every_waker_is_woken_once_though_the_runtime_goes() {
        for crowded in [0, 1, FEW, FEW + 1, 1_000] {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .build()
                .unwrap();
            let link = Arc::new(Link::new(String::new(), Duration::from_millis(10), None));
            let counting = Arc::new(Counting(AtomicUsize::new(0)));
            let mut wakers = vec![Waker::from(counting.clone()); crowded];
            runtime.block_on(async { Crowd::new(&link, &mut wakers).wake() });
            drop(runtime);
            assert_eq!(counting.0.load(Ordering::SeqCst), crowded);
            assert_eq!(Arc::strong_count(&counting), 1);
        }
    }
}
