//! The bodies of requests, and the handlers that wait for them.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    in_flight::RequestToken,
    progress::{Progress, TooSlow},
    settings::ProgressLimit,
    time::Moment,
};

/// The progress of a connection's request bodies, all taken together. Handlers in any task report to it, and
/// take its lock only where they have to wait.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// Bytes that handlers have got, of all time.
    received: AtomicU64,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// How many handlers wait for a frame.
    waiting: u32,
    progress: Progress,
}

impl Uploads {
    pub(crate) fn judge(&self, now: Moment, limit: ProgressLimit) -> Result<Moment, TooSlow> {
        self.lock().progress.judge(now, self.received(), limit)
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    fn begin(&mut self, now: Moment, received: u64) {
        if self.waiting == 0 {
            self.progress.begin_wait(now, received);
        }
        self.waiting += 1;
    }

    /// A wait has ended, and others of the same body may follow.
    fn end(&mut self, now: Moment) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.progress.end_wait(now);
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

/// The body of a request, until it has ended or is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    token: RequestToken,
    wait: Wait,
    /// Whether there is more of it, as far as the handler has seen.
    is_unread: bool,
}

/// Whether a handler waits for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Never,
    Before,
    Now,
}

impl Upload {
    pub(crate) fn new(token: RequestToken) -> Upload {
        Upload {
            token,
            wait: Wait::Never,
            is_unread: true,
        }
    }

    /// The handler waits for a frame.
    pub(crate) fn wait(&mut self) {
        if self.wait != Wait::Now {
            self.wait = Wait::Now;
            let connection = self.token.connection();
            let (now, uploads) = (connection.now(), &connection.uploads);
            uploads.lock().begin(now, uploads.received());
        }
    }

    /// The handler has got a frame, which may be the last that has bytes.
    pub(crate) fn receive(&mut self, bytes: usize, is_last: bool) {
        let connection = self.token.connection();
        let received = &connection.uploads.received;
        received.fetch_add(bytes as u64, Ordering::Relaxed);
        if is_last {
            self.complete();
        } else if self.wait == Wait::Now {
            self.wait = Wait::Before;
            connection.uploads.lock().end(connection.now());
        }
    }

    /// The handler has all of the body, or its error.
    pub(crate) fn complete(&mut self) {
        self.is_unread = false;
        self.end();
    }

    fn end(&mut self) {
        let connection = self.token.connection();
        // A body that nobody has waited for says nothing of the waits for others.
        if self.wait != Wait::Never {
            connection.uploads.lock().end_body(self.wait == Wait::Now);
            self.wait = Wait::Never;
        }
        connection.end_upload(self.is_unread);
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.end();
    }
}
