//! Memory that peers write while we look.
//!
//! A transport of another process (a network card, a copy between address spaces) does not know Rust's rules, so nobody
//! here ever holds a `&[u8]` into this memory: every access is a relaxed load or store of one word, and what a racing reader
//! gets is some mixture of old and new words. Order between a write and its reader comes from elsewhere: a completion that
//! the transport reports, then [`crate::gate::PageGate`].
//!
//! Pages start at multiples of [`crate::layout::ALIGN`] and the arena itself at a multiple of 4,096, so no word belongs to
//! two pages and no cache line either.

use crate::layout::Layout;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use thiserror::Error;

/// Alignment of the first byte: what drivers want of memory that they pin.
const BASE_ALIGN: usize = 4096;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Words that are moved at a time; LLVM unrolls this many, it does not widen atomic accesses.
const LINE: usize = 8;
/// What unwritten bytes are filled with in tests: NaN as f32, bf16, e4m3 and ue8m0 alike.
pub const POISON: u8 = 0xff;

/// Why bytes could not be reached.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// Outside.
    #[error("bytes {offset}..{offset}+{bytes}: the arena has {arena}")]
    Range {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes there are.
        arena: u64,
    },
    /// The allocator refused.
    #[error("no memory for an arena of {bytes} bytes")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
    },
}

/// A range of bytes shared with writers outside this process's control.
pub struct Arena {
    words: Box<[AtomicU64]>,
    /// Word of the first byte.
    first: usize,
    bytes: u64,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Arena {
    /// An arena of zeros.
    ///
    /// # Errors
    /// More than the allocator gives.
    pub fn new(bytes: u64) -> Result<Self, ArenaError> {
        let refused = ArenaError::Memory { bytes };
        let num_words = usize::try_from(bytes.div_ceil(WORD as u64)).map_err(|_| refused.clone())?;
        let num_words = num_words.checked_add(BASE_ALIGN / WORD).ok_or_else(|| refused.clone())?;
        let mut words = Vec::new();
        words.try_reserve_exact(num_words).map_err(|_| refused)?;
        words.resize_with(num_words, || AtomicU64::new(0));
        let words = words.into_boxed_slice();
        let first = words.as_ptr().align_offset(BASE_ALIGN);
        Ok(Self { words, first, bytes })
    }

    /// The arena of a layout.
    ///
    /// # Errors
    /// As [`Arena::new`].
    pub fn of(layout: &Layout) -> Result<Self, ArenaError> {
        Self::new(layout.bytes())
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// First word, for registration with a transport; [`Arena::bytes`] follow. Stays where it is for the arena's life.
    pub fn base(&self) -> *const AtomicU64 {
        self.words[self.first..].as_ptr()
    }

    /// Reads bytes; word by word, so a concurrent writer is seen in part.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ArenaError> {
        let (mut words, skip) = self.range(offset, out.len() as u64)?;
        let mut out = out;
        if skip > 0 {
            let head;
            (head, out) = out.split_at_mut((WORD - skip).min(out.len()));
            let Some((word, rest)) = words.split_first() else { return Ok(()) };
            head.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[skip..skip + head.len()]);
            words = rest;
        }
        let (lines, out) = out.as_chunks_mut::<{ LINE * WORD }>();
        let (from, words) = words.split_at(lines.len() * LINE);
        for (line, from) in lines.iter_mut().zip(from.as_chunks::<LINE>().0) {
            for (bytes, word) in line.as_chunks_mut::<WORD>().0.iter_mut().zip(from) {
                *bytes = word.load(Relaxed).to_ne_bytes();
            }
        }
        for (bytes, word) in out.chunks_mut(WORD).zip(words) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..bytes.len()]);
        }
        Ok(())
    }

    /// Writes bytes. The rest of a word written in part is kept by load and store: the word must have no other writer, and
    /// has none, because pages share no word.
    ///
    /// # Errors
    /// The range is not inside; nothing is written then.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), ArenaError> {
        let (mut words, skip) = self.range(offset, data.len() as u64)?;
        let mut data = data;
        if skip > 0 {
            let head;
            (head, data) = data.split_at((WORD - skip).min(data.len()));
            let Some((word, rest)) = words.split_first() else { return Ok(()) };
            merge(word, skip, head);
            words = rest;
        }
        let (lines, data) = data.as_chunks::<{ LINE * WORD }>();
        let (to, words) = words.split_at(lines.len() * LINE);
        for (line, to) in lines.iter().zip(to.as_chunks::<LINE>().0) {
            for (bytes, word) in line.as_chunks::<WORD>().0.iter().zip(to) {
                word.store(u64::from_ne_bytes(*bytes), Relaxed);
            }
        }
        let (whole, tail) = data.as_chunks::<WORD>();
        for (bytes, word) in whole.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        if !tail.is_empty() {
            merge(&words[whole.len()], 0, tail);
        }
        Ok(())
    }

    /// Copies bytes to another arena (or to another place of this one: then the ranges must not overlap).
    ///
    /// # Errors
    /// Either range is not inside; nothing is written then.
    pub fn copy(&self, offset: u64, to: &Arena, at: u64, bytes: u64) -> Result<(), ArenaError> {
        let (from, skip) = self.range(offset, bytes)?;
        let (onto, skip_onto) = to.range(at, bytes)?;
        if skip == 0 && skip_onto == 0 {
            let whole = (bytes / WORD as u64) as usize;
            let (lines, words) = from[..whole].as_chunks::<LINE>();
            let (lines_onto, words_onto) = onto[..whole].as_chunks::<LINE>();
            for (from, onto) in lines.iter().zip(lines_onto) {
                let line = from.each_ref().map(|word| word.load(Relaxed));
                onto.iter().zip(line).for_each(|(word, value)| word.store(value, Relaxed));
            }
            for (from, onto) in words.iter().zip(words_onto) {
                onto.store(from.load(Relaxed), Relaxed);
            }
            if let (Some(from), Some(onto)) = (from.get(whole), onto.get(whole)) {
                merge(onto, 0, &from.load(Relaxed).to_ne_bytes()[..(bytes % WORD as u64) as usize]);
            }
            return Ok(());
        }
        let mut buffer = [0u8; 4096];
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(buffer.len() as u64);
            let part = &mut buffer[..step as usize];
            self.read(offset + done, part)?;
            to.write(at + done, part)?;
            done += step;
        }
        Ok(())
    }

    /// Sets every byte of a range.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn fill(&self, offset: u64, bytes: u64, value: u8) -> Result<(), ArenaError> {
        self.range(offset, bytes)?;
        let buffer = [value; 4096];
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(buffer.len() as u64);
            self.write(offset + done, &buffer[..step as usize])?;
            done += step;
        }
        Ok(())
    }

    /// Fills everything with NaN, so that a byte which nobody wrote shows in whatever is computed from it.
    pub fn poison(&self) {
        for word in &self.words[self.first..self.first + self.bytes.div_ceil(WORD as u64) as usize] {
            word.store(u64::from_ne_bytes([POISON; WORD]), Relaxed);
        }
    }

    /// Words that cover a range, and the bytes of the first that lie before it.
    fn range(&self, offset: u64, bytes: u64) -> Result<(&[AtomicU64], usize), ArenaError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        let Some(end) = end else { return Err(ArenaError::Range { offset, bytes, arena: self.bytes }) };
        // Both are at most `bytes`, for which the words exist in memory.
        let words = (offset / WORD as u64) as usize..end.div_ceil(WORD as u64).max(offset / WORD as u64) as usize;
        Ok((&self.words[self.first + words.start..self.first + words.end], (offset % WORD as u64) as usize))
    }
}

/// Replaces bytes of a word.
fn merge(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut whole = word.load(Relaxed).to_ne_bytes();
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_ne_bytes(whole), Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..720, (0u64..90).prop_map(|word| word * 8)]
    }

    proptest! {
        /// Against a plain `Vec<u8>`: any sequence of writes, fills and copies at any offsets.
        #[test]
        fn behaves_like_bytes(
            size in 0u64..700,
            steps in prop::collection::vec((0u8..3, place(), place(), 0u64..300, any::<u8>()), 0..12),
        ) {
            let arena = Arena::new(size).unwrap();
            let other = Arena::new(size).unwrap();
            let (mut bytes, mut others) = (vec![0u8; size as usize], vec![0u8; size as usize]);
            for (kind, offset, at, len, value) in steps {
                let inside = |offset: u64| offset + len <= size;
                let data: Vec<u8> = (0..len).map(|i| value.wrapping_add(i as u8)).collect();
                let range = |offset: u64| offset as usize..(offset + len) as usize;
                let (fits, result) = match kind {
                    0 => (inside(offset), arena.write(offset, &data)),
                    1 => (inside(offset), arena.fill(offset, len, value)),
                    _ => (inside(offset) && inside(at), arena.copy(offset, &other, at, len)),
                };
                prop_assert_eq!(result.is_ok(), fits);
                match kind {
                    _ if !fits => {}
                    0 => bytes[range(offset)].copy_from_slice(&data),
                    1 => bytes[range(offset)].fill(value),
                    _ => others[range(at)].copy_from_slice(&bytes[range(offset)]),
                }
                let mut got = vec![0; size as usize];
                arena.read(0, &mut got).unwrap();
                prop_assert_eq!(&got, &bytes);
                other.read(0, &mut got).unwrap();
                prop_assert_eq!(&got, &others);
                if fits {
                    let mut part = vec![0; len as usize];
                    arena.read(offset, &mut part).unwrap();
                    prop_assert_eq!(&part[..], &bytes[range(offset)]);
                }
            }
        }
    }

    #[test]
    fn errors_name_the_range() {
        let arena = Arena::new(128).unwrap();
        assert_eq!(arena.write(120, &[0; 9]).unwrap_err().to_string(), "bytes 120..120+9: the arena has 128");
        assert!(matches!(arena.read(u64::MAX, &mut [0; 2]), Err(ArenaError::Range { .. })));
        assert_eq!(Arena::new(1 << 62).unwrap_err(), ArenaError::Memory { bytes: 1 << 62 });
    }

    #[test]
    fn starts_on_a_page_and_poisons_to_nan() {
        let arena = Arena::new(100).unwrap();
        assert_eq!(arena.base().addr() % BASE_ALIGN, 0);
        arena.poison();
        let mut bytes = [0; 4];
        arena.read(96, &mut bytes).unwrap();
        assert!(f32::from_ne_bytes(bytes).is_nan());
    }
}
