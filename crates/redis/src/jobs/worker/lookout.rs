//! `Lookout`: when to look at a partition next, without a network or a clock.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::{
    jobs::settings::INTERVAL,
    server::retry::{Backoff, random_part},
};

/// By how much a sweep may come sooner, at random.
const JITTER: Duration = Duration::from_millis(100);
/// The shortest interval between two sweeps that wait for leases of other workers to end.
const ENDS_APART: Duration = Duration::from_secs(1);
/// When to look again whether a worker without room is busy with a job, or has only not been asked yet; and
/// for how long a message waits while a worker has enough to do.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a job may have been due before an idle worker looks for it that does not watch.
const OVERDUE: Duration = Duration::from_millis(400);
/// How long jobs that are not due yet wait for others that can be claimed with them.
const TOGETHER: Duration = Duration::from_millis(20);
/// The delay after a failed take, which doubles from the first value to the second.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// How many jobs a worker may claim.
pub(super) struct Room {
    /// Jobs that are due.
    pub(super) due: usize,
    /// Jobs up to one that is not due yet.
    pub(super) ahead: usize,
    /// How many make a take worthwhile while the consumer is not starving.
    pub(super) worthwhile: usize,
    /// Whether the consumer has a free place, nothing is on its way, and a job may be claimed.
    pub(super) is_starving: bool,
}

impl Room {
    fn is_worthwhile(&self, jobs: usize) -> bool {
        jobs > 0 && jobs >= self.worthwhile
    }
}

/// What a worker knows of a partition. Each look is a take, which also sweeps: it brings back the jobs that
/// other workers have lost.
pub(super) struct Lookout {
    /// When to look next.
    pub(super) at: Instant,
    /// When the last take was sent.
    pub(super) sent: Instant,
    /// Whether a take is in flight.
    pub(super) is_taking: bool,
    /// Whether the last take got no answer.
    pub(super) unanswered: bool,
    backoff: Backoff,
    /// Whether a job may have become due since the take in flight was sent.
    hinted: bool,
    /// Whether more jobs could be taken now.
    more: Option<More>,
    /// Whether the last take named the worker, to be told of jobs.
    pub(super) is_named: bool,
    /// Whether Redis knows the worker as one that has room, to be told of jobs.
    pub(super) is_listed: bool,
    /// Whether it is one of few that are idle, which look for a job that those that watch have not taken.
    pub(super) is_one_of_few: bool,
    /// When a job becomes due of which this process knows.
    expected: Option<Instant>,
    /// Whether the partition has been swept before.
    done_before: bool,
}

/// What to do about a partition now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Send a take.
    Look,
    /// Until the lookout's time, or until the worker has room.
    Wait,
}

/// Which jobs could be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    /// Some of which a message told while the consumer had enough to do.
    Told,
    /// Some that are due.
    Due,
    /// Some that are due within the look-ahead.
    Ahead,
}

impl Lookout {
    pub(super) fn new(now: Instant) -> Lookout {
        Lookout {
            at: now,
            sent: now,
            is_taking: false,
            unanswered: false,
            backoff: Backoff::new(FIRST_DELAY, LONGEST_DELAY),
            hinted: false,
            more: None,
            is_named: false,
            is_listed: false,
            is_one_of_few: false,
            expected: None,
            done_before: false,
        }
    }

    /// Whether to look before the next regular time, because there is room for jobs.
    fn wants(&self, room: &Room) -> bool {
        let wants_more = match self.more {
            Some(More::Told) => room.is_starving,
            Some(More::Due) => room.is_starving || room.is_worthwhile(room.due),
            // While no claim waits on the wheel.
            Some(More::Ahead) => {
                (room.is_starving && room.ahead == room.due) || room.is_worthwhile(room.ahead)
            }
            None => false,
        };
        // Nobody tells it of jobs any more, because it had no room for them.
        let is_unlisted = self.is_named && !self.is_listed;
        !self.is_taking && !self.unanswered && (wants_more || (is_unlisted && room.is_starving))
    }

    /// Plans whether to look now, and if not, when. A message waits for a free place, or for a moment.
    /// Without room for a job, only the regular look for jobs that others have lost is due, and one that has
    /// others told of jobs in place of a worker that `is_busy`.
    pub(super) fn plan(&mut self, now: Instant, room: &Room, is_busy: bool) -> Plan {
        if self.is_taking {
            return Plan::Wait;
        }
        if self.more == Some(More::Ahead) && room.ahead > 0 {
            self.at = self.at.min(self.sent + TOGETHER);
        }
        if self.at > now {
            return if self.wants(room) { Plan::Look } else { Plan::Wait };
        }
        if room.due == 0 && now < self.sent + INTERVAL && !self.unanswered {
            self.more = Some(More::Due);
            if self.is_listed && is_busy {
                return Plan::Look;
            }
            self.at = self.sent + INTERVAL;
            if self.is_listed {
                self.at = self.at.min(now + LOOK_AGAIN);
            }
            return Plan::Wait;
        }
        if self.hinted && self.more.is_none() && !self.unanswered && !room.is_starving {
            // What is scheduled meanwhile is taken with it.
            self.more = Some(More::Told);
            self.at = now + LOOK_AGAIN;
            return Plan::Wait;
        }
        Plan::Look
    }

    /// Records that a take is sent, which repeats the last one if that got no answer.
    pub(super) fn begin(&mut self, now: Instant) {
        self.is_taking = true;
        self.hinted = false;
        self.more = None;
        self.sent = now;
        self.expected = self.expected.filter(|at| *at > now);
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.is_taking = false;
        self.unanswered = true;
        self.at = now + self.backoff.next_delay();
    }

    /// Records that Redis refused the take for what another process sent, so that it is sent again as another
    /// call.
    pub(super) fn restart(&mut self, now: Instant) {
        self.is_taking = false;
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
        self.is_taking = false;
        self.unanswered = false;
        self.backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
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
        if !self.is_taking && !self.unanswered {
            self.at = self.at.min(at);
        }
    }

    /// Records that those that watch have been told of a job, in case they are suspended.
    pub(super) fn told_as_idle(&mut self, now: Instant) {
        if self.is_one_of_few {
            self.expect(now + OVERDUE + random_part(OVERDUE / 2));
        }
    }

    /// Records that a message says that a job may have become due, or may have said so before anybody listened.
    pub(super) fn hint(&mut self, now: Instant) {
        self.hinted = true;
        if !self.is_taking && !self.unanswered {
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
            is_starving: is_starving && due > 0,
        }
    }

    fn is_due(lookout: &mut Lookout, now: Instant, jobs: usize, is_starving: bool) -> bool {
        lookout.plan(now, &room(jobs, is_starving), false) == Plan::Look
    }

    fn answered(next_due: Option<Duration>, next_end: Option<Duration>) -> (Instant, Lookout) {
        let now = Instant::now();
        let mut lookout = Lookout::new(now);
        assert!(is_due(&mut lookout, now, 1, false));
        lookout.begin(now);
        assert!(!is_due(&mut lookout, now, 1, true), "one at a time");
        lookout.answered(
            now,
            next_due.map(|due| now + due),
            next_end.map(|end| now + end),
            SECOND,
        );
        (now, lookout)
    }

    #[test]
    fn what_comes_due_is_taken_at_half_of_the_look_ahead() {
        let (now, mut lookout) = answered(Some(2 * SECOND), None);
        assert_eq!(lookout.at, now + 3 * SECOND / 2);
        assert!(!is_due(&mut lookout, now, 1, true));
        let at = lookout.at;
        assert!(is_due(&mut lookout, at, 1, false));
        let (now, mut lookout) = answered(Some(SECOND), None);
        assert_eq!(lookout.more, Some(More::Ahead));
        assert!(is_due(&mut lookout, now, 1, true), "more could be taken at once");
        assert!(is_due(&mut lookout, now, 2, false));
        assert!(!is_due(&mut lookout, now, 1, false));
        assert!(
            is_due(&mut lookout, now + TOGETHER, 1, false),
            "a few are taken together"
        );
    }

    #[test]
    fn what_is_due_later_leaves_room_for_what_is_due() {
        let (now, mut lookout) = answered(Some(SECOND / 2), None);
        let full = Room {
            ahead: 0,
            ..room(2, true)
        };
        assert_eq!(lookout.plan(now, &full, false), Plan::Wait);
        assert_eq!(lookout.at, now + SECOND / 2, "and is looked for when it is due");
        assert_eq!(lookout.plan(lookout.at, &full, false), Plan::Look);
        let (now, mut lookout) = answered(Some(Duration::ZERO), None);
        assert_eq!(lookout.more, Some(More::Due));
        assert_eq!(lookout.plan(now, &full, false), Plan::Look);
    }

    #[test]
    fn leases_that_end_are_looked_for_once_a_second() {
        let (now, lookout) = answered(None, Some(SECOND / 10));
        assert_eq!(lookout.at, now + SECOND);
    }

    #[test]
    fn leases_that_have_ended_are_looked_for_at_once() {
        // A take brings back 20 of them, so 200 jobs of a worker that is gone take ten: not ten seconds.
        let (now, mut lookout) = answered(None, Some(Duration::ZERO));
        assert_eq!(lookout.at, now);
        assert!(is_due(&mut lookout, now, 1, false));
        let (now, mut lookout) = answered(None, Some(Duration::ZERO));
        assert!(
            !is_due(&mut lookout, now, 0, true),
            "a worker without room leaves them to others"
        );
        assert_eq!(lookout.at, now + INTERVAL);
    }

    #[test]
    fn without_room_it_waits_for_the_sweep() {
        let (now, mut lookout) = answered(Some(2 * SECOND), None);
        let due = lookout.at;
        assert!(!is_due(&mut lookout, due, 0, false));
        assert_eq!(lookout.at, now + INTERVAL);
        assert!(is_due(&mut lookout, due, 1, true), "or until there is room");
        let at = lookout.at;
        assert!(is_due(&mut lookout, at, 0, false));
    }

    #[test]
    fn a_busy_worker_that_is_told_has_another_one_told() {
        let (now, mut lookout) = answered(None, None);
        lookout.hint(now);
        lookout.is_named = true;
        lookout.is_listed = true;
        let plan = lookout.plan(now, &room(0, false), false);
        assert_eq!(plan, Plan::Wait, "it may ask at any moment");
        assert_eq!(lookout.at, now + LOOK_AGAIN);
        assert_eq!(lookout.plan(lookout.at, &room(0, false), true), Plan::Look);
        lookout.begin(now);
        lookout.answered(now, None, None, SECOND);
        lookout.is_listed = false;
        assert!(!is_due(&mut lookout, now, 1, false));
        assert!(is_due(&mut lookout, now, 1, true), "it is to be told again");
    }

    #[test]
    fn a_hint_is_heard_also_while_a_take_is_under_way() {
        let (now, mut lookout) = answered(None, None);
        assert!(lookout.at > now + INTERVAL / 2 - JITTER);
        lookout.hint(now);
        assert!(is_due(&mut lookout, now, 1, true));
        lookout.begin(now);
        lookout.hint(now);
        lookout.answered(now, None, None, SECOND);
        assert!(is_due(&mut lookout, now, 1, true));
    }

    #[test]
    fn a_hint_waits_for_a_free_place_or_for_a_moment() {
        let hinted = || {
            let (now, mut lookout) = answered(None, None);
            lookout.hint(now);
            assert!(!is_due(&mut lookout, now, 8, false));
            (now, lookout)
        };
        let (now, mut lookout) = hinted();
        assert!(is_due(&mut lookout, now, 8, true));
        let (now, mut lookout) = hinted();
        assert!(is_due(&mut lookout, now + LOOK_AGAIN, 8, false));
    }

    #[test]
    fn one_of_few_that_are_idle_looks_in_place_of_those_that_watch() {
        let (now, mut lookout) = answered(None, None);
        let at = lookout.at;
        lookout.told_as_idle(now);
        assert_eq!(lookout.at, at, "one of many does not");
        lookout.is_one_of_few = true;
        lookout.told_as_idle(now);
        assert!((now + OVERDUE..=now + OVERDUE * 3 / 2).contains(&lookout.at));
    }

    #[test]
    fn one_without_an_answer_is_sent_again() {
        let (now, mut lookout) = answered(None, None);
        lookout.hint(now);
        lookout.begin(now);
        lookout.failed(now);
        assert!(lookout.unanswered);
        assert!(lookout.at > now);
        lookout.hint(now);
        assert!(!is_due(&mut lookout, now, 1, true), "it is not hurried");
        let at = lookout.at;
        assert!(is_due(&mut lookout, at, 0, false));
        lookout.begin(now);
        assert!(lookout.unanswered);
        lookout.answered(now, None, None, SECOND);
        assert!(!lookout.unanswered);
    }
}
