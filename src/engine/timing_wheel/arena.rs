//! `Arena`: cells for entries, in pieces. Each piece is a slab that never outgrows its capacity, so no entry is
//! ever copied while a shard is locked, and a growing arena never has its memory twice.

use std::{
    mem,
    ops::{Index, IndexMut},
};

use slab::Slab;

/// The number of cells of a piece, a power of two.
const PIECE: u32 = 1024;

pub(super) struct Arena<V> {
    pieces: Vec<Slab<V>>,
    /// The pieces that have a free cell, by their indices. The last one is filled first.
    open: Vec<u32>,
    len: usize,
}

impl<V> Arena<V> {
    pub(super) const fn new() -> Arena<V> {
        Arena {
            pieces: Vec::new(),
            open: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of cells, used or not.
    pub(super) fn capacity(&self) -> usize {
        self.pieces.len() * PIECE as usize
    }

    /// Adds pieces until there are at least `capacity` cells.
    pub(super) fn reserve(&mut self, capacity: usize) {
        while self.capacity() < capacity {
            self.add_piece();
        }
    }

    #[cold]
    fn add_piece(&mut self) {
        let piece = u32::try_from(self.pieces.len()).ok();
        let piece = piece.filter(|piece| *piece < u32::MAX / PIECE);
        self.open
            .push(piece.expect("a timing wheel holds at most four billion timers"));
        self.pieces.push(Slab::with_capacity(PIECE as usize));
    }

    /// Returns the index that the next insertion gives to its value.
    ///
    /// # Panics
    ///
    /// Panics if there are four billion values.
    #[inline]
    pub(super) fn vacant_index(&mut self) -> u32 {
        if self.open.is_empty() {
            self.add_piece();
        }
        let piece = self.open[self.open.len() - 1];
        piece * PIECE + self.pieces[piece as usize].vacant_key() as u32
    }

    /// Inserts a value at the index that `vacant_index` has returned.
    #[inline]
    pub(super) fn insert(&mut self, index: u32, value: V) {
        let piece = &mut self.pieces[(index / PIECE) as usize];
        piece.insert(value);
        if piece.len() == PIECE as usize {
            self.open.pop();
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> V {
        let piece = &mut self.pieces[(index / PIECE) as usize];
        let value = piece.remove((index % PIECE) as usize);
        if piece.len() == PIECE as usize - 1 {
            self.open.push(index / PIECE);
        }
        self.len -= 1;
        value
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&V> {
        self.pieces
            .get((index / PIECE) as usize)?
            .get((index % PIECE) as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut V> {
        let piece = self.pieces.get_mut((index / PIECE) as usize)?;
        piece.get_mut((index % PIECE) as usize)
    }

    /// Returns all values with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        (0..).zip(&self.pieces).flat_map(|(piece, slab)| {
            let index = move |(cell, value)| (piece * PIECE + cell as u32, value);
            slab.iter().map(index)
        })
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        let values = |piece: Slab<V>| piece.into_iter().map(|(_, value)| value);
        self.pieces.into_iter().flat_map(values)
    }

    /// Takes out the pieces of an empty arena beyond its first `retain` cells, if there are any.
    #[cold]
    pub(super) fn release(&mut self, retain: usize) -> Option<Vec<Slab<V>>> {
        let keep = retain.div_ceil(PIECE as usize);
        if !self.is_empty() || self.pieces.len() <= keep {
            return None;
        }
        let mut released = mem::take(&mut self.pieces);
        self.pieces = released.drain(..keep).collect();
        self.open = (0..keep as u32).collect();
        Some(released)
    }
}

impl<V> Index<u32> for Arena<V> {
    type Output = V;

    #[inline]
    fn index(&self, index: u32) -> &V {
        &self.pieces[(index / PIECE) as usize][(index % PIECE) as usize]
    }
}

impl<V> IndexMut<u32> for Arena<V> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut V {
        &mut self.pieces[(index / PIECE) as usize][(index % PIECE) as usize]
    }
}
