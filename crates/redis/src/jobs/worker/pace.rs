//! `Pace`: how fast a consumer starts jobs.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// From how many jobs on the pace is known.
const KNOWN: usize = 8;
/// Over how many jobs it is measured, so that it follows a consumer that becomes slower.
const KEPT: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last jobs were fetched.
    fetched: VecDeque<Instant>,
}

impl Pace {
    /// Records that the consumer has fetched a job.
    pub(super) fn fetched(&mut self, now: Instant) {
        if self.fetched.len() == KEPT {
            self.fetched.pop_front();
        }
        self.fetched.push_back(now);
    }

    /// Returns when the last job was fetched.
    pub(super) fn last(&self) -> Option<Instant> {
        self.fetched.back().copied()
    }

    /// Returns how many jobs the consumer starts in that time, and zero while too few have been seen.
    pub(super) fn starts_in(&self, now: Instant, time: Duration) -> usize {
        let Some(first) = self.fetched.front().filter(|_| self.fetched.len() >= KNOWN) else {
            return 0;
        };
        let passed = now
            .saturating_duration_since(*first)
            .max(Duration::from_micros(1));
        (self.fetched.len() as f64 * time.as_secs_f64() / passed.as_secs_f64()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A consumer that has fetched so many jobs so far apart.
    fn of(jobs: u32, apart: Duration) -> (Pace, Instant) {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        for n in 0..jobs {
            pace.fetched(begin + apart * n);
        }
        (pace, begin + apart * jobs)
    }

    #[test]
    fn long_jobs_one_after_another_are_none_in_a_moment() {
        for jobs in [0, 1, 7, 8, 100] {
            let (pace, now) = of(jobs, 300 * MS);
            assert_eq!(pace.starts_in(now, 20 * MS), 0, "{jobs}");
        }
    }

    #[test]
    fn short_jobs_are_counted_by_what_passed_since_the_first() {
        let (pace, now) = of(100, MS / 4);
        assert_eq!(pace.starts_in(now, 10 * MS), 40);
        assert_eq!(pace.starts_in(now + 8 * MS, 10 * MS), 20);
        assert_eq!(pace.starts_in(now + 1000 * MS, 10 * MS), 0, "it has stopped");
    }
}
