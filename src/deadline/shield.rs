//! `shield`: clean-up that must end.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::scope::{Hold, inside, poll_inside};

/// Keeps deadlines out of `future`, and has the scopes around wait for it.
///
/// Inside, [`current`](super::current) is `None`. From its first pending poll until it completes or is dropped, a scope around it that
/// elapses waits. The scope then drops the rest and returns `Elapsed`. It can wait only by polling its future as a whole, so what runs
/// beside the shield goes on too, with nothing left. This is the shielded cancel scope of trio. A shield that has not been polled when
/// the scope elapses does not start any more.
///
/// Use it for what must not stop halfway, such as a commit or the return of a connection, and limit it in itself:
/// `shield(within(duration, clean_up))`.
///
/// # Cancellation
///
/// Dropping the shield drops the future. It protects from deadlines, not from a `select!` or an abort: for that, spawn a task. The
/// destructors inside it see no deadline either.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{deadline, time::sleep};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut committed = false;
/// let transaction = deadline::within(Duration::from_millis(10), async {
///     deadline::shield(async {
///         sleep(Duration::from_millis(30)).await;
///         committed = true;
///     })
///     .await;
///     std::future::pending::<()>().await // there is no time for more
/// });
/// assert!(transaction.await.is_err());
/// assert!(committed);
/// # }
/// ```
pub fn shield<F: IntoFuture>(future: F) -> Shield<F::IntoFuture> {
    Shield {
        future: Some(future.into_future()),
        hold: None,
    }
}

pin_project! {
    /// The future returned by [`shield`].
    ///
    /// It is `Unpin` if the future inside is, and dropping it cancels it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::{Ready, ready};
    /// use tickwheel::deadline::{Shield, shield};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let shield: Shield<Ready<u8>> = shield(ready(7));
    /// assert_eq!(shield.await, 7);
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Shield<F> {
        // `None` once it has completed.
        #[pin]
        future: Option<F>,
        // On the scope in which it was polled last, while it is pending.
        hold: Option<Hold>,
    }

    impl<F> PinnedDrop for Shield<F> {
        fn drop(this: Pin<&mut Self>) {
            inside(None, &mut None, || this.project().future.set(None));
        }
    }
}

impl<F: Future> Future for Shield<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = poll_inside(None, &mut None, this.future, cx);
        // It may have moved to another scope.
        *this.hold = polled.is_pending().then(Hold::current).flatten();
        polled
    }
}
