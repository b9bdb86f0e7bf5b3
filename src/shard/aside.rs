//! A cancelled timer set aside for the next one.
//!
//! A task that ends one timeout mostly starts the next at once. In a ticking shard, a timer that is cancelled before the
//! next visit has no deadline yet, only its delay: whole as it is, waker and all, it can be the next timer of the same task
//! with the same delay. Setting it aside and taking it over are one compare-and-swap each, with no lock and no change to
//! the wheel; with another delay, that is set under the lock. In the books the one is a cancel and the other a
//! registration, and what is aside is not pending.
//!
//! 1. Under the lock, a visit ends the *term* before it reads the clock, and so does whatever else settles or ends the
//!    incoming timers. Only a timer registered in the term that lasts can be set aside or taken over: so it is still
//!    incoming, and its delay counts from a reading yet to come.
//! 2. The word counts how often the place was cleared, and so comes back to a former value in no term of fewer than 2^40
//!    clearings: whoever changes it is the only one to have the entry. One that nobody takes over leaves the wheel when
//!    the term ends, or earlier for another registration.
//! 3. A timer's waker is its own as long as its [`Mark`] says so, to the pointer; an entry is taken over for that waker
//!    only, and keeps alive what the pointer points to.

use std::{
    cell::Cell,
    num::NonZeroU32,
    ptr,
    sync::atomic,
    task::{RawWakerVTable, Waker},
};

use super::hold;
use crate::{
    sync::{AtomicU64, Ordering},
    timing_wheel::{Key, Nanos},
};

#[cfg(not(loom))]
thread_local! {
    static NOTE: Cell<Option<Note>> = const { Cell::new(None) };
}
#[cfg(loom)]
loom::thread_local! {
    static NOTE: Cell<Option<Note>> = Cell::new(None);
}

/// The place of a shard where one cancelled timer waits for the next.
pub(super) struct Aside {
    /// Tells apart all shards that a process ever has.
    shard: u64,
    /// Written under the shard's lock.
    term: AtomicU64,
    word: AtomicU64,
}

/// The number of the timer that is aside, zero for none, and how often the place has been cleared, by a timer that left or
/// by the holder of the lock.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Word(u64);

/// What makes a timer fit to be set aside: the term in which it was registered, its delay, and whose waker it has.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub(super) term: u64,
    pub(super) delay: Nanos,
    pub(super) owner: Owner,
}

/// Whom a waker wakes, as long as it is there.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    data: usize,
    vtable: &'static RawWakerVTable,
}

/// What a thread remembers of the timer it set aside last.
#[derive(Clone, Copy)]
pub(super) struct Note {
    shard: u64,
    word: Word,
    number: NonZeroU32,
    pub(super) mark: Mark,
}

impl Owner {
    #[inline]
    pub(super) fn of(waker: &Waker) -> Owner {
        Owner {
            data: waker.data().addr(),
            vtable: waker.vtable(),
        }
    }

    /// What [`Waker::will_wake`] says.
    #[inline]
    pub(super) fn has(&self, waker: &Waker) -> bool {
        self.data == waker.data().addr() && ptr::eq(self.vtable, waker.vtable())
    }
}

impl Word {
    const NUMBER_BITS: u32 = 24;
    const NUMBER: u64 = (1 << Self::NUMBER_BITS) - 1;
    const STEPS: u64 = u64::MAX >> Self::NUMBER_BITS;

    #[inline]
    pub(super) fn is_occupied(self) -> bool {
        self.0 & Self::NUMBER != 0
    }

    pub(super) fn key(self) -> Option<Key> {
        NonZeroU32::new((self.0 & Self::NUMBER) as u32).map(Key::from_number)
    }

    /// How often the place has been cleared since the word was `former`.
    pub(super) fn steps_since(self, former: Word) -> u64 {
        (self.0 >> Self::NUMBER_BITS).wrapping_sub(former.0 >> Self::NUMBER_BITS) & Self::STEPS
    }

    /// What the word will be with this timer aside, if the number is not too big.
    #[inline]
    fn with(self, number: NonZeroU32) -> Option<Word> {
        let number = u64::from(number.get());
        (number <= Self::NUMBER).then_some(Word(self.0 | number))
    }

    /// What the word will be when the place has been cleared.
    #[inline]
    pub(super) fn without(self) -> Word {
        Word((self.0 | Self::NUMBER).wrapping_add(1))
    }
}

impl Aside {
    pub(super) fn new() -> Aside {
        static SHARDS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        Aside {
            shard: SHARDS.fetch_add(1, atomic::Ordering::Relaxed),
            term: AtomicU64::new(0),
            word: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// The term that lasts, for those who hold the lock.
    #[inline]
    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    /// Whether a timer with this mark is incoming, as far as one can know without the lock.
    #[inline]
    pub(super) fn lasts(&self, mark: &Mark) -> bool {
        self.term.load(Ordering::Relaxed) == mark.term
    }

    /// Sets a timer aside; gives its key back when that cannot be.
    #[inline]
    pub(super) fn put(&self, key: Key, mark: &Mark) -> Result<(), Key> {
        let word = self.word();
        let number = key.into_number();
        // Read after the word: a term that ends from here on changes that.
        let lasts = self.lasts(mark) || cfg!(plant_past_term);
        if !word.is_occupied() && lasts {
            if let Some(occupied) = word.with(number) {
                if self.change(word, occupied) {
                    let note = Note {
                        shard: self.shard,
                        word: occupied,
                        number,
                        mark: *mark,
                    };
                    NOTE.with(|last| last.set(Some(note)));
                    return Ok(());
                }
            }
        }
        Err(Key::from_number(number))
    }

    /// The timer that this thread set aside last, if it was this task's, and is there still. Until it is taken over, no code
    /// may run that could set another aside.
    #[inline]
    pub(super) fn find(&self, waker: &Waker) -> Option<Note> {
        NOTE.with(Cell::get)
            .filter(|note| note.shard == self.shard && note.mark.owner.has(waker) && note.word == self.word())
    }

    /// Takes over a timer that was found, if it is there still.
    #[inline]
    pub(super) fn take(&self, note: &Note) -> Option<Key> {
        self.change(note.word, note.word.without())
            .then(|| Key::from_number(note.number))
    }

    /// The same under the lock. There a store will do: the place is occupied, so nobody sets aside, and this thread alone
    /// has the note of the timer that is there.
    pub(super) fn take_locked(&self, note: &Note) -> Option<Key> {
        if self.word() != note.word {
            return None;
        }
        self.word.store(note.word.without().0, Ordering::Release);
        Some(Key::from_number(note.number))
    }

    #[inline]
    fn change(&self, from: Word, to: Word) -> bool {
        let changed = self
            .word
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if !changed {
            hold::met_another();
        }
        changed
    }

    /// Ends the term, under the lock; returns the word that its end changed.
    pub(super) fn end_term(&self) -> Word {
        self.term.store(self.term() + 1, Ordering::Relaxed);
        self.clear()
    }

    /// Takes away what is aside, under the lock; returns the word as it was.
    pub(super) fn clear(&self) -> Word {
        let clear = |word| Some(Word(word).without().0);
        match self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, clear) {
            Ok(word) | Err(word) => Word(word),
        }
    }
}
