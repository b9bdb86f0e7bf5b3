//! A queue of values, each of which is returned once its deadline has passed.

mod entries;
mod expired;
mod timer;
mod turns;

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::time::Instant;

use crate::{
    engine::clock::after,
    timers::{
        sleep::{HadBudget, spend_budget},
        waiter::Waiter,
    },
    wheel::Wheel,
};
use entries::Entries;
use timer::QueueTimer;

pub use expired::{Expired, Key};

/// A queue of values, each of which is returned once its deadline has passed.
///
/// It has the names and the behaviour of tokio-util's `DelayQueue`. A value is inserted with a delay or an
/// instant, and is returned by [`poll_expired`](DelayQueue::poll_expired), or by the queue as a [`Stream`].
/// An insertion returns a [`Key`], with which the value can be removed or given another deadline. Typical
/// uses are caches with a time to live, sessions and schedulers.
///
/// Every operation is O(log n), amortized. None takes a lock. The queue allocates only as it grows and, with
/// more than a thousand values, as it sorts. However many values it holds, it has one timer on a [`Wheel`],
/// which is never refused.
///
/// Values are returned in order of deadline. Values with equal deadlines are returned in order of insertion,
/// where a reset counts as an insertion. No value is early, and a waiting task is woken less than one tick of
/// the wheel late, plus the slack of the wheel and the runtime's own delay. On a clock that a test controls,
/// values come at the instants at which tokio-util's queue would return them.
///
/// No deadline panics. A duration that overflows the clock is taken as 30 years.
///
/// The stream ends while the queue is empty, and continues after the next insertion. A waiting task is woken
/// when
///
/// - the first value is due,
/// - a value is inserted into the empty queue, or before all others,
/// - the first value is reset,
/// - the last value is removed.
///
/// # Cancel safety
///
/// [`poll_expired`](DelayQueue::poll_expired) and the stream's `next` are cancel safe: no value is lost if a
/// call is dropped.
///
/// # Examples
///
/// A cache whose entries have a time to live:
///
/// ```
/// use std::{collections::HashMap, future::poll_fn, task::{Context, Poll, ready}, time::Duration};
/// use tickwheel::{DelayQueue, delay_queue::Key};
///
/// #[derive(Default)]
/// struct Cache {
///     entries: HashMap<String, (u64, Key)>,
///     expirations: DelayQueue<String>,
/// }
///
/// impl Cache {
///     fn insert(&mut self, name: &str, value: u64, time_to_live: Duration) {
///         let key = self.expirations.insert(name.into(), time_to_live);
///         if let Some((_, old)) = self.entries.insert(name.into(), (value, key)) {
///             self.expirations.remove(&old);
///         }
///     }
///
///     fn get(&self, name: &str) -> Option<u64> {
///         self.entries.get(name).map(|(value, _)| *value)
///     }
///
///     // Ready once the cache is empty.
///     fn poll_purge(&mut self, cx: &mut Context<'_>) -> Poll<()> {
///         while let Some(expired) = ready!(self.expirations.poll_expired(cx)) {
///             self.entries.remove(expired.get_ref());
///         }
///         Poll::Ready(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let mut cache = Cache::default();
/// cache.insert("session", 42, Duration::from_secs(30));
/// assert_eq!(cache.get("session"), Some(42));
///
/// poll_fn(|cx| cache.poll_purge(cx)).await;
/// assert_eq!(cache.get("session"), None);
/// # }
/// ```
pub struct DelayQueue<T> {
    entries: Entries<T>,
    /// The latest instant that the clock is known to have reached. Entries that are due by then are returned
    /// without reading the clock.
    reached: Instant,
    wheel: Wheel,
    /// While a task waits, the timer is set for the first entry, or for an earlier deadline.
    timer: QueueTimer,
    waiter: Waiter,
}

impl<T> DelayQueue<T> {
    /// Creates an empty queue on the [global wheel](Wheel::global).
    ///
    /// # Examples
    ///
    /// ```
    /// let queue: tickwheel::DelayQueue<u32> = tickwheel::DelayQueue::new();
    /// assert!(queue.is_empty());
    /// ```
    pub fn new() -> DelayQueue<T> {
        DelayQueue::on(&Wheel::global())
    }

    /// Creates an empty queue on the given wheel.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::StreamExt;
    /// use std::time::Duration;
    /// use tickwheel::{DelayQueue, Wheel};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let mut queue = DelayQueue::on(&wheel);
    /// queue.insert("second", Duration::from_millis(30));
    /// queue.insert("first", Duration::from_millis(10));
    ///
    /// assert_eq!(queue.next().await.unwrap().into_inner(), "first");
    /// assert_eq!(queue.next().await.unwrap().into_inner(), "second");
    /// assert!(queue.next().await.is_none());
    /// # }
    /// ```
    pub fn on(wheel: &Wheel) -> DelayQueue<T> {
        let timer = QueueTimer::new(wheel);
        DelayQueue {
            entries: Entries::new(),
            reached: timer.now(),
            wheel: wheel.clone(),
            timer,
            waiter: Waiter::default(),
        }
    }

    /// Creates an empty queue on the [global wheel](Wheel::global), with room for `capacity` values.
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

    /// Inserts a value that is due once `timeout` has elapsed.
    ///
    /// With a zero duration, the value is due at once, or at the next millisecond of a test's clock. A
    /// duration that overflows the clock is taken as 30 years.
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
    /// assert_eq!(queue.remove(&key).into_inner(), "foo");
    /// # }
    /// ```
    pub fn insert(&mut self, value: T, timeout: Duration) -> Key {
        self.insert_at(value, after(self.timer.now(), timeout))
    }

    /// Inserts a value that is due at `when`.
    ///
    /// A value that is already due is returned by the next poll, or at the next millisecond of a test's
    /// clock.
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
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// let key = queue.insert_at("foo", deadline);
    /// assert_eq!(queue.deadline(&key), deadline);
    /// # }
    /// ```
    pub fn insert_at(&mut self, value: T, when: Instant) -> Key {
        self.change(|entries| entries.insert(value, when))
    }

    /// Sets another deadline for a key's value, which is then due once `timeout` has elapsed from now.
    ///
    /// # Panics
    ///
    /// Panics if the key has no value in this queue, because the value expired or was removed, or because the
    /// key is of another queue.
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
    /// Panics if the key has no value in this queue, because the value expired or was removed, or because the
    /// key is of another queue.
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

    /// Resets a key's value as [`reset`](DelayQueue::reset) does, or returns `false` if the key has no value
    /// in this queue.
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
        self.try_reset_at(key, after(self.timer.now(), timeout))
    }

    /// Resets a key's value as [`reset_at`](DelayQueue::reset_at) does, or returns `false` if the key has no
    /// value in this queue.
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
        self.change(|entries| entries.reset(key, when)).is_some()
    }

    /// Removes a key's value, due or not, and returns it.
    ///
    /// # Panics
    ///
    /// Panics if the key has no value in this queue, because the value expired or was removed, or because the
    /// key is of another queue.
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
    /// assert_eq!(*queue.remove(&key).get_ref(), "foo");
    /// # }
    /// ```
    #[track_caller]
    pub fn remove(&mut self, key: &Key) -> Expired<T> {
        // With `unwrap_or_else`, the panic would name the closure.
        let Some(removed) = self.try_remove(key) else {
            invalid(key)
        };
        removed
    }

    /// Removes a key's value, due or not, and returns it, or returns `None` if the key has no value in this
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
    /// assert_eq!(queue.try_remove(&key).unwrap().into_inner(), "foo");
    /// assert!(queue.try_remove(&key).is_none());
    /// # }
    /// ```
    pub fn try_remove(&mut self, key: &Key) -> Option<Expired<T>> {
        let removed = self.entries.remove(key)?;
        if self.is_empty() {
            self.emptied();
        }
        Some(removed)
    }

    /// Polls for the next value that is due, and returns `None` if the queue is empty.
    ///
    /// No value is early, and the waiting task is woken less than one tick of the wheel late, plus its slack
    /// and the runtime's own delay. Only the task that polled last is woken for a deadline. If another task
    /// then takes a value, the task that was waiting is woken too and should poll again.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime if the call has to wait, unless the queue's wheel was given a
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
    #[track_caller]
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Option<Expired<T>>> {
        ready!(HadBudget(false).poll(cx));
        loop {
            let Some(first) = self.entries.first() else {
                self.timer.unset();
                self.waiter.wait(cx);
                return Poll::Ready(None);
            };
            if first <= self.reached {
                let _ = spend_budget(cx);
                self.waiter.stop_waiting(cx);
                return Poll::Ready(self.entries.take_first());
            }
            if self.timer.deadline != Some(first) {
                if let Err(now) = self.timer.set(first) {
                    self.reached = now;
                    continue;
                }
            }
            if self.timer.poll(cx).is_pending() {
                self.waiter.wait(cx);
                return Poll::Pending;
            }
            // The timer decides even if the clock here shows an earlier time, because the timer may use
            // another clock.
            self.reached = first;
        }
    }

    /// Appends up to `limit` due values to `expired`, in their order, and returns the number of values
    /// appended.
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
        self.reached = self.reached.max(self.timer.now());
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

    /// Returns the deadline of a key's value, which is exactly the instant it was last set to, without
    /// rounding.
    ///
    /// # Panics
    ///
    /// Panics if the key has no value in this queue, because the value expired or was removed, or because the
    /// key is of another queue.
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
        let Some(deadline) = self.entries.deadline(key) else {
            invalid(key)
        };
        deadline
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

    /// Removes all values, but keeps the memory.
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
    /// queue.clear();
    /// assert!(queue.is_empty());
    /// # }
    /// ```
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.emptied();
            // Clearing comes last, because it drops the values, and the drop of a value may panic.
            self.entries.clear();
        }
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

    /// Makes a change, and wakes the waiting task if the change makes another entry the first or resets the
    /// first.
    fn change<R>(&mut self, change: impl FnOnce(&mut Entries<T>) -> R) -> R {
        let first = self.entries.first_turn();
        let changed = change(&mut self.entries);
        if self.entries.first_turn() != first {
            self.waiter.wake();
        }
        changed
    }

    /// Stops waiting for entries, because the last one has left or is about to leave.
    #[cold]
    fn emptied(&mut self) {
        self.timer.unset();
        self.waiter.wake();
    }
}

#[cold]
#[track_caller]
fn invalid(key: &Key) -> ! {
    panic!("invalid key: {key:?} has no value in this queue")
}

impl<T> Stream for DelayQueue<T> {
    type Item = Expired<T>;

    #[track_caller]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<T>>> {
        self.get_mut().poll_expired(cx)
    }
}

// A value is never pinned.
impl<T> Unpin for DelayQueue<T> {}

impl<T> Default for DelayQueue<T> {
    /// Creates an empty queue, as [`DelayQueue::new`] does.
    fn default() -> DelayQueue<T> {
        DelayQueue::new()
    }
}

impl<T> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("wheel", &self.wheel)
            .finish_non_exhaustive()
    }
}
