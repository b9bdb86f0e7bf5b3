//! The bodies of requests, and the handlers that wait for them.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    connection::Connection,
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

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Upload {
    /// No more bytes are to come. hyper takes a lock to tell whether a client of HTTP/2 has ended the stream,
    /// too, so such a body is in flight only if a handler waits for the end.
    Empty(Arc<Connection>),
    Ongoing(Ongoing),
    /// The handler has all of it, or its error.
    Ended,
}

impl Upload {
    pub(crate) fn new(connection: &Arc<Connection>) -> Upload {
        Upload::Ongoing(Ongoing {
            token: RequestToken::new(connection),
            wait: Wait::Never,
            is_unread: true,
        })
    }

    pub(crate) fn empty(connection: &Arc<Connection>) -> Upload {
        if connection.is_http2() {
            Upload::Empty(connection.clone())
        } else {
            Upload::Ended
        }
    }

    /// The handler waits for a frame, or for the end.
    pub(crate) fn wait(&mut self) {
        if let Upload::Empty(connection) = self {
            *self = Upload::new(connection);
        }
        if let Upload::Ongoing(ongoing) = self {
            ongoing.wait();
        }
    }

    /// The handler has got a frame, which may be the last that has bytes.
    pub(crate) fn receive(&mut self, bytes: usize, is_last: bool) {
        let Upload::Ongoing(ongoing) = self else {
            return;
        };
        let connection = ongoing.token.connection().clone();
        let received = &connection.uploads.received;
        received.fetch_add(bytes as u64, Ordering::Relaxed);
        if is_last {
            // This ends a wait without a reading of the clock.
            ongoing.is_unread = false;
            *self = Upload::empty(&connection);
        } else {
            ongoing.end_wait();
        }
    }

    pub(crate) fn complete(&mut self) {
        if let Upload::Ongoing(ongoing) = self {
            ongoing.is_unread = false;
        }
        *self = Upload::Ended;
    }
}

/// A body that is in flight, until this is dropped.
#[derive(Debug)]
pub(crate) struct Ongoing {
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

impl Ongoing {
    fn wait(&mut self) {
        if self.wait != Wait::Now {
            self.wait = Wait::Now;
            let connection = self.token.connection();
            let (now, uploads) = (connection.now(), &connection.uploads);
            uploads.lock().begin(now, uploads.received());
        }
    }

    fn end_wait(&mut self) {
        if self.wait == Wait::Now {
            self.wait = Wait::Before;
            let connection = self.token.connection();
            connection.uploads.lock().end(connection.now());
        }
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let connection = self.token.connection();
        // A body that nobody has waited for says nothing of the waits for others.
        if self.wait != Wait::Never {
            connection.uploads.lock().end_body(self.wait == Wait::Now);
        }
        connection.end_upload(self.is_unread);
    }
}
