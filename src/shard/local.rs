//! What a thread keeps: its shard number, and its last shard reference.
//!
//! Each thread keeps the last `Arc<Shard>` that it released; its next future takes that one. So a future that follows another costs
//! no reference count. What a thread keeps outlives its wheel, and the runtime handle that the wheel was given, until the thread
//! releases a reference to another. So the driver goes by handles and timers, not by reference counts.

use std::{
    cell::Cell,
    ops::Deref,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::Shard;
use crate::timing_wheel::Tick;

/// Meetings at a shard's lock after which a thread looks for another shard.
const CONTENTIONS: u32 = 8;

/// Ticks from one meeting to the next after which the first is forgotten.
const FORGOTTEN_AFTER: u64 = 100;

const UNNUMBERED: usize = usize::MAX;

thread_local! {
    static CACHED: Cell<Option<Arc<Shard>>> = const { Cell::new(None) };
    static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) };
    static CONTENTION: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// The number by which the current thread finds its shard: given out in the order in which threads first ask, and changed
/// after so many [`CONTENTIONS`] with whoever else was at its shard, the driver included.
#[inline]
pub(crate) fn shard_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.with(|number| {
        if number.get() == UNNUMBERED {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The current thread found its shard's lock taken, when the shard had come to `tick`. Meetings long ago do not count. The driver's
/// visits do: a thread cannot tell whom it met. They cost it another shard now and then, which does no harm.
#[cold]
pub(super) fn contended(tick: Tick) {
    let (times, last) = CONTENTION.get();
    let times = match tick.0.wrapping_sub(last) <= FORGOTTEN_AFTER {
        true => times + 1,
        false => 1,
    };
    CONTENTION.set((times % CONTENTIONS, tick.0));
    if times == CONTENTIONS {
        NUMBER.set(shard_number().wrapping_add(1) % UNNUMBERED);
    }
}

/// A future's claim on its shard.
pub(crate) struct ShardRef(Option<Arc<Shard>>);

impl ShardRef {
    #[inline]
    pub(crate) fn new(shard: &Arc<Shard>) -> ShardRef {
        // None is cached, either, in a thread whose locals are gone.
        let cached = CACHED.try_with(Cell::take).ok().flatten();
        match cached {
            Some(cached) if Arc::ptr_eq(&cached, shard) => ShardRef(Some(cached)),
            cached => {
                cache(cached);
                ShardRef(Some(shard.clone()))
            }
        }
    }
}

impl ShardRef {
    /// Moves on to the shard of the current thread, before a timer is registered: it is to live where its task is polled, not
    /// where it was made. An acceptor that makes the timers of all connections would else have them all.
    #[inline]
    pub(super) fn follow_thread(&mut self) {
        let number = shard_number() & self.mask;
        if number != self.number {
            self.move_to(number);
        }
    }

    #[cold]
    fn move_to(&mut self, number: usize) {
        let cached = CACHED.try_with(Cell::take).ok().flatten();
        let fits =
            |cached: &Arc<Shard>| cached.number == number && ptr::addr_eq(&*cached.driver, &*self.driver);
        let (there, cached) = match cached {
            Some(cached) if fits(&cached) => (Some(cached), None),
            cached => (self.driver.sibling(number), cached),
        };
        if let Some(there) = there {
            self.0 = Some(there);
        }
        if cached.is_some() {
            cache(cached);
        }
    }
}

/// Keeps a reference for the next future of this thread.
#[inline]
fn cache(reference: Option<Arc<Shard>>) {
    // A model's shard must not outlive it.
    if cfg!(loom) {
        return;
    }
    // What it takes the place of, or what cannot be cached, is dropped here, after the cell has been left.
    let _former = CACHED.try_with(|cached| cached.replace(reference));
}

impl Drop for ShardRef {
    #[inline]
    fn drop(&mut self) {
        cache(self.0.take());
    }
}

impl Deref for ShardRef {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        self.0.as_deref().expect("a reference lasts until it is dropped")
    }
}
