//! `Served`: a connection under limits.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper_util::server::graceful::GracefulConnection;
use pin_project_lite::pin_project;

use crate::{
    ended::Ended,
    watch::{Step, Watch},
};

pin_project! {
    /// A connection under limits, returned by [`serve`](crate::ConnectionLimits::serve) and
    /// [`watch`](crate::Watcher::watch).
    ///
    /// The future serves the connection, and resolves to how it [`Ended`]. An error is hyper's: the client
    /// sent what is not HTTP, was answered 400 or 431, hung up in the middle of a request, or flooded HTTP/2.
    ///
    /// Spawn the future itself: `async move { served.await }` holds it twice, which takes two more kilobytes
    /// for each connection.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops the connection at once, and the requests in flight on it.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after it has completed. Its first poll panics outside a Tokio runtime, as that
    /// of [`Wheel::sleep`](tickwheel::Wheel::sleep) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use hyper::service::service_fn;
    /// use hyper_util::{rt::{TokioExecutor, TokioIo}, server::conn::auto::Builder};
    /// use std::{convert::Infallible, time::Duration};
    /// use tickwheel::Wheel;
    /// use tickwheel_hyper::{ConnectionLimits, Ended};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let limits = ConnectionLimits::new(&Wheel::new()).header(Duration::from_secs(10));
    /// let (_silent_client, io) = tokio::io::duplex(4096);
    /// let builder = Builder::new(TokioExecutor::new());
    /// let service = service_fn(async |_| Ok::<_, Infallible>(http::Response::new(String::from("hello"))));
    ///
    /// assert_eq!(limits.serve(&builder, TokioIo::new(io), service).await?, Ended::Header);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Served<C> {
        // `None` once it has ended: what was in flight is dropped before the caller hears of it, and whoever
        // keeps the future keeps no connection open.
        #[pin]
        open: Option<Open<C>>,
    }
}

pin_project! {
    struct Open<C> {
        #[pin]
        connection: C,
        watch: Watch,
    }
}

impl<C: GracefulConnection> Served<C> {
    pub(crate) fn new(connection: C, watch: Watch) -> Served<C> {
        Served {
            open: Some(Open { connection, watch }),
        }
    }

    /// Ends the connection gracefully, as [`Ended::Shutdown`] unless it was ending already.
    ///
    /// HTTP/2 sends `GOAWAY`, and HTTP/1 ends after the response in progress, or at once. What takes longer
    /// than [`grace`](crate::ConnectionLimits::grace) is cut off. The future has to be polled afterwards.
    /// [`ConnectionLimits::shutdown`](crate::ConnectionLimits::shutdown) ends all connections.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hyper::service::service_fn;
    /// # use hyper_util::{rt::{TokioExecutor, TokioIo}, server::conn::auto::Builder};
    /// # use std::{convert::Infallible, pin::pin};
    /// # use tickwheel::Wheel;
    /// # use tickwheel_hyper::{ConnectionLimits, Ended};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # let limits = ConnectionLimits::new(&Wheel::new());
    /// # let (_client, io) = tokio::io::duplex(4096);
    /// # let builder = Builder::new(TokioExecutor::new());
    /// # let service = service_fn(async |_| Ok::<_, Infallible>(http::Response::new(String::new())));
    /// let mut served = pin!(limits.serve(&builder, TokioIo::new(io), service));
    /// served.as_mut().graceful_shutdown();
    /// assert_eq!(served.await?, Ended::Shutdown);
    /// # Ok(())
    /// # }
    /// ```
    pub fn graceful_shutdown(self: Pin<&mut Self>) {
        if let Some(open) = self.project().open.as_pin_mut() {
            let open = open.project();
            open.watch.shut_down();
            open.connection.graceful_shutdown();
        }
    }
}

impl<C> Open<C>
where
    C: GracefulConnection,
    C::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn poll_end(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Ended, Box<dyn Error + Send + Sync>>> {
        let mut open = self.project();
        let mut must_look = open.watch.poll(cx);
        loop {
            if let Poll::Ready(result) = open.connection.as_mut().poll(cx) {
                return Poll::Ready(open.watch.finish(result.map_err(Into::into)));
            }
            match open.watch.check(must_look, cx) {
                Step::Wait => return Poll::Pending,
                Step::EndGracefully => open.connection.as_mut().graceful_shutdown(),
                Step::CutOff(ended) => {
                    open.watch.count(ended);
                    return Poll::Ready(Ok(ended));
                }
            }
            must_look = true;
        }
    }
}

impl<C> Future for Served<C>
where
    C: GracefulConnection,
    C::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = Result<Ended, Box<dyn Error + Send + Sync>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut open = self.project().open;
        let connection = open.as_mut().as_pin_mut();
        let connection = connection.expect("`Served` polled after completion");
        let ended = ready!(connection.poll_end(cx));
        open.set(None);
        Poll::Ready(ended)
    }
}

impl<C> fmt::Debug for Served<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watch = self.open.as_ref().map(|open| &open.watch);
        f.debug_struct("Served")
            .field("watch", &watch)
            .finish_non_exhaustive()
    }
}
