//! `WakerId`: identifies the task that a waker wakes, in eight bytes.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
    task::{RawWakerVTable, Waker},
};

/// Identifies the task that a waker wakes, while that task exists: the address in the waker and, in its
/// lowest three bits, the index of its vtable in [`VTABLES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakerId(u64);

/// The vtables of wakers that this process has seen, which are those of Tokio's tasks, of `block_on`, and
/// hardly any others. The first element stays null and stands for an unknown waker, the second is that of
/// Tokio's tasks. A timer with a waker of a further vtable takes the lock at each poll, and so does one whose
/// waker has no address of a multiple of eight.
static VTABLES: [AtomicPtr<RawWakerVTable>; KINDS as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; KINDS as usize];

const KINDS: u64 = 8;

/// The index of the vtable of Tokio's tasks, whenever that is learnt.
const TASK: usize = 1;

impl WakerId {
    pub(crate) const UNKNOWN: WakerId = WakerId(0);

    /// Clones a waker, and identifies the clone as the task will poll with it: where the compiler has made
    /// two copies of one vtable, as for `block_on` in release builds, a clone has the other one.
    #[inline]
    pub(crate) fn of_clone(waker: &Waker) -> (Waker, WakerId) {
        cloned(waker, WakerId::of)
    }

    /// Clones a waker as [`WakerId::of_clone`] does, but adds no vtable. Each type of a scheduled future has
    /// its own.
    pub(crate) fn of_clone_if_known(waker: &Waker) -> (Waker, WakerId) {
        cloned(waker, WakerId::if_known)
    }

    pub(crate) fn of(waker: &Waker) -> WakerId {
        WakerId::of_kind(waker, known_kind(waker).or_else(|| added_kind(waker)))
    }

    pub(crate) fn if_known(waker: &Waker) -> WakerId {
        WakerId::of_kind(waker, known_kind(waker))
    }

    #[inline]
    fn of_kind(waker: &Waker, kind: Option<usize>) -> WakerId {
        let address = waker.data().addr() as u64;
        match kind {
            Some(kind) if address % KINDS == 0 => WakerId(address | kind as u64),
            _ => WakerId::UNKNOWN,
        }
    }

    /// Takes a waker for that of one of Tokio's tasks.
    pub(crate) fn learn_task(waker: &Waker) {
        VTABLES[TASK].store(vtable_of(waker), Ordering::Relaxed);
    }

    /// Returns whether the waker is that of one of Tokio's tasks, which keeps nothing but memory alive once
    /// the task is done. Others may own their future.
    #[inline]
    pub(crate) fn is_task(self) -> bool {
        self.0 % KINDS == TASK as u64
    }

    /// Returns the same as [`Waker::will_wake`] for a known waker, and `false` for any other.
    #[inline]
    pub(crate) fn is(self, waker: &Waker) -> bool {
        let kind = &VTABLES[(self.0 % KINDS) as usize];
        self.0 - self.0 % KINDS == waker.data().addr() as u64
            && ptr::eq(kind.load(Ordering::Relaxed), waker.vtable())
    }
}

#[inline]
fn cloned(waker: &Waker, identify: impl FnOnce(&Waker) -> WakerId) -> (Waker, WakerId) {
    let clone = waker.clone();
    // The clone keeps alive only what its own address points to.
    let id = if clone.data() == waker.data() {
        identify(waker)
    } else {
        identify(&clone)
    };
    (clone, id)
}

fn vtable_of(waker: &Waker) -> *mut RawWakerVTable {
    ptr::from_ref(waker.vtable()).cast_mut()
}

/// Returns the index of a waker's vtable, if it has one.
#[inline]
fn known_kind(waker: &Waker) -> Option<usize> {
    let vtable = vtable_of(waker);
    (TASK..VTABLES.len()).find(|&kind| VTABLES[kind].load(Ordering::Relaxed) == vtable)
}

/// Adds a waker's vtable, if there is room.
#[cold]
fn added_kind(waker: &Waker) -> Option<usize> {
    let vtable = vtable_of(waker);
    (TASK + 1..VTABLES.len()).find(|&kind| {
        // Read first, because all workers share the cache line, and a compare-and-swap that fails takes it
        // from the others too.
        let mut met = VTABLES[kind].load(Ordering::Relaxed);
        if met.is_null() {
            let added = VTABLES[kind].compare_exchange(met, vtable, Ordering::Relaxed, Ordering::Relaxed);
            met = added.err().unwrap_or(vtable);
        }
        met == vtable
    })
}
