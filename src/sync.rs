//! Lock and atomics of the wheel: those of the standard library, or loom's when the protocol is model-checked.
//!
//! Loom's are only for the tests in `loom/`, and no dependency of this crate. Users who pass `--cfg loom` for the models of their own
//! crates get the standard library's.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use std::sync::{PoisonError, TryLockError};

/// Returns whether the fault of this name is planted, for the model check to find. CONTRIBUTING.md lists the faults.
#[cfg(all(test, loom))]
pub(crate) fn planted(fault: &str) -> bool {
    use std::{env, sync::LazyLock};

    static PLANTED: LazyLock<Option<String>> = LazyLock::new(|| env::var("TICKWHEEL_PLANT").ok());
    PLANTED.as_deref() == Some(fault)
}

/// Outside loom, no fault is planted.
#[cfg(not(all(test, loom)))]
#[inline(always)]
pub(crate) const fn planted(_: &str) -> bool {
    false
}

/// Locks the mutex even if it is poisoned, because the data behind the wheel's locks is consistent at every point that can panic.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the mutex as [`lock`] does, unless it is already locked.
#[inline]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
