//! `LeaseStats`: what this process counts of its leases.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tickwheel::Wheel;
use tickwheel_exported::Exported;

use crate::exported::{Counter, List, Renewals};

pub(super) struct LeaseStats {
    wheel: String,
    prefix: String,
    held: AtomicU64,
    acquired: Counter,
    pub(super) renewals: Renewals,
    lost: Counter,
    /// Whether it was said that releases are not announced.
    said_untold: AtomicBool,
}

impl LeaseStats {
    pub(super) fn new(wheel: &Wheel, prefix: &str) -> Arc<LeaseStats> {
        Arc::new(LeaseStats {
            wheel: wheel.name().unwrap_or_default().to_owned(),
            prefix: prefix.to_owned(),
            held: AtomicU64::new(0),
            acquired: Counter::default(),
            renewals: Renewals::default(),
            lost: Counter::default(),
            said_untold: AtomicBool::new(false),
        })
    }

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
    pub(super) fn exported(&self) -> Vec<Exported> {
        let mut list = List::new(vec![
            ("wheel", self.wheel.clone()),
            ("prefix", self.prefix.clone()),
        ]);
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
