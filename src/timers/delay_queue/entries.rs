//! The entries of a queue: keys, deadlines, and the order in which entries expire.
//!
//! Each entry has a turn, which sorts it by deadline and then by the number of the turn. A reset gives the
//! entry a new turn, and neither a reset nor a removal looks for the old one. An old turn stays until it is
//! the first, or until more than half of all turns are old.

use std::{
    collections::HashMap,
    num::NonZeroU64,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use slab::Slab;
use tokio::time::Instant;

use super::{
    Expired, Key,
    turns::{Turn, Turns},
};

pub(super) struct Entries<T> {
    cells: Slab<Entry<T>>,
    /// The first turn is never an old one.
    turns: Turns,
    sequence: Sequence,
    /// The current cells of entries that a compaction has moved. The keys of these entries still hold the
    /// former cells.
    moved: HashMap<Key, usize>,
}

struct Entry<T> {
    /// Returned when the entry expires or is removed.
    expired: Expired<T>,
    /// The number of the entry's turn.
    turn: NonZeroU64,
}

impl Turn {
    /// Returns whether this is the turn of an entry, and not an old one.
    fn is_valid<T>(&self, cells: &Slab<Entry<T>>) -> bool {
        cells
            .get(self.cell)
            .is_some_and(|entry| entry.turn == self.number)
    }
}

impl<T> Entries<T> {
    pub(super) fn new() -> Entries<T> {
        Entries {
            cells: Slab::new(),
            turns: Turns::default(),
            sequence: Sequence::default(),
            moved: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.cells.capacity()
    }

    #[track_caller]
    pub(super) fn reserve(&mut self, additional: usize) {
        if additional > self.capacity() - self.len() {
            // This reports a lack of memory, on which the slab itself would abort. The slab doubles its
            // capacity if that is more than needed.
            let doubled = self.capacity().saturating_mul(2);
            let needed = self.len().saturating_add(additional);
            let values = Vec::<Entry<T>>::new().try_reserve_exact(needed.max(doubled));
            if values.is_err() {
                panic!("not enough memory for {additional} more values in a delay queue");
            }
        }
        self.cells.reserve(additional);
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.cells.shrink_to_fit();
        self.turns.shrink_to_fit();
        self.moved.shrink_to_fit();
    }

    pub(super) fn insert(&mut self, value: T, deadline: Instant) -> Key {
        let sequence = self.sequence.draw();
        let cell = self.cells.vacant_key();
        let key = Key { sequence, cell };
        let expired = Expired { value, deadline, key };
        let turn = sequence;
        self.cells.insert(Entry { expired, turn });
        self.turns.push(Turn::new(deadline, turn, cell));
        key
    }

    /// Returns the cell of a key's entry, if that entry is still in the queue.
    fn find(&self, key: &Key) -> Option<usize> {
        match self.cells.get(key.cell) {
            Some(entry) if entry.expired.key.sequence == key.sequence => Some(key.cell),
            _ => self.moved.get(key).copied(),
        }
    }

    /// Returns the deadline of a key's entry.
    pub(super) fn deadline(&self, key: &Key) -> Option<Instant> {
        Some(self.cells[self.find(key)?].expired.deadline)
    }

    /// Sets another deadline for a key's entry, which then comes after all other entries with that deadline.
    pub(super) fn reset(&mut self, key: &Key, deadline: Instant) -> Option<()> {
        let cell = self.find(key)?;
        let entry = self.cells.get_mut(cell)?;
        let number = self.sequence.draw();
        entry.turn = number;
        entry.expired.deadline = deadline;
        self.turns.push(Turn::new(deadline, number, cell));
        self.forget_old_turns();
        Some(())
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Expired<T>> {
        let cell = self.find(key)?;
        self.take(cell)
    }

    /// Removes and returns the entry that is due first.
    pub(super) fn take_first(&mut self) -> Option<Expired<T>> {
        let first = self.turns.first()?;
        self.take(first.cell)
    }

    fn take(&mut self, cell: usize) -> Option<Expired<T>> {
        let entry = self.cells.try_remove(cell)?;
        self.forget_old_turns();
        if !self.moved.is_empty() {
            self.moved.remove(&entry.expired.key);
        }
        Some(entry.expired)
    }

    /// Removes the old turns before the first entry's. Once more than half of all turns are old, removes all
    /// old turns.
    fn forget_old_turns(&mut self) {
        while let Some(first) = self.turns.first() {
            if first.is_valid(&self.cells) {
                break;
            }
            self.turns.pop();
        }
        if self.turns.len() > 2 * self.cells.len() {
            self.turns.retain(|turn| turn.is_valid(&self.cells));
        }
    }

    /// Returns the key of the entry that is due first.
    pub(super) fn peek(&self) -> Option<Key> {
        let first = self.turns.first()?;
        self.cells.get(first.cell).map(|entry| entry.expired.key)
    }

    /// Returns the number of the first turn, which changes whenever another entry becomes the first, and when
    /// the first one is reset.
    pub(super) fn first_turn(&self) -> Option<NonZeroU64> {
        self.turns.first().map(|first| first.number)
    }

    /// Returns the earliest deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        self.turns.first().map(|first| first.deadline)
    }

    /// Drops all values, but keeps the memory.
    pub(super) fn clear(&mut self) {
        self.moved.clear();
        self.turns.clear();
        // If a value panics when it is dropped, the memory is lost, and nothing else.
        let mut cells = std::mem::take(&mut self.cells);
        cells.clear();
        self.cells = cells;
    }

    /// Moves entries into free cells before them, and frees the memory that they do not need.
    pub(super) fn compact(&mut self) {
        let moved = &mut self.moved;
        self.cells.compact(|entry, _, to| {
            moved.insert(entry.expired.key, to);
            true
        });
        moved.shrink_to_fit();
        self.turns = Turns::default();
        for (cell, entry) in &self.cells {
            let turn = Turn::new(entry.expired.deadline, entry.turn, cell);
            self.turns.push(turn);
        }
        self.turns.shrink_to_fit();
    }
}

/// The number of sequence numbers that a queue takes at a time. It is large enough that queues hardly ever
/// contend for [`NEXT_BLOCK`].
const BLOCK: u64 = 1024;
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(BLOCK);

/// The numbers left in a queue's block of the process's sequence numbers.
#[derive(Default)]
struct Sequence(Range<u64>);

impl Sequence {
    fn draw(&mut self) -> NonZeroU64 {
        if self.0.is_empty() {
            let first = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed);
            self.0 = first..first + BLOCK;
        }
        // No block begins at zero, and this block is not used up here.
        self.0.next().and_then(NonZeroU64::new).unwrap_or(NonZeroU64::MAX)
    }
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests;
