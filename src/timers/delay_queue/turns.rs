//! The order in which the entries of a queue expire.
//!
//! Only the earliest turns are in a heap. All others are in segments, which are in order among themselves but
//! not sorted inside. Once the heap is empty, the next segment is halved until its earliest part fits the
//! heap, so a queue of a million entries sorts in the processor's cache.

use std::{cmp::Reverse, collections::BinaryHeap, num::NonZeroU64};

use tokio::time::Instant;

/// The number of turns in a new heap. Once the heap holds twice as many, it is halved. It is small in tests,
/// so that a few turns fill segments.
const NEAR: usize = if cfg!(test) { 4 } else { 1024 };

/// The place of an entry in the order of expiry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) deadline: Instant,
    /// A number of the queue's sequence, so that turns with equal deadlines are in order of insertion.
    pub(super) number: NonZeroU64,
    pub(super) cell: usize,
}

impl Turn {
    pub(super) fn new(deadline: Instant, number: NonZeroU64, cell: usize) -> Turn {
        Turn {
            deadline,
            number,
            cell,
        }
    }
}

#[derive(Default)]
pub(super) struct Turns {
    /// The earliest turns. The heap is empty only if there are no turns.
    near: BinaryHeap<Reverse<Turn>>,
    /// All other turns, the latest segment first.
    far: Vec<Segment>,
    /// The number of turns in all segments.
    far_len: usize,
}

struct Segment {
    /// The turns of this segment and of those before it are later than this, and all others are not.
    after: Turn,
    turns: Vec<Reverse<Turn>>,
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.near.len() + self.far_len
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.near.shrink_to_fit();
        for segment in &mut self.far {
            segment.turns.shrink_to_fit();
        }
        self.far.shrink_to_fit();
    }

    #[inline]
    pub(super) fn push(&mut self, turn: Turn) {
        if self.far.last().is_some_and(|next| turn > next.after) {
            return self.push_far(turn);
        }
        self.near.push(Reverse(turn));
        if self.near.len() == 2 * NEAR {
            let turns = std::mem::take(&mut self.near).into_vec();
            self.fill(turns);
        }
    }

    fn push_far(&mut self, turn: Turn) {
        self.far_len += 1;
        let at = self.far.partition_point(|segment| segment.after >= turn);
        self.far[at].turns.push(Reverse(turn));
    }

    pub(super) fn first(&self) -> Option<&Turn> {
        self.near.peek().map(|Reverse(first)| first)
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.near.pop();
        if self.near.is_empty() && !self.far.is_empty() {
            self.refill();
        }
    }

    #[cold]
    fn refill(&mut self) {
        while self.near.is_empty() {
            let Some(next) = self.far.pop() else { return };
            self.far_len -= next.turns.len();
            self.fill(next.turns);
        }
    }

    /// Fills the empty heap with the earliest of these turns, and makes segments of the others.
    #[cold]
    fn fill(&mut self, mut turns: Vec<Reverse<Turn>>) {
        while turns.len() > NEAR {
            let middle = turns.len() / 2;
            let (_, &mut Reverse(after), _) = turns.select_nth_unstable(middle);
            let earlier = turns.split_off(middle);
            self.far_len += turns.len();
            self.far.push(Segment { after, turns });
            turns = earlier;
        }
        self.near = turns.into();
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Turn) -> bool) {
        self.near.retain(|Reverse(turn)| keep(turn));
        self.far_len = 0;
        self.far.retain_mut(|segment| {
            segment.turns.retain(|Reverse(turn)| keep(turn));
            self.far_len += segment.turns.len();
            !segment.turns.is_empty()
        });
        self.refill();
    }

    pub(super) fn clear(&mut self) {
        self.near.clear();
        self.far.clear();
        self.far_len = 0;
    }
}
