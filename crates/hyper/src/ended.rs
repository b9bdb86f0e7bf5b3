//! `Ended`: how a connection has ended.

use std::fmt;

/// How a connection under limits has ended.
///
/// Its `Display` is a phrase for a log, such as `idle for too long`.
///
/// # Examples
///
/// ```
/// use tickwheel_hyper::Ended;
///
/// assert_eq!(Ended::BodyProgress.to_string(), "client too slow with a body");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// The client closed it, or the application did by a response with `connection: close`.
    Done,
    /// It is another protocol's now, by an upgrade of HTTP/1 or a `CONNECT`, and no limit applies any longer.
    Upgraded,
    /// The client took too long for the head of a request, and was cut off.
    Header,
    /// No request was in flight for too long. It was ended gracefully.
    Idle,
    /// The client took too long to send the body of a request or to read that of a response, and was cut off.
    BodyProgress,
    /// Its lifetime was over. It was ended gracefully.
    Lifetime,
    /// [`shutdown`](crate::ConnectionLimits::shutdown) or
    /// [`graceful_shutdown`](crate::Served::graceful_shutdown) ended it gracefully.
    Shutdown,
    /// Requests were still in flight when the grace after `Idle`, `Lifetime` or `Shutdown` was over, and were
    /// cut off.
    Grace,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Ended::Done => "done",
            Ended::Upgraded => "upgraded to another protocol",
            Ended::Header => "client too slow with a request's head",
            Ended::Idle => "idle for too long",
            Ended::BodyProgress => "client too slow with a body",
            Ended::Lifetime => "lifetime over",
            Ended::Shutdown => "shut down",
            Ended::Grace => "requests cut off after the grace period",
        })
    }
}
