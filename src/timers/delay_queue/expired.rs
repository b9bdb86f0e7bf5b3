//! Values that have expired in a queue.

use std::fmt;

use tokio::time::Instant;

use super::Key;

/// An entry that has left a [`DelayQueue`](super::DelayQueue), because it expired or was removed.
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
/// let key = queue.insert(String::from("foo"), Duration::from_secs(5));
/// let deadline = queue.deadline(&key);
///
/// let mut removed = queue.remove(&key);
/// assert_eq!((removed.key(), removed.deadline()), (key, deadline));
/// removed.get_mut().push('!');
/// assert_eq!(removed.into_inner(), "foo!");
/// # }
/// ```
pub struct Expired<T> {
    pub(super) value: T,
    pub(super) key: Key,
    /// The deadline exactly as it was set.
    pub(super) deadline: Instant,
}

impl<T> Expired<T> {
    /// Returns a reference to the value.
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
    /// let key = queue.insert(String::from("foo"), Duration::from_secs(5));
    /// assert_eq!(queue.remove(&key).get_ref(), "foo");
    /// # }
    /// ```
    pub fn get_ref(&self) -> &T {
        &self.value
    }

    /// Returns a mutable reference to the value.
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
    /// let key = queue.insert(String::from("foo"), Duration::from_secs(5));
    /// let mut removed = queue.remove(&key);
    /// removed.get_mut().push('!');
    /// assert_eq!(removed.get_ref(), "foo!");
    /// # }
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Consumes the entry and returns its value.
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
    /// let key = queue.insert(String::from("foo"), Duration::from_secs(5));
    /// let value: String = queue.remove(&key).into_inner();
    /// assert_eq!(value, "foo");
    /// # }
    /// ```
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Returns the deadline of the entry, which is exactly the instant it was last set to, without rounding.
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
    /// let key = queue.insert(String::from("foo"), Duration::from_secs(5));
    /// let deadline = queue.deadline(&key);
    /// assert_eq!(queue.remove(&key).deadline(), deadline);
    /// # }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the key that the entry had in the queue.
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
    /// let key = queue.insert(String::from("foo"), Duration::from_secs(5));
    /// assert_eq!(queue.remove(&key).key(), key);
    /// # }
    /// ```
    pub fn key(&self) -> Key {
        self.key
    }
}

impl<T: fmt::Debug> fmt::Debug for Expired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expired")
            .field("value", &self.value)
            .field("deadline", &self.deadline())
            .field("key", &self.key)
            .finish()
    }
}
