//! The counters of one shard, for all labels of the wheel.

use std::{
    array,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Label, NAMES};

/// The number of labels whose counters are allocated together.
const CHUNK: usize = 32;
/// Enough chunks for [`NAMES`] labels and the one of all further names.
const CHUNKS: usize = NAMES / CHUNK + 1;
const COUNTERS: usize = 16;

/// An event in the life of a limit, as an index into its label's counters. The first ten are completions, by the tenths of the
/// time that were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(usize);

impl Count {
    /// The limit was ready at its first poll.
    pub(crate) const AT_ONCE: Count = Count(10);
    /// The limit was pending at its first poll.
    pub(crate) const BEGUN: Count = Count(11);
    pub(crate) const ELAPSED: Count = Count(12);
    pub(crate) const REFUSED: Count = Count(13);
    pub(crate) const CANCELLED: Count = Count(14);

    /// The limit was pending, and completed with `left` of its `total` time, of which all counts as nine tenths.
    #[inline]
    pub(crate) fn completed(left: u64, total: u64) -> Count {
        let tenths = match left.checked_mul(10) {
            _ if total == 0 => 0,
            Some(left) => left / total,
            // The multiplication overflows only if decades are left.
            None => (u128::from(left) * 10 / u128::from(total)) as u64,
        };
        Count(tenths.min(9) as usize)
    }
}

/// The counters of one shard. They are allocated when a label is first counted there.
#[derive(Default)]
pub(crate) struct Stripe([OnceLock<Box<[Counters; CHUNK]>>; CHUNKS]);

/// The counters of one label in one shard.
#[repr(align(128))]
#[derive(Default)]
struct Counters([AtomicU64; COUNTERS]);

impl Stripe {
    #[inline]
    pub(crate) fn count(&self, label: Label, count: Count) {
        let index = usize::from(label.0);
        let chunk = self.0[index / CHUNK].get_or_init(|| Box::new(array::from_fn(|_| Counters::default())));
        // This is a release, so that a reader that sees the end of a limit also sees its beginning. The remainder saves a bounds
        // check.
        chunk[index % CHUNK].0[count.0 % COUNTERS].fetch_add(1, Ordering::Release);
    }
}

/// The sums of all shards' counts under one label.
#[derive(Default)]
pub(super) struct Totals([u64; COUNTERS]);

impl Totals {
    /// Adds up the counts of a label. Beginnings are read last, so that no end is counted without its beginning.
    pub(super) fn of<'a>(label: Label, stripes: impl Iterator<Item = &'a Stripe> + Clone) -> Totals {
        let index = usize::from(label.0);
        let mut totals = Totals::default();
        for begun in [false, true] {
            let chunks = stripes.clone().filter_map(|stripe| stripe.0[index / CHUNK].get());
            for counters in chunks.map(|chunk| &chunk[index % CHUNK].0) {
                for (count, (counter, total)) in counters.iter().zip(&mut totals.0).enumerate() {
                    if begun == (count == Count::BEGUN.0) {
                        *total += counter.load(Ordering::Acquire);
                    }
                }
            }
        }
        totals
    }

    pub(super) fn count(&self, count: Count) -> u64 {
        self.0[count.0]
    }

    /// Returns the number of completions by tenths of the time left. Limits that were ready at once are not included.
    pub(super) fn headroom(&self) -> [u64; 10] {
        array::from_fn(|tenths| self.0[tenths])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tenths_of_any_time() {
        for (left, total, tenths) in [(0, 0, 0), (1, 10, 1), (99, 100, 9), (100, 100, 9), (9, 100, 0)] {
            assert_eq!(Count::completed(left, total), Count(tenths));
        }
        assert_eq!(
            Count::completed(u64::MAX / 2, u64::MAX),
            Count(4),
            "a little less than half"
        );
        assert_eq!(Count::completed(u64::MAX / 2 + 1, u64::MAX), Count(5));
    }

    #[test]
    fn counts_of_all_shards_add_up() {
        let stripes = [Stripe::default(), Stripe::default()];
        for label in [0, NAMES as u16] {
            stripes[0].count(Label(label), Count::BEGUN);
            stripes[1].count(Label(label), Count::completed(3, 10));
            let totals = Totals::of(Label(label), stripes.iter());
            assert_eq!((totals.count(Count::BEGUN), totals.headroom()[3]), (1, 1));
        }
        assert_eq!(Totals::of(Label(7), stripes.iter()).count(Count::BEGUN), 0);
    }
}
