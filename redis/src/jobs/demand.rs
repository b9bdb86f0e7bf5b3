//! `Demand`: how many jobs to start for a consumer that asks.
//!
//! One poll of a stream asks for one job, and where the consumer works on one at a time, one is started. A consumer that works on
//! many at once asks for them one after the other; started one by one, each would cost a round trip of its own. So more are
//! started at once, as many as the consumer has shown that it wants: what it lacks of the most it was seen to hold, or, if that
//! is more, an eighth of how often it has fetched one while it held others already. What it then does not fetch goes back, uncounted,
//! and how many it held then is the limit from then on, until it asks for more itself.

/// As many as one batch of a lane.
const STARTS: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Jobs at the consumer's, and the most of them at once.
    out: usize,
    most: usize,
    /// How often it fetched another while it held one.
    more: usize,
    /// How many it held when it left a started one where it was.
    limit: Option<usize>,
}

impl Demand {
    pub(super) fn out(&self) -> usize {
        self.out
    }

    /// The consumer asks for a job that is not there yet.
    pub(super) fn asked(&mut self) {
        if self.limit.is_some_and(|limit| self.out >= limit) {
            self.limit = None;
        }
    }

    /// It was given one.
    pub(super) fn fetched(&mut self) {
        self.more += usize::from(self.out > 0);
        self.out += 1;
        self.most = self.most.max(self.out);
        self.limit = self.limit.filter(|limit| self.out <= *limit);
    }

    /// It has finished one, and there were others for it all the while, or not.
    pub(super) fn left(&mut self, others: bool) {
        if others {
            self.limit = Some(self.out);
        }
        self.out -= 1;
    }

    /// It did not fetch what was started for it.
    pub(super) fn returned(&mut self) {
        self.most = self.out;
        self.more = 0;
    }

    /// How many to start now.
    pub(super) fn room(&self) -> usize {
        let wanted = self.most.saturating_sub(self.out).max(self.more / 8);
        let limit = self.limit.map_or(STARTS, |limit| limit.saturating_sub(self.out));
        wanted.min(limit).clamp(1, STARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_for_one_at_a_time() {
        let mut demand = Demand::default();
        for _ in 0..1000 {
            demand.asked();
            assert_eq!(demand.room(), 1);
            demand.fetched();
            demand.left(false);
        }
    }

    #[test]
    fn a_few_that_are_held_are_started_one_by_one() {
        let mut demand = Demand::default();
        for _ in 0..8 {
            demand.asked();
            assert_eq!(demand.room(), 1);
            demand.fetched();
        }
    }

    #[test]
    fn a_consumer_of_many_is_given_as_many_as_it_holds_in_few_steps() {
        let (mut demand, mut steps) = (Demand::default(), 0);
        while demand.out() < 64 {
            demand.asked();
            for _ in 0..demand.room() {
                demand.fetched();
            }
            steps += 1;
        }
        assert!(steps < 40, "{steps}");
        // Full: it fetches no more of what was started for it.
        demand.left(true);
        let full = demand.out() + 1;
        for _ in 0..20 {
            demand.left(false);
        }
        demand.asked();
        assert_eq!(demand.room(), full - demand.out());
    }

    #[test]
    fn what_was_returned_is_not_started_again() {
        let mut demand = Demand::default();
        for _ in 0..100 {
            demand.asked();
            demand.fetched();
        }
        demand.returned();
        assert_eq!(demand.room(), 1);
    }
}
