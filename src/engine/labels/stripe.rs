//! The counters of one shard, for all labels of the wheel.

use std::{
    array,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Label, Labels, NAMES};

/// The number of labels whose counters are part of the shard: eight names of the wheel, and eight static labels.
const FEW: usize = 16;
/// The number of further labels whose counters are allocated together.
const CHUNK: usize = 32;
/// Enough chunks for [`NAMES`] labels of either kind, and those of all further names.
const CHUNKS: usize = 2 * (NAMES + 1) / CHUNK + 1;
pub(super) const COUNTERS: usize = 16;

/// An event in the life of a limit, as an index into its label's counters. The first ten are completions, by the tenths of the
/// time that were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(super) usize);

impl Count {
    /// The limit completed with all of its time left.
    pub(crate) const ALL_LEFT: Count = Count(9);
    /// The limit was polled.
    pub(crate) const BEGUN: Count = Count(10);
    pub(crate) const ELAPSED: Count = Count(11);
    pub(crate) const REFUSED: Count = Count(12);
    pub(crate) const CANCELLED: Count = Count(13);

    /// The limit completed with `left` of its `total` time, of which all counts as nine tenths.
    pub(crate) fn completed(left: u64, total: u64) -> Count {
        let tenths = (u128::from(left) * 10).checked_div(total.into());
        Count(tenths.map_or(0, |tenths| tenths.min(9)) as usize)
    }
}

/// The counters of one shard. Those beyond [`FEW`] are allocated when they are first used.
pub(crate) struct Stripe {
    /// The labels of the wheel.
    pub(super) labels: Arc<Labels>,
    few: [Counters; FEW],
    chunks: [OnceLock<Box<[Counters; CHUNK]>>; CHUNKS],
}

/// The counters of one label in one shard.
#[repr(align(128))]
#[derive(Default)]
struct Counters([AtomicU64; COUNTERS]);

impl Stripe {
    pub(crate) fn new(labels: Arc<Labels>) -> Stripe {
        Stripe {
            labels,
            few: Default::default(),
            chunks: array::from_fn(|_| OnceLock::new()),
        }
    }

    /// Finds or creates the label with this name, and returns the name that it counts under.
    pub(crate) fn find(&self, name: Arc<str>) -> (Label, Arc<str>) {
        self.labels.find(name)
    }

    #[inline]
    pub(crate) fn count(&self, label: Label, count: Count) {
        // This is a release, so that a reader that sees the end of a limit also sees its beginning.
        self.counters(label).0[count.0 % COUNTERS].fetch_add(1, Ordering::Release);
    }

    #[inline]
    fn counters(&self, label: Label) -> &Counters {
        let index = label.0 as usize;
        self.few.get(index).unwrap_or_else(|| self.further(index))
    }

    #[cold]
    #[inline(never)]
    fn further(&self, index: usize) -> &Counters {
        &self.chunks[index / CHUNK].get_or_init(Box::default)[index % CHUNK]
    }

    /// Returns the counters of a label, unless nothing was counted there.
    fn used(&self, label: Label) -> Option<&Counters> {
        let index = label.0 as usize;
        let further = || Some(&self.chunks[index / CHUNK].get()?[index % CHUNK]);
        self.few.get(index).or_else(further)
    }
}

/// Adds up the counts of a label. Beginnings are read last, so that no end is counted without its beginning.
pub(super) fn totals<'a>(label: Label, stripes: impl Iterator<Item = &'a Stripe> + Clone) -> [u64; COUNTERS] {
    let mut totals = [0; COUNTERS];
    for begun in [false, true] {
        for counters in stripes.clone().filter_map(|stripe| stripe.used(label)) {
            for (count, (counter, total)) in counters.0.iter().zip(&mut totals).enumerate() {
                if begun == (count == Count::BEGUN.0) {
                    *total += counter.load(Ordering::Acquire);
                }
            }
        }
    }
    totals
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
        let stripes = [(); 2].map(|()| Stripe::new(Arc::default()));
        for label in [0, FEW as u32 - 1, FEW as u32, Label::of_process(NAMES).0] {
            stripes[0].count(Label(label), Count::BEGUN);
            stripes[1].count(Label(label), Count::completed(3, 10));
            let totals = totals(Label(label), stripes.iter());
            assert_eq!((totals[Count::BEGUN.0], totals[3]), (1, 1));
        }
        for label in [1, 700] {
            assert_eq!(totals(Label(label), stripes.iter())[Count::BEGUN.0], 0);
        }
    }
}
