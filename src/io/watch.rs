//! `Watch`: who waits since when, and for how long they may.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use crate::{clock, error::TimeoutError, sleep::Sleep, wheel::Wheel};

/// All that the wrapper knows: who waits since when, and for how long they may.
#[derive(Debug)]
pub(super) struct Watch {
    wheel: Wheel,
    read: Side,
    write: Side,
    idle_timeout: Option<Duration>,
    /// When a byte last moved; or, later, when somebody began to wait while nobody else did.
    quiet_since: Instant,
}

/// One direction.
#[derive(Debug, Default)]
struct Side {
    timeout: Option<Duration>,
    waiting: Option<Wait>,
    /// Made when first needed; where it is when nobody waits does not matter.
    sleep: Option<Sleep>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    on: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    /// Flush or shutdown: done, it proves no progress of a write that waits.
    Flush,
}

impl Watch {
    pub(super) fn new(wheel: &Wheel) -> Watch {
        Watch {
            quiet_since: wheel.now(),
            wheel: wheel.clone(),
            read: Side::default(),
            write: Side::default(),
            idle_timeout: None,
        }
    }

    pub(super) fn timeout(&self, operation: Operation) -> Option<Duration> {
        match operation {
            Operation::Read => self.read.timeout,
            Operation::Write | Operation::Flush => self.write.timeout,
        }
    }

    pub(super) fn set_timeout(&mut self, operation: Operation, timeout: Option<Duration>) {
        self.side(operation).timeout = timeout;
        self.rearm();
    }

    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    pub(super) fn set_idle_timeout(&mut self, timeout: Option<Duration>) {
        if self.idle_timeout.is_none() {
            self.quiet_since = self.wheel.now();
        }
        self.idle_timeout = timeout;
        self.rearm();
    }

    /// `operation` is done, after `bytes` have moved.
    #[inline]
    fn completed(&mut self, operation: Operation, bytes: usize) {
        let side = self.side(operation);
        if operation != Operation::Flush || side.waiting.is_some_and(|wait| wait.on == Operation::Flush) {
            side.waiting = None;
        }
        // With a clock to read only where somebody will ask.
        if bytes > 0 && self.idle_timeout.is_some() {
            self.quiet_since = self.wheel.now();
        }
    }

    /// Notes what became of an `operation`, and fails one that has waited too long.
    #[inline]
    pub(super) fn watched<T>(
        &mut self,
        operation: Operation,
        outcome: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let Poll::Ready(outcome) = outcome else {
            return self.poll_expired(operation, cx).map(Err);
        };
        self.completed(operation, outcome.as_ref().map_or(0, bytes));
        Poll::Ready(outcome)
    }

    /// `operation` has to wait: polls for the end of its patience.
    fn poll_expired(&mut self, operation: Operation, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.side(operation).timeout.or(self.idle_timeout).is_none() {
            return Poll::Pending;
        }
        if self.side(operation).waiting.is_none() {
            let now = self.wheel.now();
            if self.read.waiting.is_none() && self.write.waiting.is_none() {
                self.quiet_since = now;
            }
            self.side(operation).waiting = Some(Wait {
                since: now,
                on: operation,
            });
        }
        let Some(deadline) = self.deadline(operation) else {
            return Poll::Pending;
        };
        let Watch {
            wheel, read, write, ..
        } = self;
        let side = if operation == Operation::Read { read } else { write };
        let sleep = side.sleep.get_or_insert_with(|| wheel.sleep_until(deadline));
        if sleep.deadline() != deadline {
            sleep.reset(deadline);
        }
        // Within the task's budget: a stream that is pending only for want of it must not time out.
        let outcome = ready!(Pin::new(sleep).poll(cx));
        side.waiting = None;
        Poll::Ready(match outcome {
            Ok(()) => TimeoutError::Elapsed.into(),
            Err(refusal) => TimeoutError::from(refusal).into(),
        })
    }

    /// When who waits on this side has waited long enough; `None` where nobody does, or may for ever.
    fn deadline(&self, operation: Operation) -> Option<Instant> {
        let side = if operation == Operation::Read {
            &self.read
        } else {
            &self.write
        };
        let since = side.waiting?.since;
        let own = side.timeout.map(|timeout| clock::saturating_add(since, timeout));
        let idle = self
            .idle_timeout
            .map(|timeout| clock::saturating_add(self.quiet_since, timeout));
        own.into_iter().chain(idle).min()
    }

    fn side(&mut self, operation: Operation) -> &mut Side {
        match operation {
            Operation::Read => &mut self.read,
            Operation::Write | Operation::Flush => &mut self.write,
        }
    }

    /// A timeout has changed: timers that are too late now are moved, and those of nobody ended.
    fn rearm(&mut self) {
        for operation in [Operation::Read, Operation::Write] {
            let deadline = self.deadline(operation);
            let off = self.side(operation).timeout.or(self.idle_timeout).is_none();
            let side = self.side(operation);
            match (&mut side.sleep, deadline) {
                (sleep, _) if off => *sleep = None,
                (Some(sleep), Some(deadline)) => sleep.reset(deadline),
                _ => {}
            }
        }
    }
}
