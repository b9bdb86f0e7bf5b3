//! `Release`: releases a lease on behalf of its holder, which waits for the answer.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::keeper::{Asked, Keeper, Releasing};
use crate::{connection::Connection, error::Error, script::Call};

/// The release of a lease over a connection of any type.
pub(super) trait Release: Send + Sync {
    /// Runs the release. It may have to continue after it has answered.
    fn run(self: Box<Self>, asked: Asked) -> BoxFuture<'static, ()>;
}

/// A release over the connection of a keeper.
pub(super) struct OnConnection<C> {
    pub(super) releasing: Releasing<C>,
    pub(super) call: Call,
}

impl<C: Connection> Release for OnConnection<C> {
    fn run(self: Box<Self>, asked: Asked) -> BoxFuture<'static, ()> {
        Box::pin(self.releasing.run(self.call, Some(asked)))
    }
}

/// What a holder uses to give up its lease.
pub(super) struct Ending {
    pub(super) release: Box<dyn Release>,
    /// A message tells the keeper that the holder releases the lease; dropping the sender tells it to release the lease itself.
    pub(super) given_up: oneshot::Sender<()>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) runtime: Handle,
}

impl Ending {
    /// Sends the release from this task, which is faster than through the keeper's.
    pub(super) async fn release(self, valid_until: Instant) -> Result<bool, Error> {
        // The keeper's runtime has been shut down.
        if self.given_up.send(()).is_err() {
            return Err(Error::NoRuntime);
        }
        let (answer, mut answered) = oneshot::channel();
        let mut under_way = UnderWay {
            run: Some(self.release.run(Asked { answer, valid_until })),
            keeper: self.keeper,
            runtime: self.runtime,
        };
        poll_fn(|cx| {
            under_way.poll(cx);
            std::pin::Pin::new(&mut answered).poll(cx)
        })
        .await
        .unwrap_or(Err(Error::NoRuntime))
    }
}

/// A release that continues in the background when its caller stops waiting.
struct UnderWay {
    run: Option<BoxFuture<'static, ()>>,
    keeper: Arc<Keeper>,
    runtime: Handle,
}

impl UnderWay {
    fn poll(&mut self, cx: &mut Context<'_>) {
        // Its timers belong to the keeper's runtime, wherever it is polled.
        let _entered = self.runtime.enter();
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
            self.keeper.adopt_boxed(&self.runtime, run);
        }
    }
}
