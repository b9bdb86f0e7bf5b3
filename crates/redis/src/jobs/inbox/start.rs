//! Starts claims, which makes them deliveries.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Inbox, Ready, State, wake};
use crate::{
    error::Error,
    jobs::{
        batcher::Operation,
        change::{Answer, Change},
        claim::{Claim, valid_until},
    },
};

impl Inbox {
    /// Starts as many due claims as the consumer has room for, if it waits for a job.
    pub(super) fn start(self: &Arc<Self>, state: &mut State) -> Vec<(usize, Operation)> {
        if !state.asked || state.ended || state.closed {
            return Vec::new();
        }
        let duration = self.settings.lease;
        let mut starts = Vec::new();
        while state.demand.room(state.starting + state.started.len()) > 0 {
            let Some((_, Ready { claim, .. })) = state.due.pop_first() else {
                break;
            };
            let lease = &claim.lease;
            if lease.validity.is_lost() {
                state.held.remove(lease);
                continue;
            }
            state.starting += 1;
            let start = Change::Start {
                job: lease,
                lease: duration,
                attempts: self.settings.attempts,
            };
            let arguments = start.arguments();
            let (partition, deadline) = (lease.partition, lease.validity.until());
            let inbox = self.clone();
            let start = Operation::new(arguments, deadline, move |answer| inbox.answered(claim, answer));
            starts.push((partition, start));
        }
        starts
    }

    fn answered(self: Arc<Self>, claim: Claim, answer: Result<Answer, Error>) {
        let (granted, error) = match answer {
            Ok(answer) if answer.is_done() => {
                let until = valid_until(&self.queue.wheel, answer.sent, self.settings.lease);
                (claim.lease.validity.extend(until), None)
            }
            // The job was cancelled, rescheduled or lost, or the queue is paused.
            Ok(_) => (false, None),
            Err(error) => (false, Some(error)),
        };
        let mut state = self.lock();
        state.starting -= 1;
        if !granted {
            state.held.remove(&claim.lease);
            let starts = match error {
                None => self.start(&mut state),
                Some(_) => Vec::new(),
            };
            // The engine may take other jobs instead, or be waiting for the last start.
            if state.take_engine_notification() || state.closed {
                self.engine.notify_one();
            }
            drop(state);
            self.queue.update_all(&self.runtime, starts);
            if let Some(error) = error {
                self.report(error);
                // The error may come from a runtime that shuts down, so starting more is left to the next
                // poll.
                wake(self.lock());
            }
            return;
        }
        let since = Instant::now();
        state.started.push_back(Ready { claim, since });
        let closed = state.closed;
        if closed {
            self.engine.notify_one();
        } else if state.started.len() == 1 {
            wake(state);
        }
    }
}
