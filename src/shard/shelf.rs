//! Where a thread's timer that was set aside waits for the next, in one shard.
//!
//! 1. Only the shelf's thread sets a timer aside, by plain stores, and takes it over, by a compare-and-swap of the gate.
//! 2. Whoever holds the shard's lock clears the shelf, once the term has ended: moves the gate on, and takes down what is aside.
//!    What was aside as the gate moved cannot be taken over any more.
//! 3. A timer set aside at that very moment may be taken down, or overlooked: it then stays in the wheel as if nobody had cancelled
//!    it, until the shelf is cleared again, or its thread, which looks at the gate once more, takes it down. Neither can be taken
//!    over: its term has ended.

use std::num::NonZeroU32;

use crate::{
    sync::{AtomicU64, Ordering},
    timing_wheel::Key,
};

/// A thread's shelf, with room for one timer.
#[repr(align(128))]
pub(super) struct Shelf {
    gate: AtomicU64,
    /// The number of the timer set aside last, and below it how many had been taken over by then.
    aside: AtomicU64,
}

/// How many timers have been taken over here and, above that, how often the shelf was cleared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Gate(u64);

impl Gate {
    const CLEARED: u64 = 1 << 32;

    #[inline]
    fn taken(self) -> u32 {
        self.0 as u32
    }

    /// How many timers have been taken over since the gate was `former`.
    pub(super) fn taken_since(self, former: Gate) -> u64 {
        u64::from(self.taken().wrapping_sub(former.taken()))
    }
}

impl Shelf {
    pub(super) fn new() -> Shelf {
        Shelf {
            gate: AtomicU64::new(0),
            aside: AtomicU64::new(Self::empty(Gate(0))),
        }
    }

    #[inline]
    pub(super) fn gate(&self) -> Gate {
        Gate(self.gate.load(Ordering::Acquire))
    }

    /// The number of the timer that is aside, by what the gate said.
    #[inline]
    pub(super) fn timer(&self, gate: Gate) -> Option<NonZeroU32> {
        Self::named(self.aside.load(Ordering::Acquire), gate)
    }

    #[inline]
    fn named(aside: u64, gate: Gate) -> Option<NonZeroU32> {
        let is_there = aside as u32 == gate.taken();
        is_there.then(|| NonZeroU32::new((aside >> 32) as u32)).flatten()
    }

    #[inline]
    fn word(number: NonZeroU32, gate: Gate) -> u64 {
        u64::from(number.get()) << 32 | u64::from(gate.taken())
    }

    /// The word of an empty shelf: one that the gate does not fit, and will not before another timer is set aside.
    fn empty(gate: Gate) -> u64 {
        u64::from(!gate.taken())
    }

    /// What is aside, and the gate, for one who looks on.
    pub(super) fn look(&self) -> (Option<NonZeroU32>, Gate) {
        let aside = self.aside.load(Ordering::Acquire);
        // Read last: a timer whose taking the gate has counted is not aside.
        let gate = self.gate();
        (Self::named(aside, gate), gate)
    }

    /// Sets a timer aside, if the shelf is empty.
    #[inline]
    pub(super) fn put(&self, number: NonZeroU32, gate: Gate) -> bool {
        let is_empty = self.aside.load(Ordering::Acquire) as u32 != gate.taken();
        if is_empty {
            self.aside.store(Self::word(number, gate), Ordering::Release);
        }
        is_empty
    }

    /// Takes over what was set aside, unless the gate has moved since it was read.
    #[inline]
    pub(super) fn take(&self, gate: Gate) -> bool {
        let taken = gate.0.wrapping_add(1);
        if cfg!(plant_unguarded_gate) {
            self.gate.store(taken, Ordering::Release);
            return true;
        }
        self.gate
            .compare_exchange(gate.0, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The same under the lock, where nobody else moves the gate: at the cost of a store.
    pub(super) fn take_locked(&self, gate: Gate) -> bool {
        let is_there = self.gate() == gate;
        if is_there {
            self.gate.store(gate.0.wrapping_add(1), Ordering::Release);
        }
        is_there
    }

    /// Moves the gate on, under the lock; returns what it said.
    pub(super) fn move_gate(&self) -> Gate {
        Gate(self.gate.fetch_add(Gate::CLEARED, Ordering::AcqRel))
    }

    /// Takes down what is aside: under the lock, by the shelf's own thread or with the gate moved.
    pub(super) fn clear(&self, gate: Gate) -> Option<Key> {
        // By itself loom would not let another thread come in between this look and the gate.
        #[cfg(loom)]
        loom::thread::yield_now();
        let number = self.timer(gate)?;
        self.aside.store(Self::empty(gate), Ordering::Release);
        Some(Key::from_number(number))
    }
}
