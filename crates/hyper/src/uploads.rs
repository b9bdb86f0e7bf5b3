//! The bodies of requests, and the handlers that wait for them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    in_flight::RequestToken,
    progress::{Progress, TooSlow},
    settings::ProgressLimit,
    time::Moment,
};

/// The progress of a connection's request bodies, all taken together. Handlers in any task report to it, but
/// only where they have to wait and when they get a frame, so its lock is hardly ever contended.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// How many handlers wait for a frame.
    waiting: u32,
    /// Bytes that handlers have got, of all time.
    received: u64,
    progress: Progress,
}

impl Uploads {
    pub(crate) fn judge(&self, now: Moment, limit: ProgressLimit) -> Result<Moment, TooSlow> {
        let waits = &mut *self.lock();
        waits.progress.judge(now, waits.received, limit)
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    fn begin(&mut self, now: Moment) {
        if self.waiting == 0 {
            self.progress.begin_wait(now, self.received);
        }
        self.waiting += 1;
    }

    /// A wait has ended, and others of the same body may follow.
    fn end(&mut self, now: impl FnOnce() -> Moment) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.progress.end_wait(now());
        }
    }

    /// A body has ended, for which a handler may have waited.
    fn end_body(&mut self, waits: bool) {
        self.waiting -= u32::from(waits);
        if self.waiting == 0 {
            self.progress.forget();
        }
    }
}

/// The body of a request that is not empty, until it has ended or is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    token: RequestToken,
    waits: bool,
    /// Whether there is more of it, as far as the handler has seen.
    is_unread: bool,
}

impl Upload {
    pub(crate) fn new(token: RequestToken) -> Upload {
        Upload {
            token,
            waits: false,
            is_unread: true,
        }
    }

    /// The handler waits for a frame.
    pub(crate) fn wait(&mut self) {
        if !self.waits {
            self.waits = true;
            let connection = self.token.connection();
            connection.uploads.lock().begin(connection.now());
        }
    }

    /// Returns whether [`receive`](Upload::receive) has to know whether the frame is the last.
    pub(crate) fn asks_for_end(&self) -> bool {
        self.waits || !self.token.connection().is_http2()
    }

    /// The handler has got a frame. After the last, this is to be dropped.
    pub(crate) fn receive(&mut self, bytes: usize, is_last: bool) {
        self.is_unread = !is_last;
        let connection = self.token.connection();
        let mut waits = connection.uploads.lock();
        waits.received = waits.received.wrapping_add(bytes as u64);
        // After the last frame this is dropped, which ends a wait too, and without a reading of the clock.
        if self.waits && !is_last {
            self.waits = false;
            waits.end(|| connection.now());
        }
    }

    /// The handler has seen the end of the body, or its error. This is to be dropped.
    pub(crate) fn finish(&mut self) {
        self.is_unread = false;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let connection = self.token.connection();
        let mut waits = connection.uploads.lock();
        waits.end_body(self.waits);
        drop(waits);
        connection.end_upload(self.is_unread);
    }
}
