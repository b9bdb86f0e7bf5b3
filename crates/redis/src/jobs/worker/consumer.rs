//! `Consumer`: how many jobs a worker's consumer works on, and how fast it starts them.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// The most jobs that are started at once, the size of one batch.
const STARTS: usize = 100;
/// From how many jobs on its pace is known.
const KNOWN: usize = 8;
/// Over how many jobs the pace is measured, so that it follows a consumer that becomes slower.
const KEPT: usize = 32;

pub(super) struct Consumer {
    /// How many jobs it works on at once, if somebody has said so.
    pub(super) places: Option<usize>,
    /// Jobs that it has received, and neither finished nor begun to finish.
    in_hand: usize,
    /// When it received the last ones.
    received: VecDeque<Instant>,
}

impl Consumer {
    pub(super) fn new(places: Option<usize>) -> Consumer {
        Consumer {
            places,
            in_hand: 0,
            received: VecDeque::with_capacity(KEPT),
        }
    }

    /// Records that it has received a job.
    pub(super) fn receive(&mut self, now: Instant) {
        self.in_hand += 1;
        if self.received.len() == KEPT {
            self.received.pop_front();
        }
        self.received.push_back(now);
    }

    /// Records that a job has left its place.
    pub(super) fn vacate(&mut self) {
        self.in_hand -= 1;
    }

    /// Returns how many jobs to start now, in addition to those on their way. A consumer that asks and has
    /// said nothing has a place for one more than it holds.
    pub(super) fn free_places(&self, on_their_way: usize) -> usize {
        let places = self.places.unwrap_or(self.in_hand + 1);
        places.saturating_sub(self.in_hand + on_their_way).min(STARTS)
    }

    /// Returns when it last received a job.
    pub(super) fn received_at(&self) -> Option<Instant> {
        self.received.back().copied()
    }

    /// Returns how many jobs it starts in that time, and zero while too few have been seen.
    pub(super) fn starts_in(&self, now: Instant, time: Duration) -> usize {
        let Some(first) = self.received.front().filter(|_| self.received.len() >= KNOWN) else {
            return 0;
        };
        let passed = now
            .saturating_duration_since(*first)
            .max(Duration::from_micros(1));
        (self.received.len() as f64 * time.as_secs_f64() / passed.as_secs_f64()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_that_says_nothing_has_a_place_for_one_more() {
        let mut consumer = Consumer::new(None);
        for in_hand in 0..1000 {
            assert_eq!(
                (consumer.in_hand, consumer.free_places(0), consumer.free_places(1)),
                (in_hand, 1, 0)
            );
            consumer.receive(Instant::now());
        }
        consumer.vacate();
        assert_eq!(consumer.free_places(0), 1);
    }

    #[test]
    fn one_that_says_how_many_has_as_many_and_no_more() {
        let mut consumer = Consumer::new(Some(3));
        let free = [0, 2, 9].map(|on_their_way| consumer.free_places(on_their_way));
        assert_eq!(free, [3, 1, 0]);
        consumer.receive(Instant::now());
        consumer.receive(Instant::now());
        assert_eq!((consumer.free_places(0), consumer.free_places(1)), (1, 0));
        consumer.receive(Instant::now());
        assert_eq!(consumer.free_places(0), 0);
        consumer.vacate();
        assert_eq!(consumer.free_places(0), 1);
        consumer.places = Some(500);
        assert_eq!(consumer.free_places(0), STARTS);
    }

    /// One that has received so many jobs so far apart.
    fn of(jobs: u32, apart: Duration) -> (Consumer, Instant) {
        let (mut consumer, begin) = (Consumer::new(None), Instant::now());
        for n in 0..jobs {
            consumer.receive(begin + apart * n);
        }
        (consumer, begin + apart * jobs)
    }

    #[test]
    fn long_jobs_one_after_another_are_none_in_a_moment() {
        for jobs in [0, 1, 7, 8, 100] {
            let (consumer, now) = of(jobs, 300 * MS);
            assert_eq!(consumer.starts_in(now, 20 * MS), 0, "{jobs}");
        }
    }

    #[test]
    fn short_jobs_are_counted_by_what_passed_since_the_first() {
        let (consumer, now) = of(100, MS / 4);
        assert_eq!(consumer.starts_in(now, 10 * MS), 40);
        assert_eq!(consumer.starts_in(now + 8 * MS, 10 * MS), 20);
        assert_eq!(consumer.starts_in(now + 1000 * MS, 10 * MS), 0, "it has stopped");
    }
}
