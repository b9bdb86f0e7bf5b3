//! `LeaseStats`: what this process counts of its leases.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tickwheel::Wheel;
use tickwheel_exported::Exported;

use crate::{
    exported::{Counter, List, Renewals},
    validity::Validity,
};

#[derive(Debug, Default)]
pub(super) struct LeaseStats {
    held: AtomicU64,
    acquired: Counter,
    pub(super) renewals: Renewals,
    lost: Counter,
}

/// A lease that is held and counted. When it is dropped, whatever ends the future that renews it, including a
/// runtime that is shut down before the first poll, the holder is told that it is lost.
pub(super) struct HeldLease {
    pub(super) validity: Validity,
    stats: Arc<LeaseStats>,
    is_over: bool,
}

impl HeldLease {
    pub(super) fn new(validity: Validity, stats: Arc<LeaseStats>) -> HeldLease {
        stats.acquired.increment();
        stats.held.fetch_add(1, Ordering::Relaxed);
        HeldLease {
            validity,
            stats,
            is_over: false,
        }
    }

    /// Records that the lease was lost, unless its holder has given it up.
    pub(super) fn lost(&mut self) {
        if !self.is_over {
            self.stats.lost.increment();
            self.given_up();
        }
    }

    /// Records that the holder has given the lease up, unless it was lost.
    pub(super) fn given_up(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.stats.held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.lost();
        self.validity.lose();
    }
}

/// What names the values of leases.
#[derive(Clone, Debug)]
pub(super) struct LeaseLabels {
    wheel: String,
    prefix: String,
}

impl LeaseLabels {
    pub(super) fn new(wheel: &Wheel, prefix: &str) -> LeaseLabels {
        LeaseLabels {
            wheel: wheel.name().unwrap_or_default().to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    /// Returns everything that is counted of the leases, sorted by name.
    pub(super) fn exported(&self, stats: &LeaseStats) -> Vec<Exported> {
        let mut list = List::new(vec![
            ("wheel", self.wheel.clone()),
            ("prefix", self.prefix.clone()),
        ]);
        list.gauge(
            "tickwheel_redis_leases_held",
            "Leases that this process holds.",
            stats.held.load(Ordering::Relaxed),
        );
        list.counter(
            "tickwheel_redis_leases_acquired_total",
            "Leases that this process acquired.",
            None,
            stats.acquired.get(),
        );
        stats.renewals.list(
            &mut list,
            "tickwheel_redis_leases_renewals_total",
            "Renewals of leases that this process holds, by outcome.",
        );
        list.counter(
            "tickwheel_redis_leases_lost_total",
            "Leases that this process lost before it released them.",
            None,
            stats.lost.get(),
        );
        list.sorted()
    }
}
