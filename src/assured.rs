//! A sleep that cannot be refused, for doors behind which nobody could be told.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{runtime::Handle, time};

use crate::sleep::Sleep;

/// A sleep that cannot be refused: where the wheel is full or has been shut down, it waits on Tokio's own timer.
///
/// hyper, backon and a throttled stream take the end of a sleep for the end of its time. Were a refused one to complete at
/// once, live connections would be cut off, retries would come without a pause, and loops around a sleep (hyper-util's
/// connection pool has one) would spin; were it never to complete, dead connections would stay. What the wheel refused
/// shows in [`Metrics::rejected`](crate::Metrics::rejected).
///
/// Refused outside a Tokio runtime, it completes at its second poll, of which its task is woken at once.
#[derive(Debug)]
// Public for being what `backon::Sleeper` returns.
#[cfg_attr(not(feature = "backon"), allow(unreachable_pub))]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct AssuredSleep {
    sleep: Sleep,
    course: Course,
}

#[derive(Debug)]
enum Course {
    Wheel,
    /// The wheel has refused.
    Tokio(Pin<Box<time::Sleep>>),
    /// The wheel has refused, and there is no Tokio here.
    Nowhere,
}

impl AssuredSleep {
    pub(crate) fn new(sleep: Sleep) -> AssuredSleep {
        AssuredSleep {
            sleep,
            course: Course::Wheel,
        }
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn reset(&mut self, deadline: time::Instant) {
        self.sleep.reset(deadline);
        self.follow();
    }

    /// Moves the sleep to `duration` from now.
    #[cfg(feature = "stream")]
    pub(crate) fn reset_after(&mut self, duration: std::time::Duration) {
        self.sleep.reset_after(duration);
        self.follow();
    }

    /// Moves the stand-in, if there is one, to where the sleep has moved.
    #[cfg(any(feature = "hyper", feature = "stream"))]
    fn follow(&mut self) {
        match &mut self.course {
            Course::Wheel => {}
            Course::Tokio(sleep) => sleep.as_mut().reset(self.sleep.deadline()),
            Course::Nowhere => self.course = Course::Wheel,
        }
    }
}

impl Future for AssuredSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Course::Wheel = self.course {
            if ready!(Pin::new(&mut self.sleep).poll(cx)).is_ok() {
                return Poll::Ready(());
            }
            if Handle::try_current().is_err() {
                self.course = Course::Nowhere;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.course = Course::Tokio(Box::pin(time::sleep_until(self.sleep.deadline())));
        }
        if let Course::Tokio(sleep) = &mut self.course {
            ready!(sleep.as_mut().poll(cx));
        }
        // The next time, the wheel may have room again.
        self.course = Course::Wheel;
        Poll::Ready(())
    }
}
