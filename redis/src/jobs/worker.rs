//! `WorkerBuilder` and `Worker`.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;

use super::{engine::Engine, inbox::Inbox, job::Job, queue::Queue, settings::Settings};
use crate::error::Error;

/// The settings of a [`Worker`], made by [`DelayedJobs::worker`](super::DelayedJobs::worker).
#[derive(Clone)]
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    queue: Arc<Queue>,
    settings: Settings,
}

impl WorkerBuilder {
    pub(super) fn new(queue: Arc<Queue>) -> WorkerBuilder {
        WorkerBuilder {
            queue,
            settings: Settings {
                lease: Duration::from_secs(30),
                attempts: 5,
                prefetch: 32,
                look_ahead: Duration::ZERO,
            },
        }
    }

    /// Sets how long a job stays with a worker that is not heard of.
    ///
    /// From 200 ms, or 20 ticks of the wheel if that is more, to 24 hours. The default is 30 seconds. The lease of a job that is worked on is renewed at a third of
    /// this, so a job may take any time.
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.settings.lease = lease;
        self
    }

    /// Sets how often a job is delivered before it is dead. At least once. The default is 5 times.
    pub fn attempts(mut self, attempts: u32) -> WorkerBuilder {
        self.settings.attempts = attempts;
        self
    }

    /// Sets how many jobs may be claimed before they are asked for. From 1 to 10,000. The default is 32.
    pub fn prefetch(mut self, prefetch: usize) -> WorkerBuilder {
        self.settings.prefetch = prefetch;
        self
    }

    /// Sets how long before they are due jobs may be claimed. An hour at most. By default they are claimed when they are due.
    ///
    /// They are held on the wheel and delivered within a tick and a round trip of their time. Until then they count as waiting,
    /// and can be cancelled and rescheduled.
    pub fn look_ahead(mut self, look_ahead: Duration) -> WorkerBuilder {
        self.settings.look_ahead = look_ahead;
        self
    }

    /// Starts the worker. It takes nothing before it is polled.
    ///
    /// If a setting is not allowed, or the queue cannot be opened, the stream yields that error once a second.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, as `tokio::spawn` does.
    pub fn start(self) -> Worker {
        let inbox = Inbox::new(self.queue, self.settings);
        tokio::spawn(Engine::new(inbox.clone()).run());
        Worker { inbox }
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.queue.name)
            .field("settings", &self.settings)
            .finish()
    }
}

/// The stream of a queue's jobs, as they come due.
///
/// Work on one job after the other, or on many at once with `for_each_concurrent`. The stream yields errors, one a second at most.
/// They do not end it: it goes on when Redis is back. It ends when the wheel is shut down.
///
/// A consumer that works on many jobs at once has a few started before the stream yields them: as many as it has shown to have room
/// for. Those count as running. What it has not fetched after 200 ms waits again, with no attempt counted.
///
/// A worker that is dropped gives back what it had claimed. Jobs that it yielded stay with whoever has them, and are renewed. A worker
/// that is not polled gives back what has come due, and claims no more until it is polled again.
#[must_use = "streams do nothing unless polled"]
pub struct Worker {
    inbox: Arc<Inbox>,
}

impl Stream for Worker {
    type Item = Result<Job, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let inbox = &self.inbox;
        inbox
            .poll_next(cx)
            .map(|next| next.map(|claim| claim.map(|claim| Job::new(claim, inbox.clone()))))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.inbox.queue.name)
            .field("settings", &self.inbox.settings)
            .finish_non_exhaustive()
    }
}
