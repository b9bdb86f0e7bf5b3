//! `Keepers`: the tasks that renew the leases of a [`Leases`](super::Leases), and release those that were
//! dropped.

use std::{
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{runtime::Handle, sync::mpsc, task::unconstrained};

use super::windows::Windows;
use crate::per_runtime::{Guard, PerRuntime, Running};

/// The keepers of a [`Leases`](super::Leases): one task on each runtime that has acquired leases, for as long
/// as it has some. Each lease is a future in the task of its runtime, with one entry in the wheel. So no
/// runtime that ends or blocks concerns another's leases.
#[derive(Default)]
pub(super) struct Keepers {
    by_runtime: PerRuntime<mpsc::UnboundedSender<Work>>,
}

/// What a keeper is to do: it makes a future, whose requests wait for permits of the keeper's windows. It
/// has a reference to the [`Keepers`], which are there for as long as they have work.
pub(super) type Work = Box<dyn FnOnce(Arc<Windows>) -> BoxFuture<'static, ()> + Send>;

/// How often work is handed over to a keeper that may have ended by then, because it had nothing to do.
const HAND_OVERS: usize = 3;

impl Keepers {
    /// Does work on the current runtime, or on `otherwise` if there is none. If that runtime has been shut
    /// down, another one that keeps leases does it.
    pub(super) fn adopt(&self, otherwise: &Handle, work: Work) {
        let runtime = Handle::try_current().unwrap_or_else(|_| otherwise.clone());
        let mut work = Some(work);
        let mut hand_over = |keeper: &mut mpsc::UnboundedSender<Work>| {
            work = work.take().and_then(|work| Some(keeper.send(work).err()?.0));
            work.is_none()
        };
        if self.by_runtime.get(runtime.id(), &mut hand_over) == Some(true) {
            return;
        }
        for _ in 0..HAND_OVERS {
            if self.keeper(&runtime).get(&mut hand_over) == Some(true) {
                return;
            }
        }
        self.by_runtime.each(|keeper| {
            hand_over(keeper);
        });
    }

    /// Returns the keeper of a runtime, which is started if there is none.
    fn keeper(&self, runtime: &Handle) -> Running<mpsc::UnboundedSender<Work>> {
        let (sender, new) = mpsc::unbounded_channel();
        let serve = |guard| {
            let budget = Budget::default();
            budget.clone().renew_with_each_poll(serve(guard, new, budget))
        };
        self.by_runtime.get_or_start(runtime, || sender, serve, |_| {}).0
    }
}

/// Does the work of one runtime until there is none.
async fn serve(
    guard: Guard<mpsc::UnboundedSender<Work>>,
    mut new: mpsc::UnboundedReceiver<Work>,
    budget: Budget,
) {
    let windows = Arc::new(Windows::default());
    let mut futures = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(work) = new.recv() => {
                // A panic of one ends no other.
                let future = AssertUnwindSafe(work(windows.clone())).catch_unwind();
                futures.push(budget.clone().within(future));
            }
            Some(_) = futures.next() => {}
            else => return,
        }
        if futures.is_empty() && guard.running().end_if(|_| new.is_empty()).is_some() {
            return;
        }
    }
}

/// How many leases a keeper polls before the other tasks of its runtime are polled.
const POLLS: usize = 128;

/// How many polls a keeper has left before it yields.
///
/// It takes the place of Tokio's cooperative budget. Once that is used up, every future of Tokio returns
/// `Pending`, and a `FuturesUnordered` polls all others in vain: of 100,000 leases hardly any was renewed. It
/// stops when futures wake themselves at once, as these do once the budget is used up.
#[derive(Clone, Debug, Default)]
struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// Runs the task, each poll of which has a budget of its own.
    async fn renew_with_each_poll(self, task: impl Future<Output = ()>) {
        let mut task = pin!(task);
        unconstrained(poll_fn(|cx| {
            self.0.store(POLLS, Ordering::Relaxed);
            task.as_mut().poll(cx)
        }))
        .await;
    }

    /// Runs a future of that task.
    async fn within<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let left = self.0.load(Ordering::Relaxed);
            if left == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.0.store(left - 1, Ordering::Relaxed);
            future.as_mut().poll(cx)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;
    use tokio::task::{coop::consume_budget, yield_now};

    use super::*;

    #[tokio::test]
    async fn no_future_is_polled_in_vain_and_other_tasks_are_polled_between() {
        const FUTURES: usize = 10 * POLLS;
        let (polls, budget) = (AtomicUsize::new(0), Budget::default());
        let futures: FuturesUnordered<_> = (0..FUTURES)
            .map(|_| {
                let mut works = Box::pin(async {
                    for _ in 0..10 {
                        consume_budget().await;
                    }
                });
                let polls = &polls;
                budget.clone().within(poll_fn(move |cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    works.as_mut().poll(cx)
                }))
            })
            .collect();
        let all = async { assert_eq!(futures.count().await, FUTURES) };
        let mut before = 0;
        let other = async {
            while before < FUTURES {
                let now = polls.load(Ordering::Relaxed);
                assert!(now - before <= POLLS, "{now} after {before}");
                before = now;
                yield_now().await;
            }
        };
        join(budget.renew_with_each_poll(all), other).await;
        assert_eq!(polls.into_inner(), FUTURES);
    }
}
