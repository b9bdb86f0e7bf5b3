//! Where a thread keeps a cancelled timer for the next, in one shard.
//!
//! 1. Only the slot's thread puts a timer into it, by a plain store, and takes it, by a compare-and-swap of the version.
//! 2. Whoever holds the shard's lock empties the slot: first it moves the version on, then it removes what is there. What was there
//!    as the version moved cannot be taken any more.
//! 3. A timer that is put at that very moment may be overlooked. It then stays in the wheel, as if nobody had cancelled it yet,
//!    until the slot is emptied again. It cannot be taken: the version has moved since its thread read it.

use std::num::NonZeroU32;

use crate::{
    sync::{AtomicU64, Ordering},
    timing_wheel::Key,
};

/// A thread's slot, with room for one timer.
#[repr(align(128))]
pub(super) struct Slot {
    version: AtomicU64,
    /// The number of the timer put last, and below it how many had been taken by then.
    content: AtomicU64,
}

/// How many timers have been taken here and, above that, how often the slot was emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Version {
    const EMPTIED: u64 = 1 << 32;

    #[inline]
    fn taken(self) -> u32 {
        self.0 as u32
    }

    /// How many timers have been taken since the version was `former`.
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

    /// The content of an empty slot: one that the version does not fit, and will not before another timer is put.
    fn nothing(version: Version) -> u64 {
        u64::from(!version.taken())
    }

    /// What is there, and the version, for one who looks on.
    pub(super) fn look(&self) -> (Option<NonZeroU32>, Version) {
        let content = self.content.load(Ordering::Acquire);
        // Read last: a timer that this version counts as taken is not there.
        let version = self.version();
        (Self::number(content, version), version)
    }

    /// Puts a timer, if the slot is empty.
    #[inline]
    pub(super) fn put(&self, number: NonZeroU32, version: Version) -> bool {
        let is_empty = self.content.load(Ordering::Acquire) as u32 != version.taken();
        if is_empty {
            self.content
                .store(Self::content(number, version), Ordering::Release);
        }
        is_empty
    }

    /// Takes what was put, unless the version has moved since it was read.
    #[inline]
    pub(super) fn take(&self, version: Version) -> bool {
        let taken = version.0.wrapping_add(1);
        if cfg!(plant_unguarded_take) {
            self.version.store(taken, Ordering::Release);
            return true;
        }
        self.version
            .compare_exchange(version.0, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The same under the lock, where nobody else moves the version: at the cost of a store.
    pub(super) fn take_locked(&self, version: Version) -> bool {
        let is_there = self.version() == version;
        if is_there {
            self.version.store(version.0.wrapping_add(1), Ordering::Release);
        }
        is_there
    }

    /// Moves the version on, under the lock, and removes what was there before; returns what the version was.
    pub(super) fn end_version(&self) -> (Version, Option<Key>) {
        // Looked at first: what is put once the version has moved can be taken.
        let content = self.content.load(Ordering::Acquire);
        // By itself loom would not let another thread come in between this look and the version.
        #[cfg(loom)]
        loom::thread::yield_now();
        let version = Version(self.version.fetch_add(Version::EMPTIED, Ordering::AcqRel));
        // While it is there, the slot's thread puts no other.
        (version, self.remove(content, version))
    }

    /// Removes what is there: under the lock, by the slot's own thread.
    pub(super) fn empty(&self, version: Version) -> Option<Key> {
        self.remove(self.content.load(Ordering::Acquire), version)
    }

    #[inline]
    fn remove(&self, content: u64, version: Version) -> Option<Key> {
        let number = Self::number(content, version)?;
        self.content.store(Self::nothing(version), Ordering::Release);
        Some(Key::from_number(number))
    }
}
