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

/// The vtables of the wakers that this process has seen: those of Tokio's tasks, of `block_on`, and hardly
/// any others. The first element stays null and stands for an unknown waker, and the second is the vtable of
/// Tokio's tasks. A timer takes the lock at each poll if there is no room for its waker's vtable, or if its
/// waker's address is not a multiple of eight.
static VTABLES: [AtomicPtr<RawWakerVTable>; VTABLE_COUNT as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; VTABLE_COUNT as usize];

const VTABLE_COUNT: u64 = 8;

/// The index of the vtable of Tokio's tasks, whose element is null until it has been learnt.
const TASK: usize = 1;

impl WakerId {
    pub(crate) const UNKNOWN: WakerId = WakerId(0);

    /// Clones a waker, and identifies the task that it wakes, if its vtable is known. A timer that is polled
    /// once has no use for a vtable, and each type of a scheduled future has its own.
    #[inline]
    pub(crate) fn of_clone(waker: &Waker) -> (Waker, WakerId) {
        let clone = waker.clone();
        // Not by the clone's vtable: where the compiler has made two copies of one, as for `block_on` in release
        // builds, the clone has the other copy, but the task will poll with this one.
        let id = match known_vtable(waker) {
            // An address identifies a task while the task exists, and the clone keeps alive only the one at its own
            // address.
            Some(index) if clone.data() == waker.data() => WakerId::at_index(waker, index),
            _ => WakerId::UNKNOWN,
        };
        (clone, id)
    }

    /// Identifies the task that a waker wakes, and learns the waker's vtable if there is room.
    pub(crate) fn learn(waker: &Waker) -> WakerId {
        let index = known_vtable(waker).or_else(|| add_vtable(waker));
        index.map_or(WakerId::UNKNOWN, |index| WakerId::at_index(waker, index))
    }

    #[inline]
    fn at_index(waker: &Waker, index: usize) -> WakerId {
        let address = waker.data().addr() as u64;
        // The lowest bits are free for the index only if the address is aligned.
        if address % VTABLE_COUNT == 0 {
            WakerId(address | index as u64)
        } else {
            WakerId::UNKNOWN
        }
    }

    /// Records the vtable of a waker as that of Tokio's tasks.
    pub(crate) fn learn_task(waker: &Waker) {
        VTABLES[TASK].store(vtable_of(waker), Ordering::Relaxed);
    }

    /// Returns whether the waker is that of one of Tokio's tasks, which keeps nothing but memory alive once
    /// the task is done. Other wakers may own their future.
    #[inline]
    pub(crate) fn is_task(self) -> bool {
        self.0 % VTABLE_COUNT == TASK as u64
    }

    /// Returns the same as [`Waker::will_wake`] for a known waker, and `false` for any other.
    #[inline]
    pub(crate) fn is(self, waker: &Waker) -> bool {
        // Both are compared: an executor may give the same address to wakers that do different things.
        let vtable = &VTABLES[(self.0 % VTABLE_COUNT) as usize];
        self.0 - self.0 % VTABLE_COUNT == waker.data().addr() as u64
            && ptr::eq(vtable.load(Ordering::Relaxed), waker.vtable())
    }
}

fn vtable_of(waker: &Waker) -> *mut RawWakerVTable {
    ptr::from_ref(waker.vtable()).cast_mut()
}

/// Returns the index of a waker's vtable, if it has one.
#[inline]
fn known_vtable(waker: &Waker) -> Option<usize> {
    let vtable = vtable_of(waker);
    let at = |index: usize| (index, VTABLES[index].load(Ordering::Relaxed));
    if at(TASK).1 == vtable {
        return Some(TASK);
    }
    // The others are added in order, so the first element without one ends the search.
    let mut others = (TASK + 1..VTABLES.len())
        .map(at)
        .take_while(|(_, other)| !other.is_null());
    others.find(|(_, other)| *other == vtable).map(|(index, _)| index)
}

/// Adds a waker's vtable if there is room. Returns its index.
#[cold]
fn add_vtable(waker: &Waker) -> Option<usize> {
    let vtable = vtable_of(waker);
    (TASK + 1..VTABLES.len()).find(|&index| {
        // Loaded first, because all workers share the cache line, and even a compare-and-swap that fails
        // takes it from the others.
        let mut met = VTABLES[index].load(Ordering::Relaxed);
        if met.is_null() {
            let added = VTABLES[index].compare_exchange(met, vtable, Ordering::Relaxed, Ordering::Relaxed);
            met = added.err().unwrap_or(vtable);
        }
        met == vtable
    })
}
