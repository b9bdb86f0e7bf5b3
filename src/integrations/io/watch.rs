//! `Watch`: tracks which operation is waiting, since when, and for how long it may wait.

use std::{
    io,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::clock::{Moment, Nanos},
    error::TimeoutError,
    timers::sleep::Sleep,
    wheel::Wheel,
};

/// The timeouts of a stream.
///
/// An operation waits from its first pending poll until it completes or times out. Because an operation that was dropped looks
/// like one that still waits, no operation fails because another one has waited: a timeout applies only to the polled operation.
/// It counts from the latest of these moments:
///
/// - when that operation began to wait;
/// - the first pending poll after the timeout was switched on;
/// - for the idle timeout, when a byte last moved.
#[derive(Debug)]
pub(super) struct Watch {
    wheel: Wheel,
    /// The moment since which each operation has been waiting, indexed by [`Operation`]. It is known only while a timeout is on.
    waits: [Option<Moment>; 4],
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

/// One direction: reading or writing. One timer per direction is enough, because only one operation of a direction is polled at a
/// time.
#[derive(Debug, Default)]
struct Direction {
    timeout: Timeout,
    /// Created when it is first needed. Its deadline has no meaning while no operation waits.
    sleep: Option<Sleep>,
    /// The waker of the task that polled last. Whether that task is still waiting is in `waiting`.
    waiter: Option<Waker>,
    waiting: bool,
}

#[derive(Debug, Default)]
struct Timeout {
    duration: Option<Duration>,
    /// Time before this moment does not count. It is `None` from when the timeout is switched on until an operation first waits.
    from: Option<Moment>,
}

impl Operation {
    /// Returns the direction to which the operation belongs.
    fn direction<'a>(self, read: &'a mut Direction, write: &'a mut Direction) -> &'a mut Direction {
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

    /// Records the outcome of an operation, and fails the operation if it has waited too long.
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

    /// Records that the operation has ended and that `bytes` have moved.
    #[inline]
    fn ended(&mut self, operation: Operation, bytes: usize) {
        self.waits[operation as usize] = None;
        operation.direction(&mut self.read, &mut self.write).waiting = false;
        if bytes == 0 {
            return;
        }
        if operation == Operation::Write {
            // A byte written is progress for a flush and a shutdown too.
            self.waits[Operation::Flush as usize] = None;
            self.waits[Operation::Shutdown as usize] = None;
        }
        // The clock is read only if the idle timeout is on.
        if let Some(from) = &mut self.idle.from {
            *from = self.wheel.moment();
        }
    }

    /// Polls the timer of an operation that has to wait. The result is ready once the operation has waited too long.
    fn poll_expired(&mut self, operation: Operation, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Watch {
            wheel,
            waits,
            read,
            write,
            idle,
        } = self;
        let direction = operation.direction(read, write);
        direction.wait(cx.waker());

        let wait = &mut waits[operation as usize];
        let mut reading = None;
        let mut now = || *reading.get_or_insert_with(|| wheel.moment());
        let own = direction.timeout.deadline(wheel, wait, &mut now);
        let idle = idle.deadline(wheel, wait, &mut now);
        let deadline = match (own, idle) {
            (Some(own), Some(idle)) if own <= idle => own,
            (Some(_), Some(idle)) => idle,
            (Some(deadline), None) | (None, Some(deadline)) => deadline,
            (None, None) => return Poll::Pending,
        };

        let sleep = direction
            .sleep
            .get_or_insert_with(|| wheel.sleep_until(Instant::now()));
        sleep.reset_to(deadline);
        // This poll takes part in the task's budget, because a stream that is pending only for lack of budget must not time out.
        sleep.poll_after(false, cx).map(|()| TimeoutError::Elapsed.into())
    }
}

impl Direction {
    /// Records that the polling task has to wait.
    fn wait(&mut self, waker: &Waker) {
        self.waiting = true;
        match &mut self.waiter {
            Some(waiter) => waiter.clone_from(waker),
            None => self.waiter = Some(waker.clone()),
        }
    }

    /// Wakes the waiting task after a timeout has changed, and drops a timer that is no longer needed.
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

    /// Returns the deadline of an operation that has been waiting since `wait`, or that waits from now on.
    fn deadline(
        &mut self,
        wheel: &Wheel,
        wait: &mut Option<Moment>,
        mut now: impl FnMut() -> Moment,
    ) -> Option<Moment> {
        let duration = self.duration?;
        // The moments may have been read under two clocks, and only moments of wheel time can be compared.
        let mut settled = |moment: &mut Option<Moment>| {
            let moment = moment.get_or_insert_with(&mut now);
            *moment = wheel.settled(*moment);
            *moment
        };
        let (since, from) = (settled(wait), settled(&mut self.from));
        let last = if since < from { from } else { since };
        Some(last.after(Nanos::passed(duration)))
    }
}
