//! Changing the deadlines of queued values.

use std::time::Duration;

use tokio::time::Instant;

use super::{DelayQueue, Key, invalid};
use crate::engine::moment::after;

impl<T> DelayQueue<T> {
    /// Sets another deadline for a key's value, which is then due once `timeout` has elapsed from now.
    ///
    /// # Panics
    ///
    /// Panics if the key has no value in this queue, because the value expired or was removed, or because the key is of another
    /// queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::DelayQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut queue = DelayQueue::new();
    /// let key = queue.insert("foo", Duration::from_secs(5));
    /// queue.reset(&key, Duration::from_secs(10)); // now due in 10 seconds
    /// # }
    /// ```
    #[track_caller]
    pub fn reset(&mut self, key: &Key, timeout: Duration) {
        if !self.try_reset(key, timeout) {
            invalid(key)
        }
    }

    /// Sets another deadline for a key's value, which is then due at `when`.
    ///
    /// # Panics
    ///
    /// Panics if the key has no value in this queue, because the value expired or was removed, or because the key is of another
    /// queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::DelayQueue;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut queue = DelayQueue::new();
    /// let key = queue.insert("foo", Duration::from_secs(5));
    /// queue.reset_at(&key, Instant::now() + Duration::from_secs(10));
    /// # }
    /// ```
    #[track_caller]
    pub fn reset_at(&mut self, key: &Key, when: Instant) {
        if !self.try_reset_at(key, when) {
            invalid(key)
        }
    }

    /// Resets a key's value as [`reset`](DelayQueue::reset) does, or returns `false` if the key has no value in this queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::DelayQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut queue = DelayQueue::new();
    /// let key = queue.insert("foo", Duration::from_secs(5));
    /// assert!(queue.try_reset(&key, Duration::from_secs(10)));
    /// queue.remove(&key);
    /// assert!(!queue.try_reset(&key, Duration::from_secs(10)));
    /// # }
    /// ```
    pub fn try_reset(&mut self, key: &Key, timeout: Duration) -> bool {
        self.try_reset_at(key, after(Instant::now(), timeout))
    }

    /// Resets a key's value as [`reset_at`](DelayQueue::reset_at) does, or returns `false` if the key has no value in this queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::DelayQueue;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut queue = DelayQueue::new();
    /// let key = queue.insert("foo", Duration::from_secs(5));
    /// assert!(queue.try_reset_at(&key, Instant::now() + Duration::from_secs(10)));
    /// # }
    /// ```
    pub fn try_reset_at(&mut self, key: &Key, when: Instant) -> bool {
        let first = self.entries.first_turn();
        if self.entries.reset(key, when).is_none() {
            return false;
        }
        if self.entries.first_turn() != first {
            self.waiter.wake();
        }
        true
    }
}
