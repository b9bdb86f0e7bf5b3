//! `tokio::task`.

use std::{any::Any, error::Error, fmt, future::poll_fn, task::Poll};

/// There is no budget.
pub fn unconstrained<F>(future: F) -> F {
    future
}

pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The error of a task that is joined, which no model does.
#[derive(Debug)]
pub struct JoinError(());

impl JoinError {
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        Err(self)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("task was cancelled")
    }
}

impl Error for JoinError {}

/// There is no budget.
pub mod coop {
    use std::task::{Context, Poll};

    pub struct RestoreOnPending;

    impl RestoreOnPending {
        pub fn made_progress(&self) {}
    }

    pub fn has_budget_remaining() -> bool {
        true
    }

    pub fn poll_proceed(_: &mut Context<'_>) -> Poll<RestoreOnPending> {
        Poll::Ready(RestoreOnPending)
    }
}
