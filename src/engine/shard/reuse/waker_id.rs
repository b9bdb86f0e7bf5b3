//! `WakerId`: identifies the task that a waker wakes, in eight bytes.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
    task::{RawWakerVTable, Waker},
};

/// Identifies the task that a waker wakes, while that task exists: the address in the waker and, in its lowest three bits, the index
/// of its vtable in [`VTABLES`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::shard) struct WakerId(u64);

/// The vtables of wakers that this process has seen, which are those of Tokio's tasks, of `block_on`, and hardly any others. The
/// first element stays null and stands for an unknown waker. A timer with a waker of an eighth vtable takes the lock at each
/// poll, and so does one whose waker has no address of a multiple of eight.
static VTABLES: [AtomicPtr<RawWakerVTable>; KINDS as usize] =
    [const { AtomicPtr::new(ptr::null_mut()) }; KINDS as usize];

const KINDS: u64 = 8;

impl WakerId {
    pub(in crate::engine::shard) const UNKNOWN: WakerId = WakerId(0);

    /// Clones a waker, and identifies the clone as the task will poll with it: where the compiler has made two copies of one vtable, as
    /// for `block_on` in release builds, a clone has the other one.
    pub(in crate::engine::shard) fn of_clone(waker: &Waker) -> (Waker, WakerId) {
        let clone = waker.clone();
        // The clone keeps alive only what its own address points to.
        let id = match clone.data() == waker.data() {
            true => WakerId::of(waker),
            false => WakerId::of(&clone),
        };
        (clone, id)
    }

    fn of(waker: &Waker) -> WakerId {
        let address = waker.data().addr() as u64;
        match kind(waker) {
            Some(kind) if address % KINDS == 0 => WakerId(address | kind as u64),
            _ => WakerId::UNKNOWN,
        }
    }

    /// Returns the same as [`Waker::will_wake`] for a known waker, and `false` for any other.
    #[inline]
    pub(in crate::engine::shard) fn is(self, waker: &Waker) -> bool {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, task::Wake};

    use super::*;

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn it_is_that_of_a_clone_and_of_no_other_waker() {
        let (one, other) = (Waker::from(Arc::new(Task)), Waker::from(Arc::new(Task)));
        let id = WakerId::of(&one);
        assert!(id.is(&one) && id.is(&one.clone()));
        assert!(!id.is(&other));
        assert!(!id.is(Waker::noop()));
        assert!(WakerId::of(&other).is(&other));
        assert!(!WakerId::UNKNOWN.is(&one) && !WakerId::UNKNOWN.is(Waker::noop()));
    }
}
