//! `Thread`: the state that a thread keeps, which is its spares, its shards, and the runtime whose worker it
//! is.
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
    task::{Poll, Waker},
};

use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::{
    clock::Moment,
    number,
    registry::engine_for,
    shard::{Claim, OnLeave, Shard},
    shared::{WheelId, WheelRef},
    spare::{Spares, fits},
    sync::{Arc, thread_local},
    test_clock::may_be_paused,
    waker_id::WakerId,
};

/// The number of wheels of which a thread remembers its shard. A further wheel shares the place of one of
/// these, and timers that alternate between two such wheels take the lock of all engines.
const WHEELS: usize = 16;

/// The shard of this thread that it remembers, or else the runtime in which to look it up, if that is known, and
/// the number of the thread there.
type OwnShard = Result<Arc<Shard>, (Option<Id>, usize)>;

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
    pub(crate) spares: Spares,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            worker: Cell::new(None),
            learning: Cell::new(Weak::new()),
            unlearnt: Cell::new(0),
            own_shards: [const { RefCell::new(Weak::new()) }; WHEELS],
            spares: Spares::new(),
        }
    };
}

/// Calls `act` with the state of this thread, or returns `None` if the thread's locals have been destroyed.
#[inline(always)]
pub(crate) fn with<R>(act: impl FnOnce(&Thread) -> R) -> Option<R> {
    THREAD.try_with(act).ok()
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

/// Asks Tokio for the runtime that the caller is in.
#[inline]
fn current_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// Returns whether the caller is in `runtime`. This is out of line, because few wheels have a runtime.
#[cold]
fn is_current(runtime: Id) -> bool {
    current_runtime() == Some(runtime)
}

/// Gives a spare of this thread to a timer of `wheel` for the task of `waker`, which waits in its place. `now` is
/// a moment that has passed. Returns whether there was one.
#[inline]
pub(crate) fn take_spare(
    wheel: WheelId,
    waker: &Waker,
    deadline: Moment,
    now: Moment,
    give: impl FnOnce(Claim),
) -> bool {
    let taken = with(|thread| {
        // The runtime is compared last, because Tokio may have to be asked for it, and by a count that all
        // workers share.
        let fits =
            |spare: &Claim| fits(spare, waker, wheel, deadline, now) && thread.is_in(spare.shard.runtime);
        thread.spares.take(fits, give)
    });
    taken == Some(true)
}

/// Finds the shard in which a timer of a wheel starts that `task` polls, if it can ([`engine_for`]), and tells what
/// becomes of the entry when the timer is dropped.
///
/// # Panics
///
/// Panics with Tokio's message outside a runtime, and in one whose timers have ended.
#[inline]
#[track_caller]
pub(crate) fn bind(wheel: &WheelRef, task: WakerId) -> Option<(Arc<Shard>, OnLeave)> {
    match with(|thread| thread.bind(wheel, None, task)) {
        Some((Ok(shard), on_leave)) => Some((shard, on_leave)),
        // Not in the closure, because a panic there would not name the caller.
        Some((Err((runtime, number)), on_leave)) => Some((look_up(wheel, runtime, number)?, on_leave)),
        None => Some((engine_for(wheel, None)?.shard(0), OnLeave::Cancel)),
    }
}

/// Finds the shard in which a timer of a wheel starts whose waker is not that of a task, if it can. `runtime` is
/// the caller's, if that is known.
///
/// # Panics
///
/// Panics with Tokio's message outside a runtime, and in one whose timers have ended.
#[track_caller]
pub(crate) fn bind_in(wheel: &WheelRef, runtime: Option<Id>) -> Option<Arc<Shard>> {
    match with(|thread| thread.bind(wheel, runtime, WakerId::UNKNOWN).0) {
        Some(Ok(shard)) => Some(shard),
        Some(Err((runtime, number))) => look_up(wheel, runtime, number),
        None => Some(engine_for(wheel, runtime)?.shard(0)),
    }
}

/// Looks up this thread's shard of a wheel. This takes the lock of all engines, and may begin an engine.
#[cold]
#[track_caller]
fn look_up(wheel: &WheelRef, runtime: Option<Id>, number: usize) -> Option<Arc<Shard>> {
    let found = engine_for(wheel, runtime)?.shard(number);
    with(|thread| {
        if Some(found.runtime) != runtime {
            // The runtime that this thread knew has ended, and the thread works for another one.
            thread.worker.set(None);
        }
        thread.remember(&found);
    });
    Some(found)
}

/// Returns the index of a wheel in `own_shards`. The shard there may be another wheel's.
fn place(wheel: WheelId) -> usize {
    wheel.0 as usize % WHEELS
}

impl Thread {
    /// Returns the runtime that this thread has learnt, and its index there, if that holds for the poll of one of
    /// Tokio's tasks.
    #[inline]
    fn learnt(&self) -> Option<(Id, usize)> {
        let learnt = self.worker.get()?;
        // The index is all that Tokio tells without a count that all workers share.
        // A task that has entered another runtime is mistaken for the worker's own, as described above.
        let holds = worker_index() == Some(learnt.1) && !may_be_paused();
        holds.then_some(learnt)
    }

    /// Returns whether the caller, which polls one of Tokio's tasks, is in `runtime`.
    #[inline]
    fn is_in(&self, runtime: Id) -> bool {
        match self.learnt() {
            Some((learnt, _)) => learnt == runtime,
            None => current_runtime() == Some(runtime),
        }
    }

    /// Spawns a task from which the worker that runs it, preferably this thread, learns its runtime and
    /// index. A thread has one such task at a time.
    #[cold]
    fn learn_worker(&self) {
        let Ok(handle) = Handle::try_current() else { return };
        let id = handle.id();
        // One at a time, because the task may wait for long in a queue.
        let former = self.learning.take();
        if former.strong_count() > 0 || handle.runtime_flavor() != RuntimeFlavor::MultiThread {
            return self.learning.set(former);
        }
        let under_way = std::sync::Arc::new(());
        self.learning.set(std::sync::Arc::downgrade(&under_way));
        // Spawned here, it is most likely to run here. Wherever it runs, it teaches that thread the truth.
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

    /// Returns the index of this thread if it is a worker which has not learnt that, and makes it learn it.
    /// Only Tokio's tasks make use of this, and worker 0 cannot be learnt.
    fn unlearnt_index(&self, task: WakerId) -> Option<usize> {
        let index = worker_index();
        if index.is_some_and(|index| index > 0) && task.is_task() {
            let unlearnt = self.unlearnt.get().wrapping_add(1);
            self.unlearnt.set(unlearnt);
            // Tried less and less often while it fails, because a task that polls all of its timers within
            // another runtime would keep that runtime busy and teach this thread nothing.
            if unlearnt.is_power_of_two() {
                self.learn_worker();
            }
        }
        index
    }

    /// Returns this thread's shard of a wheel, in the runtime that was given to the builder or else in `here`, the
    /// caller's, and what becomes of an entry there when its timer is dropped.
    // Out of line, it takes 8 instructions more of each timer that finds no spare.
    #[inline(always)]
    fn bind(&self, wheel: &WheelRef, here: Option<Id>, task: WakerId) -> (OwnShard, OnLeave) {
        let given = wheel.builder_runtime();
        // Asked at each start: a thread may be lent to another runtime from one poll to the next.
        let learnt = if task.is_task() { self.learnt() } else { None };
        let here = here.or(learnt.map(|(runtime, _)| runtime));
        let runtime = given.or(here).or_else(current_runtime);
        let number = || {
            let index = learnt
                .map(|(_, index)| index)
                .or_else(|| self.unlearnt_index(task));
            // Of the workers of another runtime, the index means nothing there.
            let index = index.filter(|_| given.is_none_or(is_current));
            index.unwrap_or_else(number::get)
        };
        // Of a wheel that was given a runtime, a spare could keep what a task of another runtime holds.
        let on_leave = if given.is_none() && self.spares.repeats(task) {
            OnLeave::Keep
        } else {
            OnLeave::Cancel
        };
        let own = self.own_shards[place(wheel.id())].borrow().upgrade();
        let shard = match own {
            // Checked, because two wheels may share the place, and the shard may have ended, or be that of the
            // runtime that this thread left.
            Some(own) if own.wheel.id() == wheel.id() && own.serves(runtime, number) => Ok(own),
            _ => Err((runtime, number())),
        };
        (shard, on_leave)
    }

    /// Remembers a shard as this thread's.
    pub(crate) fn remember(&self, shard: &Arc<Shard>) {
        self.own_shards[place(shard.wheel.id())].replace(Arc::downgrade(shard));
    }
}
