//! A cancelled timer set aside for the next one.
//!
//! A task that ends one timeout mostly starts the next at once. In a ticking shard, a timer that is cancelled before the
//! next visit has no deadline yet, only its delay: whole as it is, waker and all, it can be the next timer of the same task
//! with the same delay. Its thread puts it on a [`Shelf`] of its own, and takes it over by one compare-and-swap, with no lock
//! and no change to the wheel; with another delay, that is set under the lock. In the books the one is a cancel and the other a
//! registration, and what is aside is not pending.
//!
//! 1. Under the lock, a visit ends the *term* before it reads the clock, and so does whatever else settles or ends the
//!    incoming timers. Only a timer registered in the term that lasts can be set aside or taken over: so it is still
//!    incoming, and its delay counts from a reading yet to come.
//! 2. One that nobody takes over leaves the wheel when the term ends, or earlier for another registration of its thread.
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
    Shard, State,
    shelf::{Gate, Shelf},
};
use crate::{
    sync::{Arc, AtomicU64, Ordering},
    timing_wheel::{Key, Nanos},
};

/// Registrations elsewhere, with none at its shelf in between, after which a thread's shelf is moved.
const ELSEWHERE: u32 = 8;

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

/// A shelf, in the books of its shard.
pub(super) struct Account {
    shelf: Arc<Shelf>,
    /// What the gate said when the takings were counted last.
    counted: Gate,
}

/// Why a timer could not be set aside.
pub(super) enum Unfit {
    /// There is no room, or its term is over.
    Still(Key),
    /// The term has ended meanwhile: the shelf may have to be cleared once more.
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
        self.with_note(|note| {
            note.number = None;
            note.shelf.clear(note.shelf.gate())
        })
    }

    /// Gives this thread a shelf, under the lock, unless it uses one elsewhere.
    pub(super) fn make_room(&self, accounts: &mut Vec<Account>, mark: &Mark) {
        // A thread whose locals are gone needs none.
        let _gone = NOTE.try_with(|note| {
            let mut note = note.borrow_mut();
            match &mut *note {
                Some(note) if note.shard == self.shard => note.elsewhere = 0,
                Some(note) if note.elsewhere < ELSEWHERE => note.elsewhere += 1,
                _ => {
                    let shelf = Arc::new(Shelf::new());
                    accounts.push(Account {
                        shelf: shelf.clone(),
                        counted: shelf.gate(),
                    });
                    *note = Some(Note {
                        shard: self.shard,
                        number: None,
                        gate: shelf.gate(),
                        shelf,
                        mark: *mark,
                        elsewhere: 0,
                    });
                }
            }
        });
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
        let number = self.number.take()?;
        self.shelf.take(self.gate).then(|| Key::from_number(number))
    }

    /// The same under the lock.
    pub(super) fn take_locked(&mut self) -> Option<Key> {
        let number = self.number.take()?;
        self.shelf
            .take_locked(self.gate)
            .then(|| Key::from_number(number))
    }
}

impl Shard {
    /// Ends the term, under the lock: what is incoming is about to get its deadlines, or to end.
    pub(super) fn end_term(&self, state: &mut State, spent: &mut Vec<Waker>) {
        if cfg!(not(plant_endless_term)) {
            let term = &self.aside.term;
            term.store(term.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            state.clear_shelves(spent);
        }
    }
}

impl State {
    /// Ends what nobody took over; the wakers are for the caller to drop with no lock held.
    pub(super) fn clear_shelves(&mut self, spent: &mut Vec<Waker>) {
        let State {
            accounts,
            wheel,
            counters,
            ..
        } = self;
        accounts.retain_mut(|account| {
            // Looked at first, so that all is seen that a thread which is gone did to its shelf.
            let abandoned = Arc::get_mut(&mut account.shelf).is_some();
            let gate = account.shelf.end_term();
            let taken = gate.taken_since(account.counted);
            account.counted = gate;
            counters.registered += taken;
            counters.cancelled += taken;
            let left = account.shelf.clear(gate);
            if let Some(waker) = left.and_then(|key| wheel.remove(key)) {
                counters.cancelled += 1;
                spent.push(waker);
            }
            !abandoned
        });
    }

    /// How many timers are aside, and how many have been taken over that the counters do not know of.
    pub(super) fn aside(&mut self) -> (usize, u64) {
        let (mut aside, mut taken) = (0, 0);
        for account in &self.accounts {
            let (timer, gate) = account.shelf.look();
            taken += gate.taken_since(account.counted);
            // One that was overlooked may have expired.
            let pending = timer.is_some_and(|number| self.wheel.get_mut(&Key::from_number(number)).is_some());
            aside += usize::from(pending);
        }
        (aside, taken)
    }

    /// Ends a timer that was aside. Its waker is for the caller to drop with no lock held.
    pub(super) fn end_aside(&mut self, key: Key) -> Option<Waker> {
        let waker = self.wheel.remove(key)?;
        self.counters.cancelled += 1;
        Some(waker)
    }
}
