//! The common memory accesses, fast: 32-bit registers, shared memory or one dense allocation, everything in bounds.
//!
//! Offsets are 32 bits wide here, so that bounds and alignment of a whole warp are a few vector instructions. Whatever
//! does not fit returns `None` and takes the general way in [`super::load_store`], which also writes the reports.

use super::block::Block;
use super::lanes::{FULL, L32, L64, lanes_of, wide};
use super::program::{Access, Any, Base, Program, Space};
use super::warp::Warp;
use crate::memory::WINDOW_START;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets of all lanes, and over the active ones: the largest, the union of bits, whether each is the one before plus
/// `step`.
pub(crate) struct Reach {
    pub(crate) offsets: L32,
    pub(crate) max: u32,
    pub(crate) bits: u32,
    pub(crate) in_row: bool,
}

macro_rules! reach {
    ($name:ident / $plain:ident / $avx2:ident ($base:ident: $ty:ty, $shift:ident: $sty:ty) = |$i:ident| ($offset:expr, $high:expr)) => {
        #[inline(always)]
        fn $plain($base: &$ty, $shift: $sty, mask: u32, step: u32) -> (Reach, u32) {
            let mut offsets = L32::splat(0);
            let (mut max, mut bits, mut high) = (0, 0, 0);
            let mut apart = 0;
            for $i in 0..32 {
                let active = (mask >> $i & 1).wrapping_neg();
                let offset: u32 = $offset & active;
                high |= $high & active;
                offsets.0[$i] = offset;
                max = max.max(offset);
                bits |= offset;
            }
            let first = offsets.0[0];
            for i in 0..32 {
                apart |= offsets.0[i] ^ first.wrapping_add(step.wrapping_mul(i as u32));
            }
            (Reach { offsets, max, bits, in_row: apart == 0 && mask == FULL }, high)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt")]
        fn $avx2($base: &$ty, $shift: $sty, mask: u32, step: u32) -> (Reach, u32) {
            $plain($base, $shift, mask, step)
        }
        #[inline(always)]
        fn $name($base: &$ty, $shift: $sty, mask: u32, step: u32) -> (Reach, u32) {
            #[cfg(target_arch = "x86_64")]
            if wide() {
                // SAFETY: `wide` is true only where the CPU has every feature that the callee enables.
                return unsafe { $avx2($base, $shift, mask, step) };
            }
            $plain($base, $shift, mask, step)
        }
    };
}

// Offsets from 32-bit addresses: `base + add`.
reach!(reach32 / reach32_plain / reach32_avx2 (base: L32, add: u32) = |i| (base.0[i].wrapping_add(add), 0));
// Offsets from 64-bit addresses, which must be below 2^32.
reach!(reach64 / reach64_plain / reach64_avx2 (base: L64, add: u64) = |i| (base.0[i].wrapping_add(add) as u32, (base.0[i].wrapping_add(add) >> 32) as u32));

#[inline(always)]
fn fits(reach: &Reach, size: u64, width: u32) -> bool {
    u64::from(reach.max) + u64::from(width) <= size && reach.bits & (width.next_power_of_two() - 1) == 0
}

impl Block<'_, '_> {
    /// Offsets of a shared access, if all lanes of `mask` are in bounds and aligned to `width`.
    #[inline(always)]
    pub(crate) fn shared_reach(&self, warp: &Warp, access: &Access, mask: u32, width: u32) -> Option<Reach> {
        let Base::W(slot) = access.addr.base else { return None };
        let add = (access.addr.offset as u32).wrapping_sub(WINDOW_START);
        let (reach, _) = reach32(warp.w(self.launch.program, slot), add, mask, width);
        fits(&reach, self.shared.len() as u64, width).then_some(reach)
    }

    /// Offsets of a global access in the one allocation that holds them all, and its words.
    #[inline(always)]
    pub(crate) fn global_reach(
        &self,
        warp: &Warp,
        access: &Access,
        mask: u32,
        width: u32,
    ) -> Option<(Reach, &[AtomicU32], u64)> {
        let Base::X(slot) = access.addr.base else { return None };
        let base = warp.x(self.launch.program, slot);
        let first = base.0[mask.trailing_zeros() as usize & 31].wrapping_add(access.addr.offset as u64);
        let (allocation, _) = self.launch.memory.find(first, u64::from(width)).ok()?;
        let words = allocation.words()?;
        let add = (access.addr.offset as u64).wrapping_sub(allocation.base);
        let (reach, high) = reach64(base, add, mask, width);
        (high == 0 && fits(&reach, allocation.size, width)).then_some((reach, words, allocation.base))
    }

    /// Loads 32-bit registers; returns the offsets and, for global memory, the allocation's address.
    #[inline(always)]
    pub(crate) fn load_words(&self, warp: &mut Warp, access: &Access, mask: u32) -> Option<(Reach, u64)> {
        let program = self.launch.program;
        let width = 4 * u32::from(access.count);
        match access.space {
            Space::Shared => {
                let reach = self.shared_reach(warp, access, mask, width)?;
                match access.count {
                    1 if reach.in_row => {
                        let row = &self.shared[reach.offsets.0[0] as usize..][..128];
                        let mut values = L32::splat(0);
                        for (value, bytes) in values.0.iter_mut().zip(row.chunks_exact(4)) {
                            *value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                        }
                        put(warp, program, access, 0, &values, mask);
                    }
                    1 => gather_bytes::<1>(warp, program, access, &self.shared, &reach.offsets, mask),
                    2 => gather_bytes::<2>(warp, program, access, &self.shared, &reach.offsets, mask),
                    4 => gather_bytes::<4>(warp, program, access, &self.shared, &reach.offsets, mask),
                    _ => return None,
                }
                Some((reach, 0))
            }
            Space::Global => {
                let (reach, words, base) = self.global_reach(warp, access, mask, width)?;
                match access.count {
                    1 if reach.in_row => {
                        let row = &words[reach.offsets.0[0] as usize / 4..][..32];
                        let mut values = L32::splat(0);
                        for (value, word) in values.0.iter_mut().zip(row) {
                            *value = word.load(Ordering::Relaxed);
                        }
                        put(warp, program, access, 0, &values, mask);
                    }
                    1 => gather_words::<1>(warp, program, access, words, &reach.offsets, mask),
                    2 => gather_words::<2>(warp, program, access, words, &reach.offsets, mask),
                    4 => gather_words::<4>(warp, program, access, words, &reach.offsets, mask),
                    8 => gather_words::<8>(warp, program, access, words, &reach.offsets, mask),
                    _ => return None,
                }
                Some((reach, base))
            }
            _ => None,
        }
    }

    /// Stores 32-bit registers; returns what [`Block::load_words`] does.
    #[inline(always)]
    pub(crate) fn store_words(&mut self, warp: &Warp, access: &Access, mask: u32) -> Option<(Reach, u64)> {
        let program = self.launch.program;
        let width = 4 * u32::from(access.count);
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        match access.space {
            Space::Shared => {
                let reach = self.shared_reach(warp, access, mask, width)?;
                if access.count == 1 && reach.in_row {
                    let row = &mut self.shared[reach.offsets.0[0] as usize..][..128];
                    let Any::W(slot) = registers[0] else { return None };
                    for (bytes, value) in row.chunks_exact_mut(4).zip(&warp.w(program, slot).0) {
                        bytes.copy_from_slice(&value.to_le_bytes());
                    }
                    return Some((reach, 0));
                }
                for (e, register) in registers.iter().enumerate() {
                    let Any::W(slot) = *register else { return None };
                    let values = warp.w(program, slot);
                    for lane in lanes_of(mask) {
                        let at = reach.offsets.0[lane] as usize + 4 * e;
                        self.shared[at..at + 4].copy_from_slice(&values.0[lane].to_le_bytes());
                    }
                }
                Some((reach, 0))
            }
            Space::Global => {
                let (reach, words, base) = self.global_reach(warp, access, mask, width)?;
                for (e, register) in registers.iter().enumerate() {
                    let Any::W(slot) = *register else { return None };
                    let values = warp.w(program, slot);
                    for lane in lanes_of(mask) {
                        words[reach.offsets.0[lane] as usize / 4 + e].store(values.0[lane], Ordering::Relaxed);
                    }
                }
                Some((reach, base))
            }
            _ => None,
        }
    }
}

#[inline(always)]
fn put(warp: &mut Warp, program: &Program, access: &Access, element: usize, values: &L32, mask: u32) {
    if let Any::W(d) = program.lists[access.regs.start as usize + element] {
        warp.r32[d as usize].blend(values, mask);
    }
}

#[inline(always)]
fn gather_bytes<const N: usize>(
    warp: &mut Warp,
    program: &Program,
    access: &Access,
    memory: &[u8],
    offsets: &L32,
    mask: u32,
) {
    let mut values = [L32::splat(0); N];
    // Inactive lanes have offset 0; there is memory there, since some lane was in bounds.
    for lane in 0..32 {
        let at = offsets.0[lane] as usize;
        let bytes = &memory[at..at + 4 * N];
        for e in 0..N {
            values[e].0[lane] =
                u32::from_le_bytes([bytes[4 * e], bytes[4 * e + 1], bytes[4 * e + 2], bytes[4 * e + 3]]);
        }
    }
    for (e, values) in values.iter().enumerate() {
        put(warp, program, access, e, values, mask);
    }
}

#[inline(always)]
fn gather_words<const N: usize>(
    warp: &mut Warp,
    program: &Program,
    access: &Access,
    memory: &[AtomicU32],
    offsets: &L32,
    mask: u32,
) {
    let mut values = [L32::splat(0); N];
    for lane in 0..32 {
        let at = offsets.0[lane] as usize / 4;
        let words = &memory[at..at + N];
        for e in 0..N {
            values[e].0[lane] = words[e].load(Ordering::Relaxed);
        }
    }
    for (e, values) in values.iter().enumerate() {
        put(warp, program, access, e, values, mask);
    }
}
