//! `WorkerBuilder`: the settings of a worker, and its start.

use std::{fmt, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{desk::Desk, engine::Engine, stream::Worker};
use crate::jobs::{settings::WorkerSettings, store::queue::Queue};

/// A builder for a [`Worker`], created by [`DelayedJobs::worker`](super::super::DelayedJobs::worker).
#[derive(Clone)]
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    queue: Arc<Queue>,
    settings: WorkerSettings,
}

impl WorkerBuilder {
    pub(in crate::jobs) fn new(queue: Arc<Queue>) -> WorkerBuilder {
        WorkerBuilder {
            queue,
            settings: WorkerSettings::default(),
        }
    }

    /// Sets the lease, after which the jobs of a worker that has died are delivered to another.
    ///
    /// It may be from 200 ms, or 20 ticks of the wheel if that is more, to 24 hours, and is 30 seconds by
    /// default. The lease of a job in progress is renewed at a third of this time, so a job may take as long
    /// as it needs.
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.settings.lease = lease;
        self
    }

    /// Sets how often a job is delivered before it is dead, at least once and 5 times by default.
    ///
    /// The limit is stored with a job at each start. When that delivery fails or its lease runs out, it is
    /// judged by that limit, whichever worker notices. A job that cannot be delivered for its payload goes by
    /// the worker that takes it.
    pub fn attempts(mut self, attempts: u32) -> WorkerBuilder {
        self.settings.attempts = attempts;
        self
    }

    /// Sets how many jobs the consumer works on at once, at least one.
    ///
    /// The worker starts jobs for so many places and claims no more than it will start soon, so that jobs
    /// which are due wait in Redis for whichever worker is free. Without this, a stream has a place for one
    /// more job than it holds whenever it is polled, and starts them one by one. [`run`](Worker::run) sets it
    /// by its own argument.
    pub fn concurrency(mut self, places: usize) -> WorkerBuilder {
        self.settings.concurrency = Some(places);
        self
    }

    /// Sets how many jobs may be claimed at most before the consumer asks for them, from 1 to 10,000 and 32
    /// by default.
    ///
    /// It is an upper bound, and none below the [places](WorkerBuilder::concurrency). No more are claimed than
    /// there are places free, or than the consumer has shown to start within 20 ms and two round trips. A
    /// consumer that has not taken a job yet and does not say its places may have this many claimed for it;
    /// what it does not ask for within 50 ms of its first job goes back.
    pub fn prefetch(mut self, prefetch: usize) -> WorkerBuilder {
        self.settings.prefetch = prefetch;
        self
    }

    /// Sets how long before their due time jobs may be claimed, up to an hour. By default, they are claimed
    /// when they are due.
    ///
    /// Claimed jobs are held on the wheel and delivered within a tick and a round trip of their due time.
    /// Until then they count as waiting, and can be cancelled and rescheduled.
    pub fn look_ahead(mut self, look_ahead: Duration) -> WorkerBuilder {
        self.settings.look_ahead = look_ahead;
        self
    }

    /// Sets how long a job may take, which is unlimited by default.
    ///
    /// A job that takes longer, counted from when the stream yielded it, is not renewed any more, and its
    /// [`lost`](super::Job::lost) completes. `done` then returns `false`. The attempt has failed: the job is
    /// delivered again when the rest of its lease has passed, so that its handler has that time to stop, and
    /// after its last attempt it is dead. Without a limit, a handler that hangs keeps its job forever.
    pub fn time_limit(mut self, limit: Duration) -> WorkerBuilder {
        self.settings.time_limit = Some(limit);
        self
    }

    /// Starts the worker, which claims no jobs before it is polled.
    ///
    /// If a setting is not allowed or the queue cannot be opened, the stream yields that error every second or two.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, as `tokio::spawn` does.
    #[track_caller]
    pub fn start(self) -> Worker {
        let desk = Desk::new(self.queue, self.settings, Handle::current());
        tokio::spawn(Engine::new(desk.clone()).run());
        Worker::new(desk)
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
