//! `Scoped`: a value that is polled and dropped inside a scope: the future of a `Within`, or the body of a
//! request.

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
};
use crate::{
    engine::{clock::Moment, shared::WheelRef},
    timers::sleep::{HadBudget, Sleep, spend_budget},
};

pin_project! {
    /// A value that yields one output or several, one a poll, all of them inside one scope. Without a
    /// deadline it never elapses.
    #[derive(Debug)]
    pub(crate) struct Scoped<T> {
        // `None` once it has yielded its last output, or the scope has elapsed.
        #[pin]
        value: Option<T>,
        pub(crate) deadline: Option<Instant>,
        // The wheel on which it waits.
        pub(super) wheel: WheelRef,
        timer: Option<Sleep>,
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
    /// Creates a scope around `value`, which has ended if there is none.
    pub(crate) fn new(value: Option<T>, deadline: Option<Instant>) -> Scoped<T> {
        Scoped {
            value,
            deadline,
            wheel: WheelRef::GLOBAL,
            timer: None,
            shields: Weak::new(),
        }
    }

    /// Returns the value, or `None` if it has yielded its last output or the scope has elapsed.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Polls the value, until `own_deadline` or that of the scope around it, with `poll`, which says whether
    /// its output was the last one.
    ///
    /// The error is the deadline that has elapsed. The value is polled first, so its output counts at the
    /// deadline itself. Past the deadline only its last one does: otherwise a value that is always ready,
    /// such as a file that is sent to a slow client, would never elapse. After the last output, and when the
    /// scope elapses, the value is dropped inside the scope.
    ///
    /// # Panics
    ///
    /// Panics if the value has yielded its last output, or the scope has elapsed, in an earlier poll.
    #[track_caller]
    pub(crate) fn poll_with<R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        own_deadline: Option<Instant>,
        poll: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<(R, bool)>,
    ) -> Poll<Result<R, Instant>> {
        let mut this = self.project();
        let deadline = sooner(own_deadline, current());
        let had_budget = HadBudget(coop::has_budget_remaining());
        let polled = inside(deadline, this.shields, || {
            let value = this.value.as_mut().as_pin_mut().expect("polled after its end");
            let polled = poll(value, cx);
            if let Poll::Ready((_, true)) = polled {
                this.value.set(None);
                *this.timer = None;
            }
            polled
        });
        // The scope around a value that has no deadline of its own does not end it.
        let Some(deadline) = deadline.filter(|_| own_deadline.is_some()) else {
            // The timer of an enclosing scope in which the value was polled before.
            *this.timer = None;
            return polled.map(|(output, _)| Ok(output));
        };
        match polled {
            Poll::Ready((output, is_last)) => {
                if is_last || Instant::now() <= deadline || Shields::poll_ended(this.shields, cx).is_pending()
                {
                    return Poll::Ready(Ok(output));
                }
            }
            Poll::Pending => {
                ready!(poll_timer(deadline, this.wheel, this.timer, had_budget, cx));
                ready!(Shields::poll_ended(this.shields, cx));
            }
        }
        *this.timer = None;
        inside(Some(deadline), this.shields, || this.value.set(None));
        Poll::Ready(Err(deadline))
    }
}

/// Waits until `deadline`. Being independent of the future's type, it is compiled once.
#[track_caller]
fn poll_timer(
    deadline: Instant,
    wheel: &WheelRef,
    timer: &mut Option<Sleep>,
    had_budget: HadBudget,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let sleep = match timer {
        Some(sleep) if sleep.timer.deadline() == Moment::of(deadline) => sleep,
        _ if deadline <= Instant::now() => {
            ready!(had_budget.poll(cx));
            return spend_budget(cx);
        }
        // The enclosing scope has changed.
        Some(sleep) => {
            sleep.reset_at(deadline);
            sleep
        }
        None => timer.insert(Sleep::until(wheel.clone(), deadline)),
    };
    sleep.poll_after(had_budget, cx)
}
