//! Scopes counted under a label.

use std::time::Duration;

use tokio::time::Instant;

use crate::{engine::labels::Count, observe::labelled::Labelled};

/// Counts the first poll of a scope and its outcome. A scope that is dropped before it ends counts as cancelled.
#[derive(Debug)]
pub(super) struct Counted {
    labelled: Labelled,
    /// The deadline, and the time until then at the first poll. It is `Some` from the first poll to the end of the scope.
    begun: Option<(Instant, Duration)>,
}

impl Counted {
    pub(super) fn new(labelled: &Labelled) -> Counted {
        Counted {
            labelled: labelled.clone(),
            begun: None,
        }
    }

    /// Counts the first poll.
    pub(super) fn begin(&mut self, deadline: Instant) {
        if self.begun.is_none() {
            self.begun = Some((deadline, deadline.saturating_duration_since(Instant::now())));
            self.labelled.count(Count::BEGUN);
        }
    }

    /// Counts a completion by how many tenths of the time are left.
    pub(super) fn complete(&mut self) {
        if let Some((deadline, total)) = self.begun {
            let left = deadline.saturating_duration_since(Instant::now());
            let tenths = left.as_nanos() * 10 / total.as_nanos().max(1);
            self.end(Count::completed(tenths.min(9) as usize));
        }
    }

    pub(super) fn end(&mut self, count: Count) {
        self.begun = None;
        self.labelled.count(count);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.begun.is_some() {
            self.end(Count::CANCELLED);
        }
    }
}
