//! `Watch`: what waits since when, and for how long it may.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use crate::{clock::EpochInstant, error::TimeoutError, sleep::Sleep, wheel::Wheel};

/// All that the wrapper knows.
///
/// An operation waits from its first poll that finds it pending until it completes or times out. One that was given up cannot
/// be told from one that waits. So no operation is failed for what another has waited: a timeout counts for the operation that
/// is polled, from the latest of
///
/// - when that operation began to wait;
/// - the first such poll after the timeout was switched on;
/// - for the idle timeout, when a byte last moved.
#[derive(Debug)]
pub(super) struct Watch {
    wheel: Wheel,
    /// Since when each operation waits, by its number. Known only while a timeout is on.
    waits: [Option<EpochInstant>; 4],
    read: Direction,
    write: Direction,
    idle: Timeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    Flush,
    Shutdown,
}

/// Reading, or writing: one of its operations is polled at a time.
#[derive(Debug, Default)]
struct Direction {
    timeout: Timeout,
    /// Made when first needed; where it stands when nobody waits does not matter.
    sleep: Option<Sleep>,
    /// Who polled last, and whether that has to wait.
    waiter: Option<Waker>,
    waiting: bool,
}

#[derive(Debug, Default)]
struct Timeout {
    duration: Option<Duration>,
    /// What was before does not count. `None` until an operation first waits by the timeout after it was switched on.
    from: Option<EpochInstant>,
}

impl Operation {
    /// The direction that it is an operation of.
    fn of<'a>(self, read: &'a mut Direction, write: &'a mut Direction) -> &'a mut Direction {
        match self {
            Operation::Read => read,
            Operation::Write | Operation::Flush | Operation::Shutdown => write,
        }
    }
}

impl Watch {
    pub(super) fn new(wheel: &Wheel) -> Watch {
        Watch {
            wheel: wheel.clone(),
            waits: [None; 4],
            read: Direction::default(),
            write: Direction::default(),
            idle: Timeout::default(),
        }
    }

    pub(super) fn read_timeout(&self) -> Option<Duration> {
        self.read.timeout.duration
    }

    pub(super) fn set_read_timeout(&mut self, duration: Option<Duration>) {
        self.read.timeout.set(duration);
        self.read.changed(&self.idle);
    }

    pub(super) fn write_timeout(&self) -> Option<Duration> {
        self.write.timeout.duration
    }

    pub(super) fn set_write_timeout(&mut self, duration: Option<Duration>) {
        self.write.timeout.set(duration);
        self.write.changed(&self.idle);
    }

    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        self.idle.duration
    }

    pub(super) fn set_idle_timeout(&mut self, duration: Option<Duration>) {
        self.idle.set(duration);
        self.read.changed(&self.idle);
        self.write.changed(&self.idle);
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
        let outcome = match outcome {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(ready!(self.poll_expired(operation, cx))),
        };
        self.ended(operation, outcome.as_ref().map_or(0, bytes));
        Poll::Ready(outcome)
    }

    /// `operation` has ended, after `bytes` have moved.
    #[inline]
    fn ended(&mut self, operation: Operation, bytes: usize) {
        self.waits[operation as usize] = None;
        operation.of(&mut self.read, &mut self.write).waiting = false;
        if bytes == 0 {
            return;
        }
        if operation == Operation::Write {
            // A byte written gets these on, too.
            self.waits[Operation::Flush as usize] = None;
            self.waits[Operation::Shutdown as usize] = None;
        }
        // With a clock to read only where somebody has asked.
        if let Some(from) = &mut self.idle.from {
            *from = self.wheel.read_clock();
        }
    }

    /// `operation` has to wait: polls for the end of its patience.
    fn poll_expired(&mut self, operation: Operation, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Watch {
            wheel,
            waits,
            read,
            write,
            idle,
        } = self;
        let direction = operation.of(read, write);
        direction.wait(cx.waker());

        let wait = &mut waits[operation as usize];
        let mut reading = None;
        let mut now = || *reading.get_or_insert_with(|| wheel.read_clock());
        let own = direction.timeout.deadline(wait, &mut now);
        let idle = idle.deadline(wait, &mut now);
        let deadline = match (own, idle) {
            (Some(own), Some(idle)) => wheel.earlier(own, idle),
            (Some(deadline), None) | (None, Some(deadline)) => deadline,
            (None, None) => return Poll::Pending,
        };

        let sleep = direction
            .sleep
            .get_or_insert_with(|| wheel.sleep_until(deadline.instant));
        sleep.reset_to(deadline);
        // Within the task's budget: a stream that is pending only for want of it must not time out.
        Pin::new(sleep).poll(cx).map(|outcome| match outcome {
            Ok(()) => TimeoutError::Elapsed.into(),
            Err(refusal) => TimeoutError::from(refusal).into(),
        })
    }
}

impl Direction {
    /// Whoever this is for has to wait.
    fn wait(&mut self, waker: &Waker) {
        self.waiting = true;
        match &mut self.waiter {
            Some(waiter) => waiter.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// A timeout has changed: who waits looks again, and a timer that nobody needs is ended.
    fn changed(&mut self, idle: &Timeout) {
        if self.timeout.duration.or(idle.duration).is_none() {
            self.sleep = None;
        }
        if let (true, Some(waiter)) = (self.waiting, &self.waiter) {
            waiter.wake_by_ref();
        }
    }
}

impl Timeout {
    fn set(&mut self, duration: Option<Duration>) {
        if duration.is_none() {
            self.from = None;
        }
        self.duration = duration;
    }

    /// When it ends for an operation whose `wait` begins now, unless it has begun.
    fn deadline(
        &mut self,
        wait: &mut Option<EpochInstant>,
        mut now: impl FnMut() -> EpochInstant,
    ) -> Option<EpochInstant> {
        let duration = self.duration?;
        let since = *wait.get_or_insert_with(&mut now);
        let from = *self.from.get_or_insert_with(now);
        Some(since.later(from).after(duration))
    }
}
