//! A future's hold on its shard.
//!
//! It is an `Arc`, but one that a future in good health neither clones nor drops: a thread keeps the last one it was done
//! with for the next future, so that one that follows another costs no reference count at all. What a thread keeps
//! outlives its wheel, and with it the runtime handle that the wheel was given, until that thread is done with a future of
//! another; so the driver goes by handles and timers, not by reference counts.

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

/// Meetings at a shard's lock after which a thread looks for another shard.
const MEETINGS: u32 = 8;

const UNNUMBERED: usize = usize::MAX;

thread_local! {
    static KEPT: Cell<Option<Arc<Shard>>> = const { Cell::new(None) };
    static HOME: Cell<usize> = const { Cell::new(UNNUMBERED) };
    static MET: Cell<u32> = const { Cell::new(0) };
}

/// The number by which the current thread finds its shard: given out in the order in which threads first ask, and changed
/// after so many [`MEETINGS`] with whoever else was at its shard, the driver included.
#[inline]
pub(crate) fn home() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    HOME.with(|home| {
        if home.get() == UNNUMBERED {
            home.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        home.get()
    })
}

/// The current thread found its shard's lock taken.
#[cold]
pub(super) fn met_another() {
    MET.with(|met| met.set(met.get() + 1));
    if MET.get() == MEETINGS {
        MET.set(0);
        HOME.set(home().wrapping_add(1) % UNNUMBERED);
    }
}

/// A hold on a shard.
pub(crate) struct Hold(Option<Arc<Shard>>);

impl Hold {
    #[inline]
    pub(crate) fn new(shard: &Arc<Shard>) -> Hold {
        // None is kept, either, in a thread whose locals are gone.
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        match kept {
            Some(kept) if Arc::ptr_eq(&kept, shard) => Hold(Some(kept)),
            kept => {
                keep(kept);
                Hold(Some(shard.clone()))
            }
        }
    }
}

impl Hold {
    /// Moves on to the shard of the current thread, before a timer is registered: it is to live where its task is polled, not
    /// where it was made. An acceptor that makes the timers of all connections would else have them all.
    #[inline]
    pub(super) fn follow_thread(&mut self) {
        let number = home() & self.mask;
        if number != self.number {
            self.move_to(number);
        }
    }

    #[cold]
    fn move_to(&mut self, number: usize) {
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        let fits = |kept: &Arc<Shard>| kept.number == number && ptr::addr_eq(&*kept.driver, &*self.driver);
        let (there, kept) = match kept {
            Some(kept) if fits(&kept) => (Some(kept), None),
            kept => (self.driver.sibling(number), kept),
        };
        if let Some(there) = there {
            self.0 = Some(there);
        }
        if kept.is_some() {
            keep(kept);
        }
    }
}

/// Keeps a hold for the next future of this thread.
#[inline]
fn keep(hold: Option<Arc<Shard>>) {
    // What it takes the place of, or what cannot be kept, is dropped here, after the cell has been left.
    let _former = KEPT.try_with(|kept| kept.replace(hold));
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        keep(self.0.take());
    }
}

impl Deref for Hold {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        self.0.as_deref().expect("a hold lasts until it is dropped")
    }
}
