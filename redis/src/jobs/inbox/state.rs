//! `State`: what an inbox holds, and what of it the engine has to know.

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
    /// Claims that have come due, by due time and then in the order in which they were added.
    pub(super) due: BTreeMap<(u64, u64), Ready>,
    pub(super) added: u64,
    pub(super) starting: usize,
    pub(super) started: VecDeque<Ready>,
    /// Everything that is renewed: claims and jobs.
    pub(super) held: HeldLeases,
    pub(super) demand: Demand,
    /// Whether the consumer waits for a job.
    pub(super) asked: bool,
    pub(super) engine_waits_for: NotifyEngine,
    pub(super) waker: Option<Waker>,
    pub(super) error: Option<Error>,
    pub(super) last_error: Option<Instant>,
    /// The stream was dropped.
    pub(super) closed: bool,
    /// The wheel was shut down.
    pub(super) ended: bool,
}

/// A claim that has come due, or been started, and since when.
pub(super) struct Ready {
    pub(super) claim: Claim,
    pub(super) since: Instant,
}

/// When the engine is notified: it need not hear of every job.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::jobs) struct NotifyEngine {
    /// As soon as the consumer asks.
    pub(in crate::jobs) asked: bool,
    /// As soon as no more is ready than this.
    pub(in crate::jobs) low: Option<usize>,
    /// As soon as the consumer asks and nothing is ready.
    pub(in crate::jobs) starving: bool,
}

/// What the engine has to know.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct Status {
    /// Whether the consumer waits for a job.
    pub(in crate::jobs) asked: bool,
    pub(in crate::jobs) closed: bool,
    /// Claims that have come due and are not at the consumer's.
    pub(in crate::jobs) ready: usize,
    /// Jobs at the consumer's.
    pub(in crate::jobs) out: usize,
    /// Since when the first of the due claims has been there, and the first of the started ones has been started.
    pub(in crate::jobs) due_since: Option<Instant>,
    pub(in crate::jobs) started_since: Option<Instant>,
    /// Whether anything is left to renew.
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

    /// Whether to notify the engine, which then says anew what it wants to hear of.
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
