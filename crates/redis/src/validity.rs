//! `Validity`: until when a lease or a job is held, and `Lost`: the future that completes when it is not held
//! any more.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{mutex::Mutex, timers::LocalSleep};

/// How long before its end a lease is reported as lost, because Tokio's timer may be a millisecond late, and
/// the task that waits a moment.
const EARLY: Duration = Duration::from_millis(2);

/// Returns how long a lease is valid for its holder, from when the request was sent.
pub(crate) fn valid_for(granted: Duration, tick: Duration) -> Duration {
    granted.saturating_sub(margin(granted, tick))
}

/// Returns how much sooner a lease ends for its holder than for Redis, for the precision of the wheel and for
/// clocks that run at different speeds.
pub(crate) fn margin(granted: Duration, tick: Duration) -> Duration {
    (tick * 2 + Duration::from_millis(10)).max(granted / 100)
}

/// Until when a lease is valid. It can be extended until it has expired or been lost, and never afterwards.
#[derive(Clone)]
pub(crate) struct Validity {
    ends: Arc<Mutex<Ends>>,
    lost: CancellationToken,
}

struct Ends {
    /// The instant from which the lease is invalid.
    until: Instant,
    /// What `until` would be if the lease had not been lost or given up earlier.
    granted: Instant,
}

impl Validity {
    pub(crate) fn new(until: Instant) -> Validity {
        Validity {
            ends: Arc::new(Mutex::new(Ends {
                until,
                granted: until,
            })),
            lost: CancellationToken::new(),
        }
    }

    /// Returns the instant from which the holder must no longer assume that it holds the lease.
    pub(crate) fn until(&self) -> Instant {
        self.ends.lock().until
    }

    /// Returns what [`until`](Validity::until) was before the lease was lost or given up.
    pub(crate) fn granted(&self) -> Instant {
        self.ends.lock().granted
    }

    /// Moves the end to a later instant, unless the lease has expired or been lost: then it is lost from now
    /// on.
    pub(crate) fn extend(&self, until: Instant) {
        let mut ends = self.ends.lock();
        if self.lost.is_cancelled() || ends.until <= Instant::now() {
            drop(ends);
            self.lose();
        } else {
            ends.granted = until.max(ends.granted);
            ends.until = ends.granted;
        }
    }

    /// Ends the lease immediately and permanently, and wakes everyone who waits for its loss.
    pub(crate) fn lose(&self) {
        let mut ends = self.ends.lock();
        ends.until = ends.until.min(Instant::now());
        drop(ends);
        self.lost.cancel();
    }

    /// Ends a lease that has been held until it expired.
    pub(crate) fn run_out(&self) {
        let mut ends = self.ends.lock();
        ends.granted = ends.granted.min(Instant::now());
        drop(ends);
        self.lose();
    }

    /// Returns `true` if the lease has expired or been lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled() || self.until() <= Instant::now()
    }

    pub(crate) fn lost(&self) -> Lost {
        Lost {
            validity: self.clone(),
            told: Box::pin(self.lost.clone().cancelled_owned()),
            end: LocalSleep::until(reported_at(self.until())),
        }
    }

    /// Ends the lease if it is about to expire. Otherwise, returns when it will be.
    fn run_out_in_time(&self) -> Option<Instant> {
        let mut ends = self.ends.lock();
        let (now, end) = (Instant::now(), reported_at(ends.until));
        if end > now {
            return Some(end);
        }
        ends.granted = ends.granted.min(now);
        ends.until = ends.until.min(now);
        drop(ends);
        self.lost.cancel();
        None
    }
}

/// Returns when a [`Lost`] completes at the latest of a lease that is valid until `until`.
fn reported_at(until: Instant) -> Instant {
    until.checked_sub(EARLY).unwrap_or(until)
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("until", &self.until())
            .field("lost", &self.is_lost())
            .finish()
    }
}

/// A future that completes when a lease or a job is no longer held.
///
/// It completes when the lease or job is given up or lost, and no later than it may expire, by the local
/// clock and whatever Redis says. Every poll reads the clock, and a timer of the runtime that polls it wakes
/// it in time, whatever has become of the runtime on which the lease or job is renewed. Polled outside a
/// runtime, it has no timer, and is woken only when somebody else notices the loss.
///
/// A clone waits for the same lease or job. Polling it again after it has completed returns `Ready` again,
/// and dropping it has no effect.
///
/// # Examples
///
/// ```no_run
/// # async fn example(lease: tickwheel_redis::Lease) {
/// let lost = lease.lost();
/// tokio::spawn(async move {
///     lost.await;
///     println!("stop whatever the lease was for");
/// });
/// # }
/// ```
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Lost {
    validity: Validity,
    told: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Ends when the lease would have if nothing had extended it since the last poll.
    end: LocalSleep,
}

impl Future for Lost {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.validity.is_lost() || self.told.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if Pin::new(&mut self.end).poll(cx).is_pending() {
                return Poll::Pending;
            }
            if let Some(end) = self.validity.run_out_in_time() {
                self.end = LocalSleep::until(end);
            }
        }
    }
}

impl Clone for Lost {
    fn clone(&self) -> Lost {
        self.validity.lost()
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").field("validity", &self.validity).finish()
    }
}
