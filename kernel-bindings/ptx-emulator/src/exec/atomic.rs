//! `atom` and `red`, and the reductions of bulk copies.

use super::access::Request;
use super::block::Block;
use super::lanes::{L64, Lanes, lanes_of};
use super::poison;
use super::program::{Any, AtomicOp, Space};
use super::run::{Flow, set_value, value, widen};
use super::warp::Warp;
use crate::check::AccessKind;
use crate::finding::FindingClass;
use crate::ir::{Atomic, Binary, FloatMods, Ordering, Rounding, Type};
use crate::memory::Allocation;
use crate::num;
use std::sync::atomic;

/// Whether the machine has this atomic.
pub(crate) fn is_supported(op: Atomic, ty: Type) -> bool {
    use Atomic::*;
    use Type::*;
    match op {
        Add => matches!(ty, U32 | S32 | U64 | S64 | F32 | F64 | F16 | F16x2 | BF16 | BF16x2),
        Min | Max => matches!(ty, U32 | S32 | U64 | S64 | F16 | F16x2 | BF16 | BF16x2),
        And | Or | Xor => matches!(ty, B32 | B64 | U32 | S32 | U64 | S64),
        Exch => matches!(ty, B32 | B64 | U32 | S32 | U64 | S64 | F32 | F64 | B128),
        Cas => matches!(ty, B16 | B32 | B64 | U32 | S32 | U64 | S64 | B128),
        Inc | Dec => matches!(ty, U32),
    }
}

/// New value of a cell.
pub(crate) fn apply(op: Atomic, ty: Type, old: u64, b: u64, c: u64) -> u64 {
    let float = |op| {
        let mods = FloatMods { rounding: Some(Rounding::Rn), ..FloatMods::default() };
        num::binary(op, ty, &mods, old, b).unwrap_or(old)
    };
    match (op, ty) {
        (Atomic::Add, Type::F32 | Type::F64 | Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2) => {
            float(Binary::Add)
        }
        (Atomic::Min, Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2) => float(Binary::Min),
        (Atomic::Max, Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2) => float(Binary::Max),
        (Atomic::Add, _) => old.wrapping_add(b),
        (Atomic::Min, Type::S32) => (old as u32 as i32).min(b as u32 as i32) as u32 as u64,
        (Atomic::Max, Type::S32) => (old as u32 as i32).max(b as u32 as i32) as u32 as u64,
        (Atomic::Min, Type::S64) => (old as i64).min(b as i64) as u64,
        (Atomic::Max, Type::S64) => (old as i64).max(b as i64) as u64,
        (Atomic::Min, _) => old.min(b),
        (Atomic::Max, _) => old.max(b),
        (Atomic::And, _) => old & b,
        (Atomic::Or, _) => old | b,
        (Atomic::Xor, _) => old ^ b,
        (Atomic::Exch, _) => b,
        (Atomic::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (Atomic::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (Atomic::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    }
}

/// Performs one atomic on global memory and returns the old value. `bytes` is 2, 4 or 8.
pub(crate) fn on_global(
    memory: &crate::memory::GlobalMemory,
    allocation: &Allocation,
    offset: u64,
    bytes: u32,
    f: impl Fn(u64) -> u64,
) -> u64 {
    let index = (offset >> 2) as usize;
    if bytes == 8 {
        let _guard = memory.lock(allocation.base + offset);
        let old = allocation.load(offset, 8);
        allocation.store(offset, 8, f(old));
        return old;
    }
    let shift = if bytes == 2 { (offset as u32 & 2) * 8 } else { 0 };
    let mask = if bytes == 2 { 0xffff } else { u32::MAX };
    let word = allocation.word(index);
    let mut now = word.load(atomic::Ordering::Relaxed);
    loop {
        let old = now >> shift & mask;
        let new = f(u64::from(old)) as u32 & mask;
        let replaced = now & !(mask << shift) | new << shift;
        match word.compare_exchange_weak(now, replaced, atomic::Ordering::AcqRel, atomic::Ordering::Relaxed) {
            Ok(_) => return u64::from(old),
            Err(other) => now = other,
        }
    }
}

impl Block<'_, '_> {
    pub(crate) fn atomic<const CHECKED: bool>(&mut self, warp: &mut Warp, pc: u32, op: &AtomicOp, mask: u32) -> Flow {
        let addresses = self.addresses(warp, op.addr);
        let ok = if CHECKED { self.clean_addresses(warp, pc, op.addr, mask) } else { mask };
        if matches!(op.ordering, Ordering::Release | Ordering::AcqRel) {
            atomic::fence(atomic::Ordering::Release);
        }
        if ok != 0 {
            self.by_space(warp, op.space, &addresses, ok, |block, warp, space, addresses, lanes| {
                block.atomic_in::<CHECKED>(warp, pc, op, space, addresses, lanes);
            });
        }
        if matches!(op.ordering, Ordering::Acquire | Ordering::AcqRel) {
            atomic::fence(atomic::Ordering::Acquire);
        }
        if self.aborted { Flow::Abort } else { Flow::Next }
    }

    fn atomic_in<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        op: &AtomicOp,
        space: Space,
        addresses: &L64,
        mask: u32,
    ) {
        let program = self.launch.program;
        let bytes = op.ty.bytes();
        let width = bytes * u32::from(op.count);
        let ordering = if op.ordering == Ordering::Weak { Ordering::Relaxed } else { op.ordering };
        // The read of a `red` is no part of an acquire pattern.
        let kind = if op.d.len == 0 { AccessKind::Reduce } else { AccessKind::Atomic };
        let request = Request { pc, width, align: width, kind, ordering, scope: op.scope };
        if self.counters.is_some() {
            self.count_access(pc, space, addresses, mask, width, true);
        }
        let destinations = &program.lists[op.d.start as usize..][..op.d.len as usize];
        let sources = &program.lists[op.b.start as usize..][..op.b.len as usize];
        let (places, ok) = match space {
            Space::Global => {
                let (ok, _) = self.check_global::<CHECKED>(warp, addresses, mask, &request);
                (*addresses, ok)
            }
            Space::Shared => self.check_window::<CHECKED>(warp, space, addresses, mask, &request),
            _ => {
                let lane = mask.trailing_zeros() as usize;
                let message = "atomic outside global and shared memory".to_owned();
                self.report_text(FindingClass::OutOfBounds, warp, pc, Some(lane), message);
                self.fault();
                return;
            }
        };
        if CHECKED {
            self.atomic_poison(warp, pc, op, space, &places, bytes, ok);
        }
        let third = widen(warp, program, op.c);
        let cut = if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        let mut changed = false;
        let mut seen = super::rng::Rng::new(u64::from(pc), u64::from(ok));
        for (e, b) in sources.iter().enumerate() {
            let second = widen(warp, program, *b);
            let mut olds = L64::splat(0);
            for lane in lanes_of(ok) {
                let at = places.0[lane] + e as u64 * u64::from(bytes);
                let (y, z) = (second.0[lane] & cut, third.0[lane] & cut);
                let f = |old| apply(op.op, op.ty, old, y, z) & cut;
                let old = match space {
                    Space::Global if bytes == 16 => self.exchange128(warp, op, lane, at, true),
                    Space::Shared if bytes == 16 => self.exchange128(warp, op, lane, at, false),
                    Space::Global => match self.launch.memory.find(at, u64::from(bytes)) {
                        Ok((allocation, offset)) => on_global(self.launch.memory, allocation, offset, bytes, f),
                        Err(_) => 0,
                    },
                    _ => {
                        let cell = &mut self.shared[at as usize..at as usize + bytes as usize];
                        let mut old = [0; 8];
                        old[..bytes as usize].copy_from_slice(cell);
                        let old = u64::from_le_bytes(old);
                        cell.copy_from_slice(&f(old).to_le_bytes()[..bytes as usize]);
                        old
                    }
                };
                changed |= bytes == 16 || f(old) != old;
                seen = super::rng::Rng::new(seen.next() ^ old, at);
                olds.0[lane] = old;
            }
            if let Some(d) = destinations.get(e)
                && bytes < 16
            {
                for lane in lanes_of(ok) {
                    set_value(warp, *d, lane, olds.0[lane]);
                }
            }
        }
        if changed {
            self.activity += 1;
        } else {
            note_spin(warp, seen.next());
        }
    }

    /// 128-bit exchange and compare-and-swap, whose registers are pairs.
    fn exchange128(&mut self, warp: &mut Warp, op: &AtomicOp, lane: usize, at: u64, global: bool) -> u64 {
        let program = self.launch.program;
        let pair = |source: Any| match source {
            Any::X(slot) => {
                let high = value(warp, program, Any::X(slot + 1), lane);
                u128::from(high) << 64 | u128::from(value(warp, program, source, lane))
            }
            _ => 0,
        };
        let b = pair(program.lists[op.b.start as usize]);
        let c = pair(op.c);
        let next = |old: u128| match op.op {
            Atomic::Cas if old != b => old,
            Atomic::Cas => c,
            _ => b,
        };
        let old = if global {
            let Ok((allocation, offset)) = self.launch.memory.find(at, 16) else { return 0 };
            let _guard = self.launch.memory.lock(at);
            let old = u128::from(allocation.load(offset + 8, 8)) << 64 | u128::from(allocation.load(offset, 8));
            let new = next(old);
            allocation.store(offset, 8, new as u64);
            allocation.store(offset + 8, 8, (new >> 64) as u64);
            old
        } else {
            let cell = &mut self.shared[at as usize..at as usize + 16];
            let old = u128::from_le_bytes(cell.try_into().unwrap_or_default());
            cell.copy_from_slice(&next(old).to_le_bytes());
            old
        };
        if op.d.len == 1
            && let Any::X(slot) = program.lists[op.d.start as usize]
        {
            warp.r64[slot as usize].0[lane] = old as u64;
            warp.r64[slot as usize + 1].0[lane] = (old >> 64) as u64;
        }
        old as u64
    }

    /// Poison in an operand of a global atomic is stored; in shared memory it spreads. Reading an unwritten cell gives
    /// poison.
    #[allow(clippy::too_many_arguments)]
    fn atomic_poison(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        op: &AtomicOp,
        space: Space,
        places: &L64,
        bytes: u32,
        ok: u32,
    ) {
        let program = self.launch.program;
        let width = bytes * u32::from(op.count);
        let sources = &program.lists[op.b.start as usize..][..op.b.len as usize];
        let bad = sources.iter().fold(poison::lanes_with(warp, op.c), |m, s| m | poison::lanes_with(warp, *s)) & ok;
        let mut unwritten = 0u32;
        if space == Space::Global {
            if bad != 0 {
                let lane = bad.trailing_zeros() as usize;
                self.report_poisoned_store(warp, pc, lane, places.0[lane]);
            }
            if let Some(written) = &self.launch.written {
                let mut written = written.lock().unwrap_or_else(|p| p.into_inner());
                for lane in lanes_of(ok) {
                    if let Ok((allocation, offset)) = self.launch.memory.find(places.0[lane], u64::from(width)) {
                        let map = &mut written[allocation.id as usize];
                        if map.first_clear(offset, u64::from(width)).is_some() {
                            unwritten |= 1 << lane;
                        }
                        map.set(offset, u64::from(width));
                    }
                }
            }
            if unwritten != 0 && op.op != Atomic::Exch {
                let lane = unwritten.trailing_zeros() as usize;
                self.report(FindingClass::Uninitialized, warp, pc, Some(lane), || {
                    let address = Some(self.launch.memory.describe(places.0[lane]));
                    (address, None, "an atomic works on memory that nothing wrote".to_owned())
                });
            }
        } else if let Some(written) = &mut self.shared_written {
            for lane in lanes_of(ok) {
                let at = places.0[lane];
                if written.first_clear(at..at + u64::from(width)).is_some() {
                    unwritten |= 1 << lane;
                }
                let keep = bad >> lane & 1 == 0 && (unwritten >> lane & 1 == 0 || op.op == Atomic::Exch);
                written.put_bits(at, width, if keep { u64::MAX } else { 0 });
            }
        }
        let all = Lanes(std::array::from_fn(|i| u64::from((unwritten) >> i & 1).wrapping_neg()));
        for d in &program.lists[op.d.start as usize..][..op.d.len as usize] {
            poison::set(warp, *d, &all, ok);
            if bytes == 16
                && let Any::X(slot) = d
            {
                poison::set64(warp, slot + 1, &all, ok);
            }
        }
    }

    /// Notes what a strong load found, to tell polling from work.
    pub(crate) fn note_strong(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        addresses: &L64,
        registers: super::program::List,
        mask: u32,
    ) {
        let program = self.launch.program;
        let mut hash = super::rng::Rng::new(u64::from(pc), u64::from(mask));
        for lane in lanes_of(mask) {
            hash = super::rng::Rng::new(hash.next(), addresses.0[lane]);
            for d in &program.lists[registers.start as usize..][..registers.len as usize] {
                hash = super::rng::Rng::new(hash.next(), value(warp, program, *d, lane));
            }
        }
        note_spin(warp, hash.next());
    }
}

/// Counts a strong access as a spin if it is one that the warp has just made, with the same outcome.
pub(crate) fn note_spin(warp: &mut Warp, hash: u64) {
    if warp.strong.contains(&hash) {
        warp.spins += 1;
    } else {
        warp.strong.rotate_right(1);
        warp.strong[0] = hash;
        warp.spins = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells() {
        let f = |op, ty, old, b, c| apply(op, ty, old, b, c);
        assert_eq!(f(Atomic::Min, Type::S32, 0xffff_ffff, 1, 0), 0xffff_ffff);
        assert_eq!(f(Atomic::Min, Type::U32, 0xffff_ffff, 1, 0), 1);
        assert_eq!(f(Atomic::Inc, Type::U32, 5, 5, 0), 0);
        assert_eq!(f(Atomic::Inc, Type::U32, 4, 5, 0), 5);
        assert_eq!(f(Atomic::Dec, Type::U32, 0, 5, 0), 5);
        assert_eq!(f(Atomic::Dec, Type::U32, 9, 5, 0), 5);
        assert_eq!(f(Atomic::Dec, Type::U32, 3, 5, 0), 2);
        assert_eq!(f(Atomic::Cas, Type::B32, 7, 7, 9), 9);
        assert_eq!(f(Atomic::Cas, Type::B32, 8, 7, 9), 8);
        assert_eq!(f(Atomic::Add, Type::F32, 0x3f80_0000, 0x4000_0000, 0), 0x4040_0000);
    }
}
