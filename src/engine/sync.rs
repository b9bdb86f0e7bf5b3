//! Locks, atomics and statics of the engine. In model checking, `tests/loom/src/engine_sync.rs` takes the
//! place of this file, with loom's.

pub(crate) use std::{
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread_local,
};

use std::sync::{PoisonError, TryLockError};

/// Stands beside accesses that are sequentially consistent, which loom takes for `AcqRel` unless there is a
/// fence. Here, they need none.
pub(crate) const fn fence_in_models() {}

/// Locks the mutex even if it is poisoned, because the data behind the engine's locks is consistent at every
/// point that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the mutex as [`lock`] does, unless it is locked already.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
