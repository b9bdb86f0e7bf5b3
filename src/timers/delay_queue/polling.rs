//! Taking values from a queue, by waiting for the next one or by draining those that are due.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tokio::{task::coop, time::Instant};

use super::{DelayQueue, Expired, entries::whole_milliseconds};
use crate::{engine::clock, wheel::Wheel};

impl<T> DelayQueue<T> {
    /// Polls for the next value that is due, and returns `None` if the queue is empty.
    ///
    /// No value is early, and the waiting task is woken less than one tick of the wheel late, plus the runtime's own delay. Only
    /// the task that polled last is woken for a deadline. If another task then takes a value, the task that was waiting is woken
    /// too and should poll again.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime if the call has to wait, unless the queue's wheel is already driven or was given a
    /// [`handle`](crate::Builder::handle).
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
        let budget = ready!(coop::poll_proceed(cx));
        loop {
            if !self.planned {
                if let Some(expired) = self.entries.take_due(self.reached) {
                    budget.made_progress();
                    self.first_has_gone();
                    self.waiter.stop_waiting(cx);
                    return Poll::Ready(Some(expired));
                }
                if self.is_empty() {
                    self.timer.unset();
                    self.waiter.wait(cx);
                    return Poll::Ready(None);
                }
                if !self.plan() {
                    continue;
                }
            }
            let Poll::Ready(tick) = self.timer.poll(cx) else {
                self.waiter.wait(cx);
                return Poll::Pending;
            };
            // The timer's tick counts even if the clock here shows less, because the timer may use another clock.
            self.reached = self.reached.max(tick);
            self.first_has_gone();
        }
    }

    /// Sets the timer for the first entry. Returns `false` if there is nothing to wait for, because the first entry is due.
    fn plan(&mut self) -> bool {
        let Some(first) = self.entries.first() else {
            return false;
        };
        if self.timer.tick() != Some(first.at_least) {
            let mut now = None;
            let is_real = clock::is_real(|| *now.insert(Instant::now()));
            let now = now.map_or(self.reached, |now| self.entries.tick_of(now));
            if is_real && first.at_least <= now {
                self.reached = self.reached.max(now);
                return false;
            }
            let until = match is_real {
                true => first.at_least,
                false => whole_milliseconds(first.at_least),
            };
            let wheel = self.wheel.get_or_insert_with(Wheel::current);
            let instant = self.entries.instant_of(until);
            self.timer.set(wheel, first.at_least, until, instant, is_real);
        }
        self.planned = true;
        self.first_by = Some(first.at_most);
        true
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
        let now = self.entries.tick_of(Instant::now());
        self.reached = self.reached.max(now);
        let before = expired.len();
        let due = std::iter::from_fn(|| self.entries.take_due(self.reached));
        expired.extend(due.take(limit));
        let count = expired.len() - before;
        if count > 0 {
            self.first_has_gone();
            if self.is_empty() {
                self.emptied();
            }
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
