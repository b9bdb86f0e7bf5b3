//! When the driver visits a shard next, and how a registration makes it come earlier.

use super::{Shard, State};
use crate::engine::{
    sync::{MutexGuard, Ordering, planted},
    timing_wheel::Tick,
};

impl Shard {
    #[inline]
    pub(in crate::engine) fn wake_at(&self) -> Tick {
        Tick(self.wake_at.load(Ordering::Relaxed))
    }

    /// Returns the tick of the first visit after `tick`, if at most one is needed until then. This is a guess, because timers may have
    /// been registered or cancelled since the last visit.
    #[inline]
    pub(in crate::engine) fn wake_after(&self, tick: Tick) -> Tick {
        match self.wake_at() {
            at if at > tick => at,
            _ => Tick(self.visit_after.load(Ordering::Relaxed)),
        }
    }

    /// Plans the next visit for `tick`. A caller that lowers it must also wake the driver.
    #[inline]
    pub(super) fn plan_visit(&self, _locked: &mut State, tick: Tick) {
        self.wake_at.store(tick.0, Ordering::Relaxed);
    }

    /// Makes the driver run at `tick` or earlier. Returns `true` if that tick is known to have begun already.
    #[inline]
    pub(super) fn wake_driver_by(&self, state: MutexGuard<'_, State>, tick: Tick) -> bool {
        tick < self.wake_at() && self.bring_visit_forward(state, tick)
    }

    #[inline(never)]
    fn bring_visit_forward(&self, mut state: MutexGuard<'_, State>, tick: Tick) -> bool {
        if !planted("wake_at") {
            self.plan_visit(&mut state, tick);
        }
        let at = state.clock.instant_of(tick);
        drop(state);
        self.driver.wake_by(at)
    }
}
