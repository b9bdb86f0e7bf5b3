//! `Release`: how the holder of a lease releases it, and waits for the answer.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::keeper::{Asked, Keeper, Releasing};
use crate::{connection::Connection, error::Error, script::Call};

/// What a holder needs to release its lease, whatever its connection is.
pub(super) trait Release: Send + Sync {
    /// The release, sent by whoever polls it. It answers before it has ended where it has to go on.
    fn run(self: Box<Self>, asked: Asked) -> BoxFuture<'static, ()>;
}

/// The lease of a keeper.
pub(super) struct OnConnection<C> {
    pub(super) releasing: Releasing<C>,
    pub(super) call: Call,
}

impl<C: Connection> Release for OnConnection<C> {
    fn run(self: Box<Self>, asked: Asked) -> BoxFuture<'static, ()> {
        Box::pin(self.releasing.run(self.call, Some(asked)))
    }
}

/// By what the holder gives the lease up.
pub(super) struct Ending {
    pub(super) release: Box<dyn Release>,
    /// Tells the keeper that the holder releases it. Dropped, it tells that the keeper has to.
    pub(super) given_up: oneshot::Sender<()>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) runtime: Handle,
}

impl Ending {
    /// Sends the release from here: the way through the keeper's task would be longer.
    pub(super) async fn release(self, valid_until: Instant) -> Result<bool, Error> {
        // Nobody is there to be told where the runtime of the keeper has gone.
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

/// A release, which goes on in the background when nobody waits for it any more.
struct UnderWay {
    run: Option<BoxFuture<'static, ()>>,
    keeper: Arc<Keeper>,
    runtime: Handle,
}

impl UnderWay {
    fn poll(&mut self, cx: &mut Context<'_>) {
        // Its timers are the keeper's, wherever it is polled.
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
