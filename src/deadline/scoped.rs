//! `Scoped`: a value that is polled and dropped inside a scope, such as the body of a request.

use std::{
    pin::Pin,
    sync::Weak,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{task::coop, time::Instant};

use super::{
    current,
    scope::{Shields, inside, sooner},
    within::poll_timer,
};
use crate::timers::sleep::Sleep;

pin_project! {
    /// A value that yields several outputs, one a poll, all of them inside one scope. Without a deadline it is in no scope of its own.
    #[derive(Debug)]
    pub(crate) struct Scoped<T> {
        // `None` once the scope has elapsed.
        #[pin]
        value: Option<T>,
        deadline: Option<Instant>,
        timer: Option<Sleep>,
        // The deadline that the timer waits for.
        armed: Option<Instant>,
        shields: Weak<Shields>,
    }

    impl<T> PinnedDrop for Scoped<T> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.value.is_some() {
                let deadline = sooner(*this.deadline, current());
                inside(deadline, this.shields, || this.value.set(None));
            }
        }
    }
}

impl<T> Scoped<T> {
    pub(crate) fn new(value: T, deadline: Option<Instant>) -> Scoped<T> {
        Scoped {
            value: Some(value),
            deadline,
            timer: None,
            armed: None,
            shields: Weak::new(),
        }
    }

    /// Returns the value, or `None` if the scope has elapsed.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Polls the value with `poll`, which says whether its output was the last one.
    ///
    /// The error is the deadline that has elapsed. The value is polled first, so its output counts at the deadline itself. Past the
    /// deadline only its last one does: otherwise a value that is always ready, such as a file that is sent to a slow client, would
    /// never elapse.
    ///
    /// # Panics
    ///
    /// Panics if the scope has elapsed in an earlier poll.
    pub(crate) fn poll_with<R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<Output<R>>,
    ) -> Poll<Result<R, Instant>> {
        let mut this = self.project();
        let value = this
            .value
            .as_mut()
            .as_pin_mut()
            .expect("polled after the scope has elapsed");
        let Some(deadline) = *this.deadline else {
            return poll(value, cx).map(|output| Ok(output.into_inner()));
        };
        let deadline = sooner(Some(deadline), current()).expect("there is one at least");
        let had_budget = coop::has_budget_remaining();
        match inside(Some(deadline), this.shields, || poll(value, cx)) {
            Poll::Ready(Output::Last(output)) => {
                *this.timer = None;
                return Poll::Ready(Ok(output));
            }
            Poll::Ready(Output::More(output)) => {
                if Instant::now() <= deadline || Shields::are_pending(this.shields, cx.waker()) {
                    return Poll::Ready(Ok(output));
                }
            }
            Poll::Pending => {
                ready!(poll_timer(deadline, this.armed, this.timer, had_budget, cx));
                if Shields::are_pending(this.shields, cx.waker()) {
                    return Poll::Pending;
                }
            }
        }
        *this.timer = None;
        inside(Some(deadline), this.shields, || this.value.set(None));
        Poll::Ready(Err(deadline))
    }
}

/// What a poll of a [`Scoped`] value has yielded.
pub(crate) enum Output<R> {
    More(R),
    Last(R),
}

impl<R> Output<R> {
    fn into_inner(self) -> R {
        match self {
            Output::More(output) | Output::Last(output) => output,
        }
    }
}
