//! `Sweep`: when to look at a partition next, without a network or a clock.

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::taking::Room;
use crate::{jobs::INTERVAL, nonce::random_part};

/// By how much a sweep may come sooner, at random.
const JITTER: Duration = Duration::from_millis(100);
/// The shortest interval between two sweeps that wait for leases of other workers to end.
const ENDS_APART: Duration = Duration::from_secs(1);
/// When to look again whether a worker without room is busy with a job, or has only not been asked yet.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long jobs that are not due yet wait for others that can be claimed with them.
const TOGETHER: Duration = Duration::from_millis(20);
/// The pause after a failed take, which doubles from the first value to the second.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a worker knows of a partition. A sweep is a take, which also brings back the jobs that other workers
/// have lost.
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
    pub(super) more: Option<More>,
    /// Whether the worker is told of jobs of this partition.
    pub(super) listens: bool,
    /// Whether Redis knows the worker as one that has room, to be told of jobs.
    pub(super) listed: bool,
    /// When a job becomes due of which this process knows.
    expected: Option<Instant>,
    /// Whether the partition has been swept before.
    done_before: bool,
}

/// Which jobs could be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// Some that are due.
    Due,
    /// Some that are due within the look-ahead.
    Ahead,
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
            more: None,
            listens: false,
            listed: false,
            expected: None,
            done_before: false,
        }
    }

    /// Whether nobody tells the worker of jobs, because it had no room for them.
    pub(super) fn is_unlisted(&self) -> bool {
        self.listens && !self.listed
    }

    /// Whether to take before the next sweep, because there is room for jobs.
    pub(super) fn wants(&self, room: &Room, has_idle_wheel: bool) -> bool {
        let wants_more = match self.more {
            Some(More::Due) => room.is_starving() || room.is_worthwhile(room.due),
            Some(More::Ahead) => (room.is_starving() && has_idle_wheel) || room.is_worthwhile(room.ahead),
            None => false,
        };
        !self.taking && !self.unanswered && (wants_more || (self.is_unlisted() && room.is_starving()))
    }

    /// Whether to take now. Without room for a job, only the regular sweep for jobs that others have lost is
    /// due, and a take that has others told of jobs in place of a worker that `is_busy`.
    pub(super) fn is_due(&mut self, now: Instant, room: &Room, has_idle_wheel: bool, is_busy: bool) -> bool {
        if self.taking {
            return false;
        }
        if self.more == Some(More::Ahead) && room.ahead > 0 {
            self.at = self.at.min(self.sent + TOGETHER);
        }
        if self.at > now {
            return self.wants(room, has_idle_wheel);
        }
        if room.due == 0 && now < self.sent + INTERVAL && !self.unanswered {
            self.more = Some(More::Due);
            if self.listed && is_busy {
                return true;
            }
            self.at = self.sent + INTERVAL;
            if self.listed {
                self.at = self.at.min(now + LOOK_AGAIN);
            }
            return false;
        }
        true
    }

    /// Returns how long ago the last take was sent.
    pub(super) fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.sent)
    }

    /// Records that a take is sent, which repeats the last one if that got no answer.
    pub(super) fn begin(&mut self, now: Instant) {
        self.taking = true;
        self.hinted = false;
        self.more = None;
        self.sent = now;
        self.expected = self.expected.filter(|at| *at > now);
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.taking = false;
        self.unanswered = true;
        self.at = now + self.pause / 2 + random_part(self.pause / 2);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Records that Redis refused the take for what another process sent, so that it is sent again as another
    /// call.
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
            // One take brings back no more than 20 leases that have ended; the rest are brought back by the
            // next ones, at once.
            let look_again = if end <= now {
                now
            } else {
                end.max(self.sent + ENDS_APART)
            };
            self.at = self.at.min(look_again);
        }
        if let Some(due) = next_due {
            let claimable = due.checked_sub(look_ahead).unwrap_or(now);
            if due <= now {
                self.more = Some(More::Due);
            } else if claimable <= now {
                self.more = Some(More::Ahead);
                self.at = self.at.min(due);
            } else {
                // Waiting for half of the look-ahead lets jobs that are due one after another be taken
                // together.
                self.at = self.at.min(claimable + look_ahead / 2);
            }
        }
        if let Some(at) = self.expected {
            self.at = self.at.min(at);
        }
        if self.hinted {
            self.at = now;
        }
    }

    /// Records that a job may be claimed at that time.
    pub(super) fn expect(&mut self, at: Instant) {
        self.expected = Some(self.expected.map_or(at, |known| known.min(at)));
        if !self.taking && !self.unanswered {
            self.at = self.at.min(at);
        }
    }

    /// Records that another worker or a scheduler says so, or that it may have said so before anybody
    /// listened.
    pub(super) fn told(&mut self, now: Instant) {
        self.listens = true;
        self.hint(now);
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

    /// Room for so many jobs, for a consumer that waits for one, or one that could make use of them.
    fn room(due: usize, is_starving: bool) -> Room {
        Room {
            due,
            ahead: due,
            worthwhile: 2,
            is_starving,
        }
    }

    fn is_due(sweep: &mut Sweep, now: Instant, jobs: usize, is_starving: bool) -> bool {
        sweep.is_due(now, &room(jobs, is_starving), true, false)
    }

    fn answered(next_due: Option<Duration>, next_end: Option<Duration>) -> (Instant, Sweep) {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        assert!(is_due(&mut sweep, now, 1, false));
        sweep.begin(now);
        assert!(!is_due(&mut sweep, now, 1, true), "one at a time");
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
        assert!(!is_due(&mut sweep, now, 1, true));
        let at = sweep.at;
        assert!(is_due(&mut sweep, at, 1, false));
        let (now, mut sweep) = answered(Some(SECOND), None);
        assert_eq!(sweep.more, Some(More::Ahead));
        assert!(is_due(&mut sweep, now, 1, true), "more could be taken at once");
        assert!(is_due(&mut sweep, now, 2, false));
        assert!(!is_due(&mut sweep, now, 1, false));
        assert!(
            is_due(&mut sweep, now + TOGETHER, 1, false),
            "a few are taken together"
        );
    }

    #[test]
    fn what_is_due_later_leaves_room_for_what_is_due() {
        let (now, mut sweep) = answered(Some(SECOND / 2), None);
        let full = Room {
            ahead: 0,
            ..room(2, true)
        };
        assert!(!sweep.is_due(now, &full, false, false));
        assert_eq!(sweep.at, now + SECOND / 2, "and is looked for when it is due");
        assert!(sweep.is_due(sweep.at, &full, false, false));
        let (now, mut sweep) = answered(Some(Duration::ZERO), None);
        assert_eq!(sweep.more, Some(More::Due));
        assert!(sweep.is_due(now, &full, false, false));
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
        assert!(is_due(&mut sweep, now, 1, false));
        let (now, mut sweep) = answered(None, Some(Duration::ZERO));
        assert!(
            !is_due(&mut sweep, now, 0, true),
            "a worker without room leaves them to others"
        );
        assert_eq!(sweep.at, now + INTERVAL);
    }

    #[test]
    fn without_room_it_waits_for_the_sweep() {
        let (now, mut sweep) = answered(Some(2 * SECOND), None);
        let due = sweep.at;
        assert!(!is_due(&mut sweep, due, 0, false));
        assert_eq!(sweep.at, now + INTERVAL);
        assert!(is_due(&mut sweep, due, 1, true), "or until there is room");
        let at = sweep.at;
        assert!(is_due(&mut sweep, at, 0, false));
    }

    #[test]
    fn a_busy_worker_that_is_told_has_another_one_told() {
        let (now, mut sweep) = answered(None, None);
        sweep.told(now);
        sweep.listed = true;
        assert!(
            !sweep.is_due(now, &room(0, false), true, false),
            "it may ask at any moment"
        );
        assert_eq!(sweep.at, now + LOOK_AGAIN);
        assert!(sweep.is_due(sweep.at, &room(0, false), true, true));
        sweep.begin(now);
        sweep.answered(now, None, None, SECOND);
        sweep.listed = false;
        assert!(!is_due(&mut sweep, now, 1, false));
        assert!(is_due(&mut sweep, now, 1, true), "it is to be told again");
    }

    #[test]
    fn a_hint_is_heard_also_while_a_take_is_under_way() {
        let (now, mut sweep) = answered(None, None);
        assert!(sweep.at > now + INTERVAL / 2 - JITTER);
        sweep.hint(now);
        assert!(is_due(&mut sweep, now, 1, false));
        sweep.begin(now);
        sweep.hint(now);
        sweep.answered(now, None, None, SECOND);
        assert!(is_due(&mut sweep, now, 1, false));
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
        assert!(!is_due(&mut sweep, now, 1, true), "it is not hurried");
        let at = sweep.at;
        assert!(is_due(&mut sweep, at, 0, false));
        sweep.begin(now);
        assert!(sweep.unanswered);
        sweep.answered(now, None, None, SECOND);
        assert!(!sweep.unanswered);
    }
}
