//! `Ending`: releases a lease on behalf of its holder, which waits for the answer.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::keeper::{Asked, Keepers, Releasing};
use crate::{error::Error, server::script::Call};

/// What a holder uses to give up its lease.
pub(super) struct Ending {
    release: Option<(Releasing, Call)>,
    /// A message tells the lease's future that the holder releases the lease; dropping the sender tells it to
    /// release the lease itself.
    given_up: Option<oneshot::Sender<()>>,
    keepers: Arc<Keepers>,
    /// The runtime on which the lease was acquired and is renewed.
    runtime: Handle,
}

impl Ending {
    pub(super) fn new(
        release: (Releasing, Call),
        given_up: oneshot::Sender<()>,
        keepers: Arc<Keepers>,
        runtime: Handle,
    ) -> Ending {
        Ending {
            release: Some(release),
            given_up: Some(given_up),
            keepers,
            runtime,
        }
    }

    /// Sends the release from the caller's task, on the caller's runtime.
    pub(super) async fn release(mut self, valid_until: Instant) -> Result<bool, Error> {
        let Ok(here) = Handle::try_current() else {
            return Err(Error::NoRuntime);
        };
        let (Some(given_up), Some((releasing, call))) = (self.given_up.take(), self.release.take()) else {
            return Err(Error::NoRuntime);
        };
        let (answer, mut answered) = oneshot::channel();
        let mut under_way = UnderWay {
            run: Some(releasing.run(call, Asked { answer, valid_until }).boxed()),
            keepers: self.keepers.clone(),
            runtime: here,
        };
        // The runtime has been shut down and has ended the lease. Others need not wait until it expires.
        if given_up.send(()).is_err() {
            return Err(Error::NoRuntime);
        }
        poll_fn(|cx| {
            under_way.poll(cx);
            std::pin::Pin::new(&mut answered).poll(cx)
        })
        .await
        .unwrap_or(Err(Error::NoRuntime))
    }
}

impl Drop for Ending {
    /// Releases a lease that was dropped. Where its own runtime cannot do it, or may be idle, the current one
    /// does.
    fn drop(&mut self) {
        let (Some(given_up), Some((releasing, call))) = (self.given_up.take(), self.release.take()) else {
            return;
        };
        let is_elsewhere = Handle::try_current().is_ok_and(|here| here.id() != self.runtime.id());
        if !is_elsewhere && !given_up.is_closed() {
            return;
        }
        let _ = given_up.send(());
        self.keepers.adopt(&self.runtime, releasing.work(call));
    }
}

/// A release that continues in the background when its caller stops waiting.
struct UnderWay {
    run: Option<BoxFuture<'static, ()>>,
    keepers: Arc<Keepers>,
    /// The runtime that has polled it last.
    runtime: Handle,
}

impl UnderWay {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Ok(here) = Handle::try_current() {
            self.runtime = here;
        }
        if let Some(run) = &mut self.run
            && let Poll::Ready(()) = run.as_mut().poll(cx)
        {
            self.run = None;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.keepers.adopt(&self.runtime, Box::new(|_| run));
        }
    }
}
