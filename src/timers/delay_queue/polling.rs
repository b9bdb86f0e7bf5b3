//! Taking values from a queue, by waiting for the next one or by draining those that are due.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::{task::coop, time::Instant};

use super::{DelayQueue, Expired};
use crate::engine::clock::may_be_paused;

impl<T> DelayQueue<T> {
    /// Polls for the next value that is due, and returns `None` if the queue is empty.
    ///
    /// No value is early, and the waiting task is woken less than one tick of the wheel late, plus its slack and the runtime's own delay. Only
    /// the task that polled last is woken for a deadline. If another task then takes a value, the task that was waiting is woken
    /// too and should poll again.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime if the call has to wait, unless the queue's wheel was given a [`handle`](crate::Builder::handle).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::poll_fn, time::Duration};
    /// use tickwheel::DelayQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut queue = DelayQueue::new();
    /// queue.insert("foo", Duration::from_millis(10));
    /// let expired = poll_fn(|cx| queue.poll_expired(cx)).await;
    /// assert_eq!(expired.unwrap().into_inner(), "foo");
    /// # }
    /// ```
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Option<Expired<T>>> {
        if !coop::has_budget_remaining() {
            // This wakes the task, which then has a new budget.
            drop(ready!(coop::poll_proceed(cx)));
        }
        loop {
            let Some(first) = self.entries.first() else {
                self.timer.unset();
                self.waiter.wait(cx);
                return Poll::Ready(None);
            };
            if first <= self.reached {
                if let Poll::Ready(budget) = coop::poll_proceed(cx) {
                    budget.made_progress();
                }
                self.waiter.stop_waiting(cx);
                return Poll::Ready(self.entries.take_first());
            }
            if self.timer.deadline != Some(first) && !self.set_timer(first) {
                continue;
            }
            let Poll::Ready(deadline) = self.timer.poll(cx) else {
                self.waiter.wait(cx);
                return Poll::Pending;
            };
            // This counts even if the clock here shows less, because the timer may use another clock.
            self.reached = deadline.map_or(self.reached, |deadline| deadline.max(self.reached));
        }
    }

    /// Sets the timer for the first entry's deadline. Returns `false` if there is nothing to wait for, because that entry is due.
    fn set_timer(&mut self, first: Instant) -> bool {
        let is_of_test = may_be_paused();
        if !is_of_test {
            let now = Instant::now();
            if first <= now {
                self.reached = now;
                return false;
            }
        }
        let until = if is_of_test {
            self.whole_milliseconds(first)
        } else {
            first
        };
        self.timer.set(&self.wheel, first, until, is_of_test);
        true
    }

    /// Rounds an instant up to a whole number of milliseconds after the queue's creation, as tokio-util's queue does.
    fn whole_milliseconds(&self, instant: Instant) -> Instant {
        let after = instant.saturating_duration_since(self.created);
        let millis = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let rounded = self.created.checked_add(Duration::from_millis(millis));
        rounded.unwrap_or(instant)
    }

    /// Appends up to `limit` due values to `expired`, in their order, and returns the number of values appended.
    ///
    /// This reads the clock once and does not wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::DelayQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let mut queue = DelayQueue::new();
    /// for seconds in [3, 1, 2] {
    ///     queue.insert(seconds, Duration::from_secs(seconds));
    /// }
    /// tokio::time::advance(Duration::from_secs(2)).await;
    ///
    /// let mut expired = Vec::new();
    /// assert_eq!(queue.expired(&mut expired, 100), 2);
    /// assert_eq!(expired.iter().map(|entry| *entry.get_ref()).collect::<Vec<_>>(), [1, 2]);
    /// # }
    /// ```
    pub fn expired(&mut self, expired: &mut Vec<Expired<T>>, limit: usize) -> usize {
        self.reached = self.reached.max(Instant::now());
        let before = expired.len();
        let due = std::iter::from_fn(|| {
            self.entries.first().filter(|first| *first <= self.reached)?;
            self.entries.take_first()
        });
        expired.extend(due.take(limit));
        let count = expired.len() - before;
        if count > 0 && self.is_empty() {
            self.emptied();
        }
        count
    }
}

impl<T> Stream for DelayQueue<T> {
    type Item = Expired<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<T>>> {
        self.get_mut().poll_expired(cx)
    }
}
