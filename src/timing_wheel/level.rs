//! One ring of buckets, and the bitmap of those in use.

use std::collections::TryReserveError;

use super::bucket::Bucket;

/// A ring of `ticks_per_wheel` buckets. The bitmap says which of them are in use, so that nobody has to look.
pub(super) struct Level {
    pub(super) buckets: Box<[Bucket]>,
    pub(super) used: Bitmap,
}

impl Level {
    pub(super) fn try_new(ticks_per_wheel: usize) -> Result<Level, TryReserveError> {
        let mut buckets = Vec::new();
        buckets.try_reserve_exact(ticks_per_wheel)?;
        buckets.resize(ticks_per_wheel, Bucket::EMPTY);
        Ok(Level {
            buckets: buckets.into_boxed_slice(),
            used: Bitmap::new(ticks_per_wheel),
        })
    }
}

/// A set of small integers in two layers: a bit for each member, and above it a bit for each word that is not empty.
pub(super) struct Bitmap {
    words: Box<[u64]>,
    summary: Box<[u64]>,
}

impl Bitmap {
    fn new(len: usize) -> Bitmap {
        let words = len.div_ceil(64);
        Bitmap {
            words: vec![0; words].into_boxed_slice(),
            summary: vec![0; words.div_ceil(64)].into_boxed_slice(),
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, member: usize) {
        self.words[member / 64] |= 1 << (member % 64);
        self.summary[member / 4096] |= 1 << (member / 64 % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, member: usize) {
        let word = &mut self.words[member / 64];
        *word &= !(1 << (member % 64));
        if *word == 0 {
            self.summary[member / 4096] &= !(1 << (member / 64 % 64));
        }
    }

    /// Whether there is no member.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.summary.iter().all(|bits| *bits == 0)
    }

    /// The smallest member that is at least `from`. `from` may be greater than all of them.
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let bits = self.words.get(from / 64)? & (u64::MAX << (from % 64));
        if bits != 0 {
            return Some(from / 64 * 64 + bits.trailing_zeros() as usize);
        }
        let after = from / 64 + 1;
        let mut keep = u64::MAX << (after % 64);
        for index in after / 64..self.summary.len() {
            let bits = self.summary[index] & keep;
            if bits != 0 {
                let word = index * 64 + bits.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            keep = u64::MAX;
        }
        None
    }

    #[cfg(test)]
    pub(super) fn contains(&self, member: usize) -> bool {
        self.words[member / 64] & (1 << (member % 64)) != 0
    }
}
