//! What a thread keeps: the spare, its shards, and the runtime whose worker it is.
//!
//! **The spare** is the entry of the timer that the thread cancelled last. The next timer of the same task
//! takes it over, without a lock and without a clone of the waker, which is what most timeouts of a busy task
//! do. What a spare must not do:
//!
//! - *Own anything but a task's memory.* So it is kept only if the timer was bound to its engine by one of
//!   Tokio's tasks, if no other task has polled it since, and if the entry was due in about a minute at most.
//!   Other executors' wakers may own their futures, and a task of another runtime keeps that runtime's
//!   descriptors open, which is why a wheel that was given a runtime has no spares. One case cannot be told
//!   apart: a task that starts timers within the `enter` of another runtime.
//! - *Keep a task waking itself.* A task that starts and drops a timer at each poll would be woken by its own
//!   spare for ever. Once a spare has expired unclaimed, the next [`WARY`] timers of its task are not kept,
//!   nor are any until the driver has visited its shard again, because the task may drop more of them in the
//!   poll for which the spare has woken it.
//!
//! **Which runtime.** To ask Tokio changes a reference count that all workers share, and a worker's index is
//! no identity: a current-thread runtime has worker 0 wherever it is nested, `enter` and a nested `block_on`
//! do not change the index, and threads change their roles after `block_in_place`. But the threads of a
//! multi-thread runtime hardly ever work for another. So once a task of our own, which nothing else polls,
//! has run on a thread as worker n > 0 of a runtime, the thread is taken to be in this runtime whenever it
//! polls one of Tokio's tasks as worker n. In all other cases it asks Tokio. Three kinds of tasks are in
//! another runtime and are mistaken for the worker's: one that has entered it, one of a `LocalSet` in a
//! `block_on` of another multi-thread runtime that is nested there, and one on a thread that another runtime
//! has lent: a task that calls `block_in_place` within the `enter` of a second runtime moves its worker to a
//! thread of that one's pool, which later may be worker n of the second runtime. Their timers wait on the
//! runtime that the thread knows, until that ends. Its clock is the same, because a thread asks where a test
//! may have paused the clock.

use std::{
    cell::{Cell, OnceCell, RefCell},
    future::poll_fn,
    ptr,
    sync::Weak,
    task::Poll,
};

use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::{
    clock::{Moment, may_be_paused},
    counts::SpareCounts,
    engines::engine_for,
    number,
    shard::{Kind, Shard, SpareEntry, TimerShard, kind_of, shared_of},
    sync::{Arc, thread_local},
    waker_id::WakerId,
};

/// Once a spare has expired unclaimed, so many of the next timers of its task leave no spare. The number is
/// greater than that of the timers which a task starts in one poll, but not by much, so that a task which has
/// been idle once is soon fast again.
const WARY: u32 = 64;

/// The number of kinds of which a thread remembers shards: two for each of sixteen wheels. A further wheel
/// takes the places of one of these, and timers of two that share places take the lock of all engines in
/// turn.
const KINDS: usize = 32;

/// A task whose spare expired unclaimed, so that its timers leave none for a while.
#[derive(Clone, Copy)]
struct Wary {
    task: WakerId,
    /// How many more timers leave none.
    left: u32,
    /// The horizon at which the spare was found. Until it has moved, no timer leaves one, because the task
    /// may be in the poll for which the spare woke it.
    horizon: Moment,
}

/// The entry of a cancelled timer, with the task that its waker wakes.
pub(crate) struct Spare {
    pub(crate) shard: Arc<Shard>,
    pub(crate) entry: SpareEntry,
    pub(crate) task: WakerId,
}

impl Spare {
    /// Cancels the entry. Returns its shard.
    pub(crate) fn cancel(self) -> Arc<Shard> {
        self.shard.cancel_spare(self.entry);
        self.shard
    }
}

pub(crate) struct Thread {
    /// The runtime of this thread and its index as a worker there, which is not 0. It holds only while Tokio
    /// reports the same index.
    worker: Cell<Option<(Id, usize)>>,
    /// Held by the task from which this thread is to learn that it is a worker.
    learning: Cell<Weak<()>>,
    /// How many timers that could use the answer have been bound without it.
    unlearnt: Cell<u32>,
    /// The shards of the timers that ended here last. They are handed from one timer to the next, because to
    /// clone and drop an `Arc` would be most of the cost of a timeout around a ready future.
    last_shards: [Cell<Option<Arc<Shard>>>; KINDS],
    /// The shards that this thread looked up last, because to look one up takes the lock of all engines. They
    /// stand in for `last_shards`: a timer that is not polled yet may have taken a shard from there, and one
    /// that has come from another thread may have left its own there. They are weak, so that they keep no
    /// runtime's descriptors open.
    own_shards: [Cell<Weak<Shard>>; KINDS],
    spare: RefCell<Option<Spare>>,
    /// The task that cancelled a long timer here last. Those of tasks that take turns leave no spares,
    /// because most of these tasks wait.
    last_long: Cell<WakerId>,
    /// The counts of this thread's spares, which other threads read.
    counts: OnceCell<Arc<SpareCounts>>,
    /// The shard whose spares `counts` counts.
    counted_shard: Cell<*const Shard>,
    /// The task whose spare expired unclaimed, and which of its timers are therefore not kept.
    wary: Cell<Wary>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            worker: Cell::new(None),
            learning: Cell::new(Weak::new()),
            unlearnt: Cell::new(0),
            last_shards: [const { Cell::new(None) }; KINDS],
            own_shards: [const { Cell::new(Weak::new()) }; KINDS],
            spare: RefCell::new(None),
            last_long: Cell::new(WakerId::UNKNOWN),
            counts: OnceCell::new(),
            counted_shard: Cell::new(ptr::null()),
            wary: Cell::new(Wary { task: WakerId::UNKNOWN, left: 0, horizon: Moment::ZERO }),
        }
    };
}

/// Calls `act` with what this thread keeps, or returns `None` if the thread's locals have been destroyed.
#[inline]
pub(crate) fn with<R>(act: impl FnOnce(&Thread) -> R) -> Option<R> {
    THREAD.try_with(act).ok()
}

/// Returns the index of this thread as a worker, if it is one. Tokio has a function for that from 1.54 on,
/// which the glob import finds if it is there. Otherwise this returns `None`.
#[allow(dead_code, unused_imports, reason = "for Tokio before 1.54")]
pub(super) fn worker_index() -> Option<usize> {
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

/// Binds a timer whose thread's locals have been destroyed, as in the destructor of another one.
///
/// # Panics
///
/// Panics as [`Thread::bind`] does.
#[cold]
#[track_caller]
pub(crate) fn bind_without_locals(shard: &mut TimerShard) -> Option<SpareEntry> {
    *shard = Some(engine_for(shared_of(shard), None).shard(0, kind_of(shard)));
    None
}

/// Returns the place of a kind in what a thread remembers. It may hold something of another wheel.
pub(super) fn place(kind: Kind) -> usize {
    kind.0 as usize % KINDS
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.spare.take().map(Spare::cancel);
        if let Some(counts) = self.counts.get() {
            counts.retire();
        }
    }
}

impl Thread {
    /// Returns the worker as which this thread knows itself.
    #[cfg(all(test, not(loom)))]
    pub(super) fn known_worker(&self) -> Option<(Id, usize)> {
        self.worker.get()
    }

    /// Returns the deadline of the spare that this thread keeps.
    #[cfg(all(test, not(loom)))]
    pub(super) fn spare_deadline(&self) -> Option<Moment> {
        self.spare.borrow().as_ref().map(|spare| spare.entry.deadline)
    }

    /// Returns the runtime that the caller is in, if any. `index` returns the index of the worker if this
    /// thread is one, and `task` is being polled.
    #[inline]
    fn find_runtime(&self, index: impl Fn() -> Option<usize>, task: WakerId) -> Option<Id> {
        match self.worker.get() {
            // A task that has entered another runtime is mistaken here, as said above.
            Some((runtime, known)) if index() == Some(known) && task.is_task() && !may_be_paused() => {
                Some(runtime)
            }
            _ => Handle::try_current().ok().map(|runtime| runtime.id()),
        }
    }

    /// Spawns a task from which a worker of the runtime, preferably this thread, learns that it is one. A
    /// thread has one such task at a time.
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

    /// Learns that this thread is worker `index` of the runtime `here`, unless it knows. That serves only
    /// Tokio's tasks, and nothing can be learnt of worker 0.
    #[inline]
    fn learn_if_unknown(&self, here: Option<Id>, index: Option<usize>, task: WakerId) {
        let may_learn = index.is_some_and(|index| index > 0) && task.is_task();
        if may_learn && self.worker.get() != here.zip(index) {
            let unlearnt = self.unlearnt.get().wrapping_add(1);
            self.unlearnt.set(unlearnt);
            // Less and less often while it fails: a task that polls all of its timers within another runtime
            // would keep that one busy, and teach this thread nothing.
            if unlearnt.is_power_of_two() {
                self.learn_worker();
            }
        }
    }

    /// Binds a timer to this thread's shard in the runtime that was given to the builder or, without one,
    /// that the caller is in. `shard` stands for the timer's kind, and is that shard afterwards. Returns the
    /// thread's spare if that is there too, so that one lock ends it and starts the timer.
    ///
    /// # Panics
    ///
    /// Panics in Tokio's words outside a runtime, and in one whose timers have ended. What was passed is then
    /// as it was.
    #[inline]
    #[track_caller]
    pub(crate) fn bind(&self, shard: &mut TimerShard, task: WakerId) -> Option<SpareEntry> {
        let kind = kind_of(shard);
        let index = worker_index();
        let here = self.find_runtime(|| index, task);
        self.learn_if_unknown(here, index, task);
        let builder_runtime = shard.as_ref().and_then(|shard| shard.builder_runtime());
        let runtime = builder_runtime.or(here);
        let index = index.filter(|_| here == runtime);
        let number = index.unwrap_or_else(number::get);
        let serves = |shard: &Arc<Shard>| runtime.is_some_and(|runtime| shard.serves(kind, runtime, number));
        let last = &self.last_shards[place(kind)];
        if let Some(spare) = self.take_spare_if(|spare| spare.shard.kind == kind) {
            self.note_if_unclaimed(&spare);
            self.set_spare_deadline(Moment::ZERO);
            if serves(&spare.shard) {
                if let Some(former) = shard.replace(spare.shard) {
                    // It stood for the kind, and can be kept here.
                    last.set(last.take().or(Some(former)));
                }
                return Some(spare.entry);
            }
            // It was started on another thread. Its entry could hold up the memory of a burst there, which a
            // shard frees when its last entry goes.
            drop(spare.cancel());
        }
        if !shard.as_ref().is_some_and(serves) {
            let known = last
                .take()
                .filter(serves)
                .or_else(|| self.own_shard(kind).filter(serves));
            *shard = known.or_else(|| {
                let found = engine_for(shared_of(shard), runtime).shard(number, kind);
                if found.runtime != runtime {
                    // The runtime that this thread knew has ended, and the thread works for another one.
                    self.worker.set(None);
                }
                self.own_shards[place(kind)].set(Arc::downgrade(&found));
                Some(found)
            });
        }
        None
    }

    /// Takes out the spare, if there is one that `fits`.
    #[inline]
    pub(crate) fn take_spare_if(&self, fits: impl FnOnce(&Spare) -> bool) -> Option<Spare> {
        self.spare.borrow_mut().take_if(|spare| fits(spare))
    }

    /// Returns whether a spare's shard serves a timer that is polled here and for whose kind `shard` stands:
    /// it is of that kind and of the caller's runtime. A wheel whose builder was given a runtime has no
    /// spares.
    #[inline]
    pub(crate) fn spare_serves(&self, spare: &Spare, shard: &TimerShard) -> bool {
        spare.shard.kind == kind_of(shard)
            && spare.shard.runtime == self.find_runtime(worker_index, spare.task)
    }

    /// Returns whether a task that cancels a long timer here has use for the entry: if it cancelled the last
    /// long timer too, and has no spare. One that cancels many timers at once has a spare from the second on.
    pub(crate) fn has_use_for_long(&self, task: WakerId) -> bool {
        let has_spare = |spare: &Spare| spare.task == task;
        self.last_long.get() == task && !self.spare.borrow().as_ref().is_some_and(has_spare)
    }

    /// Notes that a task cancels a long timer here.
    pub(crate) fn note_long(&self, task: WakerId) {
        self.last_long.set(task);
    }

    /// Counts a spare that has been taken over.
    pub(crate) fn count_take_over(&self) {
        if let Some(counts) = self.counts.get() {
            counts.count_take_over();
        }
    }

    /// Takes out the shard of the timer that ended here last, of those of a kind.
    #[inline]
    pub(crate) fn take_shard(&self, kind: Kind) -> Option<Arc<Shard>> {
        let last = self.last_shards[place(kind)].take();
        last.filter(|shard| shard.kind == kind)
    }

    /// Returns the shard that this thread looked up last for timers of a kind, if it is still there.
    #[inline]
    pub(crate) fn own_shard(&self, kind: Kind) -> Option<Arc<Shard>> {
        let own = &self.own_shards[place(kind)];
        let shard = own.take();
        let upgraded = shard.upgrade();
        own.set(shard);
        upgraded.filter(|shard| shard.kind == kind)
    }

    /// Remembers the shard of a timer that is gone, unless that would keep a runtime's descriptors open.
    #[inline]
    pub(crate) fn return_shard(&self, shard: Arc<Shard>) {
        if !shard.has_builder_runtime {
            drop(self.last_shards[place(shard.kind)].replace(Some(shard)));
        }
    }

    /// Keeps the entry of a timer that is cancelled, in place of another one.
    #[inline]
    pub(crate) fn keep(&self, spare: Spare) {
        let wary = self.wary.get();
        if wary.task == spare.task && (wary.left > 0 || spare.shard.horizon() <= wary.horizon) {
            let left = wary.left.saturating_sub(1);
            self.wary.set(Wary { left, ..wary });
            return self.return_shard(spare.cancel());
        }
        if spare.shard.shared.has_no_handle() {
            // It may be the last timer for which the engine is there.
            return self.return_shard(spare.cancel());
        }
        if self.counted_shard.get() != Arc::as_ptr(&spare.shard) {
            self.count_spares_of(&spare.shard);
        }
        self.set_spare_deadline(spare.entry.deadline);
        if let Some(former) = self.spare.replace(Some(spare)) {
            self.note_if_unclaimed(&former);
            // The next timer has the shard of the new spare.
            drop(former.cancel());
        }
    }

    #[cold]
    fn count_spares_of(&self, shard: &Arc<Shard>) {
        self.counted_shard.set(Arc::as_ptr(shard));
        self.counts
            .get_or_init(SpareCounts::new)
            .switch_to(Some(shard.clone()));
    }

    fn set_spare_deadline(&self, deadline: Moment) {
        if let Some(counts) = self.counts.get() {
            counts.set_spare_deadline(deadline);
        }
    }

    /// Keeps no spares of a task for a while, if this one has expired unclaimed.
    fn note_if_unclaimed(&self, spare: &Spare) {
        let horizon = spare.shard.horizon();
        if spare.entry.deadline <= horizon && horizon != Moment::NEVER {
            self.wary.set(Wary {
                task: spare.task,
                left: WARY,
                horizon,
            });
        }
    }
}
