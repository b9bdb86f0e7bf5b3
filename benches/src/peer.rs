//! The timer implementations under comparison.

use std::fmt;

/// A timer, ours or another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `tickwheel::time`.
    Tickwheel,
    /// A wheel of one's own, by its handle.
    Handle,
    /// Timeouts counted under a label, one for all workers, beside those without.
    Labelled,
    /// `tokio::time`.
    Tokio,
    /// `tokio::time` on a runtime with `enable_alt_timer`, under `--cfg tokio_unstable` only.
    TokioAlt,
    /// `pingora_timeout::fast_timeout`.
    Pingora,
    /// `tokio_util::time::DelayQueue`: one owner, so never more than one worker.
    DelayQueue,
}

impl Peer {
    /// Those present in this build, each of them once.
    pub fn all() -> impl Iterator<Item = Peer> {
        [
            Peer::Tickwheel,
            Peer::Tokio,
            Peer::TokioAlt,
            Peer::Pingora,
            Peer::DelayQueue,
        ]
        .into_iter()
        .filter(|peer| cfg!(tokio_unstable) || *peer != Peer::TokioAlt)
    }

    pub fn name(self) -> &'static str {
        match self {
            Peer::Tickwheel => "tickwheel",
            Peer::Handle => "handle",
            Peer::Labelled => "labelled",
            Peer::Tokio => "tokio",
            Peer::TokioAlt => "tokio-alt",
            Peer::Pingora => "pingora-timeout",
            Peer::DelayQueue => "DelayQueue",
        }
    }

    pub fn named(name: &str) -> Option<Peer> {
        Peer::all().find(|peer| peer.name() == name)
    }

    /// Whether it has a `timeout` around a future, and several workers can share it.
    pub fn is_shared(self) -> bool {
        self != Peer::DelayQueue
    }

    /// Whether a pending timer of it can be moved.
    pub fn resets(self) -> bool {
        self != Peer::Pingora
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
