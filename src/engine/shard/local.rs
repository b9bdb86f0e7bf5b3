//! The state that a thread keeps: its shard number, and its last shard reference.
//!
//! Each thread keeps the last `Arc<Shard>` that it released. Its next future takes that reference, and so changes no reference count. A
//! thread may therefore keep a shard whose wheel is gone, until it releases a reference to another shard. This is why the lifetime of the
//! driver depends on handles and timers, and not on reference counts.

use std::{
    cell::{Cell, OnceCell},
    ops::Deref,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Waker,
};

use tokio::{runtime::Id, time::Instant};

use super::{
    Shard,
    tasks::{Task, Tasks, is_of_tokio},
};
use crate::engine::{
    clock::{self, Moment, Shift},
    sync::MODELLED,
    timing_wheel::Tick,
};

/// A thread that has found its shard's lock taken this many times moves to another shard.
const CONTENTIONS: u32 = 8;

/// Contention that is more than this many ticks old is forgotten.
const FORGOTTEN_AFTER: u64 = 1_000;

const UNNUMBERED: usize = usize::MAX;

thread_local! {
    static LOCAL: Local = const { Local { cached: Cell::new(None), home: OnceCell::new(), is_visited: Cell::new(false) } };
    static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) };
    static CONTENTION: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

struct Local {
    cached: Cell<Option<Arc<Shard>>>,
    home: OnceCell<Box<Home>>,
    /// Whether a current-thread runtime was used on this thread.
    is_visited: Cell<bool>,
}

/// The wheel of the first multi-thread runtime whose tasks used it on this thread. A worker has no other.
struct Home {
    shard: Arc<Shard>,
    tasks: Tasks,
}

impl Local {
    /// Returns a reference to a shard of the home that `find` finds.
    #[inline]
    fn at_home(find: impl FnOnce(&Local) -> Option<&Box<Home>>) -> Option<ShardRef> {
        let shard = LOCAL.try_with(|local| {
            let home = find(local)?;
            match local.cached.take() {
                Some(cached) if Arc::ptr_eq(&cached, &home.shard) => Some(cached),
                cached => Some(home.reference(cached)),
            }
        });
        shard.ok().flatten().map(|shard| ShardRef(Some(shard)))
    }
}

impl Home {
    /// Returns a reference to a shard of this wheel, which is the one that the thread keeps if that is of this wheel.
    #[cold]
    fn reference(&self, kept: Option<Arc<Shard>>) -> Arc<Shard> {
        match kept {
            Some(kept) if kept.is_sibling_of(&self.shard) => kept,
            kept => {
                kept.into_iter().for_each(keep);
                self.shard.clone()
            }
        }
    }
}

/// Returns the number by which the current thread finds its shard. Threads get numbers in the order in which they first ask. A
/// number changes after [`CONTENTIONS`] contentions with other threads, the driver included.
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

/// Records that the current thread found its shard's lock taken, at `tick`. Contention long ago does not count. A thread cannot
/// tell whether the driver held the lock, and so may move to another shard because of it, which does no harm.
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

/// A future's reference to its shard.
///
/// A future of the current wheel that is made in a task is unbound until its first poll. Until then, its moments are of the clock.
pub(crate) struct ShardRef(Option<Arc<Shard>>);

impl From<&Arc<Shard>> for ShardRef {
    #[inline]
    fn from(shard: &Arc<Shard>) -> ShardRef {
        // A thread whose thread-locals are gone has none cached.
        let cached = take_cached();
        match cached {
            Some(cached) if Arc::ptr_eq(&cached, shard) => ShardRef(Some(cached)),
            cached => {
                cached.into_iter().for_each(keep);
                ShardRef(Some(shard.clone()))
            }
        }
    }
}

impl ShardRef {
    pub(crate) const UNBOUND: ShardRef = ShardRef(None);

    /// Returns a reference to this thread's home, if the task that is being polled with `waker` is known to belong there.
    #[inline]
    pub(crate) fn at_home(waker: &Waker) -> Option<ShardRef> {
        Local::at_home(|local| {
            let home = local.home.get()?;
            let task = Task::polled_with(waker)?;
            (!home.shard.may_retire() && home.tasks.contains(task)).then_some(home)
        })
    }

    /// Returns a reference to this thread's home, if that is of `runtime`, whose context this is. The task that is being polled with
    /// `waker` becomes known.
    #[inline]
    pub(crate) fn at_home_of(runtime: Id, waker: &Waker) -> Option<ShardRef> {
        Local::at_home(|local| {
            let home = local.home.get().filter(|home| home.shard.is_of(runtime))?;
            if !local.is_visited.get() && is_of_tokio(waker) {
                Task::polled_with(waker)
                    .into_iter()
                    .for_each(|task| home.tasks.add(task));
            }
            Some(home)
        })
    }

    /// Takes the reference that this thread keeps, if it is to the current wheel of `runtime`.
    #[inline]
    pub(crate) fn kept_for(runtime: Id) -> Option<ShardRef> {
        match take_cached()? {
            cached if cached.is_of(runtime) => Some(ShardRef(Some(cached))),
            cached => {
                keep(cached);
                None
            }
        }
    }

    /// Makes this the home of a thread that has none and polls one of Tokio's tasks with `waker`. The shard is of the current wheel of a
    /// multi-thread runtime, which is taken for the task's.
    #[cold]
    pub(crate) fn make_home(&self, waker: &Waker) {
        let _ = LOCAL.try_with(|local| {
            if is_of_tokio(waker) && !local.is_visited.get() {
                local.home.get_or_init(|| {
                    Box::new(Home {
                        shard: self.deref().clone(),
                        tasks: Tasks::new(),
                    })
                });
            }
        });
    }

    /// Returns the shard, or `None` if the future is unbound.
    #[inline]
    pub(super) fn bound(&self) -> Option<&Arc<Shard>> {
        self.0.as_ref()
    }

    /// Returns the current moment as [`Shard::now`] does or, if the future is unbound, that of the current context's clock.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        match &self.0 {
            Some(shard) => shard.now(),
            None => Moment::of(clock::now()),
        }
    }

    #[inline]
    pub(crate) fn moment_of(&self, instant: Instant) -> Moment {
        match self.bound() {
            Some(shard) => shard.moment_of(instant),
            None => Moment::of(instant),
        }
    }

    /// Returns the shift of the driver's clock, which an unbound future does not have.
    #[inline]
    pub(super) fn shift(&self) -> Shift {
        self.bound().map_or(Shift::NONE, |shard| shard.shift())
    }

    pub(crate) fn instant_of(&self, moment: Moment) -> Instant {
        match &self.0 {
            Some(shard) => shard.instant_of(moment),
            None => Shift::NONE.instant(moment),
        }
    }

    /// Moves to the shard of the current thread, before a timer is registered. A timer belongs where its task is polled, not
    /// where it was created. Otherwise an acceptor, which creates the timers of all connections, would have all of them in its
    /// shard.
    #[inline]
    pub(super) fn follow_thread(&mut self) {
        let number = shard_number() & self.mask;
        if number != self.number {
            self.move_to(number);
        }
    }

    #[cold]
    fn move_to(&mut self, number: usize) {
        let cached = take_cached();
        let fits = |cached: &Arc<Shard>| cached.number == number && cached.is_sibling_of(self);
        let (there, cached) = match cached {
            Some(cached) if fits(&cached) => (Some(cached), None),
            cached => (self.driver.sibling(number), cached),
        };
        if let Some(there) = there {
            self.0 = Some(there);
        }
        cached.into_iter().for_each(keep);
    }
}

/// Records that a current-thread runtime was used on this thread. From now on, a task that is polled in the context of a multi-thread
/// runtime may belong to the other, and have entered this one for a call.
pub(crate) fn visited_by_other_runtime() {
    let _ = LOCAL.try_with(|local| local.is_visited.set(true));
}

#[inline]
fn take_cached() -> Option<Arc<Shard>> {
    LOCAL.try_with(|local| local.cached.take()).ok().flatten()
}

/// Keeps a reference for the next future of this thread.
#[inline(never)]
fn keep(reference: Arc<Shard>) {
    // Under loom, a shard must not outlive its model.
    if MODELLED {
        return;
    }
    let former = LOCAL.try_with(|local| local.cached.replace(Some(reference)));
    // The former reference is dropped here, when the cell is no longer borrowed.
    if let Ok(Some(former)) = former {
        release(former);
    }
}

/// Out of line, because a thread rarely holds more than one reference that nothing uses.
#[cold]
#[inline(never)]
fn release(_: Arc<Shard>) {}

impl Shard {
    /// Returns whether both are of one wheel.
    #[inline]
    fn is_sibling_of(&self, other: &Shard) -> bool {
        ptr::addr_eq(&*self.driver, &*other.driver)
    }
}

impl Drop for ShardRef {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(shard) = self.0.take() {
            keep(shard);
        }
    }
}

impl Deref for ShardRef {
    type Target = Arc<Shard>;

    #[inline]
    fn deref(&self) -> &Arc<Shard> {
        self.0.as_ref().expect("a future is bound by its first poll")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The test runs on a thread of its own, which has a number of its own.
    #[test]
    fn a_thread_moves_on_after_so_many_contentions_that_were_not_long_ago() {
        let moves = |ticks: &[u64]| {
            let before = shard_number();
            ticks.iter().for_each(|tick| contended(Tick(*tick)));
            shard_number().wrapping_sub(before)
        };
        let contentions = CONTENTIONS as u64;
        let moved = std::thread::spawn(move || {
            let few: Vec<_> = (1..contentions).collect();
            let after = contentions + FORGOTTEN_AFTER;
            let again: Vec<_> = (after..after + contentions - 1).collect();
            [moves(&few), moves(&again), moves(&[after + contentions])]
        });
        assert_eq!(moved.join().unwrap(), [0, 0, 1]);
    }
}
