//! `Slot`: where a thread keeps a cancelled timer of one shard.
//!
//! 1. Only the slot's thread puts a timer into it, and only that thread takes it. A thread that holds the shard's lock may empty the slot or
//!    close it. Each of these changes the one word that a slot is, so that a timer leaves the slot once.
//! 2. A slot that is closed takes no timer any more. Its thread opens another one when it needs one.

use std::num::NonZeroU32;

use crate::engine::sync::{AtomicU64, Ordering, planted};

/// A thread's slot, with room for one timer.
#[repr(align(128))]
pub(super) struct Slot(AtomicU64);

/// What is in a slot. High half: the number of the timer, or zero. Low half: how many timers have been taken from the slot, wrapping,
/// and in the highest bit whether it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Content(u64);

impl Content {
    const EMPTY: u64 = (1 << 32) - 1;
    const CLOSED: u64 = 1 << 31;

    /// Returns the content of a slot from which nothing has been taken yet.
    pub(super) fn nothing() -> Content {
        Content(0)
    }

    #[inline]
    fn with(self, number: NonZeroU32) -> Content {
        Content(u64::from(number.get()) << 32 | self.0)
    }

    #[inline]
    fn after_take(self) -> Content {
        Content((self.0 + 1) & (Self::CLOSED - 1))
    }

    /// Returns the number of the timer in the slot.
    pub(super) fn number(self) -> Option<NonZeroU32> {
        NonZeroU32::new((self.0 >> 32) as u32)
    }

    pub(super) fn without_timer(self) -> Content {
        Content(self.0 & Self::EMPTY)
    }

    /// Returns the number of timers taken since the content was `former`.
    pub(super) fn taken_since(self, former: Content) -> u64 {
        self.0.wrapping_sub(former.0) & (Self::CLOSED - 1)
    }
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot(AtomicU64::new(Content::nothing().0))
    }

    /// Returns what is in the slot, for the counters.
    pub(super) fn look(&self) -> Content {
        Content(self.0.load(Ordering::Acquire))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.look().0 & Content::CLOSED != 0
    }

    #[inline]
    fn replace(&self, content: Content, next: Content) -> bool {
        self.0
            .compare_exchange(content.0, next.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Puts a timer into the slot if it is open and empty. The thread knows that the content was `empty` when the slot was empty last.
    #[inline]
    pub(super) fn put(&self, number: NonZeroU32, empty: Content) -> bool {
        self.replace(empty, empty.with(number))
    }

    /// Takes the timer that the thread put, unless the slot has been emptied since. Returns the content from then on.
    #[inline]
    pub(super) fn take(&self, number: NonZeroU32, empty: Content) -> Option<Content> {
        let next = empty.after_take();
        if planted("unguarded_take") {
            self.0.store(next.0, Ordering::Release);
            return Some(next);
        }
        self.replace(empty.with(number), next).then_some(next)
    }

    /// Empties the slot, under the lock, and returns what was in it.
    pub(super) fn empty(&self) -> Content {
        Content(self.0.fetch_and(Content::EMPTY, Ordering::AcqRel))
    }

    /// Empties and closes the slot, under the lock, and returns what was in it.
    pub(super) fn close(&self) -> Content {
        Content(self.0.swap(Content::CLOSED, Ordering::AcqRel))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn takes_are_counted_across_the_wrap_and_empty_the_slot() {
        let first = Content((1 << 31) - 3);
        let slot = Slot(AtomicU64::new(first.0));
        let number = NonZeroU32::new(u32::MAX).unwrap();
        let mut empty = first;
        for taken in 0..6 {
            assert_eq!(slot.look().taken_since(first), taken);
            assert_eq!(slot.look().number(), None);
            assert!(slot.put(number, empty));
            assert!(!slot.put(number, empty), "the slot is full");
            assert_eq!(slot.look().number(), Some(number));
            assert_eq!(slot.look().taken_since(first), taken);
            let next = slot.take(number, empty).unwrap();
            assert!(slot.take(number, empty).is_none(), "it has been taken");
            empty = next;
            assert!(!slot.is_closed());
        }
    }

    #[test]
    fn a_slot_that_is_emptied_is_as_it_was() {
        let slot = Slot::new();
        let (number, empty) = (NonZeroU32::new(5).unwrap(), Content::nothing());
        for _ in 0..3 {
            assert!(slot.put(number, empty));
            assert_eq!(slot.empty().number(), Some(number));
            assert!(
                slot.take(number, empty).is_none(),
                "the slot has been emptied since"
            );
            assert_eq!(slot.empty().number(), None);
        }
    }

    #[test]
    fn a_slot_that_is_closed_takes_no_timer() {
        let slot = Slot::new();
        let (number, empty) = (NonZeroU32::new(5).unwrap(), Content::nothing());
        assert!(slot.put(number, empty));
        let left = slot.close();
        assert_eq!((left.number(), left.taken_since(empty)), (Some(number), 0));
        assert!(slot.take(number, empty).is_none(), "it has been closed since");
        assert!(!slot.put(number, empty));
        assert!(slot.is_closed());
        assert_eq!(slot.empty().number(), None);
        assert!(slot.is_closed());
    }
}
