//! `WakerId`: identifies the task that a waker wakes, in eight bytes.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
    task::{RawWakerVTable, Waker},
};

/// Identifies the task that a waker wakes, while that task exists: the address in the waker and, in its lowest three bits, the index
/// of its vtable in [`VTABLES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakerId(u64);

/// The vtables of wakers that this process has seen, which are those of Tokio's tasks, of `block_on`, and hardly any others. The
/// first element stays null and stands for an unknown waker. A timer with a waker of an eighth vtable takes the lock at each
/// poll, and so does one whose waker has no address of a multiple of eight.
static VTABLES: [AtomicPtr<RawWakerVTable>; KINDS as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; KINDS as usize];

const KINDS: u64 = 8;

/// The index of the vtable of Tokio's tasks, or zero if it is not known.
static TASK: AtomicUsize = AtomicUsize::new(0);

impl WakerId {
    pub(crate) const UNKNOWN: WakerId = WakerId(0);

    /// Clones a waker, and identifies the clone as the task will poll with it: where the compiler has made two copies of one vtable, as
    /// for `block_on` in release builds, a clone has the other one.
    pub(crate) fn of_clone(waker: &Waker) -> (Waker, WakerId) {
        let clone = waker.clone();
        // The clone keeps alive only what its own address points to.
        let id = if clone.data() == waker.data() {
            WakerId::of(waker)
        } else {
            WakerId::of(&clone)
        };
        (clone, id)
    }

    pub(crate) fn of(waker: &Waker) -> WakerId {
        let address = waker.data().addr() as u64;
        match kind(waker) {
            Some(kind) if address.is_multiple_of(KINDS) => WakerId(address | kind as u64),
            _ => WakerId::UNKNOWN,
        }
    }

    /// Takes a waker for that of one of Tokio's tasks.
    pub(crate) fn learn_task(waker: &Waker) {
        TASK.store(kind(waker).unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns whether the waker is that of one of Tokio's tasks, which keeps nothing but memory alive once the task is done. Others may own
    /// their future.
    #[inline]
    pub(crate) fn is_task(self) -> bool {
        self.0 != 0 && (self.0 % KINDS) as usize == TASK.load(Ordering::Relaxed)
    }

    /// Returns the same as [`Waker::will_wake`] for a known waker, and `false` for any other.
    #[inline]
    pub(crate) fn is(self, waker: &Waker) -> bool {
        let kind = &VTABLES[(self.0 % KINDS) as usize];
        self.0 - self.0 % KINDS == waker.data().addr() as u64
            && ptr::eq(kind.load(Ordering::Relaxed), waker.vtable())
    }
}

/// Returns the index of a waker's vtable, which is added if it is new and there is room.
fn kind(waker: &Waker) -> Option<usize> {
    let vtable = ptr::from_ref(waker.vtable()).cast_mut();
    (1..VTABLES.len()).find(|&kind| {
        // Read first, because all workers share the cache line, and a compare-and-swap that fails takes it from the others too.
        let mut met = VTABLES[kind].load(Ordering::Relaxed);
        if met.is_null() {
            let added = VTABLES[kind].compare_exchange(met, vtable, Ordering::Relaxed, Ordering::Relaxed);
            met = added.err().unwrap_or(vtable);
        }
        met == vtable
    })
}
