//! Reuse: a cancelled timer is kept for the next timer of its task.
//!
//! A task that ends one timeout usually starts the next at once. So the timer that a thread cancelled last stays in the wheel, with its
//! waker, and waits in the thread's [`Slot`]. The next timer of the same task may take it over, if it is due no earlier. To put a timer
//! there and to take it are one compare-and-swap each: no lock, no change to the wheel, no new waker. When the old deadline comes, the
//! future re-arms for its own deadline, as after a reset to a later instant. The counters count the old timer as cancelled and the new one
//! as registered. A kept timer is not pending.
//!
//! 1. A timer is put and taken only while its entry is pending with its task's waker in it. It is pending while it outlasts the shard's
//!    [`Generation`]. The waker is compared by its address, and the entry keeps alive what that address points to. A thread looks at the
//!    generation after it has put a timer: either it finds the next one, or the visit that empties the slots finds the timer. A thread
//!    that finds the next one empties its slot under the lock, so that what was counted as kept is counted as cancelled at once.
//! 2. A visit first stores the tick up to which it expires timers, which ends the generation. It then empties every slot, and only then
//!    expires timers, or reads the clock for incoming timers. A timer that is taken later is therefore not one that this visit expires. One
//!    that was taken between the two steps may be, and its future then re-arms. An incoming timer does not outlast a visit that
//!    transfers, so its delay counts from a later reading of the clock.
//! 3. A driver that ends, and a shutdown, also take wakers out of the wheel. They end the generation in the same way.
//! 4. A timer that is not taken leaves the wheel at the next visit, or if its thread registers another timer. A slot is opened by a cancel
//!    that takes the lock, and then a visit is planned that closes the slot within [`KEPT_FOR`]. So a kept timer holds neither its waker nor
//!    the arena for longer, and a process that does nothing more is woken once. A visit also closes the slots that have not been used since
//!    the one before, so that it looks at none of threads that are parked.

mod ledger;
mod slot;
mod waker_id;

use std::{
    cell::RefCell,
    num::NonZeroU32,
    sync::atomic::{self, AtomicBool},
    task::Waker,
};

use super::{Generation, mode::BUSY};
use crate::engine::{
    clock::Moment,
    sync::{self, Arc, AtomicU64, Ordering},
    timing_wheel::{Key, Nanos, Tick, TickDuration},
};
use slot::{Content, Slot};

pub(super) use {ledger::Ledger, waker_id::WakerId};

/// The longest time that a timer is kept.
pub(super) const KEPT_FOR: Nanos = Nanos(if cfg!(loom) { 4_000_000 } else { 500_000_000 });

/// After this many cancels in other shards, with no use of its slot in between, a thread opens a slot in the other shard.
const ELSEWHERE: u32 = 4;

sync::thread_local! {
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
}

/// The part of the reuse protocol that a shard has outside its lock.
pub(super) struct Reuse {
    /// The number of the shard, unique in the process.
    shard: u64,
    /// The [`Generation`], written under the shard's lock.
    generation: AtomicU64,
    /// Whether timers are kept, because there is no limit that would count them and the wheel has a handle.
    open: AtomicBool,
}

/// What is known of a timer that may be taken over.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    /// The entry is pending while this outlasts the shard's generation.
    pub(super) until: Generation,
    /// The delay of an incoming entry. Zero for an entry with a deadline.
    pub(super) delay: Nanos,
    pub(super) waker: WakerId,
}

impl Candidate {
    /// Returns whether this timer leaves the wheel no later than a timer for `deadline` would.
    #[inline]
    pub(super) fn is_due_by(&self, deadline: Nanos, tick: TickDuration) -> bool {
        tick.is_due_by(self.until.tick(), deadline)
    }
}

/// What has become of a cancelled timer.
pub(super) enum Put {
    Kept,
    /// It is in the slot, and cannot be kept. The thread empties the slot under the lock.
    Outlived,
    /// It cannot be kept, and the thread may open a slot for it.
    Closed(Key),
    Refused(Key),
}

/// What a thread knows of its slot.
struct Local {
    shard: u64,
    slot: Arc<Slot>,
    /// The timer that the thread put last, if it has not tried to take it since.
    kept: Option<NonZeroU32>,
    /// The content of the slot while it is empty.
    empty: Content,
    /// What is known of that timer, or of the previous one.
    candidate: Candidate,
    elsewhere: u32,
    pace: Pace,
}

/// The timers that a thread has started by a reading of the clock, without the lock: their number, and the first of these readings.
pub(super) struct Pace {
    counted: u32,
    from: Moment,
}

impl Pace {
    /// Counts a timer with this delay that starts at `now`. Returns `false` once per [`BUSY`] timers within a cadence, if the delay
    /// is long, so that the caller takes the lock and the shard may start ticking.
    #[inline]
    pub(super) fn allows(&mut self, delay: Nanos, now: Moment, tick: TickDuration) -> bool {
        if self.counted == 0 {
            self.from = now;
        }
        self.counted += 1;
        if self.counted >= BUSY {
            if tick.is_long(delay) && now.since(self.from) < tick.cadence() {
                return false;
            }
            self.counted = 0;
        }
        true
    }
}

impl Reuse {
    pub(super) fn new(open: bool) -> Reuse {
        static SHARDS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        Reuse {
            shard: SHARDS.fetch_add(1, atomic::Ordering::Relaxed),
            generation: AtomicU64::new(Generation::ENDED.0),
            open: AtomicBool::new(open),
        }
    }

    #[inline]
    pub(super) fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Relaxed))
    }

    /// Stores the next generation, under the lock, while no timer is kept.
    pub(super) fn begin_generation(&self, next: Generation) {
        self.generation.store(next.0, Ordering::Release);
    }

    /// Stops keeping timers, because no handle is left that could start the next one.
    pub(super) fn close(&self) {
        self.open.store(false, atomic::Ordering::Relaxed);
    }

    /// Keeps a cancelled timer, if that is possible.
    #[inline]
    pub(super) fn put(&self, key: Key, candidate: &Candidate) -> Put {
        if !self.keeps(candidate) {
            return Put::Refused(key);
        }
        let number = key.into_number();
        let put = self.with_local(|local| {
            if !local.slot.put(number, local.empty) {
                let key = Key::from_number(number);
                return Some(match local.slot.is_closed() {
                    true => Put::Closed(key),
                    false => Put::Refused(key),
                });
            }
            if !candidate.until.outlasts(self.generation()) {
                return Some(Put::Outlived);
            }
            local.kept = Some(number);
            local.candidate = *candidate;
            Some(Put::Kept)
        });
        put.unwrap_or_else(|| Put::Closed(Key::from_number(number)))
    }

    /// Takes the timer that this thread keeps, if it is of the same task and `fits`, which may count it in the thread's [`Pace`]. Then
    /// `enter` gives its entry to `claim`, because a return by value would be copied more than once.
    #[inline]
    pub(super) fn take<C>(
        &self,
        waker: &Waker,
        claim: &mut C,
        fits: impl FnOnce(&mut C, &Candidate, &mut Pace) -> bool,
        enter: impl FnOnce(&mut C, Key, &Candidate),
    ) -> bool {
        let taken = self.with_local(|local| {
            let number = local.kept?;
            if !local.candidate.waker.is(waker) || !fits(claim, &local.candidate, &mut local.pace) {
                return None;
            }
            local.elsewhere = 0;
            local.kept = None;
            local.empty = local.slot.take(number, local.empty)?;
            enter(claim, Key::from_number(number), &local.candidate);
            Some(())
        });
        taken.is_some()
    }

    /// Returns whether so many timers have read the clock of late that the shard should tick, and counts anew.
    pub(super) fn were_many(&self) -> bool {
        self.with_local(|local| (local.pace.counted >= BUSY).then(|| local.pace.counted = 0))
            .is_some()
    }

    /// Opens a slot for this thread, under the lock, and keeps a cancelled timer in it. Returns the timer's key if it cannot be
    /// kept. The slot is closed at `closes_at`.
    pub(super) fn open(
        &self,
        ledger: &mut Ledger,
        key: Key,
        candidate: &Candidate,
        closes_at: impl FnOnce() -> Tick,
    ) -> Result<(), Key> {
        if !self.keeps(candidate) || !candidate.until.outlasts(self.generation()) {
            return Err(key);
        }
        let number = key.into_number();
        let opened = LOCAL.try_with(|local| {
            let Ok(mut local) = local.try_borrow_mut() else {
                return false;
            };
            if let Some(local) = local.as_mut().filter(|local| !local.slot.is_closed()) {
                if local.shard == self.shard || local.elsewhere < ELSEWHERE {
                    local.elsewhere += 1;
                    return false;
                }
            }
            let slot = Arc::new(Slot::new());
            ledger.open(slot.clone(), closes_at());
            slot.put(number, Content::nothing());
            *local = Some(Local {
                shard: self.shard,
                kept: Some(number),
                empty: Content::nothing(),
                slot,
                candidate: *candidate,
                elsewhere: 0,
                pace: Pace {
                    counted: 0,
                    from: Moment::of_wheel(Nanos::ZERO),
                },
            });
            true
        });
        // A thread whose thread-locals are gone keeps none.
        match opened {
            Ok(true) => Ok(()),
            _ => Err(Key::from_number(number)),
        }
    }

    fn keeps(&self, candidate: &Candidate) -> bool {
        self.open.load(atomic::Ordering::Relaxed) && candidate.waker != WakerId::UNKNOWN
    }

    /// Empties the slot that this thread has in this shard, under the lock. Returns the key of the timer that was kept, unless a
    /// visit has removed it.
    #[inline]
    pub(super) fn make_room(&self) -> Option<Key> {
        self.with_local(|local| {
            local.elsewhere = 0;
            local.kept = None;
            local.slot.empty().number().map(Key::from_number)
        })
    }

    /// Calls `using` with the slot of this thread, if it has one in this shard.
    #[inline]
    fn with_local<R>(&self, using: impl FnOnce(&mut Local) -> Option<R>) -> Option<R> {
        // A thread whose thread-locals are gone has none. It is borrowed already only while the clock is read, which tracing may
        // observe.
        LOCAL
            .try_with(|local| {
                let mut local = local.try_borrow_mut().ok()?;
                local
                    .as_mut()
                    .filter(|local| local.shard == self.shard)
                    .and_then(using)
            })
            .ok()
            .flatten()
    }
}
