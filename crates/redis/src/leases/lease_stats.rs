//! `LeaseStats`: what this process counts of its leases.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tickwheel_exported::Exported;

use crate::exported::{Counter, List, Renewals};

#[derive(Default)]
pub(super) struct LeaseStats {
    held: AtomicU64,
    acquired: Counter,
    pub(super) renewals: Renewals,
    lost: Counter,
    /// Whether it was said that releases are not announced.
    said_untold: AtomicBool,
}

impl LeaseStats {
    pub(super) fn acquired(&self) {
        self.acquired.increment();
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn lost(&self) {
        self.lost.increment();
        self.given_up();
    }

    pub(super) fn given_up(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Says once that a release could not be announced.
    pub(super) fn say_untold(&self) {
        if !self.said_untold.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the user of the connection may not publish the release of a lease (ACL): other processes notice it a second later"
            );
        }
    }

    /// Returns everything that is counted of the leases, sorted by name.
    pub(super) fn exported(&self, labels: Vec<(&'static str, String)>) -> Vec<Exported> {
        let mut list = List::new(labels);
        list.gauge(
            "tickwheel_redis_leases_held",
            "Leases that this process holds.",
            self.held.load(Ordering::Relaxed),
        );
        list.counter(
            "tickwheel_redis_leases_acquired_total",
            "Leases that this process acquired.",
            None,
            self.acquired.get(),
        );
        self.renewals.list(
            &mut list,
            "tickwheel_redis_leases_renewals_total",
            "Renewals of leases that this process holds, by outcome.",
        );
        list.counter(
            "tickwheel_redis_leases_lost_total",
            "Leases that this process lost before it released them.",
            None,
            self.lost.get(),
        );
        list.sorted()
    }
}
