//! Timers that belong to whichever runtime polls them.
//!
//! A future of this crate may be polled on one runtime, kept, and polled again on another after the first has
//! ended or is no longer driven. A timer of the first would then never fire, or panic. The limits of calls
//! must hold all the same, so they use these timers.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::{Either, select};
use tickwheel::{SleepError, TrySleep, Wheel};
use tokio::{
    runtime::{Handle, Id},
    time::{self, Instant},
};

/// A sleep on Tokio's timer of the runtime that polls it. Outside a runtime it has no timer, and completes
/// only when it is polled late enough.
#[derive(Debug)]
pub(crate) struct LocalSleep {
    until: Instant,
    timer: Option<(Id, Pin<Box<time::Sleep>>)>,
}

impl LocalSleep {
    pub(crate) fn until(until: Instant) -> LocalSleep {
        LocalSleep { until, timer: None }
    }
}

impl Future for LocalSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.until <= Instant::now() {
            return Poll::Ready(());
        }
        let Ok(runtime) = Handle::try_current() else {
            return Poll::Pending;
        };
        let (here, until) = (runtime.id(), self.until);
        let (_, timer) = match &mut self.timer {
            Some(timer) if timer.0 == here => timer,
            other => other.insert((here, Box::pin(time::sleep_until(until)))),
        };
        timer.as_mut().poll(cx)
    }
}

/// A sleep on a wheel, which has its entry with the runtime that polls it. Outside a runtime, it stays where
/// it is.
pub(crate) struct LocalEntry {
    wheel: Wheel,
    until: Instant,
    entry: Option<(Id, TrySleep)>,
}

impl LocalEntry {
    pub(crate) fn until(wheel: &Wheel, until: Instant) -> LocalEntry {
        LocalEntry {
            wheel: wheel.clone(),
            until,
            entry: None,
        }
    }

    /// Lets it complete at another time.
    pub(crate) fn reset(&mut self, until: Instant) {
        self.until = until;
        if let Some((_, entry)) = &mut self.entry {
            entry.reset_at(until);
        }
    }
}

impl Future for LocalEntry {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        if self.entry.as_ref().map(|(id, _)| *id) != runtime
            && let Some(here) = runtime
        {
            // The old one is dropped first, so that it leaves room in a wheel that is full.
            self.entry = None;
            let mut entry = self.wheel.try_sleep(Duration::ZERO);
            entry.reset_at(self.until);
            self.entry = Some((here, entry));
        }
        match &mut self.entry {
            Some((_, entry)) => Pin::new(entry).poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Returns when `duration` will have passed or, if that overflows the clock, an instant 30 years ahead, as
/// Tokio does.
pub(crate) fn after(duration: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + FAR)
}

pub(crate) async fn sleep(duration: Duration) {
    sleep_until(after(duration)).await;
}

pub(crate) async fn sleep_until(until: Instant) {
    LocalSleep::until(until).await;
}

/// Returns the output of `future`, or `None` if it takes longer than until `deadline`.
pub(crate) async fn until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    match select(pin!(future), LocalSleep::until(deadline)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn poll_on<F: Future>(runtime: &Runtime, future: Pin<&mut F>) -> Poll<F::Output> {
        let _entered = runtime.enter();
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn it_goes_on_where_it_is_polled() {
        let (ended, idle, last) = (runtime(), runtime(), runtime());
        let began = Instant::now();
        let mut slept = Box::pin(sleep(Duration::from_millis(50)));
        for first in [&ended, &idle] {
            assert!(poll_on(first, slept.as_mut()).is_pending());
        }
        drop(ended);
        last.block_on(slept);
        assert!(began.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn an_entry_moves_to_where_it_is_polled() {
        let (ended, idle, last) = (runtime(), runtime(), runtime());
        let wheel = Wheel::new();
        let began = Instant::now();
        let mut slept = Box::pin(LocalEntry::until(&wheel, began + Duration::from_secs(60)));
        for first in [&ended, &idle] {
            assert!(poll_on(first, slept.as_mut()).is_pending());
            assert_eq!(wheel.pending(), 1);
        }
        drop(ended);
        slept.reset(began + Duration::from_millis(50));
        last.block_on(slept).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert_eq!(wheel.pending(), 0);
    }
}
