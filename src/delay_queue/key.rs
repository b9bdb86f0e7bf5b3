//! Keys, and the sequence numbers by which each names one entry forever.

use std::{
    fmt,
    hash::{Hash, Hasher},
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
};

/// The name of one entry of a [`DelayQueue`](super::DelayQueue).
///
/// A key names one entry for ever: once that has left its queue, the key names nothing, in this queue or any other.
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
    /// Each entry of the process has its own. A process does not use up 64 bits.
    pub(super) sequence: NonZeroU64,
    /// The cell in which the entry was put. Compaction may have moved it since.
    pub(super) cell: u32,
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

/// How many sequence numbers a queue takes at a time. With so many, queues hardly ever meet over [`NEXT_BLOCK`].
const BLOCK: u64 = 1024;
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(BLOCK);

/// A queue's share of the process's sequence numbers.
#[derive(Default)]
pub(super) struct Sequence {
    /// How many are left of the block.
    left: u64,
    end: u64,
}

impl Sequence {
    #[inline]
    pub(super) fn draw(&mut self) -> NonZeroU64 {
        if self.left == 0 {
            self.left = BLOCK;
            self.end = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed) + BLOCK;
        }
        let sequence = self.end - self.left;
        self.left -= 1;
        // No block begins at zero.
        NonZeroU64::new(sequence).unwrap_or(NonZeroU64::MAX)
    }
}
