//! What has been set. It is replaced as a whole, so no connection sees half of a change.

use std::time::Duration;

use crate::time::Span;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Counts the changes.
    pub(crate) version: u64,
    /// [`Span::UNLIMITED`] if not set, as those below.
    pub(crate) header: Span,
    pub(crate) idle: Span,
    pub(crate) body_progress: ProgressLimit,
    pub(crate) lifetime: Span,
    /// The last part of the lifetime, in which a connection ends at random.
    pub(crate) jitter: Span,
    pub(crate) grace: Span,
    pub(crate) is_shut_down: bool,
    /// The name of the server, for exporters.
    pub(crate) name: String,
}

impl Settings {
    const GRACE: Span = Span::from_millis(30_000);

    pub(crate) const NONE: Settings = Settings {
        version: 0,
        header: Span::UNLIMITED,
        idle: Span::UNLIMITED,
        body_progress: ProgressLimit::NONE,
        lifetime: Span::UNLIMITED,
        jitter: Span::ZERO,
        grace: Settings::GRACE,
        is_shut_down: false,
        name: String::new(),
    };

    pub(crate) fn set_lifetime(&mut self, lifetime: Duration, jitter: Duration) {
        self.lifetime = Span::of(lifetime);
        self.jitter = Span::of(jitter).min(self.lifetime);
    }

    pub(crate) fn limits_heads(&self) -> bool {
        self.header != Span::UNLIMITED
    }
}

/// How many bytes have to move in how much time of waiting for the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressLimit {
    pub(crate) span: Span,
    pub(crate) min_bytes: u64,
}

impl ProgressLimit {
    pub(crate) const NONE: ProgressLimit = ProgressLimit {
        span: Span::UNLIMITED,
        min_bytes: 0,
    };

    pub(crate) fn of(duration: Duration, min_bytes: u64) -> ProgressLimit {
        ProgressLimit {
            // A window of no time would be over before a wait has begun.
            span: Span::of(duration).max(Span::from_millis(1)),
            min_bytes: min_bytes.max(1),
        }
    }
}
