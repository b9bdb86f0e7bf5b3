//! `Tasks`: the tasks of which a thread knows that they belong to the runtime of its home, a multi-thread one.
//!
//! 1. A task belongs to one runtime for as long as it lives, unless it is of a `LocalSet`. Only tasks that were polled in the context of a
//!    multi-thread runtime are added, on threads that no current-thread runtime has used. Such a runtime drives its wheel whoever polls.
//! 2. A task is recognized by its id and the address in its waker. The task with this id is being polled, so it exists, and no other waker has
//!    its address. The id alone would not do: within a nested `block_on` or another executor it is still that of the task outside, but
//!    the waker is another.
//! 3. Only a task that is polled with a waker of Tokio's tasks is added. Another executor within a task may use any address.

use std::{
    cell::Cell,
    ptr,
    sync::OnceLock,
    task::{RawWakerVTable, Waker},
};

use tokio::task::{self, Id};

/// A power of two. Tasks whose addresses share a cell displace each other.
const CELLS: usize = 1024;

/// The vtable of the wakers of Tokio's tasks.
static VTABLE: OnceLock<&RawWakerVTable> = OnceLock::new();

pub(super) struct Tasks([Cell<Option<Task>>; CELLS]);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    id: Id,
    address: usize,
}

impl Task {
    /// Returns the task that is being polled, if `waker` is its own.
    #[inline]
    pub(super) fn polled_with(waker: &Waker) -> Option<Task> {
        task::try_id().map(|id| Task {
            id,
            address: waker.data().addr(),
        })
    }

    /// Returns the index of the task's cell, by Fibonacci hashing of the address.
    #[inline]
    fn index(self) -> usize {
        let hash = (self.address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> (u64::BITS - CELLS.ilog2())) as usize
    }
}

impl Tasks {
    pub(super) fn new() -> Tasks {
        Tasks([const { Cell::new(None) }; CELLS])
    }

    #[inline]
    pub(super) fn contains(&self, task: Task) -> bool {
        self.0[task.index()].get() == Some(task)
    }

    pub(super) fn add(&self, task: Task) {
        self.0[task.index()].set(Some(task));
    }
}

/// Returns whether this is the waker of one of Tokio's tasks.
pub(super) fn is_of_tokio(waker: &Waker) -> bool {
    VTABLE
        .get()
        .is_some_and(|vtable| ptr::eq(*vtable, waker.vtable()))
}

/// Learns the vtable of the wakers of Tokio's tasks from one of them.
pub(crate) fn learn_vtable(waker: &Waker) {
    VTABLE.get_or_init(|| waker.vtable());
}
