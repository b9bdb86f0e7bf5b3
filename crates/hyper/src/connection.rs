//! What the wrappers of a connection tell the future that watches it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use http::Version;
use tokio::time::Instant;

use crate::{
    control::Control,
    in_flight::{InFlight, RequestToken},
    time::{LatestMoment, Moment, Span},
    uploads::Uploads,
};

/// The observed state of a connection. hyper does not tell it, so the IO, the service and the bodies that
/// hyper is given do.
///
/// Only the connection's task writes a field, with plain loads and stores, unless it says otherwise. All
/// loads are relaxed where a late answer only delays a limit until the next look.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) control: Arc<Control>,
    start: Instant,
    /// Written by any task.
    pub(crate) in_flight: InFlight,
    /// When nothing was in flight any longer. Written by any task.
    quiet_since: LatestMoment,
    /// Written by any task.
    pub(crate) uploads: Uploads,
    /// Bytes of responses that hyper has written: to the IO on HTTP/1, and on HTTP/2 to h2's buffer of
    /// frames, as the client's window lets it.
    sent: AtomicU64,
    /// Requests whose heads were complete.
    requests: AtomicU32,
    is_http2: AtomicBool,
    /// Whether the last write or flush is pending.
    is_blocked: AtomicBool,
    /// Whether something was read since the last head was complete, or the last body of a request ended. Safe
    /// code cannot count the bytes that a `hyper::rt::Read` gives. Written by any task.
    has_read: AtomicBool,
    /// Whether the handler did not read the last body of HTTP/1 to its end, so that hyper may read the rest
    /// of it, which is no head. Written by any task.
    leaves_body: AtomicBool,
    /// Whether HTTP/1 has been upgraded.
    is_upgraded: AtomicBool,
    /// Whether a stream of HTTP/2 has been made a tunnel, whose end nothing tells. Written by any task.
    has_tunnel: AtomicBool,
    /// Whether the next response of HTTP/1 is to say that it is the last.
    closes: AtomicBool,
}

impl Connection {
    pub(crate) fn new(control: Arc<Control>) -> Connection {
        let start = control.wheel.now();
        Connection {
            control,
            start,
            in_flight: InFlight::default(),
            quiet_since: LatestMoment::new(Moment::START),
            uploads: Uploads::default(),
            sent: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            is_http2: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            has_read: AtomicBool::new(false),
            leaves_body: AtomicBool::new(false),
            is_upgraded: AtomicBool::new(false),
            has_tunnel: AtomicBool::new(false),
            closes: AtomicBool::new(false),
        }
    }

    /// Reads the clock of the wheel.
    pub(crate) fn now(&self) -> Moment {
        Moment::START.after(Span::of(self.control.wheel.now() - self.start))
    }

    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.start + moment.since_start()
    }

    // What the IO tells.

    pub(crate) fn read(&self) {
        self.has_read.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        if !self.is_http2() {
            self.send(bytes);
        }
        self.set_blocked(false);
    }

    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Whether the socket takes no more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    // What the service tells.

    /// The head of a request is complete.
    pub(crate) fn begin_request(self: &Arc<Self>, version: Version) -> RequestToken {
        let requests = self.requests().wrapping_add(1);
        self.requests.store(requests, Ordering::Relaxed);
        self.is_http2.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.has_read.store(false, Ordering::Relaxed);
        self.leaves_body.store(false, Ordering::Relaxed);
        RequestToken::new(self)
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// A response hands the connection over to another protocol, or a stream of it.
    pub(crate) fn upgrade(&self) {
        let upgraded = if self.is_http2() {
            &self.has_tunnel
        } else {
            &self.is_upgraded
        };
        upgraded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_upgraded(&self) -> bool {
        self.is_upgraded.load(Ordering::Relaxed)
    }

    // What the bodies tell.

    /// The body of a request has ended, or the handler has dropped it.
    pub(crate) fn end_upload(&self, leaves_body: bool) {
        self.leaves_body.store(leaves_body, Ordering::Relaxed);
        self.has_read.store(false, Ordering::Relaxed);
    }

    pub(crate) fn send(&self, bytes: usize) {
        let sent = self.sent().wrapping_add(bytes as u64);
        self.sent.store(sent, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Nothing is in flight any longer.
    pub(crate) fn fall_quiet(&self) {
        self.quiet_since.store(self.now());
    }

    pub(crate) fn quiet_since(&self) -> Moment {
        self.quiet_since.load()
    }

    // What the future that watches it wants to know.

    pub(crate) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty() || self.is_blocked() || self.has_tunnel.load(Ordering::Relaxed)
    }

    /// Whether requests would be cut off if the connection were dropped now.
    pub(crate) fn is_responding(&self) -> bool {
        !self.in_flight.is_empty() || self.is_blocked() && !self.is_http2()
    }

    /// Whether hyper has something of a response that the client does not take.
    pub(crate) fn waits_for_reader(&self) -> bool {
        self.is_blocked() || self.in_flight.has_buffers()
    }

    /// Returns whether the head of a request is awaited, while nothing is in flight: the first, or one of
    /// which HTTP/1 has read something. Heads and other frames of HTTP/2 look alike.
    pub(crate) fn awaits_head(&self) -> bool {
        let has_begun = || self.has_read.load(Ordering::Relaxed) && !self.leaves_body.load(Ordering::Relaxed);
        self.requests() == 0 || !self.is_http2() && has_begun()
    }

    /// Makes the next response of HTTP/1 the last.
    pub(crate) fn close_after_response(&self) {
        self.closes.store(true, Ordering::Relaxed);
    }

    pub(crate) fn closes(&self) -> bool {
        self.closes.load(Ordering::Relaxed)
    }
}
