//! Scopes that are counted under a label.

use std::{future::IntoFuture, time::Duration};

use tokio::time::Instant;

use super::Within;
use crate::{labelled::Labelled, labels::Count};

impl Labelled {
    /// Makes a scope of `duration`, as [`Wheel::within`](crate::Wheel::within) does, and counts what comes of it.
    ///
    /// It counts as a [`timeout`](Labelled::timeout) of this label does, except that no scope is refused. In a scope around, what
    /// counts is how much was left of the sooner of the two.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Wheel;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.labelled("checkout").within(Duration::from_secs(1), async { 7 }).await.unwrap();
    /// assert_eq!(wheel.snapshot().labels[0].completed, 1);
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn within<F: IntoFuture>(&self, duration: Duration, future: F) -> Within<F::IntoFuture> {
        self.wheel().within(duration, future).counted(Counted::new(self))
    }

    /// Makes a scope that ends at `deadline`, as [`Wheel::until`](crate::Wheel::until) does, and counts what comes of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::pending, time::Duration};
    /// use tickwheel::{Wheel, time::Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let soon = Instant::now() + Duration::from_millis(10);
    /// wheel.labelled("report").until(soon, pending::<()>()).await.unwrap_err();
    /// assert_eq!(wheel.snapshot().labels[0].elapsed, 1);
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn until<F: IntoFuture>(&self, deadline: Instant, future: F) -> Within<F::IntoFuture> {
        self.wheel().until(deadline, future).counted(Counted::new(self))
    }
}

/// Counts the beginning of a scope, and how it ends: as cancelled, if it is dropped before.
#[derive(Debug)]
pub(super) struct Counted {
    labelled: Labelled,
    /// From the first poll to the end: the deadline, and how long it was until then.
    begun: Option<(Instant, Duration)>,
}

impl Counted {
    fn new(labelled: &Labelled) -> Counted {
        Counted {
            labelled: labelled.clone(),
            begun: None,
        }
    }

    /// Counts the first poll.
    pub(super) fn begin(&mut self, deadline: Instant) {
        if self.begun.is_none() {
            self.begun = Some((deadline, deadline.saturating_duration_since(Instant::now())));
            self.labelled.count(Count::BEGUN);
        }
    }

    /// Counts a completion, by how many tenths of the time are left.
    pub(super) fn complete(&mut self) {
        if let Some((deadline, total)) = self.begun {
            let left = deadline.saturating_duration_since(Instant::now());
            let tenths = left.as_nanos() * 10 / total.as_nanos().max(1);
            self.end(Count::completed(tenths.min(9) as usize));
        }
    }

    pub(super) fn end(&mut self, count: Count) {
        self.begun = None;
        self.labelled.count(count);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.begun.is_some() {
            self.end(Count::CANCELLED);
        }
    }
}
