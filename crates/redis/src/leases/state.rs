//! `LeaseState`: the state machine of holding and renewing one lease, without a clock or a network.
//!
//! ```text
//!             renew_at            Renewed (in time)
//!   Resting ------------> Renewing -----------------> Resting
//!          \                 |   \ Failed ---------> Resting, sooner
//!           \ the end           | Refused, the end
//!            `--------------> Lost
//! ```
//!
//! A lease that is released has no state any more.
//!
//! Invariants:
//! 1. A renewal is sent only while `Resting`, so there are never two at once, and none after a loss.
//! 2. The end moves only before it has been reached, and only by an answer to a request: to the time at which
//!    that request was sent, plus the TTL, minus the margin.
//! 3. The end is reached even if nothing answers.

use std::time::Duration;

use tokio::time::Instant;

use crate::validity::valid_for;

#[derive(Debug)]
pub(super) struct LeaseState {
    terms: Terms,
    /// When the last successful request was sent.
    sent: Instant,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Resting { renew_at: Instant },
    Renewing,
    Lost,
}

/// The durations from which the times of a lease follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) ttl: Duration,
    tick: Duration,
}

/// What the keeper does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait until this instant, an answer, or a release.
    Wait(Instant),
    /// Send a renewal and report its outcome.
    Renew,
    /// Tell the holder that the lease is lost, then wait for its release.
    Lose,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The lease was renewed by a request that was sent at this instant.
    Renewed { sent: Instant },
    /// This holder no longer holds the lease.
    Refused,
    /// The outcome is unknown.
    Failed,
}

impl Terms {
    pub(super) fn new(ttl: Duration, tick: Duration) -> Terms {
        Terms { ttl, tick }
    }

    /// Returns how long a grant is valid for the holder, from the time of its request.
    pub(super) fn validity(self) -> Duration {
        valid_for(self.ttl, self.tick)
    }

    /// Returns the delay from a successful request to the next renewal.
    fn renewal(self, jitter: impl Fn(Duration) -> Duration) -> Duration {
        jitter(self.ttl / 3)
    }

    /// Returns the delay after a renewal that failed.
    fn retry(self, jitter: impl Fn(Duration) -> Duration) -> Duration {
        jitter((self.ttl / 30).min(Duration::from_secs(1)).max(self.tick))
    }
}

impl LeaseState {
    /// Creates the state of a lease that was acquired by a request sent at `sent`.
    pub(super) fn new(terms: Terms, sent: Instant, jitter: impl Fn(Duration) -> Duration) -> LeaseState {
        LeaseState {
            terms,
            sent,
            phase: Phase::Resting {
                renew_at: sent + terms.renewal(jitter),
            },
        }
    }

    /// Returns the instant from which the holder must no longer assume that it holds the lease.
    pub(super) fn valid_until(&self) -> Instant {
        self.sent + self.terms.validity()
    }

    /// Returns when the holder is told that the lease is lost: before its end, because a sleep may be a tick
    /// late.
    fn end(&self) -> Instant {
        self.valid_until() - self.terms.tick
    }

    /// Whether the end has been reached, as opposed to a loss before it.
    pub(super) fn has_run_out(&self, now: Instant) -> bool {
        now >= self.end()
    }

    pub(super) fn next(&mut self, now: Instant) -> Step {
        let end = self.end();
        match self.phase {
            Phase::Resting { .. } | Phase::Renewing if now >= end => self.lose(),
            Phase::Resting { renew_at } if now >= renew_at => {
                self.phase = Phase::Renewing;
                Step::Renew
            }
            Phase::Resting { renew_at } => Step::Wait(renew_at.min(end)),
            Phase::Renewing => Step::Wait(end),
            Phase::Lost => Step::Lose,
        }
    }

    /// Records the outcome of the renewal in flight.
    pub(super) fn answered(&mut self, now: Instant, outcome: Outcome, jitter: impl Fn(Duration) -> Duration) {
        if self.phase != Phase::Renewing {
            return;
        }
        match outcome {
            _ if now >= self.valid_until() => self.phase = Phase::Lost,
            Outcome::Refused => self.phase = Phase::Lost,
            Outcome::Renewed { sent } => {
                self.sent = sent;
                self.phase = Phase::Resting {
                    renew_at: sent + self.terms.renewal(jitter),
                };
            }
            Outcome::Failed => {
                self.phase = Phase::Resting {
                    renew_at: now + self.terms.retry(jitter),
                };
            }
        }
    }

    /// Records that the lease is lost: the wheel was shut down, or the lease has expired by the holder's
    /// clock.
    pub(super) fn lose(&mut self) -> Step {
        self.phase = Phase::Lost;
        Step::Lose
    }
}
