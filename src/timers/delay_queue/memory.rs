//! The capacity and memory of a queue.

use super::DelayQueue;

impl<T> DelayQueue<T> {
    /// Creates an empty queue on the [global wheel](crate::Wheel::global), with room for `capacity` values.
    ///
    /// # Panics
    ///
    /// Panics if there is not enough memory for `capacity` values. The message contains that number.
    ///
    /// # Examples
    ///
    /// ```
    /// let queue: tickwheel::DelayQueue<u32> = tickwheel::DelayQueue::with_capacity(10);
    /// assert!(queue.capacity() >= 10);
    /// ```
    #[track_caller]
    pub fn with_capacity(capacity: usize) -> DelayQueue<T> {
        let mut queue = DelayQueue::new();
        queue.reserve(capacity);
        queue
    }

    /// Returns the number of values for which the queue has room.
    ///
    /// # Examples
    ///
    /// ```
    /// let queue: tickwheel::DelayQueue<u32> = tickwheel::DelayQueue::with_capacity(10);
    /// assert!(queue.capacity() >= 10);
    /// ```
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Reserves memory for `additional` more values.
    ///
    /// # Panics
    ///
    /// Panics if there is not enough memory for `additional` more values. The message contains that number.
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
    /// queue.insert("foo", Duration::from_secs(5));
    /// queue.reserve(10);
    /// assert!(queue.capacity() >= 11);
    /// # }
    /// ```
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional);
    }

    /// Frees the memory behind the last place in use.
    ///
    /// [`compact`](DelayQueue::compact) also frees the places between values.
    ///
    /// # Examples
    ///
    /// ```
    /// let mut queue: tickwheel::DelayQueue<u32> = tickwheel::DelayQueue::with_capacity(10);
    /// queue.shrink_to_fit();
    /// assert_eq!(queue.capacity(), 0);
    /// ```
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Frees all memory that the values in the queue do not need.
    ///
    /// Keys stay valid. This takes time proportional to the capacity.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::DelayQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut queue = DelayQueue::with_capacity(10);
    /// let foo = queue.insert("foo", Duration::from_secs(5));
    /// let bar = queue.insert("bar", Duration::from_secs(10));
    /// queue.remove(&foo);
    ///
    /// queue.compact();
    /// assert_eq!(queue.capacity(), 1);
    /// assert_eq!(queue.remove(&bar).into_inner(), "bar");
    /// # }
    /// ```
    pub fn compact(&mut self) {
        self.entries.compact();
    }
}
