//! `Spares`: the entries of cancelled timers that a thread keeps for the next timers of their task.
//!
//! The next timer of the task takes a spare over without taking a lock or cloning the waker, which is how most
//! timeouts of a busy task start. There are two, because a request's timeout often goes around that of a call.
//! A spare must not:
//!
//! - *Own anything but a task's memory.* An entry is therefore kept only if one of Tokio's tasks bound its
//!   timer to the engine and no other task has polled the timer since. Other executors' wakers may own their
//!   futures, and a task of another runtime keeps that runtime's descriptors open, which is why a wheel that
//!   was given a runtime has no spares. One case goes undetected: a task that starts timers within the
//!   `enter` of another runtime. A thread keeps the spares of one task, and so the memory of one that ended.
//! - *Be left by a task that starts a single timer.* An entry is kept only if the task had cancelled the
//!   previous timer here, too. So a task per request leaves nothing behind, unless it lies at the address of
//!   the task before it, by which tasks are told apart: then the thread keeps the memory of that one task.
//! - *Be counted as pending.* A shard has as many spares as a thread at the most, whose deadlines it knows.
//! - *Keep a task waking itself.* A task that starts and drops a timer in each poll would be woken by its own
//!   spares forever. Once one has expired unused, the entries of the task's next [`WARY`] timers are not
//!   kept. If that happens again while the task is awake because of the spare, the number doubles, until it
//!   is greater than that of the timers that the task drops in one poll.

use std::{
    cell::{Cell, RefCell},
    mem,
    task::Waker,
};

use super::{
    clock::{Moment, Nanos},
    shard::{Claim, OnLeave},
    shared::WheelId,
    spare_counts::SPARES,
    waker_id::WakerId,
};

/// A timer takes over a spare only if the spare's remaining time is at least the timer's duration divided by
/// this. Otherwise the timer would soon have to be started again.
const TAKE_OVER_DIVISOR: u64 = 8;

/// The number of a task's timers that leave no spare after one of its spares has expired unused. It is
/// greater than the number of timers that most tasks start in one poll, but not by much, so that a task which
/// was idle once is soon fast again.
const WARY: u32 = 64;

/// A spare that was due less than this ago may have woken the task for the poll that finds it expired.
const JUST_NOW: Nanos = Nanos(100_000_000);

/// A task whose spare expired unused, so that its timers leave none for a while.
#[derive(Clone, Copy)]
struct Wary {
    task: WakerId,
    /// How many of its timers leave no spare.
    timers: u32,
    /// How many of these are left.
    left: u32,
}

pub(crate) struct Spares {
    /// All of one task. Each is counted by its shard under its index here.
    kept: RefCell<[Option<Claim>; SPARES]>,
    /// The one of Tokio's tasks that cancelled a timer here last.
    last: Cell<WakerId>,
    wary: Cell<Wary>,
}

impl Spares {
    pub(crate) const fn new() -> Spares {
        Spares {
            kept: RefCell::new([const { None }; SPARES]),
            last: Cell::new(WakerId::UNKNOWN),
            wary: Cell::new(Wary {
                task: WakerId::UNKNOWN,
                timers: 0,
                left: 0,
            }),
        }
    }

    /// Gives a spare that `fits` to a timer that waits in its place. Returns whether there was one.
    #[inline]
    pub(crate) fn take(&self, fits: impl Fn(&Claim) -> bool, give: impl FnOnce(Claim)) -> bool {
        // The first is mostly that of an inner timer, which ends before the outer one, and starts before it, too.
        for (index, kept) in self.kept.borrow_mut().iter_mut().enumerate() {
            let Some(spare) = kept.as_ref().filter(|spare| fits(spare)) else {
                continue;
            };
            spare.shard.spares.take_over(index, spare.due);
            kept.take().map(give);
            return true;
        }
        false
    }

    /// Takes the claim of a timer that its task cancels, one of Tokio's, if it is to be kept.
    #[inline]
    pub(crate) fn keep(&self, claim: &mut Option<Claim>) -> Option<()> {
        let cancelled = claim.as_ref()?;
        let (shard, due, task) = (&cancelled.shard, cancelled.due, cancelled.task);
        // From now on the task counts as one that starts a timer after the other.
        self.note_cancelled(task);
        if cancelled.on_leave == OnLeave::Cancel || cancelled.has_expired() {
            return None;
        }
        let mut kept = self.kept.borrow_mut();
        let mut index = 0;
        // Mostly, the timer itself has taken over the only spare.
        if kept.iter().any(Option::is_some) {
            drop(kept);
            index = self.free_index(due, task)?;
            kept = self.kept.borrow_mut();
            // What was given up may have freed a task, whose timers left a spare here.
            if kept[index].is_some() {
                return None;
            }
        }
        // The shard may have a spare of another thread in this place, or have expired the entry.
        if self.is_wary_of(task) || !shard.leave_spare(index, due) {
            return None;
        }
        // The timer may have been the last one of a wheel that nobody can use any more. Its engine ends with its
        // spares.
        let orphan = shard.shared.has_no_handle().then(|| shard.alarm.clone());
        // The place is empty, and to swap takes 4 instructions less than to store.
        mem::swap(&mut kept[index], claim);
        drop(kept);
        if let Some(alarm) = orphan {
            alarm.task_notify.notify_one();
        }
        Some(())
    }

    /// Returns the index for another spare of `task`, which is due at `due`, and gives up what has to go.
    #[inline(never)]
    fn free_index(&self, due: Moment, task: WakerId) -> Option<usize> {
        let must_go = |kept: &Claim| kept.task != task || kept.has_expired();
        if self.kept.borrow().iter().flatten().any(must_go) {
            // Both go: a task that has been idle for so long must not be woken by the other one, too.
            self.clear();
        }
        let mut kept = self.kept.borrow_mut();
        if let Some(free) = kept.iter().position(Option::is_none) {
            return Some(free);
        }
        // The one that is due last fits the fewest timers, so that one goes, or the new one.
        let due_at = |index: &usize| kept[*index].as_ref().map(|kept| kept.due);
        let index = (0..SPARES).max_by_key(due_at)?;
        let last = kept[index].take_if(|last| due < last.due)?;
        // Not borrowed while a waker is dropped, which may free a task.
        drop(kept);
        last.give_up(index);
        Some(index)
    }

    /// Records that a task cancels a timer here.
    #[inline]
    pub(crate) fn note_cancelled(&self, task: WakerId) {
        self.last.set(task);
    }

    /// Returns whether `task` has cancelled the last timer here. Only then does its next one leave a spare,
    /// because a task that starts a single timer has no use for one.
    #[inline]
    pub(crate) fn repeats(&self, task: WakerId) -> bool {
        self.last.get() == task
    }

    /// Gives up all spares. If one has expired unused, no spares of its task are kept for a while.
    #[cold]
    fn clear(&self) {
        let kept = self.kept.take();
        // Those of an engine that has ended have woken nobody in vain.
        let is_unused = |spare: &&Claim| spare.has_expired() && !spare.shard.has_ended();
        if let Some(spare) = kept.iter().flatten().find(is_unused) {
            self.be_wary_of(spare);
        }
        for (index, spare) in kept.into_iter().enumerate() {
            spare.into_iter().for_each(|spare| spare.give_up(index));
        }
    }

    /// Returns whether a task's next timer leaves no spare, because one has expired unused.
    fn is_wary_of(&self, task: WakerId) -> bool {
        self.wary.get().left > 0 && self.counts_as_wary(task)
    }

    /// Counts a timer of a task of which this thread may be wary. Returns whether it is.
    #[cold]
    fn counts_as_wary(&self, task: WakerId) -> bool {
        let wary = self.wary.get();
        let left = wary.left - u32::from(wary.task == task);
        self.wary.set(Wary { left, ..wary });
        left < wary.left
    }

    fn be_wary_of(&self, unused: &Claim) {
        let task = unused.task;
        // If the task is awake because of this very spare, the number was too small.
        let since = unused.shard.alarm.now().since(unused.due);
        let last = Some(self.wary.get()).filter(|wary| wary.task == task && since < JUST_NOW);
        let timers = last.map_or(WARY, |wary| wary.timers.saturating_mul(2));
        let left = timers;
        self.wary.set(Wary { task, timers, left });
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns whether a timer can take the entry of a spare over. `now` is a moment that has passed.
#[inline]
pub(crate) fn fits(spare: &Claim, waker: &Waker, wheel: WheelId, deadline: Moment, now: Moment) -> bool {
    let (shard, due) = (&spare.shard, spare.due);
    // The horizon has passed, and an entry that is due by then is gone. A task whose polls are long would also take
    // over an entry that is about to wake it, poll after poll.
    let now = now.max(shard.horizon());
    let left = deadline.since(now);
    spare.task.is(waker)
        && due.0 > now.0 + left.0 / TAKE_OVER_DIVISOR
        // A timer that starts sets the alarm anew.
        && !shard.alarm.is_overdue(now)
        && shard.clock.is_in_time(due, deadline, left)
        && shard.wheel.id() == wheel
}
