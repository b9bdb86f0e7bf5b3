//! Keys, and the sequence numbers that make each key unique.

use std::{
    fmt,
    hash::{Hash, Hasher},
    num::NonZeroU64,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

/// A key that identifies one entry of a [`DelayQueue`](super::DelayQueue).
///
/// A key is never reused: once its entry has left the queue, the key identifies nothing, in this queue or any other.
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
#[derive(Clone, Copy)]
pub struct Key {
    /// Unique in the process, which cannot use up 64 bits.
    pub(super) sequence: NonZeroU64,
    /// The cell into which the entry was put. Compaction may have moved the entry since.
    pub(super) cell: usize,
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sequence.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.sequence).finish()
    }
}

/// The number of sequence numbers that a queue takes at a time. It is large enough that queues hardly ever contend for
/// [`NEXT_BLOCK`].
const BLOCK: u64 = 1024;
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(BLOCK);

/// What is left of a queue's block of the process's sequence numbers.
#[derive(Default)]
pub(super) struct Sequence(Range<u64>);

impl Sequence {
    #[inline]
    pub(super) fn draw(&mut self) -> NonZeroU64 {
        if self.0.is_empty() {
            let first = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed);
            self.0 = first..first + BLOCK;
        }
        // No block begins at zero, and none is used up here.
        self.0.next().and_then(NonZeroU64::new).unwrap_or(NonZeroU64::MAX)
    }
}
