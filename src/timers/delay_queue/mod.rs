//! A queue of values, each of which is returned once its deadline has passed.

mod entries;
mod expired;
mod key;
mod look;
mod memory;
mod polling;
mod reset;
mod timer;
mod turns;

use std::{fmt, time::Duration};

use tokio::time::Instant;

use crate::{engine::moment::after, timers::waiter::Waiter, wheel::Wheel};

pub use expired::Expired;
pub use key::Key;

use entries::Entries;
use timer::QueueTimer;

/// A queue of values, each of which is returned once its deadline has passed.
///
/// It has the names and the behaviour of tokio-util's `DelayQueue`. A value is inserted with a delay or an instant, and is
/// returned by [`poll_expired`](DelayQueue::poll_expired), or by the queue as a [`Stream`](futures_core::Stream). An insertion
/// returns a [`Key`], with which the value can be removed or given another deadline. Typical uses are caches with a time to live,
/// sessions and schedulers.
///
/// Every operation is O(log n), amortized. None takes a lock. The queue allocates only as it grows and, with more than a thousand values,
/// as it sorts. However many values it holds, it has one timer on a [`Wheel`], which is never refused.
///
/// Values are returned in order of deadline. Values with equal deadlines are returned in order of insertion, where a reset counts
/// as an insertion. No value is early, and a waiting task is woken less than one tick of the wheel late, plus the slack of the wheel and the
/// runtime's own delay. On a clock that a test controls, values come at the instants at which tokio-util's queue would return them.
///
/// No deadline panics. A duration that overflows the clock is taken as 30 years.
///
/// The stream ends while the queue is empty, and continues after the next insertion. A waiting task is woken when
///
/// - the first value is due,
/// - a value is inserted into the empty queue, or before all others,
/// - the first value is reset,
/// - the last value is removed.
///
/// # Cancel safety
///
/// [`poll_expired`](DelayQueue::poll_expired) and the stream's `next` are cancel safe: no value is lost if a call is dropped.
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
    /// When the queue was created, from which a test's clock counts milliseconds.
    created: Instant,
    /// The latest instant that the clock is known to have reached. Entries that are due by then are returned without reading the
    /// clock.
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
        let now = Instant::now();
        DelayQueue {
            entries: Entries::new(),
            created: now,
            reached: now,
            wheel: wheel.clone(),
            timer: QueueTimer::default(),
            waiter: Waiter::default(),
        }
    }

    /// Inserts a value that is due once `timeout` has elapsed.
    ///
    /// With a zero duration, the value is due at once, or at the next millisecond of a test's clock. A duration that
    /// overflows the clock is taken as 30 years.
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
    #[track_caller]
    pub fn insert(&mut self, value: T, timeout: Duration) -> Key {
        self.insert_at(value, after(Instant::now(), timeout))
    }

    /// Inserts a value that is due at `when`.
    ///
    /// A value that is already due is returned by the next poll, or at the next millisecond of a test's clock.
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
    #[track_caller]
    pub fn insert_at(&mut self, value: T, when: Instant) -> Key {
        let first = self.entries.first_turn();
        let key = self.entries.insert(value, when);
        if self.entries.first_turn() != first {
            self.waiter.wake();
        }
        key
    }

    /// Removes a key's value, due or not, and returns it.
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
    /// assert_eq!(*queue.remove(&key).get_ref(), "foo");
    /// # }
    /// ```
    #[track_caller]
    pub fn remove(&mut self, key: &Key) -> Expired<T> {
        self.try_remove(key).unwrap_or_else(|| invalid(key))
    }

    /// Removes a key's value, due or not, and returns it, or returns `None` if the key has no value in this queue.
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
