//! What `crates/redis/src/mutex.rs` has, with loom's lock.

use loom::sync::MutexGuard;

pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(data: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}
