//! `Thread`: the state that a thread keeps, which is the spare, its shards, and the runtime whose worker it
//! is.
//!
//! **The spare** is the entry of the timer that the thread cancelled last. The next timer of the same task
//! takes it over without taking a lock or cloning the waker. Most timeouts of a busy task start this way. A
//! spare must not:
//!
//! - *Own anything but a task's memory.* An entry is therefore kept only if one of Tokio's tasks bound its
//!   timer to the engine and no other task has polled the timer since. Other executors' wakers may own their
//!   futures, and a task of another runtime keeps that runtime's descriptors open, which is why a wheel that
//!   was given a runtime has no spares. One case goes undetected: a task that starts timers within the
//!   `enter` of another runtime.
//! - *Be left by a task that starts a single timer.* An entry is kept only if the task had cancelled the
//!   previous timer here, too. So a task per request leaves nothing behind.
//! - *Be counted as pending.* A shard has at most one spare, whose deadline it knows.
//! - *Keep a task waking itself.* A task that starts and drops a timer in each poll would be woken by its own
//!   spare forever. Once a spare has expired unclaimed, the entries of the task's next [`WARY`] timers are
//!   not kept. If that happens again while the task is awake because of the spare, the number doubles, until
//!   it is greater than that of the timers that the task drops in one poll.
//!
//! **Which runtime.** Asking Tokio for the current runtime changes a reference count that all workers share,
//! and the index of a worker does not identify its runtime: a current-thread runtime has worker 0 wherever it
//! is nested, `enter` and a nested `block_on` do not change the index, and threads change roles after
//! `block_in_place`. But a thread of a multi-thread runtime hardly ever works for another one. So once a task
//! of our own, which nothing else polls, has run on a thread as worker n > 0 of a runtime, the thread is
//! assumed to be in this runtime whenever it polls one of Tokio's tasks as worker n. In all other cases it
//! asks Tokio. Three kinds of tasks are in another runtime and are mistaken for the worker's own: a task that
//! has entered another runtime, a task of a `LocalSet` in a nested `block_on` of another multi-thread
//! runtime, and a task on a thread that another runtime has lent. Such a loan begins when a task calls
//! `block_in_place` within the `enter` of a second runtime: its worker moves to a thread of the second
//! runtime's pool, which may later be worker n of the second runtime. The timers of these tasks wait on the
//! runtime that the thread knows, until that runtime ends. Both runtimes have the same clock, because a
//! thread asks Tokio wherever a test may have paused the clock.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    sync::Weak,
    task::Poll,
};

use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::{
    clock::Nanos,
    number,
    registry::engine_for,
    shard::{Shard, SpareEntry},
    shared::{WheelId, WheelRef},
    sync::{Arc, thread_local},
    test_clock::may_be_paused,
    waker_id::WakerId,
};

/// The number of a task's timers that leave no spare after one of its spares has expired unclaimed. It is
/// greater than the number of timers that most tasks start in one poll, but not by much, so that a task which
/// was idle once is soon fast again.
const WARY: u32 = 64;

/// A spare that was due less than this ago may have woken the task for the poll that finds it expired.
const JUST_NOW: Nanos = Nanos(100_000_000);

/// The number of wheels of which a thread remembers its shard. A further wheel shares the place of one of
/// these, and timers that alternate between two such wheels take the lock of all engines.
const WHEELS: usize = 16;

/// A task whose spare expired unclaimed, so that its timers leave none for a while.
#[derive(Clone, Copy)]
struct Wary {
    task: WakerId,
    /// How many of its timers leave no spare.
    timers: u32,
    /// How many of these are left.
    left: u32,
}

/// The entry of a cancelled timer, with the task that its waker wakes.
pub(crate) struct Spare {
    pub(crate) shard: Arc<Shard>,
    pub(crate) entry: SpareEntry,
    pub(crate) task: WakerId,
}

pub(crate) struct Thread {
    /// The runtime whose worker this thread is, and its index there, which is not 0. This is valid only while
    /// Tokio reports the same index.
    worker: Cell<Option<(Id, usize)>>,
    /// Alive until the task from which this thread learns that it is a worker has run.
    learning: Cell<Weak<()>>,
    /// How many timers have been bound while the worker was unknown, although they could have used it.
    unlearnt: Cell<u32>,
    /// The shards that this thread looked up last, because a lookup takes the lock of all engines. They are
    /// weak so that they keep no runtime's descriptors open.
    own_shards: [RefCell<Weak<Shard>>; WHEELS],
    spare: Cell<Option<Spare>>,
    /// The task that cancelled a timer here last.
    last: Cell<WakerId>,
    /// The task whose spare last expired unclaimed, and which of its timers leave none because of that.
    wary: Cell<Wary>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            worker: Cell::new(None),
            learning: Cell::new(Weak::new()),
            unlearnt: Cell::new(0),
            own_shards: [const { RefCell::new(Weak::new()) }; WHEELS],
            spare: Cell::new(None),
            last: Cell::new(WakerId::UNKNOWN),
            wary: Cell::new(Wary { task: WakerId::UNKNOWN, timers: 0, left: 0 }),
        }
    };
}

/// Calls `act` with the state of this thread, or returns `None` if the thread's locals have been destroyed.
#[inline(always)]
pub(crate) fn with<R>(act: impl FnOnce(&Thread) -> R) -> Option<R> {
    THREAD.try_with(act).ok()
}

/// Keeps the entry of a cancelled timer as this thread's spare, or else cancels it.
#[inline]
pub(crate) fn keep(spare: Spare) {
    let kept = with(|thread| thread.makes_room_for(&spare));
    if kept == Some(true) {
        with(|thread| thread.spare.set(Some(spare)));
    } else {
        drop(spare.shard.cancel(spare.entry.key, spare.entry.deadline));
    }
}

/// Takes out this thread's spare.
#[inline]
pub(crate) fn take_spare() -> Option<Spare> {
    with(|thread| thread.spare.take()).flatten()
}

/// Puts back a spare that does not fit.
pub(crate) fn put_back(spare: Spare) {
    with(|thread| thread.spare.set(Some(spare)));
}

/// Returns whether the caller, which polls `task`, is in `runtime`.
#[inline]
pub(crate) fn is_in(runtime: Id, task: WakerId) -> bool {
    with(|thread| thread.find_runtime(worker_index, task)).flatten() == Some(runtime)
}

/// Returns the index of this thread if it is a worker. Tokio has a function for this from 1.54 on, which the
/// glob import finds if it exists. With an older Tokio, this returns `None`.
#[allow(dead_code, unused_imports, reason = "for Tokio before 1.54")]
fn worker_index() -> Option<usize> {
    mod otherwise {
        pub(super) fn worker_index() -> Option<usize> {
            None
        }
    }
    use otherwise::*;
    {
        use tokio::runtime::*;
        worker_index()
    }
}

/// Finds the shard in which a timer of a wheel starts here, and tells whether `task` has cancelled the last
/// timer here, too. Only then does the timer leave a spare, because a task that starts a single timer has no
/// use for one.
///
/// # Panics
///
/// Panics with Tokio's message outside a runtime, and in one whose timers have ended.
#[inline]
#[track_caller]
pub(crate) fn bind(wheel: &WheelRef, task: WakerId) -> (Arc<Shard>, bool) {
    match with(|thread| (thread.bind(wheel, task), thread.last.get() == task)) {
        Some((Ok(shard), repeats)) => (shard, repeats),
        // Not in the closure, because a panic there would not name the caller.
        Some((Err((runtime, number)), repeats)) => (look_up(wheel, runtime, number), repeats),
        None => (engine_for(wheel, None).shard(0), false),
    }
}

/// Looks up this thread's shard of a wheel. This takes the lock of all engines, and may begin an engine.
#[cold]
#[track_caller]
fn look_up(wheel: &WheelRef, runtime: Option<Id>, number: usize) -> Arc<Shard> {
    let found = engine_for(wheel, runtime).shard(number);
    with(|thread| {
        if Some(found.runtime) != runtime {
            // The runtime that this thread knew has ended, and the thread works for another one.
            thread.worker.set(None);
        }
        thread.remember(&found);
    });
    found
}

/// Finds the shard in which a timer of a wheel starts whose waker is not that of a task. `runtime` is the
/// caller's, if that is known.
///
/// # Panics
///
/// Panics with Tokio's message outside a runtime, and in one whose timers have ended.
#[track_caller]
pub(crate) fn bind_in(wheel: &WheelRef, runtime: Option<Id>) -> Arc<Shard> {
    let bound = with(|thread| {
        let (runtime, index) = match runtime {
            Some(_) if wheel.builder_runtime().is_none() => (runtime, worker_index()),
            _ => thread.find_place(wheel, WakerId::UNKNOWN),
        };
        thread.shard_in(wheel, runtime, index)
    });
    match bound {
        Some(Ok(shard)) => shard,
        Some(Err((runtime, number))) => look_up(wheel, runtime, number),
        None => engine_for(wheel, runtime).shard(0),
    }
}

/// Returns the index of a wheel in `own_shards`. The shard there may be another wheel's.
fn place(wheel: WheelId) -> usize {
    wheel.0 as usize % WHEELS
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(spare) = self.spare.take() {
            spare.shard.cancel_spare(spare.entry);
        }
    }
}

impl Thread {
    /// Returns the runtime that the caller is in, if any. `index` returns the worker index of this thread if
    /// it is a worker, and `task` is the task being polled.
    #[inline]
    fn find_runtime(&self, index: impl Fn() -> Option<usize>, task: WakerId) -> Option<Id> {
        match self.worker.get() {
            // A task that has entered another runtime is mistaken for the worker's own, as described above.
            Some((runtime, known)) if index() == Some(known) && task.is_task() && !may_be_paused() => {
                Some(runtime)
            }
            _ => Handle::try_current().ok().map(|runtime| runtime.id()),
        }
    }

    /// Spawns a task from which the worker that runs it, preferably this thread, learns its runtime and
    /// index. A thread has one such task at a time.
    #[cold]
    fn learn_worker(&self) {
        let Ok(handle) = Handle::try_current() else { return };
        let id = handle.id();
        let former = self.learning.take();
        if former.strong_count() > 0 || handle.runtime_flavor() != RuntimeFlavor::MultiThread {
            return self.learning.set(former);
        }
        let under_way = std::sync::Arc::new(());
        self.learning.set(std::sync::Arc::downgrade(&under_way));
        handle.spawn(async move {
            poll_fn(|cx| {
                WakerId::learn_task(cx.waker());
                Poll::Ready(())
            })
            .await;
            if let Some(index) = worker_index().filter(|index| *index > 0) {
                with(|thread| {
                    thread.worker.set(Some((id, index)));
                    thread.unlearnt.set(0);
                });
            }
            drop(under_way);
        });
    }

    /// Learns that this thread is worker `index` of the runtime `here`, unless it knows already. Only Tokio's
    /// tasks make use of this, and worker 0 cannot be learnt.
    #[inline]
    fn learn_if_unknown(&self, here: Option<Id>, index: Option<usize>, task: WakerId) {
        let may_learn = index.is_some_and(|index| index > 0) && task.is_task();
        if may_learn && self.worker.get() != here.zip(index) {
            let unlearnt = self.unlearnt.get().wrapping_add(1);
            self.unlearnt.set(unlearnt);
            // Tried less and less often while it fails, because a task that polls all of its timers within
            // another runtime would keep that runtime busy and teach this thread nothing.
            if unlearnt.is_power_of_two() {
                self.learn_worker();
            }
        }
    }

    /// Returns this thread's shard of a wheel in the runtime given to the builder or, if none was given, in the
    /// caller's, as [`Thread::shard_in`] does.
    #[inline]
    fn bind(&self, wheel: &WheelRef, task: WakerId) -> Result<Arc<Shard>, (Option<Id>, usize)> {
        let (runtime, index) = self.find_place(wheel, task);
        self.shard_in(wheel, runtime, index)
    }

    /// Returns the runtime given to the builder or, if none was given, the caller's, and which of its workers this
    /// thread is, if it is one.
    #[inline]
    fn find_place(&self, wheel: &WheelRef, task: WakerId) -> (Option<Id>, Option<usize>) {
        let index = worker_index();
        let given = wheel.builder_runtime();
        if given.is_some() && index.is_none() {
            return (given, None);
        }
        let here = self.find_runtime(|| index, task);
        self.learn_if_unknown(here, index, task);
        match given {
            // Of the workers of another runtime, the index means nothing there.
            Some(given) => (Some(given), index.filter(|_| here == Some(given))),
            None => (here, index),
        }
    }

    /// Returns this thread's shard of a wheel in `runtime`, of which it is worker `index`, if it is one. If the
    /// thread does not remember the shard, returns the runtime and the thread's number there.
    #[inline]
    fn shard_in(
        &self,
        wheel: &WheelRef,
        runtime: Option<Id>,
        index: Option<usize>,
    ) -> Result<Arc<Shard>, (Option<Id>, usize)> {
        let number = index.unwrap_or_else(number::get);
        match self.own_shard(wheel.id()) {
            Some(own) if own.serves(runtime, number) => Ok(own),
            _ => Err((runtime, number)),
        }
    }

    /// Remembers a shard as this thread's.
    pub(crate) fn remember(&self, shard: &Arc<Shard>) {
        self.own_shards[place(shard.wheel.id())].replace(Arc::downgrade(shard));
    }

    /// Records that a task cancels a timer here.
    #[inline]
    pub(crate) fn note_cancelled(&self, task: WakerId) {
        self.last.set(task);
    }

    /// Returns the shard of a wheel that this thread looked up last, if it still exists.
    #[inline]
    fn own_shard(&self, wheel: WheelId) -> Option<Arc<Shard>> {
        let own = self.own_shards[place(wheel)].borrow().upgrade();
        own.filter(|shard| shard.wheel.id() == wheel)
    }

    /// Gives up the spare for that of a timer which has just been cancelled. Returns whether that may be kept.
    #[inline]
    fn makes_room_for(&self, spare: &Spare) -> bool {
        let Spare { shard, entry, task } = spare;
        self.note_cancelled(*task);
        if let Some(former) = self.spare.take() {
            self.note_if_unclaimed(&former);
            former.shard.cancel_spare(former.entry);
        }
        // Without a handle of its wheel, this may be the last timer that keeps the engine alive.
        !self.is_wary_of(*task) && !shard.shared.has_no_handle() && shard.leave_spare(entry.deadline)
    }

    /// Returns whether a task's next timer leaves no spare, because one has expired unclaimed.
    fn is_wary_of(&self, task: WakerId) -> bool {
        let wary = self.wary.get();
        let is_wary = wary.task == task && wary.left > 0;
        if is_wary {
            let left = wary.left - 1;
            self.wary.set(Wary { left, ..wary });
        }
        is_wary
    }

    /// Stops keeping a task's spares for a while if this one has expired unclaimed.
    #[inline]
    fn note_if_unclaimed(&self, spare: &Spare) {
        if spare.entry.deadline <= spare.shard.horizon() && !spare.shard.has_ended() {
            self.be_wary_of(spare);
        }
    }

    #[cold]
    fn be_wary_of(&self, unclaimed: &Spare) {
        let (task, deadline) = (unclaimed.task, unclaimed.entry.deadline);
        let since = unclaimed.shard.clock.now().since(deadline);
        let last = Some(self.wary.get()).filter(|wary| wary.task == task && since < JUST_NOW);
        let timers = last.map_or(WARY, |wary| wary.timers.saturating_mul(2));
        let left = timers;
        self.wary.set(Wary { task, timers, left });
    }
}
