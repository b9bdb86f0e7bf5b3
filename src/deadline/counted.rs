//! Scopes counted under a label.

use tokio::time::Instant;

use crate::{
    engine::clock::Moment,
    observe::labelled::{Labelled, counted::Counted},
};

/// Counts a scope from its first poll to its end. A scope that is dropped before counts as cancelled.
#[derive(Debug)]
pub(super) struct CountedScope {
    labelled: Labelled,
    counted: Counted,
}

impl CountedScope {
    pub(super) fn new(labelled: &Labelled) -> CountedScope {
        CountedScope {
            labelled: labelled.clone(),
            counted: labelled.counted(),
        }
    }

    pub(super) fn begin_poll(&mut self) {
        self.counted.begin_poll();
    }

    pub(super) fn begin(&mut self, deadline: Instant) {
        self.counted
            .begin(self.labelled.wheel().shard(), || Some(Moment::of(deadline)));
    }

    pub(super) fn complete(&mut self) {
        self.counted.complete(self.labelled.wheel().shard());
    }

    pub(super) fn elapse(&mut self) {
        self.counted.elapse(self.labelled.wheel().shard());
    }
}

impl Drop for CountedScope {
    fn drop(&mut self) {
        if self.counted.is_unfinished() {
            self.counted.cancel(self.labelled.wheel().shard());
        }
    }
}
