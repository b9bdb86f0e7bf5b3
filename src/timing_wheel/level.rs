//! One ring of buckets and the bitmap of those in use.

use std::collections::TryReserveError;

use super::bucket::Bucket;

/// A ring of `ticks_per_wheel` buckets; which of them hold a timer is told by [`Bitmap`], never by looking.
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

/// A set of small integers in two layers: a bit for each member, and a bit for each non-empty word of those.
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

    /// The smallest member that is at least `from`.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let here = first_from(&self.words, from / 64, from % 64, from / 64 + 1);
        here.or_else(|| {
            let word = from / 64 + 1;
            let word = first_from(&self.summary, word / 64, word % 64, self.summary.len())?;
            Some(word * 64 + self.words[word].trailing_zeros() as usize)
        })
    }

    #[cfg(test)]
    pub(super) fn contains(&self, member: usize) -> bool {
        self.words[member / 64] & (1 << (member % 64)) != 0
    }
}

/// The first bit set in `words[word..end]`, from bit `bit` of the first of them on.
fn first_from(words: &[u64], word: usize, bit: usize, end: usize) -> Option<usize> {
    let mut keep = u64::MAX << bit;
    for (index, bits) in words.iter().enumerate().take(end).skip(word) {
        if bits & keep != 0 {
            return Some(index * 64 + (bits & keep).trailing_zeros() as usize);
        }
        keep = u64::MAX;
    }
    None
}
