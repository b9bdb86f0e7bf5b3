//! `Sweep`: when to look at a partition next, without a network or a clock.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::nonce::random_part;

/// The longest interval between two sweeps of a partition, and the interval while the partition is idle.
const INTERVAL: Duration = Duration::from_secs(5);
/// By how much a sweep may come sooner, at random.
const JITTER: Duration = Duration::from_millis(100);
/// The shortest interval between two sweeps that wait for leases of other workers to end.
const ENDS_APART: Duration = Duration::from_secs(1);
/// The pause after a failed take, which doubles from the first value to the second.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a worker knows of a partition. A sweep is a take, which also brings back the jobs that other workers have lost.
pub(super) struct Sweep {
    /// When to sweep next.
    pub(super) at: Instant,
    sent: Instant,
    /// Whether a take is in flight.
    pub(super) taking: bool,
    /// Whether the last take got no answer.
    pub(super) unanswered: bool,
    pause: Duration,
    /// Whether a job may have become due since the take in flight was sent.
    hinted: bool,
    /// Whether more jobs could be taken now.
    pub(super) more: bool,
    /// Whether the partition has been swept before.
    done_before: bool,
}

impl Sweep {
    pub(super) fn new(now: Instant) -> Sweep {
        Sweep {
            at: now,
            sent: now,
            taking: false,
            unanswered: false,
            pause: PAUSE,
            hinted: false,
            more: false,
            done_before: false,
        }
    }

    /// Whether to take now. Without room for a job, only the regular sweep for jobs that others have lost is due.
    pub(super) fn is_due(&mut self, now: Instant, room: usize, wants_more: bool) -> bool {
        if self.taking {
            return false;
        }
        if self.at > now {
            return self.more && wants_more;
        }
        if room == 0 && now < self.sent + INTERVAL && !self.unanswered {
            self.more = true;
            self.at = self.sent + INTERVAL;
            return false;
        }
        true
    }

    /// Records that a take is sent, which repeats the last one if that got no answer.
    pub(super) fn begin(&mut self, now: Instant) {
        self.taking = true;
        self.hinted = false;
        self.more = false;
        self.sent = now;
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.taking = false;
        self.unanswered = true;
        self.at = now + self.pause / 2 + random_part(self.pause / 2);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Records that Redis refused the take for what another process sent, so that it is sent again as another call.
    pub(super) fn restart(&mut self, now: Instant) {
        self.taking = false;
        self.unanswered = false;
        self.at = now;
    }

    /// Records an answer, which says when the next job is due and when the next lease ends.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        next_due: Option<Instant>,
        next_end: Option<Instant>,
        look_ahead: Duration,
    ) {
        self.taking = false;
        self.unanswered = false;
        self.pause = PAUSE;
        // Workers that swept at the same time, at first or after a notification, spread out.
        let jitter = if mem::replace(&mut self.done_before, true) {
            JITTER
        } else {
            INTERVAL / 2
        };
        self.at = self.sent + INTERVAL - random_part(jitter);
        if let Some(end) = next_end {
            // One take brings back no more than 20 leases that have ended; the rest are brought back by the next ones, at once.
            let look_again = if end <= now {
                now
            } else {
                end.max(self.sent + ENDS_APART)
            };
            self.at = self.at.min(look_again);
        }
        if let Some(due) = next_due {
            let claimable = due.checked_sub(look_ahead).unwrap_or(now);
            self.more = claimable <= now;
            if !self.more {
                // Waiting for half of the look-ahead lets jobs that are due one after another be taken together.
                self.at = self.at.min(claimable + look_ahead / 2);
            }
        }
        if self.hinted {
            self.at = now;
        }
    }

    /// Records that a job may have become due.
    pub(super) fn hint(&mut self, now: Instant) {
        self.hinted = true;
        if !self.taking && !self.unanswered {
            self.at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn answered(next_due: Option<Duration>, next_end: Option<Duration>) -> (Instant, Sweep) {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        assert!(sweep.is_due(now, 1, false));
        sweep.begin(now);
        assert!(!sweep.is_due(now, 1, true), "one at a time");
        sweep.answered(
            now,
            next_due.map(|due| now + due),
            next_end.map(|end| now + end),
            SECOND,
        );
        (now, sweep)
    }

    #[test]
    fn what_comes_due_is_taken_at_half_of_the_look_ahead() {
        let (now, mut sweep) = answered(Some(2 * SECOND), None);
        assert_eq!(sweep.at, now + 3 * SECOND / 2);
        assert!(!sweep.is_due(now, 1, true));
        assert!(sweep.is_due(sweep.at, 1, false));
        let (now, mut sweep) = answered(Some(SECOND), None);
        assert!(sweep.is_due(now, 1, true), "more could be taken at once");
        assert!(!sweep.is_due(now, 1, false));
    }

    #[test]
    fn leases_that_end_are_looked_for_once_a_second() {
        let (now, sweep) = answered(None, Some(SECOND / 10));
        assert_eq!(sweep.at, now + SECOND);
    }

    #[test]
    fn leases_that_have_ended_are_looked_for_at_once() {
        // A take brings back 20 of them, so 200 jobs of a worker that is gone take ten: not ten seconds.
        let (now, mut sweep) = answered(None, Some(Duration::ZERO));
        assert_eq!(sweep.at, now);
        assert!(sweep.is_due(now, 1, false));
        let (now, mut sweep) = answered(None, Some(Duration::ZERO));
        assert!(
            !sweep.is_due(now, 0, true),
            "a worker without room leaves them to others"
        );
        assert_eq!(sweep.at, now + INTERVAL);
    }

    #[test]
    fn without_room_it_waits_for_the_sweep() {
        let (now, mut sweep) = answered(Some(2 * SECOND), None);
        let due = sweep.at;
        assert!(!sweep.is_due(due, 0, false));
        assert_eq!(sweep.at, now + INTERVAL);
        assert!(sweep.is_due(sweep.at, 0, false));
    }

    #[test]
    fn a_hint_is_heard_also_while_a_take_is_under_way() {
        let (now, mut sweep) = answered(None, None);
        assert!(sweep.at > now + INTERVAL / 2 - JITTER);
        sweep.hint(now);
        assert!(sweep.is_due(now, 1, false));
        sweep.begin(now);
        sweep.hint(now);
        sweep.answered(now, None, None, SECOND);
        assert!(sweep.is_due(now, 1, false));
    }

    #[test]
    fn one_without_an_answer_is_sent_again() {
        let (now, mut sweep) = answered(None, None);
        sweep.hint(now);
        sweep.begin(now);
        sweep.failed(now);
        assert!(sweep.unanswered);
        assert!(sweep.at > now);
        sweep.hint(now);
        assert!(!sweep.is_due(now, 1, true), "it is not hurried");
        assert!(sweep.is_due(sweep.at, 0, false));
        sweep.begin(now);
        assert!(sweep.unanswered);
        sweep.answered(now, None, None, SECOND);
        assert!(!sweep.unanswered);
    }
}
