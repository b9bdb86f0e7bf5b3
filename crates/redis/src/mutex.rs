//! `Mutex`: a lock that a panic does not poison.

use std::sync::{self, MutexGuard, PoisonError};

/// A mutex for data that is consistent between any two statements, so that what a panic leaves behind can be
/// used.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
