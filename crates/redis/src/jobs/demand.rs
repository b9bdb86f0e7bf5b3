//! `Demand`: how many jobs to start for a consumer that polls the stream.
//!
//! One poll asks for one job, and for a consumer that works on one job at a time, one job is started. A
//! consumer that works on many jobs polls for them one by one, and starting them one by one would cost a
//! round trip each, so as many are started as the consumer has been seen to work on at once. The estimate
//! grows when the consumer has fetched every started job, works on some and asks for another that is due.
//! Where jobs come one by one it does not, because a guess that is too high lets a worker claim what another
//! one could start. It shrinks when the consumer finishes a job while others that were started a while ago
//! have not been fetched.

use std::mem;

/// The size of one batch of a batcher.
const STARTS: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Jobs that the consumer has fetched and not finished.
    out: usize,
    /// How many jobs the consumer is assumed to work on at once.
    most: usize,
    /// How many jobs it worked on when it last left a started one unfetched, until it asks for more.
    limit: Option<usize>,
    /// Whether it has fetched a job since it last asked.
    fetched: bool,
}

impl Demand {
    pub(super) fn out(&self) -> usize {
        self.out
    }

    /// Records that the consumer asks for a job that is not ready yet.
    pub(super) fn asked(&mut self) {
        if self.limit.is_some_and(|limit| self.out >= limit) {
            self.limit = None;
        }
    }

    /// Records that the consumer asks while jobs are due and none of them is being started, so that it waits
    /// for a round trip.
    pub(super) fn starved(&mut self) {
        if mem::take(&mut self.fetched) && self.out > 0 && self.limit.is_none() {
            let most = self.most.max(self.out);
            // A consumer that asks without end still has no more than this started at once.
            self.most = (most + 1 + most / 8).min(self.out + STARTS);
        }
    }

    /// Records that the consumer has fetched a job.
    pub(super) fn fetched(&mut self) {
        self.fetched = true;
        self.out += 1;
        self.most = self.most.max(self.out);
    }

    /// Records that the consumer has finished a job, and whether it left others unfetched that were started a
    /// while ago.
    pub(super) fn left(&mut self, others: bool) {
        if others {
            self.returned();
        }
        self.out -= 1;
    }

    /// Records that the consumer did not fetch the jobs that were started for it.
    pub(super) fn returned(&mut self) {
        self.most = self.out;
        self.limit = Some(self.out);
    }

    /// Returns how many jobs to start now, in addition to those on their way.
    pub(super) fn room(&self, on_their_way: usize) -> usize {
        self.most
            .min(self.limit.unwrap_or(usize::MAX))
            .max(self.out + 1)
            .saturating_sub(self.out + on_their_way)
            .min(STARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The consumer asks while jobs are due.
    fn waits(demand: &mut Demand) {
        demand.asked();
        demand.starved();
    }

    #[test]
    fn one_at_a_time_for_one_at_a_time() {
        let mut demand = Demand::default();
        for _ in 0..1000 {
            waits(&mut demand);
            assert_eq!(demand.room(0), 1);
            assert_eq!(demand.room(1), 0);
            demand.fetched();
            demand.left(false);
        }
    }

    #[test]
    fn it_does_not_grow_beyond_what_is_started_at_once() {
        let mut demand = Demand::default();
        demand.fetched();
        for _ in 0..10_000 {
            waits(&mut demand);
            demand.fetched();
            demand.left(false);
        }
        assert!(demand.most <= demand.out() + STARTS, "{demand:?}");
        assert_eq!(demand.room(0), STARTS);
    }

    #[test]
    fn a_few_that_are_held_are_started_one_by_one() {
        let mut demand = Demand::default();
        for _ in 0..8 {
            waits(&mut demand);
            assert_eq!(demand.room(0), 1);
            demand.fetched();
        }
    }

    #[test]
    fn what_comes_one_by_one_does_not_let_it_grow() {
        let mut demand = Demand::default();
        for n in 0..100 {
            demand.asked();
            demand.fetched();
            if n > 2 {
                demand.left(false);
            }
        }
        assert_eq!((demand.out(), demand.room(0)), (3, 1));
    }

    /// A consumer of so many at once that is given all it asks for, in so many steps.
    fn fill(places: usize) -> (Demand, usize) {
        let (mut demand, mut steps) = (Demand::default(), 0);
        while demand.out() < places {
            waits(&mut demand);
            for _ in 0..demand.room(0).min(places - demand.out()) {
                demand.fetched();
            }
            steps += 1;
        }
        (demand, steps)
    }

    #[test]
    fn a_consumer_of_many_is_given_as_many_as_it_holds_in_few_steps() {
        let (mut demand, steps) = fill(64);
        assert!(steps < 40, "{steps}");
        // Full: it fetches no more of what was started for it.
        demand.left(true);
        demand.fetched();
        for _ in 0..20 {
            demand.left(false);
        }
        waits(&mut demand);
        assert_eq!(demand.room(0), 20);
        assert_eq!(demand.room(15), 5);
        assert_eq!(demand.room(20), 0);
    }

    /// Each is finished as the next one comes, so that it is never seen to hold many.
    #[test]
    fn a_consumer_of_many_short_jobs_is_given_many() {
        let (mut demand, mut given) = (Demand::default(), 0);
        for _ in 0..50 {
            waits(&mut demand);
            let started = demand.room(0);
            for _ in 0..started {
                demand.fetched();
            }
            while demand.out() > started {
                demand.left(false);
            }
            given = started;
        }
        assert!(given > 20, "{given}");
    }

    #[test]
    fn one_that_takes_less_than_it_did_is_given_less() {
        let (mut demand, _) = fill(64);
        for _ in 0..63 {
            demand.left(false);
        }
        demand.left(true);
        demand.fetched();
        assert_eq!(demand.room(0), 1);
    }

    #[test]
    fn what_was_returned_is_not_started_again() {
        let (mut demand, _) = fill(100);
        demand.returned();
        assert_eq!(demand.room(0), 1);
    }
}
