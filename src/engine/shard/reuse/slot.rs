//! `Slot`: where a thread keeps a cancelled timer of one shard.
//!
//! 1. Only the slot's thread puts a timer into it, by a plain store, and only that thread takes it, by a compare-and-swap of the version.
//! 2. A thread that holds the shard's lock may empty the slot. It first increases the version and then removes the timer, which can no
//!    longer be taken after that.
//! 3. A timer that is put at that very moment may be overlooked. It then stays in the wheel, as if it had not been cancelled yet, until the
//!    slot is emptied again. It cannot be taken, because the version has changed since its thread read it.
//! 4. A slot that is closed takes no timer any more. Its thread opens another one when it needs one.

use std::num::NonZeroU32;

use crate::engine::{
    sync::{AtomicU64, Ordering, explore, planted},
    timing_wheel::Key,
};

/// A thread's slot, with room for one timer.
#[repr(align(128))]
pub(super) struct Slot {
    version: AtomicU64,
    /// High half: the number of the timer put last. Low half: how many timers had been taken before it was put.
    content: AtomicU64,
}

/// Low half: how many timers have been taken from this slot. High half: how often the slot was emptied and, in the highest bit,
/// whether it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Version {
    const EMPTIED: u64 = 1 << 32;
    /// A slot that is emptied at every cadence gets here by itself after 248 days.
    const CLOSED: u64 = 1 << 63;

    #[inline]
    pub(super) fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    #[inline]
    fn taken(self) -> u32 {
        self.0 as u32
    }

    /// Returns the number of timers taken since the version was `former`.
    pub(super) fn taken_since(self, former: Version) -> u64 {
        u64::from(self.taken().wrapping_sub(former.taken()))
    }
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            version: AtomicU64::new(0),
            content: AtomicU64::new(Self::nothing(Version(0))),
        }
    }

    #[inline]
    pub(super) fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire))
    }

    #[inline]
    fn number(content: u64, version: Version) -> Option<NonZeroU32> {
        let is_there = content as u32 == version.taken();
        is_there
            .then(|| NonZeroU32::new((content >> 32) as u32))
            .flatten()
    }

    #[inline]
    fn content(number: NonZeroU32, version: Version) -> u64 {
        u64::from(number.get()) << 32 | u64::from(version.taken())
    }

    /// Returns the content of an empty slot. It does not match the version, and will not match before another timer is put.
    fn nothing(version: Version) -> u64 {
        u64::from(!version.taken())
    }

    /// Returns the timer in the slot and the version, for the counters.
    pub(super) fn look(&self) -> (Option<NonZeroU32>, Version) {
        let content = self.content.load(Ordering::Acquire);
        // The version is read last, so that a timer that it counts as taken is not seen here.
        let version = self.version();
        (Self::number(content, version), version)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.version().is_closed()
    }

    /// Puts a timer, if the slot is open and empty.
    #[inline]
    pub(super) fn put(&self, number: NonZeroU32, version: Version) -> bool {
        let is_full = self.content.load(Ordering::Acquire) as u32 == version.taken();
        if is_full || version.is_closed() {
            return false;
        }
        self.content
            .store(Self::content(number, version), Ordering::Release);
        true
    }

    /// Takes the timer in the slot, unless the version has changed since it was read.
    #[inline]
    pub(super) fn take(&self, version: Version) -> bool {
        let taken = version.0.wrapping_add(1);
        if planted("unguarded_take") {
            self.version.store(taken, Ordering::Release);
            return true;
        }
        self.version
            .compare_exchange(version.0, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Changes the version, under the lock, and removes the timer that was in the slot before. Returns the former version. A slot
    /// that is closed takes no timer after this.
    pub(super) fn end_version(&self, closes: bool) -> (Version, Option<Key>) {
        // The content is read first, because a timer that is put after the version changed can be taken.
        let content = self.content.load(Ordering::Acquire);
        // Without this, loom would not run another thread between the two operations.
        explore();
        let former = match closes {
            true => self.version.fetch_or(Version::CLOSED, Ordering::AcqRel),
            false => self.version.fetch_add(Version::EMPTIED, Ordering::AcqRel),
        };
        // While a timer is in the slot, the slot's thread puts no other.
        (Version(former), self.remove(content, Version(former)))
    }

    /// Removes the timer in a slot whose version stays. The slot's own thread calls this under the lock, and any thread may if the
    /// slot is closed.
    pub(super) fn empty(&self) -> Option<Key> {
        self.remove(self.content.load(Ordering::Acquire), self.version())
    }

    #[inline]
    fn remove(&self, content: u64, version: Version) -> Option<Key> {
        let number = Self::number(content, version)?;
        self.content.store(Self::nothing(version), Ordering::Release);
        Some(Key::from_number(number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A slot whose counts are about to wrap.
    fn slot(taken: u32, emptied: u32) -> Slot {
        let version = Version(u64::from(emptied) << 32 | u64::from(taken));
        Slot {
            version: AtomicU64::new(version.0),
            content: AtomicU64::new(Slot::nothing(version)),
        }
    }

    #[test]
    fn takes_are_counted_across_the_wrap_and_empty_the_slot() {
        let slot = slot(u32::MAX - 2, 7);
        let first = slot.version();
        let number = NonZeroU32::new(5).unwrap();
        for taken in 0..6 {
            let version = slot.version();
            assert_eq!(version.taken_since(first), taken);
            assert_eq!(slot.look().0, None);
            assert!(slot.put(number, version));
            assert!(!slot.put(number, version), "the slot is full");
            assert_eq!(slot.look().0, Some(number));
            assert!(slot.take(version));
            assert!(!slot.take(version), "it has been taken");
        }
        assert_eq!(
            slot.version().0 >> 32,
            8,
            "the carry counts as an emptying, which only refuses a take"
        );
    }

    #[test]
    fn a_slot_is_emptied_until_its_count_is_exhausted_and_then_closed() {
        let slot = slot(u32::MAX, (1 << 31) - 3);
        let number = NonZeroU32::new(5).unwrap();
        for _ in 0..3 {
            assert!(!slot.is_closed());
            let version = slot.version();
            assert!(slot.put(number, version));
            let (before, left) = slot.end_version(false);
            assert!(before == version);
            assert_eq!(left.map(Key::into_number), Some(number));
            assert!(!slot.take(version), "the slot has been emptied since");
            assert_eq!(slot.look().0, None);
            assert_eq!(slot.version().taken_since(version), 0);
        }
        assert!(slot.is_closed());
    }

    #[test]
    fn a_slot_that_is_closed_takes_no_timer() {
        let slot = slot(7, 7);
        let number = NonZeroU32::new(5).unwrap();
        let version = slot.version();
        assert!(slot.put(number, version));
        let (_, left) = slot.end_version(true);
        assert_eq!(left.map(Key::into_number), Some(number));
        assert!(!slot.take(version), "it has been closed since");
        assert!(!slot.put(number, slot.version()));
        assert_eq!(slot.version().taken_since(version), 0);
    }
}
