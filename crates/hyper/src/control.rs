//! What the connections of a `ConnectionLimits` share.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tickwheel::Wheel;

use crate::{
    members::Members,
    settings::Settings,
    stats::{Counters, LimitStats},
};

#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) wheel: Wheel,
    settings: Mutex<Arc<Settings>>,
    /// Counts the changes of the settings. It grows under their lock.
    version: AtomicU64,
    pub(crate) members: Arc<Members>,
    pub(crate) counters: Counters,
}

impl Control {
    pub(crate) fn new(wheel: &Wheel) -> Control {
        Control {
            wheel: wheel.clone(),
            settings: Mutex::new(Arc::new(Settings::NONE)),
            version: AtomicU64::new(0),
            members: Arc::default(),
            counters: Counters::default(),
        }
    }

    /// Changes the settings for all connections, and wakes them.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.lock();
        change(Arc::make_mut(&mut settings));
        self.version.fetch_add(1, Ordering::Release);
        drop(settings);
        self.members.wake_all();
    }

    /// Returns the settings and their version.
    pub(crate) fn settings(&self) -> (Arc<Settings>, u64) {
        let settings = self.lock();
        (settings.clone(), self.version.load(Ordering::Relaxed))
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn stats(&self) -> LimitStats {
        self.counters.read(self.members.open())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
