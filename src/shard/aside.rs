//! A cancelled timer set aside for the next one.
//!
//! A task that ends one timeout mostly starts the next at once. In a ticking shard, a timer that is cancelled before the
//! next visit has no deadline yet, only its delay: whole as it is, waker and all, it can be the next timer of the same task
//! with the same delay. Its thread puts it on a [`Shelf`] of its own, and takes it over by one compare-and-swap, with no lock
//! and no change to the wheel; with another delay, that is set under the lock. In the books the one is a cancel and the other a
//! registration, and what is aside is not pending.
//!
//! 1. Under the lock, a visit ends the *term* before it reads the clock, and so does whatever else settles or ends the
//!    incoming timers. Only a timer registered in the term that lasts can be taken over: so it is still incoming, and its
//!    delay counts from a reading yet to come.
//! 2. One that nobody takes over leaves the wheel as the term ends, or earlier for another registration of its thread. Where the shard
//!    does not tick, every visit ends a term as long as there are shelves, for what was overlooked.
//! 3. A timer's waker is its own as long as its [`Mark`] says so, to the pointer; an entry is taken over for that waker
//!    only, and keeps alive what the pointer points to.

use std::{
    cell::RefCell,
    num::NonZeroU32,
    ptr,
    sync::atomic,
    task::{RawWakerVTable, Waker},
};

use super::{
    State,
    shelf::{Gate, Shelf},
};
use crate::{
    sync::{Arc, AtomicU64, Ordering},
    timing_wheel::{Key, Nanos},
};

/// Registrations elsewhere, with none at its shelf in between, after which a thread takes another shelf.
const ELSEWHERE: u32 = 4;

#[cfg(not(loom))]
thread_local! {
    static NOTE: RefCell<Option<Note>> = const { RefCell::new(None) };
}
#[cfg(loom)]
loom::thread_local! {
    static NOTE: RefCell<Option<Note>> = RefCell::new(None);
}

/// What a shard knows of timers set aside, without its lock.
pub(super) struct Aside {
    /// Tells apart all shards that a process ever has.
    shard: u64,
    /// Written under the shard's lock.
    term: AtomicU64,
}

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

/// What a thread remembers of its shelf.
pub(super) struct Note {
    shard: u64,
    shelf: Arc<Shelf>,
    /// The timer that it set aside last, if it has not looked for that since.
    number: Option<NonZeroU32>,
    gate: Gate,
    /// The mark of that, or of the one before.
    pub(super) mark: Mark,
    elsewhere: u32,
}

/// Why a timer could not be set aside.
pub(super) enum Unfit {
    /// Its thread has no shelf here, or an occupied one, or the timer's term is over.
    Still(Key),
    /// The gate has moved meanwhile: it was overlooked, or is gone already.
    Late,
}

impl Mark {
    #[inline]
    fn is(&self, other: &Mark) -> bool {
        self.delay == other.delay
            && self.term == other.term
            && self.owner.data == other.owner.data
            && ptr::eq(self.owner.vtable, other.owner.vtable)
    }
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

impl Aside {
    pub(super) fn new() -> Aside {
        static SHARDS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        Aside {
            shard: SHARDS.fetch_add(1, atomic::Ordering::Relaxed),
            term: AtomicU64::new(0),
        }
    }

    /// The term that lasts, for those who hold the lock.
    #[inline]
    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    /// Begins another term, under the lock.
    pub(super) fn next_term(&self) {
        self.term.store(self.term() + 1, Ordering::Relaxed);
    }

    /// Whether a timer with this mark is incoming, as far as one can know without the lock.
    #[inline]
    pub(super) fn lasts(&self, mark: &Mark) -> bool {
        self.term.load(Ordering::Relaxed) == mark.term || cfg!(plant_past_term)
    }

    /// Sets a timer aside.
    #[inline]
    pub(super) fn put(&self, key: Key, mark: &Mark) -> Result<(), Unfit> {
        let number = key.into_number();
        self.with_note(|note| {
            let gate = note.shelf.gate();
            // Read after the gate: a term that ends from here on moves that.
            if !self.lasts(mark) || !note.shelf.put(number, gate) {
                return None;
            }
            note.number = Some(number);
            note.gate = gate;
            // Mostly it is there already, and a copy would have to wait for what was written a moment ago.
            if !note.mark.is(mark) {
                note.mark = *mark;
            }
            Some(match note.shelf.gate() == gate {
                true => Ok(()),
                false => Err(Unfit::Late),
            })
        })
        .unwrap_or_else(|| Err(Unfit::Still(Key::from_number(number))))
    }

    /// Lets this thread look for the timer that it set aside last, if it was this task's.
    #[inline]
    pub(super) fn find<R>(&self, waker: &Waker, take: impl FnOnce(&mut Note) -> Option<R>) -> Option<R> {
        self.with_note(|note| match note.number {
            Some(_) if note.mark.owner.has(waker) && self.lasts(&note.mark) => take(note),
            _ => None,
        })
    }

    /// Takes down what is on this thread's shelf, under the lock.
    pub(super) fn clear(&self) -> Option<Key> {
        self.with_note(Note::clear)
    }

    /// Sees that this thread has an empty shelf, unless it uses one elsewhere. The waker is for the caller to drop with no
    /// lock held.
    pub(super) fn make_room(&self, state: &mut State, mark: &Mark) -> Option<Waker> {
        let made = NOTE.try_with(|note| {
            let mut note = note.borrow_mut();
            if let Some(note) = &mut *note {
                if note.shard == self.shard {
                    return note.clear().and_then(|key| state.end_aside(key));
                }
                // Nobody else has the shelf of a shard that is gone.
                if note.elsewhere < ELSEWHERE && Arc::get_mut(&mut note.shelf).is_none() {
                    note.elsewhere += 1;
                    return None;
                }
            }
            let (shelf, waker) = state.shelf();
            *note = Some(Note {
                shard: self.shard,
                number: None,
                gate: shelf.gate(),
                shelf,
                mark: *mark,
                elsewhere: 0,
            });
            waker
        });
        // A thread whose locals are gone needs none.
        made.ok().flatten()
    }

    /// Uses the note of a thread that has a shelf here.
    #[inline]
    fn with_note<R>(&self, using: impl FnOnce(&mut Note) -> Option<R>) -> Option<R> {
        // A thread whose locals are gone has none.
        NOTE.try_with(|note| {
            let mut note = note.borrow_mut();
            note.as_mut()
                .filter(|note| note.shard == self.shard)
                .and_then(using)
        })
        .ok()
        .flatten()
    }
}

impl Note {
    /// Takes the timer over, if it is there still.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Key> {
        self.take_by(Shelf::take)
    }

    /// The same under the lock.
    pub(super) fn take_locked(&mut self) -> Option<Key> {
        self.take_by(Shelf::take_locked)
    }

    #[inline]
    fn take_by(&mut self, take: impl FnOnce(&Shelf, Gate) -> bool) -> Option<Key> {
        self.elsewhere = 0;
        let number = self.number.take()?;
        take(&self.shelf, self.gate).then(|| Key::from_number(number))
    }

    fn clear(&mut self) -> Option<Key> {
        self.elsewhere = 0;
        self.number = None;
        self.shelf.clear(self.shelf.gate())
    }
}
