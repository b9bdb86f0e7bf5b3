//! `within` and `until`: scopes, which give a future and all that it awaits until a deadline.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Weak,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{task::coop, time::Instant};

use super::scope::{Shields, current, inside, poll_inside, sooner};
use crate::{
    engine::{
        labels::Outcome,
        moment::{Moment, after},
    },
    error::Elapsed,
    observe::labelled::{Labelled, counted::CountedOn},
    timers::{budget, console::Resource, sleep::Sleep},
    wheel::Wheel,
};

/// Requires `future`, with all that it awaits, to complete before `duration` has passed since its first poll, on the
/// [global wheel](Wheel::global).
///
/// Inside another scope, the sooner of the two deadlines holds. The future is polled first, and succeeds if it is ready, even
/// with no time remaining. `Duration::MAX` is taken as 30 years.
///
/// # Cancellation
///
/// Dropping the scope drops the future and cancels the timer at once. A scope that elapses drops the future before it
/// returns, after all pending [`shield`](super::shield())s inside have completed. Either way, the destructors run inside the
/// scope, if it has been polled.
///
/// # Panics
///
/// A poll that has to wait for the deadline panics outside a Tokio runtime, and on one without timers, with Tokio's message.
///
/// # Errors
///
/// The scope resolves to [`Elapsed`] when its time runs out.
///
/// # Examples
///
/// ```
/// use std::{future::pending, time::Duration};
/// use tickwheel::deadline;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let request = deadline::within(Duration::from_millis(20), async {
///     assert!(deadline::remaining() <= Some(Duration::from_millis(20)));
///     pending::<()>().await
/// });
/// assert!(request.await.is_err());
/// # }
/// ```
pub fn within<F: IntoFuture>(duration: Duration, future: F) -> Within<F::IntoFuture> {
    Within::new(End::After(duration), Some(future.into_future()))
}

/// Requires `future`, with all that it awaits, to complete before `deadline`, on the [global wheel](Wheel::global).
///
/// This is [`within`] with an instant instead of a duration. If the deadline has passed, the scope elapses at its first pending
/// poll, and [`current`] inside still returns that deadline.
///
/// # Cancellation
///
/// Dropping the scope drops the future and cancels the timer, as for [`within`].
///
/// # Panics
///
/// Panics in the same cases as [`within`].
///
/// # Errors
///
/// Fails in the same cases as [`within`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{deadline, time::Instant};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let deadline = Instant::now() + Duration::from_secs(1);
/// assert_eq!(deadline::until(deadline, async { deadline::current() }).await, Ok(Some(deadline)));
/// # }
/// ```
pub fn until<F: IntoFuture>(deadline: Instant, future: F) -> Within<F::IntoFuture> {
    Within::new(End::At(Some(deadline)), Some(future.into_future()))
}

impl Wheel {
    /// Requires `future`, with all that it awaits, to complete before `duration` has passed since its first poll.
    ///
    /// This is [`deadline::within`] on this wheel.
    ///
    /// [`deadline::within`]: crate::deadline::within
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, deadline};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let left = Wheel::new().within(Duration::from_secs(1), async { deadline::remaining() }).await;
    /// assert!(left.unwrap().is_some());
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn within<F: IntoFuture>(&self, duration: Duration, future: F) -> Within<F::IntoFuture> {
        let mut scope = within(duration, future);
        scope.timer = Some(self.sleep(duration));
        scope
    }

    /// Requires `future`, with all that it awaits, to complete before `deadline`.
    ///
    /// This is [`deadline::until`] on this wheel.
    ///
    /// [`deadline::until`]: crate::deadline::until
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Wheel, time::{Duration, Instant}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let deadline = Instant::now() + Duration::from_millis(20);
    /// assert!(Wheel::new().until(deadline, std::future::pending::<()>()).await.is_err());
    /// assert!(Instant::now() >= deadline);
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn until<F: IntoFuture>(&self, deadline: Instant, future: F) -> Within<F::IntoFuture> {
        let mut scope = until(deadline, future);
        scope.timer = Some(self.sleep_until(deadline));
        scope
    }
}

impl Labelled {
    /// Creates a scope of `duration`, as [`Wheel::within`](crate::Wheel::within) does, and counts its outcome under the label.
    ///
    /// The scope counts like a [`timeout`](Labelled::timeout) of this label. Inside another
    /// scope, the time left is counted with respect to the sooner of the two deadlines.
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
        self.wheel().within(duration, future).counted(self)
    }

    /// Creates a scope that ends at `deadline`, as [`Wheel::until`](crate::Wheel::until) does, and counts its outcome under the
    /// label.
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
        self.wheel().until(deadline, future).counted(self)
    }
}

/// Creates a scope that ends `left` from now, for the future that `make` creates inside it, given the instant from which `left`
/// counts. With nothing left, no future is created, and the scope has elapsed.
#[cfg(feature = "tower")]
pub(crate) fn within_from_now<F: Future>(
    left: Option<Duration>,
    make: impl FnOnce(Option<Instant>) -> F,
) -> Within<F> {
    let start = left.map(|_| Instant::now());
    let deadline = start.zip(left).map(|(start, left)| after(start, left));
    let make = || inside(sooner(deadline, current()), &mut Weak::new(), || make(start));
    let future = (left != Some(Duration::ZERO)).then(make);
    Within::new(End::At(deadline), future)
}

pin_project! {
    /// The future returned by [`within`], [`until`], [`Wheel::within`] and [`Wheel::until`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::{Ready, ready}, time::Duration};
    /// use tickwheel::deadline::{Within, within};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let answer: Within<Ready<u8>> = within(Duration::from_secs(1), ready(7));
    /// assert_eq!(answer.await, Ok(7));
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Within<F> {
        // `None` once the scope has ended, which may be before its first poll.
        #[pin]
        future: Option<F>,
        pub(super) end: End,
        timer: Option<Sleep>,
        // The deadline that the timer waits for.
        armed: Option<Instant>,
        shields: Weak<Shields>,
        // The count of a labelled scope.
        counted: Option<Box<CountedOn>>,
    }

    impl<F> PinnedDrop for Within<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // This comes first, because the destructor of the future may panic.
            *this.counted = None;
            if this.future.is_some() {
                let deadline = sooner(this.end.deadline(), current());
                inside(deadline, this.shields, || this.future.set(None));
            }
        }
    }
}

/// When a scope elapses, apart from the scopes around it.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// This duration after the first poll, which is still to come.
    After(Duration),
    /// At this instant, or never.
    At(Option<Instant>),
}

impl End {
    /// Returns the deadline, if there is one and the scope has been polled.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            End::At(deadline) => deadline,
            End::After(_) => None,
        }
    }
}

impl<F: Future> Within<F> {
    pub(super) fn new(end: End, future: Option<F>) -> Within<F> {
        Within {
            future,
            end,
            timer: None,
            armed: None,
            shields: Weak::new(),
            counted: None,
        }
    }

    fn counted(mut self, labelled: &Labelled) -> Within<F> {
        self.counted = Some(Box::new(labelled.counted()));
        self
    }
}

impl<F: Future> Future for Within<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.future.is_none() {
            return Poll::Ready(Err(Elapsed(())));
        }
        if let End::After(duration) = *this.end {
            *this.end = End::At(Some(after(Instant::now(), duration)));
        }
        let deadline = sooner(this.end.deadline(), current());
        if let Some(CountedOn { shared, counted }) = this.counted.as_deref_mut() {
            counted.begin_poll(shared);
        }
        let had_budget = coop::has_budget_remaining();
        if let Poll::Ready(output) = poll_inside(deadline, this.shields, this.future.as_mut(), cx) {
            *this.timer = None;
            if let Some(CountedOn { shared, counted }) = this.counted.as_deref_mut() {
                counted.complete(shared, Moment::now);
            }
            return Poll::Ready(Ok(output));
        }
        // There is no deadline only if the scope has no end of its own and no scope is around it.
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        if let Some(CountedOn { counted, .. }) = this.counted.as_deref_mut() {
            counted.wait(Moment::of(deadline), Moment::now);
        }
        ready!(poll_timer(deadline, this.armed, this.timer, had_budget, cx));
        if Shields::are_pending(this.shields, cx.waker()) {
            return Poll::Pending;
        }
        inside(Some(deadline), this.shields, || this.future.set(None));
        if let Some(CountedOn { shared, counted }) = this.counted.as_deref_mut() {
            counted.end(shared, Outcome::Elapsed);
        }
        Poll::Ready(Err(Elapsed(())))
    }
}

/// Waits until `deadline`. Being independent of the future's type, it is compiled once.
pub(super) fn poll_timer(
    deadline: Instant,
    armed: &mut Option<Instant>,
    timer: &mut Option<Sleep>,
    had_budget: bool,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let sleep = match timer {
        Some(sleep) if *armed == Some(deadline) => sleep,
        _ if deadline <= Instant::now() => return budget::poll(had_budget, cx, |_| Poll::Ready(())),
        // The duration has begun to count, or the enclosing scope has changed.
        Some(sleep) => {
            sleep.reset(deadline);
            sleep
        }
        None => timer.insert(Sleep::until(
            None,
            deadline,
            Resource::new("Sleep", "Wheel::sleep_until"),
        )),
    };
    *armed = Some(deadline);
    sleep.poll_after(had_budget, cx)
}
