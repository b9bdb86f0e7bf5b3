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
    /// The index of the piece that takes the next values until it is full.
    current: u32,
    /// The other pieces that have a free cell, by their indices.
    open: Vec<u32>,
    len: usize,
}

impl<V> Arena<V> {
    pub(super) const fn new() -> Arena<V> {
        Arena {
            pieces: Vec::new(),
            current: 0,
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
            let piece = self.add_piece();
            // The first piece of all is the current one already.
            if piece != self.current {
                self.open.push(piece);
            }
        }
    }

    /// # Panics
    ///
    /// Panics if there are four billion cells, so that no value has the index `u32::MAX`.
    fn add_piece(&mut self) -> u32 {
        let piece = u32::try_from(self.pieces.len()).ok();
        let piece = piece.filter(|piece| *piece < u32::MAX / PIECE);
        self.pieces.push(Slab::with_capacity(PIECE as usize));
        piece.expect("a timing wheel holds at most four billion timers")
    }

    /// Inserts a value and returns its index.
    #[inline]
    pub(super) fn insert(&mut self, value: V) -> u32 {
        // One piece is filled before the next is looked for, so that neighbours in time are neighbours in memory.
        self.len += 1;
        let piece = match self.pieces.get_mut(self.current as usize) {
            Some(piece) if piece.len() < PIECE as usize => piece,
            _ => self.next_piece(),
        };
        let cell = piece.insert(value);
        self.current * PIECE + cell as u32
    }

    /// Makes another piece with a free cell the current one.
    #[cold]
    fn next_piece(&mut self) -> &mut Slab<V> {
        self.current = self.open.pop().unwrap_or_else(|| self.add_piece());
        &mut self.pieces[self.current as usize]
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> V {
        let piece = &mut self.pieces[(index / PIECE) as usize];
        let value = piece.remove((index % PIECE) as usize);
        // It was full until now, and so was not in `open`. Nor is the current one, which `insert` looks at first.
        if piece.len() == PIECE as usize - 1 && index / PIECE != self.current {
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
        // Freeing takes long, so the caller does it after it has unlocked the shard.
        let mut released = mem::take(&mut self.pieces);
        self.pieces = released.drain(..keep).collect();
        self.current = 0;
        self.open = (1..keep as u32).collect();
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
