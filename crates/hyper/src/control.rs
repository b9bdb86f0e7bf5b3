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
    /// That of the settings. It is written under their lock.
    version: AtomicU64,
    pub(crate) members: Members,
    pub(crate) counters: Counters,
}

impl Control {
    pub(crate) fn new(wheel: &Wheel) -> Control {
        Control {
            wheel: wheel.clone(),
            settings: Mutex::new(Arc::new(Settings::NONE)),
            version: AtomicU64::new(0),
            members: Members::default(),
            counters: Counters::default(),
        }
    }

    /// Changes the settings for all connections, and wakes them.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.lock();
        let changed = Arc::make_mut(&mut settings);
        change(changed);
        changed.version += 1;
        self.version.store(changed.version, Ordering::Release);
        drop(settings);
        self.members.wake_all();
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.lock().clone()
    }

    pub(crate) fn has_changed_since(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) != version
    }

    pub(crate) fn stats(&self) -> LimitStats {
        self.counters.read(self.members.open())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
