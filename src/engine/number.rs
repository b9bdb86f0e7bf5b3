//! The number of a thread, which selects its stripe of counters and, if it is not a worker, its shard.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// A thread that has found its shard's lock taken this often takes another number. By a measurement of
/// November 2026, a timer takes two busy threads on one shard 20 times as long as one alone. The driver may
/// have held the lock, which a thread cannot tell; moving does no harm then.
const CONTENTIONS: u32 = 16;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    static CONTENTIONS_LEFT: Cell<u32> = const { Cell::new(CONTENTIONS) };
}

/// Returns the number of this thread.
#[inline]
pub(crate) fn get() -> usize {
    let number = NUMBER.get();
    if number == usize::MAX { take() } else { number }
}

#[cold]
fn take() -> usize {
    let number = NEXT.fetch_add(1, Relaxed);
    NUMBER.set(number);
    number
}

/// Records that another thread held the lock of this thread's shard.
#[cold]
pub(crate) fn note_contention() {
    let left = CONTENTIONS_LEFT.get() - 1;
    // The next number is that of another shard, unless there is one shard only. That some threads may meet
    // again there does no harm, because they move on.
    if left == 0 {
        take();
    }
    CONTENTIONS_LEFT.set(if left == 0 { CONTENTIONS } else { left });
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_often_contends_takes_another_number() {
        let first = get();
        (1..CONTENTIONS).for_each(|_| note_contention());
        assert_eq!(get(), first);
        note_contention();
        assert_ne!(get(), first);
    }
}
