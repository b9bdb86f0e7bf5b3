//! `State`: who holds, renews and releases. One per lease; no clock, no network.
//!
//! ```text
//!             renew_at            Renewed (in time)
//!   Resting ------------> Renewing -----------------> Resting
//!      |   \                 |  |  \ Failed ---------> Resting, sooner
//!      |    \ the end        |  | Refused, the end
//!      |     `-------------> Lost
//!      | release             |  | release
//!      `------------------> Released
//! ```
//!
//! Invariants:
//! 1. A renewal is sent only while `Resting`, so never two at once, none after a loss, none after a release.
//! 2. The end only moves while it has not come, and only by an answer to a request: to when that was sent, plus ttl less margin.
//! 3. Whatever does not answer, the end comes.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::shortest_lease;

#[derive(Debug)]
pub(super) struct State {
    terms: Terms,
    /// When the last request that succeeded was sent.
    sent: Instant,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Resting { renew_at: Instant },
    Renewing { sent: Instant },
    Lost,
    Released,
}

/// What a lease's times go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) ttl: Duration,
    tick: Duration,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this instant, unless an answer or a release comes.
    Wait(Instant),
    /// Send a renewal, and say how it went.
    Renew,
    /// Tell the holder. Nothing more is to be done until it releases.
    Lose,
}

/// How a renewal went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Renewed,
    /// Somebody else holds it, or nobody does.
    Refused,
    /// Nobody knows.
    Failed,
}

impl Terms {
    /// The shortest and the longest lease.
    pub(super) fn limits(tick: Duration) -> (Duration, Duration) {
        (shortest_lease(tick), Duration::from_secs(24 * 60 * 60))
    }

    pub(super) fn new(ttl: Duration, tick: Duration) -> Terms {
        Terms { ttl, tick }
    }

    /// For how long a holder believes an answer, counted from when it asked.
    pub(super) fn validity(self) -> Duration {
        let margin = (self.tick * 2 + Duration::from_millis(10)).max(self.ttl / 100);
        self.ttl - margin
    }

    /// How long before its end a lease is given up: a sleep may be a tick late.
    fn early(self) -> Duration {
        self.tick
    }

    /// When to renew, after a request that succeeded: a third of ttl, less up to a fifth of that.
    fn renewal(self, jitter: impl Fn(Duration) -> Duration) -> Duration {
        let third = self.ttl / 3;
        third - jitter(third / 5)
    }

    /// When to try again, after one that failed.
    fn retry(self, jitter: impl Fn(Duration) -> Duration) -> Duration {
        let pause = (self.ttl / 30).clamp(self.tick, Duration::from_secs(1));
        pause - jitter(pause / 5)
    }
}

impl State {
    /// Of a lease that was acquired by a request sent at `sent`.
    pub(super) fn new(terms: Terms, sent: Instant, jitter: impl Fn(Duration) -> Duration) -> State {
        State {
            terms,
            sent,
            phase: Phase::Resting {
                renew_at: sent + terms.renewal(jitter),
            },
        }
    }

    /// The instant from which the holder must not believe any more that it holds.
    pub(super) fn valid_until(&self) -> Instant {
        self.sent + self.terms.validity()
    }

    /// When the holder is told that it is over.
    fn end(&self) -> Instant {
        self.valid_until() - self.terms.early()
    }

    /// Whether the end has come; not so where the lease was lost before its end.
    pub(super) fn has_run_out(&self, now: Instant) -> bool {
        now >= self.end()
    }

    pub(super) fn next(&mut self, now: Instant) -> Step {
        let end = self.end();
        match self.phase {
            Phase::Resting { .. } | Phase::Renewing { .. } if now >= end => self.lose(),
            Phase::Resting { renew_at } if now >= renew_at => {
                self.phase = Phase::Renewing { sent: now };
                Step::Renew
            }
            Phase::Resting { renew_at } => Step::Wait(renew_at.min(end)),
            Phase::Renewing { .. } => Step::Wait(end),
            Phase::Lost | Phase::Released => Step::Lose,
        }
    }

    /// The renewal under way has ended.
    pub(super) fn answered(&mut self, now: Instant, answer: Answer, jitter: impl Fn(Duration) -> Duration) {
        let Phase::Renewing { sent } = self.phase else {
            return;
        };
        match answer {
            _ if now >= self.valid_until() => self.phase = Phase::Lost,
            Answer::Refused => self.phase = Phase::Lost,
            Answer::Renewed => {
                self.sent = sent;
                self.phase = Phase::Resting {
                    renew_at: sent + self.terms.renewal(jitter),
                };
            }
            Answer::Failed => {
                self.phase = Phase::Resting {
                    renew_at: now + self.terms.retry(jitter),
                };
            }
        }
    }

    /// The wheel goes on no more, or the holder's clock says that it is over.
    pub(super) fn lose(&mut self) -> Step {
        if self.phase != Phase::Released {
            self.phase = Phase::Lost;
        }
        Step::Lose
    }

    /// The holder gives it up.
    pub(super) fn release(&mut self) {
        self.phase = Phase::Released;
    }
}
