//! Lock and atomics of the wheel. Model checking puts `loom/src/sync.rs` in the place of this file, with loom's.

pub(crate) use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread_local,
};

use std::sync::{PoisonError, TryLockError};

/// Whether the protocol is being model-checked.
pub(crate) const MODELLED: bool = false;

/// Returns whether the fault of this name is planted, for the model check to find. CONTRIBUTING.md lists the faults.
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
