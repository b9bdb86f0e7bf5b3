//! `Places`: how many jobs to start for a consumer.

/// The most jobs that are started at once, the size of one batch.
const STARTS: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Places {
    /// How many jobs the consumer works on at once, if somebody has said so.
    said: Option<usize>,
    /// Jobs that the consumer has fetched, and neither finished nor begun to finish.
    taken: usize,
}

impl Places {
    pub(super) fn new(said: Option<usize>) -> Places {
        Places { said, taken: 0 }
    }

    pub(super) fn set(&mut self, places: usize) {
        self.said = Some(places);
    }

    pub(super) fn said(&self) -> Option<usize> {
        self.said
    }

    pub(super) fn take(&mut self) {
        self.taken += 1;
    }

    pub(super) fn leave(&mut self) {
        self.taken -= 1;
    }

    /// Returns how many jobs to start now, in addition to those on their way. A consumer that asks and has
    /// said nothing has a place for one more than it holds.
    pub(super) fn free(&self, on_their_way: usize) -> usize {
        let places = self.said.unwrap_or(self.taken + 1);
        places.saturating_sub(self.taken + on_their_way).min(STARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_says_nothing_has_a_place_for_one_more() {
        let mut places = Places::new(None);
        for taken in 0..1000 {
            assert_eq!((places.taken, places.free(0), places.free(1)), (taken, 1, 0));
            places.take();
        }
        places.leave();
        assert_eq!(places.free(0), 1);
    }

    #[test]
    fn one_that_says_how_many_has_as_many_and_no_more() {
        let mut places = Places::new(Some(3));
        assert_eq!((places.free(0), places.free(2), places.free(9)), (3, 1, 0));
        places.take();
        places.take();
        assert_eq!((places.free(0), places.free(1)), (1, 0));
        places.take();
        assert_eq!(places.free(0), 0);
        places.leave();
        assert_eq!(places.free(0), 1);
        places.set(500);
        assert_eq!(places.free(0), STARTS);
    }
}
