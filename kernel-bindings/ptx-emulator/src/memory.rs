//! Global memory: allocations with exact sizes, far apart, in one address space with the windows of the other spaces.
//!
//! Every allocation starts at a multiple of 64 GiB (so its slot is `address >> 36`) and slots are never reused: an access
//! past an allocation, through a pointer kept too long or through a pointer computed from garbage hits nothing instead of
//! a neighbour. Slot 0 holds the windows through which generic addresses reach shared, local, constant and parameter
//! memory; address 0 and its surroundings belong to nothing.
//!
//! Contents are 32-bit words that are accessed as relaxed atomics, because blocks may run on several host threads and a
//! kernel with a race must stay a wrong kernel, not undefined behaviour of the host. Narrow stores replace their part of
//! a word by compare-and-swap; 64-bit atomics take one of a few locks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use thiserror::Error;

/// Generic address of byte 0 of a block's shared memory window.
pub const SHARED_WINDOW: u64 = 0x1_0000_0000;
/// Generic address of byte 0 of a thread's local memory window.
pub const LOCAL_WINDOW: u64 = 0x2_0000_0000;
/// Generic address of byte 0 of the constant bank.
pub const CONST_WINDOW: u64 = 0x3_0000_0000;
/// Generic address of byte 0 of the launch parameters.
pub const PARAM_WINDOW: u64 = 0x4_0000_0000;
/// Size of each of those windows.
pub const WINDOW_BYTES: u64 = 0x1_0000_0000;
/// First address inside a window that belongs to something: small offsets from a null pointer are caught.
pub const WINDOW_START: u32 = 0x400;

const SLOT_SHIFT: u32 = 36;
const SLOT_BYTES: u64 = 1 << SLOT_SHIFT;
/// Largest allocation, bytes: sparse memory keeps a table entry per touched or untouched chunk.
const MAX_ALLOCATION: u64 = 1 << 40;
/// Distance that stays free behind every allocation.
const GUARD_BYTES: u64 = 1 << 32;
const MAX_SLOTS: u64 = 1 << 27;
/// What memory holds before anything is written: a NaN in every float format.
const UNWRITTEN: u32 = 0xffff_ffff;

const PAGE_WORDS: usize = 1 << 14;
const CHUNK_PAGES: usize = 1 << 12;

/// Why a host call on device memory was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// The address space or the host memory is used up.
    #[error("cannot allocate {bytes} bytes for `{name}`: {reason}")]
    Exhausted {
        /// Requested size.
        bytes: u64,
        /// Name of the allocation.
        name: String,
        /// What ran out.
        reason: &'static str,
    },
    /// An address range that is not inside one live allocation.
    #[error("{bytes} bytes at {address}: {reason}")]
    Range {
        /// Where, as allocation + offset.
        address: String,
        /// Size of the access.
        bytes: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// `free` of something that is not the start of a live allocation.
    #[error("free of {address}, which is not the start of a live allocation")]
    NotAnAllocation {
        /// Where, as allocation + offset.
        address: String,
    },
}

/// Why an access hits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Outside every allocation, or across the end of one.
    OutOfBounds,
    /// Inside an allocation that was freed.
    Freed,
}

enum Storage {
    Dense(Box<[AtomicU32]>),
    Sparse(Box<[OnceLock<Box<Chunk>>]>),
    Freed,
}

type Page = [AtomicU32; PAGE_WORDS];

struct Chunk {
    pages: Vec<OnceLock<Box<Page>>>,
}

/// One allocation.
pub(crate) struct Allocation {
    /// Name for reports.
    pub(crate) name: String,
    /// Device address of the first byte.
    pub(crate) base: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Index in order of allocation; also the key of its shadow.
    pub(crate) id: u32,
    storage: Storage,
}

impl Allocation {
    /// The word with that index.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        match &self.storage {
            Storage::Dense(words) => &words[index],
            Storage::Sparse(chunks) => sparse_word(chunks, index),
            Storage::Freed => unreachable!("accesses are looked up first and a freed allocation is never found"),
        }
    }

    /// All words of a dense allocation.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<&[AtomicU32]> {
        match &self.storage {
            Storage::Dense(words) => Some(words),
            _ => None,
        }
    }

    /// Reads a naturally aligned value of 1, 2, 4 or 8 bytes.
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, bytes: u32) -> u64 {
        let index = (offset >> 2) as usize;
        let shift = (offset as u32 & 3) * 8;
        match bytes {
            4 => u64::from(self.word(index).load(Ordering::Relaxed)),
            8 => {
                let low = self.word(index).load(Ordering::Relaxed);
                let high = self.word(index + 1).load(Ordering::Relaxed);
                u64::from(high) << 32 | u64::from(low)
            }
            2 => u64::from(self.word(index).load(Ordering::Relaxed) >> shift & 0xffff),
            _ => u64::from(self.word(index).load(Ordering::Relaxed) >> shift & 0xff),
        }
    }

    /// Writes a naturally aligned value of 1, 2, 4 or 8 bytes.
    #[inline(always)]
    pub(crate) fn store(&self, offset: u64, bytes: u32, value: u64) {
        let index = (offset >> 2) as usize;
        let shift = (offset as u32 & 3) * 8;
        match bytes {
            4 => self.word(index).store(value as u32, Ordering::Relaxed),
            8 => {
                self.word(index).store(value as u32, Ordering::Relaxed);
                self.word(index + 1).store((value >> 32) as u32, Ordering::Relaxed);
            }
            2 => self.merge(index, 0xffff << shift, (value as u32 & 0xffff) << shift),
            _ => self.merge(index, 0xff << shift, (value as u32 & 0xff) << shift),
        }
    }

    /// Replaces the bits of `mask` in one word.
    #[inline]
    pub(crate) fn merge(&self, index: usize, mask: u32, bits: u32) {
        let word = self.word(index);
        let mut old = word.load(Ordering::Relaxed);
        while let Err(now) = word.compare_exchange_weak(old, old & !mask | bits, Ordering::Relaxed, Ordering::Relaxed) {
            old = now;
        }
    }

    /// Copies bytes out; the range must be inside.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let skip = (at & 3) as usize;
            let bytes = self.word((at >> 2) as usize).load(Ordering::Relaxed).to_le_bytes();
            let n = rest.len().min(4 - skip);
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&bytes[skip..skip + n]);
            rest = tail;
            at += n as u64;
        }
    }

    /// Copies bytes in; the range must be inside.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let skip = (at & 3) as usize;
            let index = (at >> 2) as usize;
            let n = rest.len().min(4 - skip);
            if n == 4 {
                self.word(index).store(u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]), Ordering::Relaxed);
            } else {
                let (mut mask, mut bits) = (0, 0);
                for (i, byte) in rest[..n].iter().enumerate() {
                    mask |= 0xff << ((skip + i) * 8);
                    bits |= u32::from(*byte) << ((skip + i) * 8);
                }
                self.merge(index, mask, bits);
            }
            rest = &rest[n..];
            at += n as u64;
        }
    }
}

#[inline(never)]
fn sparse_word(chunks: &[OnceLock<Box<Chunk>>], index: usize) -> &AtomicU32 {
    let page = index / PAGE_WORDS;
    let chunk = chunks[page / CHUNK_PAGES].get_or_init(|| {
        let mut pages = Vec::new();
        pages.resize_with(CHUNK_PAGES, OnceLock::new);
        Box::new(Chunk { pages })
    });
    let page = chunk.pages[page % CHUNK_PAGES].get_or_init(|| {
        let words: Box<[AtomicU32]> = unwritten_words(PAGE_WORDS);
        let Ok(page) = words.try_into() else { unreachable!("built with the length of a page") };
        page
    });
    &page[index % PAGE_WORDS]
}

fn unwritten_words(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(UNWRITTEN)).collect()
}

/// All global memory of a machine.
pub(crate) struct GlobalMemory {
    /// Slot -> allocation, or the allocation whose tail covers the slot.
    slots: Vec<u32>,
    allocations: Vec<Allocation>,
    locks: Vec<Mutex<()>>,
    live_bytes: AtomicU64,
}

const NO_ALLOCATION: u32 = u32::MAX;

impl GlobalMemory {
    pub(crate) fn new() -> Self {
        let mut locks = Vec::new();
        locks.resize_with(64, || Mutex::new(()));
        // Slot 0 holds the windows.
        Self { slots: vec![NO_ALLOCATION], allocations: Vec::new(), locks, live_bytes: AtomicU64::new(0) }
    }

    /// Reserves `bytes` bytes; `sparse` memory costs host memory only where it is touched.
    pub(crate) fn alloc(&mut self, bytes: u64, name: &str, sparse: bool) -> Result<u64, MemoryError> {
        let fail = |reason| MemoryError::Exhausted { bytes, name: name.to_owned(), reason };
        if bytes > MAX_ALLOCATION {
            return Err(fail("no device has so much memory (limit 1 TiB)"));
        }
        let count = bytes.checked_add(GUARD_BYTES).ok_or_else(|| fail("address space"))?.div_ceil(SLOT_BYTES);
        let slot = self.slots.len() as u64;
        if slot + count > MAX_SLOTS {
            return Err(fail("address space"));
        }
        let words = usize::try_from(bytes.div_ceil(4)).map_err(|_| fail("address space"))?;
        let storage = if sparse {
            let mut chunks = Vec::new();
            chunks.resize_with(words.div_ceil(PAGE_WORDS * CHUNK_PAGES), OnceLock::new);
            Storage::Sparse(chunks.into_boxed_slice())
        } else {
            // The collect below aborts when the host has no memory; ask first.
            let mut probe: Vec<AtomicU32> = Vec::new();
            probe.try_reserve_exact(words).map_err(|_| fail("host memory"))?;
            drop(probe);
            Storage::Dense(unwritten_words(words))
        };
        let id = self.allocations.len() as u32;
        let base = slot << SLOT_SHIFT;
        self.allocations.push(Allocation { name: name.to_owned(), base, size: bytes, id, storage });
        self.slots.extend(std::iter::repeat_n(id, count as usize));
        *self.live_bytes.get_mut() += bytes;
        Ok(base)
    }

    /// Ends an allocation; its address never comes back.
    pub(crate) fn free(&mut self, address: u64) -> Result<u32, MemoryError> {
        let index = self.slot(address);
        match self.allocations.get_mut(index as usize) {
            Some(a) if a.base == address && !matches!(a.storage, Storage::Freed) => {
                a.storage = Storage::Freed;
                *self.live_bytes.get_mut() -= a.size;
                Ok(index)
            }
            _ => Err(MemoryError::NotAnAllocation { address: self.describe(address) }),
        }
    }

    #[inline(always)]
    fn slot(&self, address: u64) -> u32 {
        self.slots.get((address >> SLOT_SHIFT) as usize).copied().unwrap_or(NO_ALLOCATION)
    }

    /// The allocation that holds all of `bytes` bytes at `address`, and the offset in it.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Result<(&Allocation, u64), Miss> {
        let Some(allocation) = self.allocations.get(self.slot(address) as usize) else {
            return Err(Miss::OutOfBounds);
        };
        let offset = address - allocation.base;
        if offset >= allocation.size || bytes > allocation.size - offset {
            return Err(Miss::OutOfBounds);
        }
        if matches!(allocation.storage, Storage::Freed) {
            return Err(Miss::Freed);
        }
        Ok((allocation, offset))
    }

    /// The allocation with that index.
    pub(crate) fn allocation(&self, id: u32) -> &Allocation {
        &self.allocations[id as usize]
    }

    /// The lock that makes a 64-bit (or wider) access to this address atomic with others of its kind.
    pub(crate) fn lock(&self, address: u64) -> MutexGuard<'_, ()> {
        let lock = &self.locks[(address >> 4) as usize % self.locks.len()];
        lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Bytes in live allocations.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// The range of a host copy.
    pub(crate) fn host_range(&self, address: u64, bytes: u64) -> Result<(&Allocation, u64), MemoryError> {
        let fail = |reason| MemoryError::Range { address: self.describe(address), bytes, reason };
        if bytes == 0
            && let Some(a) = self.allocations.get(self.slot(address) as usize)
            && address - a.base <= a.size
        {
            return Ok((a, address - a.base));
        }
        self.find(address, bytes).map_err(|miss| match miss {
            Miss::OutOfBounds => fail("outside its allocation"),
            Miss::Freed => fail("the allocation was freed"),
        })
    }

    /// An address for people: allocation and offset, e.g. `keys+0x1200`; also for addresses near an allocation.
    pub(crate) fn describe(&self, address: u64) -> String {
        let slot = address >> SLOT_SHIFT;
        if slot == 0 {
            return describe_window(address);
        }
        let after = self.allocations.get(self.slot(address.saturating_add(SLOT_BYTES >> 1)) as usize);
        match (self.allocations.get(self.slot(address) as usize), after) {
            (Some(a), Some(next)) if next.base > address && next.base - address < address - a.base => {
                format!("{}-{:#x}", next.name, next.base - address)
            }
            (Some(a), _) => format!("{}+{:#x}", a.name, address - a.base),
            (None, Some(next)) if next.base > address => format!("{}-{:#x}", next.name, next.base - address),
            _ => format!("{address:#x}"),
        }
    }
}

fn describe_window(address: u64) -> String {
    let named = |window: u64, name: &str| {
        let offset = (address - window) as i64 - i64::from(WINDOW_START);
        if offset < 0 { format!("{name}-{:#x}", -offset) } else { format!("{name}+{offset:#x}") }
    };
    match address & !(WINDOW_BYTES - 1) {
        SHARED_WINDOW => named(SHARED_WINDOW, "shared"),
        LOCAL_WINDOW => named(LOCAL_WINDOW, "local"),
        CONST_WINDOW => named(CONST_WINDOW, "const"),
        PARAM_WINDOW => named(PARAM_WINDOW, "param"),
        0 if address == 0 => "null".to_owned(),
        _ => {
            // Just below the first allocation?
            if address > (SLOT_BYTES >> 1) {
                format!("first allocation-{:#x}", SLOT_BYTES - address)
            } else {
                format!("null+{address:#x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_and_guarded() {
        let mut memory = GlobalMemory::new();
        let a = memory.alloc(20, "a", false).unwrap();
        let b = memory.alloc(3, "b", false).unwrap();
        assert_eq!(a % 256, 0);
        assert!(memory.find(a + 16, 4).is_ok());
        assert_eq!(memory.find(a + 17, 4).err(), Some(Miss::OutOfBounds));
        assert_eq!(memory.find(a + 20, 1).err(), Some(Miss::OutOfBounds));
        assert!(memory.find(b + 2, 1).is_ok());
        assert_eq!(memory.find(b + 2, 2).err(), Some(Miss::OutOfBounds));
        assert_eq!(memory.find(b - 1, 1).err(), Some(Miss::OutOfBounds));
        assert_eq!(memory.find(0, 1).err(), Some(Miss::OutOfBounds));
        assert_eq!(memory.describe(a + 0x12), "a+0x12");
        assert_eq!(memory.describe(b - 4), "b-0x4");
        assert_eq!(memory.describe(0), "null");
    }

    #[test]
    fn freed_memory_is_known_as_freed() {
        let mut memory = GlobalMemory::new();
        let a = memory.alloc(64, "a", false).unwrap();
        memory.free(a).unwrap();
        assert_eq!(memory.find(a + 4, 4).err(), Some(Miss::Freed));
        assert_eq!(memory.free(a), Err(MemoryError::NotAnAllocation { address: "a+0x0".into() }));
        assert_ne!(memory.alloc(64, "c", false).unwrap(), a);
    }

    #[test]
    fn narrow_stores_keep_their_neighbours() {
        let mut memory = GlobalMemory::new();
        let a = memory.alloc(8, "a", false).unwrap();
        let (alloc, _) = memory.find(a, 8).unwrap();
        alloc.store(0, 8, 0x8877_6655_4433_2211);
        alloc.store(1, 1, 0xaa);
        alloc.store(6, 2, 0xbbcc);
        assert_eq!(alloc.load(0, 8), 0xbbcc_6655_4433_aa11);
        assert_eq!(alloc.load(6, 2), 0xbbcc);
        alloc.write(3, &[1, 2, 3]);
        let mut out = [0; 5];
        alloc.read(2, &mut out);
        assert_eq!(out, [0x33, 1, 2, 3, 0xcc]);
    }

    #[test]
    fn sparse_memory_reaches_far_and_starts_unwritten() {
        let mut memory = GlobalMemory::new();
        let pool = memory.alloc(1 << 40, "pool", true).unwrap();
        let next = memory.alloc(16, "next", false).unwrap();
        assert!(next - pool >= (1 << 40) + GUARD_BYTES);
        let (alloc, offset) = memory.find(pool + (1 << 39), 4).unwrap();
        assert_eq!(alloc.load(offset, 4), u64::from(UNWRITTEN));
        alloc.store(offset, 4, 7);
        assert_eq!(alloc.load(offset, 4), 7);
        assert_eq!(memory.find(pool + (1 << 40), 1).err(), Some(Miss::OutOfBounds));
    }
}
