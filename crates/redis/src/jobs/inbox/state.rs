//! `State`: the contents of an inbox, and `Status`: the part of it that the engine reads.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use super::held::HeldLeases;
use crate::{
    error::Error,
    jobs::{claim::Claim, demand::Demand, pace::Pace},
};

pub(super) struct State {
    /// Claims that have become due, by due time and then by the order in which they were added.
    pub(super) due: BTreeMap<(u64, u64), Ready>,
    pub(super) added: u64,
    pub(super) starting: usize,
    pub(super) started: VecDeque<Ready>,
    /// All leases that are renewed, of claims and of jobs.
    pub(super) held: HeldLeases,
    pub(super) demand: Demand,
    pub(super) pace: Pace,
    /// Whether the consumer waits for a job.
    pub(super) asked: bool,
    pub(super) engine_waits_for: NotifyEngine,
    /// From when jobs may be claimed that this process has scheduled, by partition.
    pub(super) expected: BTreeMap<usize, Instant>,
    /// Whether Redis tells the worker of such jobs.
    pub(super) listens: bool,
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
    /// When the consumer fetches a job.
    pub(in crate::jobs) fetched: bool,
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
    /// How many jobs the consumer is assumed to have room for, and how many it starts in the time that was
    /// asked about.
    pub(in crate::jobs) room: usize,
    pub(in crate::jobs) starts_soon: usize,
    /// When it last fetched a job.
    pub(in crate::jobs) fetched_at: Option<Instant>,
    /// Whether a due claim waits, and since when the first started one has.
    pub(in crate::jobs) has_due: bool,
    pub(in crate::jobs) started_since: Option<Instant>,
}

impl State {
    pub(super) fn new(held: HeldLeases) -> State {
        State {
            due: BTreeMap::new(),
            added: 0,
            starting: 0,
            started: VecDeque::new(),
            held,
            demand: Demand::default(),
            pace: Pace::default(),
            asked: false,
            engine_waits_for: NotifyEngine::default(),
            expected: BTreeMap::new(),
            listens: false,
            waker: None,
            error: None,
            last_error: None,
            closed: false,
            ended: false,
        }
    }

    pub(super) fn ready(&self) -> usize {
        self.due.len() + self.starting + self.started.len()
    }

    /// Returns the status, with how many jobs the consumer starts within `soon`.
    pub(super) fn status(&self, soon: Duration) -> Status {
        Status {
            asked: self.asked,
            closed: self.closed,
            ready: self.ready(),
            out: self.demand.out(),
            room: self.demand.room(0),
            starts_soon: self.pace.starts_in(Instant::now(), soon),
            fetched_at: self.pace.last(),
            has_due: !self.due.is_empty(),
            started_since: self.started.front().map(|started| started.since),
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
