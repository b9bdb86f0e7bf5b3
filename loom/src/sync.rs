//! What `src/engine/sync.rs` has, with loom's lock and atomics, and with faults that can be planted.

pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use std::{
    env,
    sync::{LazyLock, PoisonError, TryLockError},
};

pub(crate) const MODELLED: bool = true;

pub(crate) fn planted(fault: &str) -> bool {
    static PLANTED: LazyLock<Option<String>> = LazyLock::new(|| env::var("TICKWHEEL_PLANT").ok());
    PLANTED.as_deref() == Some(fault)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// loom's has no `const`.
macro_rules! local {
    (static $name:ident: $type:ty = const { $init:expr };) => {
        loom::thread_local! {
            static $name: $type = $init;
        }
    };
}
pub(crate) use local as thread_local;
