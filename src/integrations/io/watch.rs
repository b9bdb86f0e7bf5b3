//! `Watch`: tracks which operation is waiting, since when, and for how long it may wait.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::clock::after,
    error::TimeoutError,
    timers::{sleep::Sleep, waiter::Waiter},
    wheel::Wheel,
};

/// The timeouts of a stream.
///
/// An operation waits from its first pending poll until it completes or times out. Because an operation that
/// was dropped looks like one that still waits, no operation fails because another one has waited: a timeout
/// applies only to the polled operation. It counts from the latest of these moments:
///
/// - when that operation began to wait;
/// - the first pending poll after the timeout was switched on;
/// - for the idle timeout, when a byte last moved.
#[derive(Debug)]
pub(super) struct Watch {
    wheel: Wheel,
    /// The moment since which each operation has been waiting, indexed by [`Operation`]. It is known only
    /// while a timeout is on.
    waits: [Option<Instant>; 4],
    /// Indexed by [`TimeoutKind`]. `None` is off.
    timeouts: [Option<Timeout>; 3],
    /// Reading and writing, indexed by [`TimeoutKind`].
    directions: [Direction; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    Flush,
    Shutdown,
}

/// Which timeout: of the operations of one direction, or of the silence in both.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeoutKind {
    Read,
    Write,
    Idle,
}

/// One timer per direction is enough, because only one operation of a direction is polled at a time.
#[derive(Debug, Default)]
struct Direction {
    /// Created when it is first needed. Its deadline has no meaning while no operation waits.
    sleep: Option<Sleep>,
    waiter: Waiter,
}

#[derive(Clone, Copy, Debug)]
struct Timeout {
    duration: Duration,
    /// Time before this moment does not count. It is `None` from when the timeout is switched on until an
    /// operation first waits.
    from: Option<Instant>,
}

impl Operation {
    /// Returns the timeout of the operation's direction.
    fn kind(self) -> TimeoutKind {
        match self {
            Operation::Read => TimeoutKind::Read,
            Operation::Write | Operation::Flush | Operation::Shutdown => TimeoutKind::Write,
        }
    }
}

impl Watch {
    pub(super) fn new(wheel: &Wheel) -> Watch {
        Watch {
            wheel: wheel.clone(),
            waits: [None; 4],
            timeouts: Default::default(),
            directions: Default::default(),
        }
    }

    pub(super) fn timeout(&self, kind: TimeoutKind) -> Option<Duration> {
        self.timeouts[kind as usize].map(|timeout| timeout.duration)
    }

    /// Changes a timeout, and wakes the waiting tasks that it concerns. One that is switched off frees its
    /// timers at once.
    pub(super) fn set_timeout(&mut self, kind: TimeoutKind, duration: Option<Duration>) {
        let timeout = &mut self.timeouts[kind as usize];
        let from = timeout.and_then(|timeout| timeout.from);
        *timeout = duration.map(|duration| Timeout { duration, from });
        let concerned = match kind {
            TimeoutKind::Read | TimeoutKind::Write => &mut self.directions[kind as usize..=kind as usize],
            TimeoutKind::Idle => &mut self.directions,
        };
        for direction in concerned {
            if duration.is_none() {
                // If another timeout holds, the next poll of the operation starts a timer for that.
                direction.sleep = None;
            }
            direction.waiter.wake_by_ref();
        }
    }

    /// Records the outcome of an operation, and fails the operation if it has waited too long.
    pub(super) fn watched<T>(
        &mut self,
        operation: Operation,
        outcome: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let outcome = match outcome {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(ready!(self.poll_expired(operation, cx))),
        };
        self.directions[operation.kind() as usize].waiter.stop_waiting(cx);
        self.waits[operation as usize] = None;
        if outcome.as_ref().map_or(0, bytes) == 0 {
            return Poll::Ready(outcome);
        }
        if operation == Operation::Write {
            // A byte written is progress for a flush and a shutdown too.
            self.waits[Operation::Flush as usize] = None;
            self.waits[Operation::Shutdown as usize] = None;
        }
        // The clock is read only if the idle timeout is on.
        if let Some(Timeout { from: Some(from), .. }) = &mut self.timeouts[TimeoutKind::Idle as usize] {
            *from = self.wheel.now();
        }
        Poll::Ready(outcome)
    }

    /// Polls the timer of an operation that has to wait. The result is ready once the operation has waited
    /// too long.
    fn poll_expired(&mut self, operation: Operation, cx: &mut Context<'_>) -> Poll<io::Error> {
        let (wheel, kind) = (&self.wheel, operation.kind());
        let direction = &mut self.directions[kind as usize];
        direction.waiter.wait(cx);

        let wait = &mut self.waits[operation as usize];
        let mut reading = None;
        let mut now = || *reading.get_or_insert_with(|| wheel.now());
        let deadlines = [kind, TimeoutKind::Idle].map(|kind| {
            let Timeout { duration, from } = self.timeouts[kind as usize].as_mut()?;
            // An operation that has not been waiting waits from now on.
            let since = *wait.get_or_insert_with(&mut now);
            let from = *from.get_or_insert_with(&mut now);
            Some(after(since.max(from), *duration))
        });
        let Some(deadline) = deadlines.into_iter().flatten().min() else {
            direction.sleep = None;
            return Poll::Pending;
        };

        let sleep = direction.sleep.get_or_insert_with(|| wheel.sleep_until(deadline));
        sleep.reset_at(deadline);
        // This poll takes part in the task's budget, because a stream that is pending only for lack of budget
        // must not time out.
        Pin::new(sleep).poll(cx).map(|()| TimeoutError::Elapsed.into())
    }
}
