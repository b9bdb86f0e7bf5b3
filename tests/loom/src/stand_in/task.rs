//! `tokio::task`.

use std::{future::poll_fn, task::Poll};

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
