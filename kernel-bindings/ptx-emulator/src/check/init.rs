//! Which bytes were ever written: a bit per byte.

use std::collections::HashMap;
use std::ops::Range;

/// A bit per byte of a dense memory; set = something was written there.
#[derive(Debug, Clone)]
pub struct InitMap {
    bits: Vec<u64>,
    bytes: u64,
}

/// Bits of word `w` that lie in `range`.
#[inline]
fn word_mask(w: u64, range: &Range<u64>) -> u64 {
    let lo = range.start.max(w * 64) - w * 64;
    let hi = range.end.min(w * 64 + 64) - w * 64;
    if hi <= lo { 0 } else { (u64::MAX >> (64 - (hi - lo))) << lo }
}

impl InitMap {
    /// All clear (`false`) or all set.
    pub fn new(bytes: u64, set: bool) -> Self {
        let words = bytes.div_ceil(64) as usize;
        InitMap { bits: vec![if set { u64::MAX } else { 0 }; words], bytes }
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks a range as written.
    ///
    /// # Panics
    /// When the range ends past the memory.
    #[inline]
    pub fn set(&mut self, range: Range<u64>) {
        self.update(range, true);
    }

    /// Marks a range as never written.
    ///
    /// # Panics
    /// When the range ends past the memory.
    #[inline]
    pub fn clear(&mut self, range: Range<u64>) {
        self.update(range, false);
    }

    #[inline]
    fn update(&mut self, range: Range<u64>, set: bool) {
        assert!(range.end <= self.bytes, "range {range:?} past a memory of {} bytes", self.bytes);
        if range.is_empty() {
            return;
        }
        for w in range.start / 64..range.end.div_ceil(64) {
            let mask = word_mask(w, &range);
            let word = &mut self.bits[w as usize];
            *word = if set { *word | mask } else { *word & !mask };
        }
    }

    /// True when every byte of the range was written.
    #[inline]
    pub fn all(&self, range: Range<u64>) -> bool {
        self.first_clear(range).is_none()
    }

    /// First byte of the range that was never written.
    #[inline]
    pub fn first_clear(&self, range: Range<u64>) -> Option<u64> {
        assert!(range.end <= self.bytes, "range {range:?} past a memory of {} bytes", self.bytes);
        if range.is_empty() {
            return None;
        }
        for w in range.start / 64..range.end.div_ceil(64) {
            let missing = word_mask(w, &range) & !self.bits[w as usize];
            if missing != 0 {
                return Some(w * 64 + u64::from(missing.trailing_zeros()));
            }
        }
        None
    }

    /// Bits of up to 64 bytes from `start`, bit 0 = byte `start`.
    #[inline]
    pub fn bits(&self, start: u64, bytes: u32) -> u64 {
        assert!(bytes <= 64 && start + u64::from(bytes) <= self.bytes, "bits of {bytes} bytes at {start}");
        if bytes == 0 {
            return 0;
        }
        let (w, shift) = ((start / 64) as usize, start % 64);
        let mut out = self.bits[w] >> shift;
        if shift != 0 && shift + u64::from(bytes) > 64 {
            out |= self.bits[w + 1] << (64 - shift);
        }
        out & (u64::MAX >> (64 - bytes))
    }

    /// Sets or clears each of up to 64 bytes from `start` after the bits of `value` (bit 0 = byte `start`).
    #[inline]
    pub fn put_bits(&mut self, start: u64, bytes: u32, value: u64) {
        assert!(bytes <= 64 && start + u64::from(bytes) <= self.bytes, "bits of {bytes} bytes at {start}");
        if bytes == 0 {
            return;
        }
        let mask = u64::MAX >> (64 - bytes);
        let value = value & mask;
        let (w, shift) = ((start / 64) as usize, start % 64);
        self.bits[w] = self.bits[w] & !(mask << shift) | value << shift;
        if shift != 0 && shift + u64::from(bytes) > 64 {
            self.bits[w + 1] = self.bits[w + 1] & !(mask >> (64 - shift)) | value >> (64 - shift);
        }
    }
}

/// [`InitMap`] of a huge memory of which little is touched.
#[derive(Debug, Clone, Default)]
pub struct SparseInitMap {
    pages: HashMap<u64, Box<[u64; PAGE_WORDS]>>,
    bytes: u64,
}

const PAGE_WORDS: usize = 64;
const PAGE_BYTES: u64 = PAGE_WORDS as u64 * 64;

impl SparseInitMap {
    /// All clear.
    pub fn new(bytes: u64) -> Self {
        SparseInitMap { pages: HashMap::new(), bytes }
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks a range as written.
    ///
    /// # Panics
    /// When the range ends past the memory.
    pub fn set(&mut self, range: Range<u64>) {
        assert!(range.end <= self.bytes, "range {range:?} past a memory of {} bytes", self.bytes);
        if range.is_empty() {
            return;
        }
        for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
            let words = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_WORDS]));
            for (i, word) in words.iter_mut().enumerate() {
                *word |= page_mask(page, i, &range);
            }
        }
    }

    /// Marks a range as never written.
    ///
    /// # Panics
    /// When the range ends past the memory.
    pub fn clear(&mut self, range: Range<u64>) {
        assert!(range.end <= self.bytes, "range {range:?} past a memory of {} bytes", self.bytes);
        self.pages.retain(|&page, words| {
            for (i, word) in words.iter_mut().enumerate() {
                *word &= !page_mask(page, i, &range);
            }
            words.iter().any(|&w| w != 0)
        });
    }

    /// True when every byte of the range was written.
    pub fn all(&self, range: Range<u64>) -> bool {
        self.first_clear(range).is_none()
    }

    /// First byte of the range that was never written.
    pub fn first_clear(&self, range: Range<u64>) -> Option<u64> {
        assert!(range.end <= self.bytes, "range {range:?} past a memory of {} bytes", self.bytes);
        if range.is_empty() {
            return None;
        }
        for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
            let Some(words) = self.pages.get(&page) else {
                return Some(range.start.max(page * PAGE_BYTES));
            };
            for (i, &word) in words.iter().enumerate() {
                let missing = page_mask(page, i, &range) & !word;
                if missing != 0 {
                    return Some(page * PAGE_BYTES + i as u64 * 64 + u64::from(missing.trailing_zeros()));
                }
            }
        }
        None
    }
}

#[inline]
fn page_mask(page: u64, word: usize, range: &Range<u64>) -> u64 {
    let base = page * PAGE_WORDS as u64 + word as u64;
    if range.end <= base * 64 || range.start >= base * 64 + 64 { 0 } else { word_mask(base, range) }
}
