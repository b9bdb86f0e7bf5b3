//! The types that a queue hands out: the keys of its entries, and the entries that have left it.

use std::{fmt, num::NonZeroU64};

use tokio::time::Instant;

/// A key that identifies one entry of a [`DelayQueue`](super::DelayQueue).
///
/// A key is never reused: once its entry has left the queue, the key identifies nothing, in this queue or any
/// other.
///
/// # Examples
///
/// ```
/// use std::{collections::HashMap, time::Duration};
/// use tickwheel::{DelayQueue, delay_queue::Key};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut queue = DelayQueue::new();
/// let mut names: HashMap<Key, &str> = HashMap::new();
///
/// let key = queue.insert(1, Duration::from_secs(5));
/// names.insert(key, "the first");
/// queue.remove(&key);
///
/// let other = queue.insert(2, Duration::from_secs(5));
/// assert_ne!(key, other);
/// assert!(queue.try_remove(&key).is_none());
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Unique in the process, which cannot use up 64 bits.
    pub(super) sequence: NonZeroU64,
    /// The cell into which the entry was put. Compaction may have moved the entry since.
    pub(super) cell: usize,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.sequence).finish()
    }
}

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
#[derive(Debug)]
pub struct Expired<T> {
    pub(super) value: T,
    /// The deadline exactly as it was set.
    pub(super) deadline: Instant,
    pub(super) key: Key,
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
