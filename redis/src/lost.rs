//! What a holder knows of its claim: until when it holds, and that it is lost.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Until when a claim holds. It can be extended until it has run out or been lost, and never after.
#[derive(Clone)]
pub(crate) struct Validity {
    ends: Arc<Mutex<Ends>>,
    lost: CancellationToken,
}

struct Ends {
    /// The instant from which the claim does not hold.
    until: Instant,
    /// What that would be, had the claim not been lost or given up before.
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

    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instant from which the holder must not believe any more that it holds.
    pub(crate) fn until(&self) -> Instant {
        self.lock().until
    }

    /// What [`until`](Validity::until) was before the claim was lost or given up.
    pub(crate) fn granted(&self) -> Instant {
        self.lock().granted
    }

    /// Moves the end, to later only. False, and nothing is changed, when the claim has run out or was lost.
    pub(crate) fn extend(&self, until: Instant) -> bool {
        let mut ends = self.lock();
        if self.lost.is_cancelled() || ends.until <= Instant::now() {
            drop(ends);
            self.lose();
            return false;
        }
        ends.granted = until.max(ends.granted);
        ends.until = ends.granted;
        true
    }

    /// Ends the claim, at once and for good, and wakes who waits for that.
    pub(crate) fn lose(&self) {
        let mut ends = self.lock();
        ends.until = ends.until.min(Instant::now());
        drop(ends);
        self.lost.cancel();
    }

    /// Ends a claim that was held to its end.
    pub(crate) fn run_out(&self) {
        let mut ends = self.lock();
        ends.granted = ends.granted.min(Instant::now());
        drop(ends);
        self.lose();
    }

    /// Whether the claim has run out or was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled() || self.until() <= Instant::now()
    }

    pub(crate) fn lost(&self) -> Lost {
        Lost {
            validity: self.clone(),
            told: Box::pin(self.lost.clone().cancelled_owned()),
        }
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("until", &self.until())
            .field("lost", &self.is_lost())
            .finish()
    }
}

/// A future that completes when a lease, or the claim on a job, is held no longer.
///
/// It completes when the claim was given up, and at the latest when the claim may run out, by the local clock, whatever Redis says.
/// Every poll reads the clock. A clone waits for the same claim. Once complete, it stays so. Dropping it changes nothing.
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
}

impl Future for Lost {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.validity.is_lost() {
            return Poll::Ready(());
        }
        self.told.as_mut().poll(cx)
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
