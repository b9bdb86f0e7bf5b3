//! Queries that do not change a queue.

use tokio::time::Instant;

use super::{DelayQueue, Key, invalid};

impl<T> DelayQueue<T> {
    /// Returns the key of the next value in order of deadline, due or not.
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
    /// queue.insert("foo", Duration::from_secs(10));
    /// let bar = queue.insert("bar", Duration::from_secs(5));
    /// assert_eq!(queue.peek(), Some(bar));
    /// # }
    /// ```
    pub fn peek(&self) -> Option<Key> {
        self.entries.peek()
    }

    /// Returns the deadline of a key's value, which is exactly the instant it was last set to, without rounding.
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
    /// let foo = queue.insert("foo", Duration::from_secs(5));
    /// let bar = queue.insert("bar", Duration::from_secs(10));
    /// assert!(queue.deadline(&foo) < queue.deadline(&bar));
    /// # }
    /// ```
    #[track_caller]
    pub fn deadline(&self, key: &Key) -> Instant {
        self.entries.deadline(key).unwrap_or_else(|| invalid(key))
    }

    /// Returns the number of values in the queue, due or not.
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
    /// assert_eq!(queue.len(), 0);
    /// queue.insert("foo", Duration::from_secs(5));
    /// assert_eq!(queue.len(), 1);
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if the queue holds no values, due or not.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(tickwheel::DelayQueue::<u32>::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
