//! What a shard counts.

/// The counters of a shard, without the counts of the ledger. `Metrics` has fields of the same names.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) registered: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) rejected: u64,
    pub(crate) cascaded: u64,
    pub(crate) dozes: u64,
    pub(crate) full_visits: u64,
    pub(crate) light_visits: u64,
}

/// The counters of a shard, with those of the ledger, and its sizes.
pub(crate) struct Usage {
    pub(crate) pending: usize,
    pub(crate) arena_bytes: usize,
    pub(crate) counters: Counters,
}
