//! `shield`: protects clean-up that must complete from deadlines.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::scope::{Shields, inside};

/// Keeps deadlines from stopping `future`, and makes the scopes around it wait until it completes.
///
/// Inside the shield, [`current`](super::current) is `None`. From the shield's first pending poll until it
/// completes or is dropped, an enclosing scope that elapses waits for it, and only then drops everything else
/// and returns `Elapsed`. Because the scope can wait only by polling its future as a whole, code that runs
/// beside the shield keeps running too, with no time remaining. This is the shielded cancel scope of trio. A
/// shield that has not been polled by the time the scope elapses starts only if that code reaches it, while
/// the scope still waits for another.
///
/// Use a shield for work that must not stop halfway, such as a commit or the return of a connection to its
/// pool, and give it a deadline of its own: `shield(within(duration, clean_up))`.
///
/// # Cancellation
///
/// Dropping the shield drops the future. A shield protects from deadlines, but not from a `select!` or an
/// abort; to protect from those, spawn a task. The destructors inside the shield see no deadline either.
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
///     std::future::pending::<()>().await // no time is left for this
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
    /// It is `Unpin` if the wrapped future is, and dropping it cancels it.
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
        // The hold on the scope in which the shield was last polled, while the shield is pending.
        hold: Option<Arc<Shields>>,
    }

    impl<F> PinnedDrop for Shield<F> {
        fn drop(this: Pin<&mut Self>) {
            inside(None, &mut Weak::new(), || this.project().future.set(None));
        }
    }
}

impl<F: Future> Future for Shield<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let polled = inside(None, &mut Weak::new(), || {
            let future = this.future.as_mut().as_pin_mut();
            let polled = future.expect("polled after completion").poll(cx);
            if polled.is_ready() {
                this.future.set(None);
            }
            polled
        });
        // The shield may have moved to another scope.
        *this.hold = polled.is_pending().then(Shields::hold_current).flatten();
        polled
    }
}
