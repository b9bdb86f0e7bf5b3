//! The entries of a queue: keys, deadlines, and the order in which entries expire.

use std::{collections::HashMap, num::NonZeroU64, time::Duration};

use tokio::time::Instant;

use super::{Expired, Key, key::Sequence};
use crate::engine::agenda::{Agenda, First, Nanos, Tick};

/// The tick from which all others are counted. Every instant from 73 years before it to 511 years after it has a tick of its own, and an
/// instant beyond them is taken as the nearest.
pub(super) const ORIGIN: Tick = Tick(1 << 61);

/// The entries. A tick is a nanosecond here, so no deadline is rounded, and the agenda stores each deadline as its tick.
pub(super) struct Entries<T> {
    agenda: Agenda<Entry<T>>,
    /// The instant of [`ORIGIN`], when the queue was created.
    origin: Instant,
    sequence: Sequence,
    /// The current cells of entries that a compaction has moved. The keys of these entries still hold the former cells.
    moved: HashMap<NonZeroU64, u32>,
}

struct Entry<T> {
    sequence: NonZeroU64,
    value: T,
}

impl<T> Entries<T> {
    pub(super) fn new() -> Entries<T> {
        Entries {
            agenda: Agenda::new(ORIGIN),
            origin: Instant::now(),
            sequence: Sequence::new(),
            moved: HashMap::new(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.agenda.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.agenda.capacity()
    }

    #[track_caller]
    pub(super) fn reserve(&mut self, additional: usize) {
        if self.agenda.try_reserve(additional).is_err() {
            panic!("not enough memory for {additional} more values in a delay queue");
        }
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.agenda.shrink_to_fit();
        self.moved.shrink_to_fit();
    }

    /// Returns the tick of an instant.
    #[inline]
    pub(super) fn tick_of(&self, instant: Instant) -> Tick {
        match instant.checked_duration_since(self.origin) {
            Some(after) => Tick(ORIGIN.0.saturating_add(Nanos::passed(after).0)),
            None => Tick(ORIGIN.0.saturating_sub(Nanos::passed(self.origin - instant).0)),
        }
    }

    /// Returns the instant of a tick.
    #[inline]
    pub(super) fn instant_of(&self, tick: Tick) -> Instant {
        let instant = match tick.0.checked_sub(ORIGIN.0) {
            Some(after) => self.origin.checked_add(Duration::from_nanos(after)),
            None => self.origin.checked_sub(Duration::from_nanos(ORIGIN.0 - tick.0)),
        };
        instant.unwrap_or(self.origin)
    }

    #[inline]
    pub(super) fn insert(&mut self, value: T, deadline: Tick) -> Key {
        let sequence = self.sequence.draw();
        let cell = self.agenda.insert(deadline, Entry { sequence, value });
        Key { sequence, cell }
    }

    /// Returns the cell of a key's entry, if that entry is still in the queue.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        if self.is_in(key.cell, key.sequence) {
            return Some(key.cell);
        }
        self.moved.get(&key.sequence).copied()
    }

    #[inline]
    fn is_in(&self, cell: u32, sequence: NonZeroU64) -> bool {
        self.agenda
            .get(cell)
            .is_some_and(|(_, entry)| entry.sequence == sequence)
    }

    /// Returns the deadline of the entry in a cell.
    pub(super) fn deadline(&self, cell: u32) -> Option<Instant> {
        let (tick, _) = self.agenda.get(cell)?;
        Some(self.instant_of(tick))
    }

    /// Sets another deadline for the entry in a cell, and returns the old one.
    #[inline]
    pub(super) fn reset(&mut self, cell: u32, deadline: Tick) -> Option<Tick> {
        let (from, _) = self.agenda.get(cell)?;
        self.agenda.reset(cell, deadline);
        Some(from)
    }

    /// Removes the entry in a cell that [`find`](Entries::find) has returned.
    #[inline]
    pub(super) fn remove(&mut self, cell: u32) -> Option<(Tick, Expired<T>)> {
        let (tick, entry) = self.agenda.remove(cell)?;
        Some((tick, self.make_expired(tick, entry)))
    }

    /// Removes and returns the first entry that is due by `now`.
    #[inline]
    pub(super) fn take_due(&mut self, now: Tick) -> Option<Expired<T>> {
        let (tick, entry) = self.agenda.take_due(now)?;
        Some(self.make_expired(tick, entry))
    }

    #[inline]
    fn make_expired(&mut self, tick: Tick, Entry { sequence, value }: Entry<T>) -> Expired<T> {
        if !self.moved.is_empty() {
            self.moved.remove(&sequence);
        }
        let deadline = self.instant_of(tick);
        // The entry has been removed, so no cell would be right.
        let key = Key { sequence, cell: 0 };
        Expired { value, key, deadline }
    }

    /// Returns the key of the entry that is due first.
    pub(super) fn peek(&self) -> Option<Key> {
        let cell = self.agenda.first_cell()?;
        let (_, entry) = self.agenda.get(cell)?;
        let sequence = entry.sequence;
        Some(Key { sequence, cell })
    }

    /// Returns bounds of the earliest deadline.
    pub(super) fn first(&self) -> Option<First> {
        self.agenda.first()
    }

    /// Returns a tick by which the first entry is due.
    pub(super) fn first_by(&self) -> Option<Tick> {
        Some(self.agenda.first()?.at_most)
    }

    pub(super) fn clear(&mut self) {
        self.moved.clear();
        self.agenda.clear();
    }

    pub(super) fn compact(&mut self) {
        let moved = &mut self.moved;
        self.agenda.compact(|entry, to| {
            moved.insert(entry.sequence, to);
        });
        self.moved.shrink_to_fit();
    }
}

/// Rounds a tick up to a whole number of milliseconds after [`ORIGIN`], as tokio-util's queue does. What came before is due at once.
pub(super) fn whole_milliseconds(tick: Tick) -> Tick {
    const MILLISECOND: u64 = 1_000_000;
    let after = tick.0.saturating_sub(ORIGIN.0).div_ceil(MILLISECOND) * MILLISECOND;
    Tick(ORIGIN.0.saturating_add(after))
}
