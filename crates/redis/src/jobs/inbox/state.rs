//! `State`: the contents of an inbox, and `Status`: the part of it that the engine reads.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use tokio::time::Instant;

use super::held::HeldLeases;
use crate::{
    error::Error,
    jobs::{claim::Claim, demand::Demand},
};

#[derive(Default)]
pub(super) struct State {
    /// Claims that have become due, by due time and then by the order in which they were added.
    pub(super) due: BTreeMap<(u64, u64), Ready>,
    pub(super) added: u64,
    pub(super) starting: usize,
    pub(super) started: VecDeque<Ready>,
    /// All leases that are renewed, of claims and of jobs.
    pub(super) held: HeldLeases,
    pub(super) demand: Demand,
    /// Whether the consumer waits for a job.
    pub(super) asked: bool,
    pub(super) engine_waits_for: NotifyEngine,
    pub(super) waker: Option<Waker>,
    pub(super) error: Option<Error>,
    pub(super) last_error: Option<Instant>,
    /// Whether the stream was dropped.
    pub(super) closed: bool,
    /// Whether the wheel was shut down.
    pub(super) ended: bool,
}

/// A claim that has become due or been started, and since when.
pub(super) struct Ready {
    pub(super) claim: Claim,
    pub(super) since: Instant,
}

/// When to notify the engine, which does not need to act on every job.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::jobs) struct NotifyEngine {
    /// When the consumer asks.
    pub(in crate::jobs) asked: bool,
    /// When at most this many jobs are ready.
    pub(in crate::jobs) low: Option<usize>,
    /// When the consumer asks and no job is ready.
    pub(in crate::jobs) starving: bool,
}

/// The part of the state that the engine reads.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct Status {
    /// Whether the consumer waits for a job.
    pub(in crate::jobs) asked: bool,
    pub(in crate::jobs) closed: bool,
    /// Claims that have become due and that the consumer has not fetched.
    pub(in crate::jobs) ready: usize,
    /// Jobs that the consumer has fetched and not finished.
    pub(in crate::jobs) out: usize,
    /// Since when the first due claim has been waiting, and since when the first started one has.
    pub(in crate::jobs) due_since: Option<Instant>,
    pub(in crate::jobs) started_since: Option<Instant>,
    /// Whether any lease is left to renew.
    pub(in crate::jobs) holds: bool,
}

impl State {
    pub(super) fn ready(&self) -> usize {
        self.due.len() + self.starting + self.started.len()
    }

    pub(super) fn status(&self) -> Status {
        Status {
            asked: self.asked,
            closed: self.closed,
            ready: self.ready(),
            out: self.demand.out(),
            due_since: self.due.values().next().map(|due| due.since),
            started_since: self.started.front().map(|started| started.since),
            holds: !self.held.is_empty(),
        }
    }

    /// Whether to notify the engine, which must then call `notify_engine_when` again.
    pub(super) fn take_engine_notification(&mut self) -> bool {
        let ready = self.ready();
        let wanted = (self.engine_waits_for.asked && self.asked)
            || self.engine_waits_for.low.is_some_and(|low| ready <= low)
            || (self.engine_waits_for.starving && self.asked && ready == 0);
        if wanted {
            self.engine_waits_for = NotifyEngine::default();
        }
        wanted
    }
}
