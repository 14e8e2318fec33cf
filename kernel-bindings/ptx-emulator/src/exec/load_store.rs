//! Loads and stores.

use super::access::{Request, for_lanes};
use super::block::Block;
use super::lanes::{L32, L64};
use super::poison;
use super::program::{Access, Any, Extend, Space};
use super::run::Flow;
use super::warp::Warp;
use crate::check::{AccessKind, MemSpace};
use crate::finding::FindingClass;
use crate::ir::Ordering;
use std::sync::atomic;

/// A bit mask of bytes as a bit mask of bits.
#[inline]
pub(crate) fn bytes_to_bits(bytes: u64) -> u64 {
    let mut bits = 0;
    for i in 0..8 {
        if bytes >> i & 1 == 1 {
            bits |= 0xff << (i * 8);
        }
    }
    bits
}

/// Bytes of which any bit is set.
#[inline]
pub(crate) fn bits_to_bytes(bits: u64) -> u64 {
    (0..8).fold(0, |m, i| m | u64::from(bits >> (i * 8) & 0xff != 0) << i)
}

#[inline(always)]
fn read_le(memory: &[u8], at: usize, bytes: u32) -> u64 {
    match bytes {
        4 => u64::from(u32::from_le_bytes(memory[at..at + 4].try_into().unwrap_or_default())),
        8 => u64::from_le_bytes(memory[at..at + 8].try_into().unwrap_or_default()),
        2 => u64::from(u16::from_le_bytes(memory[at..at + 2].try_into().unwrap_or_default())),
        _ => u64::from(memory[at]),
    }
}

#[inline(always)]
fn write_le(memory: &mut [u8], at: usize, bytes: u32, value: u64) {
    memory[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
}

#[inline(always)]
fn extend(value: u64, extend: Extend) -> u64 {
    match extend {
        Extend::Zero => value,
        Extend::Sign { from, to } => {
            let wide = ((value << (64 - from)) as i64 >> (64 - from)) as u64;
            if to >= 64 { wide } else { wide & ((1 << to) - 1) }
        }
    }
}

impl Block<'_, '_> {
    pub(crate) fn load<const CHECKED: bool>(&mut self, warp: &mut Warp, pc: u32, access: &Access, mask: u32) -> Flow {
        if access.plain
            && (!CHECKED || !poison::steers(warp, access.addr, mask))
            && let Some((reach, base)) = self.load_words(warp, access, mask)
        {
            if CHECKED || self.counters.is_some() {
                self.loaded::<CHECKED>(warp, pc, access, &reach.offsets, base, mask);
            }
            return Flow::Next;
        }
        let addresses = self.addresses(warp, access.addr);
        let ok = if CHECKED { self.clean_addresses(warp, pc, access.addr, mask) } else { mask };
        if CHECKED && ok != mask {
            // Lanes without an address read zero.
            self.load_nothing(warp, access, mask & !ok);
        }
        if ok != 0 {
            self.by_space(warp, access.space, &addresses, ok, |block, warp, space, addresses, lanes| {
                block.load_from::<CHECKED>(warp, pc, access, space, addresses, lanes);
            });
        }
        if access.ordering != Ordering::Weak {
            if access.ordering == Ordering::Acquire {
                atomic::fence(atomic::Ordering::Acquire);
            }
            self.note_strong(warp, pc, &addresses, access.regs, mask);
        }
        if self.aborted { Flow::Abort } else { Flow::Next }
    }

    /// Counts a load that went the fast way, tells the sanitizer of it, and loads the poison.
    fn loaded<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        access: &Access,
        offsets: &L32,
        base: u64,
        mask: u32,
    ) {
        let addresses = super::lanes::map1(offsets, |o: u32| base.wrapping_add(u64::from(o)));
        self.count_access(pc, access.space, &addresses, mask, 4 * u32::from(access.count), false);
        if !CHECKED {
            return;
        }
        let kind = if access.nc { AccessKind::ReadNc } else { AccessKind::Read };
        let request = self.request(pc, access, kind);
        if access.space == Space::Global {
            self.check_access(warp, MemSpace::Global, &addresses, mask, &request);
            self.load_global_poison(warp, access, &addresses, mask);
        } else {
            self.check_access(warp, MemSpace::Shared, &addresses, mask, &request);
            self.load_shared_poison(warp, access, &addresses, mask);
        }
    }

    /// Counts a store that went the fast way, tells the sanitizer of it, and stores the poison.
    fn stored<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        access: &Access,
        offsets: &L32,
        base: u64,
        mask: u32,
    ) {
        let addresses = super::lanes::map1(offsets, |o: u32| base.wrapping_add(u64::from(o)));
        self.count_access(pc, access.space, &addresses, mask, 4 * u32::from(access.count), true);
        if !CHECKED {
            return;
        }
        let request = self.request(pc, access, AccessKind::Write);
        let program = self.launch.program;
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        if access.space == Space::Global {
            self.check_access(warp, MemSpace::Global, &addresses, mask, &request);
            self.store_global_poison(warp, pc, registers, &addresses, 4, request.width, mask);
        } else {
            self.check_access(warp, MemSpace::Shared, &addresses, mask, &request);
            self.store_shared_poison(warp, registers, &addresses, 4, mask);
        }
    }

    fn request(&self, pc: u32, access: &Access, kind: AccessKind) -> Request {
        let width = u32::from(access.bytes) * u32::from(access.count);
        let align = width.next_power_of_two();
        Request { pc, width, align, kind, ordering: access.ordering, scope: access.scope }
    }

    #[cold]
    fn load_nothing(&mut self, warp: &mut Warp, access: &Access, mask: u32) {
        let program = self.launch.program;
        for d in &program.lists[access.regs.start as usize..][..access.regs.len as usize] {
            super::run::narrow(warp, *d, &L64::splat(0), mask);
            poison::clean(warp, *d, mask);
        }
    }

    fn load_from<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        access: &Access,
        space: Space,
        addresses: &L64,
        mask: u32,
    ) {
        let program = self.launch.program;
        let bytes = u32::from(access.bytes);
        let width = bytes * u32::from(access.count);
        let request = self.request(pc, access, if access.nc { AccessKind::ReadNc } else { AccessKind::Read });
        if self.counters.is_some() {
            self.count_access(pc, space, addresses, mask, width, false);
        }
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        if space == Space::Global {
            let (ok, one) = self.check_global::<CHECKED>(warp, addresses, mask, &request);
            if CHECKED && ok != mask {
                self.load_nothing(warp, access, mask & !ok);
            }
            let memory = self.launch.memory;
            if ok == 0 {
                return;
            }
            // The common case: 32-bit registers from one dense allocation.
            if let Some(id) = one
                && bytes == 4
                && let Some(words) = memory.allocation(id).words()
                && access.extend == Extend::Zero
            {
                let base = memory.allocation(id).base;
                for (e, d) in registers.iter().enumerate() {
                    let Any::W(d) = *d else { continue };
                    let mut values = L32::splat(0);
                    for_lanes(ok, |lane| {
                        let index = (addresses.0[lane].wrapping_sub(base) >> 2) as usize + e;
                        values.0[lane] = words[index].load(atomic::Ordering::Relaxed);
                    });
                    warp.r32[d as usize].blend(&values, ok);
                }
                // A 32-bit value for a 64-bit register.
                if registers.iter().any(|d| matches!(d, Any::X(_))) {
                    self.load_global_each(warp, access, addresses, ok);
                }
            } else {
                self.load_global_each(warp, access, addresses, ok);
            }
            if CHECKED {
                self.load_global_poison(warp, access, addresses, ok);
            }
            return;
        }
        let (offsets, ok) = self.check_window::<CHECKED>(warp, space, addresses, mask, &request);
        if CHECKED && ok != mask {
            self.load_nothing(warp, access, mask & !ok);
        }
        if ok == 0 {
            return;
        }
        if space == Space::Local {
            let stride = program.local_bytes as usize;
            let memory = std::mem::take(&mut warp.local);
            let at = |lane: usize| lane * stride + offsets.0[lane] as usize;
            load_bytes(warp, &memory, at, access, registers, ok);
            warp.local = memory;
        } else {
            let memory: &[u8] = match space {
                Space::Shared => &self.shared,
                Space::Const => &program.constants,
                _ => self.launch.params,
            };
            load_bytes(warp, memory, |lane| offsets.0[lane] as usize, access, registers, ok);
        }
        if CHECKED {
            if space == Space::Shared {
                self.load_shared_poison(warp, access, &offsets, ok);
            } else if space == Space::Local {
                self.load_local_poison(warp, access, &offsets, ok);
            } else {
                registers.iter().for_each(|d| poison::clean(warp, *d, ok));
            }
        }
    }

    fn load_global_each(&mut self, warp: &mut Warp, access: &Access, addresses: &L64, ok: u32) {
        let program = self.launch.program;
        let memory = self.launch.memory;
        let bytes = u32::from(access.bytes);
        let strong_wide = access.ordering != Ordering::Weak && bytes == 8;
        for (e, d) in program.lists[access.regs.start as usize..][..access.regs.len as usize].iter().enumerate() {
            let mut values = L64::splat(0);
            for_lanes(ok, |lane| {
                let address = addresses.0[lane] + e as u64 * u64::from(bytes);
                if let Ok((allocation, offset)) = memory.find(address, u64::from(bytes)) {
                    let _guard = strong_wide.then(|| memory.lock(address));
                    values.0[lane] = extend(allocation.load(offset, bytes), access.extend);
                }
            });
            super::run::narrow(warp, *d, &values, ok);
        }
    }

    #[inline(never)]
    fn load_global_poison(&mut self, warp: &mut Warp, access: &Access, addresses: &L64, ok: u32) {
        let program = self.launch.program;
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        let width = u32::from(access.bytes) * u32::from(access.count);
        let mut missing = [0u64; 32];
        let mut any = 0;
        if let Some(written) = &self.launch.written {
            let written = written.lock().unwrap_or_else(|p| p.into_inner());
            let memory = self.launch.memory;
            for_lanes(ok, |lane| {
                if let Ok((allocation, offset)) = memory.find(addresses.0[lane], u64::from(width)) {
                    missing[lane] = !written[allocation.id as usize].bits(offset, width) & (u64::MAX >> (64 - width));
                    any |= missing[lane];
                }
            });
        }
        set_load_poison(warp, access, registers, &missing, any, ok);
    }

    #[inline(never)]
    fn load_shared_poison(&mut self, warp: &mut Warp, access: &Access, offsets: &L64, ok: u32) {
        let program = self.launch.program;
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        let width = u32::from(access.bytes) * u32::from(access.count);
        let mut missing = [0u64; 32];
        let mut any = 0;
        if let Some(written) = &self.shared_written {
            for_lanes(ok, |lane| {
                missing[lane] = !written.bits(offsets.0[lane], width) & (u64::MAX >> (64 - width));
                any |= missing[lane];
            });
        }
        set_load_poison(warp, access, registers, &missing, any, ok);
    }

    fn load_local_poison(&mut self, warp: &mut Warp, access: &Access, offsets: &L64, ok: u32) {
        let program = self.launch.program;
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        let width = usize::from(access.bytes) * usize::from(access.count);
        let stride = program.local_bytes as usize;
        let mut missing = [0u64; 32];
        let mut any = 0;
        for_lanes(ok, |lane| {
            let at = lane * stride + offsets.0[lane] as usize;
            for (i, byte) in warp.local_unwritten[at..at + width].iter().enumerate() {
                missing[lane] |= u64::from(*byte) << i;
            }
            any |= missing[lane];
        });
        set_load_poison(warp, access, registers, &missing, any, ok);
    }

    pub(crate) fn store<const CHECKED: bool>(&mut self, warp: &mut Warp, pc: u32, access: &Access, mask: u32) -> Flow {
        if access.plain
            && (!CHECKED || !poison::steers(warp, access.addr, mask))
            && let Some((reach, base)) = self.store_words(warp, access, mask)
        {
            self.activity += 1;
            if CHECKED || self.counters.is_some() {
                self.stored::<CHECKED>(warp, pc, access, &reach.offsets, base, mask);
            }
            return Flow::Next;
        }
        let addresses = self.addresses(warp, access.addr);
        let ok = if CHECKED { self.clean_addresses(warp, pc, access.addr, mask) } else { mask };
        if access.ordering == Ordering::Release {
            atomic::fence(atomic::Ordering::Release);
        }
        if ok != 0 {
            self.by_space(warp, access.space, &addresses, ok, |block, warp, space, addresses, lanes| {
                block.store_to::<CHECKED>(warp, pc, access, space, addresses, lanes);
            });
        }
        if self.aborted { Flow::Abort } else { Flow::Next }
    }

    fn store_to<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        access: &Access,
        space: Space,
        addresses: &L64,
        mask: u32,
    ) {
        let program = self.launch.program;
        let bytes = u32::from(access.bytes);
        let width = bytes * u32::from(access.count);
        let request = self.request(pc, access, AccessKind::Write);
        if self.counters.is_some() {
            self.count_access(pc, space, addresses, mask, width, true);
        }
        let registers = &program.lists[access.regs.start as usize..][..access.regs.len as usize];
        match space {
            Space::Global => {
                self.activity += 1;
                let (ok, one) = self.check_global::<CHECKED>(warp, addresses, mask, &request);
                if ok == 0 {
                    return;
                }
                let memory = self.launch.memory;
                if let Some(id) = one
                    && bytes == 4
                    && let Some(words) = memory.allocation(id).words()
                    && registers.iter().all(|r| matches!(r, Any::W(_)))
                {
                    let base = memory.allocation(id).base;
                    for (e, r) in registers.iter().enumerate() {
                        let Any::W(r) = *r else { continue };
                        let values = warp.w(program, r);
                        for_lanes(ok, |lane| {
                            let index = (addresses.0[lane].wrapping_sub(base) >> 2) as usize + e;
                            words[index].store(values.0[lane], atomic::Ordering::Relaxed);
                        });
                    }
                } else {
                    let strong_wide = access.ordering != Ordering::Weak && bytes == 8;
                    for (e, r) in registers.iter().enumerate() {
                        let values = super::run::widen(warp, program, *r);
                        for_lanes(ok, |lane| {
                            let address = addresses.0[lane] + e as u64 * u64::from(bytes);
                            if let Ok((allocation, offset)) = memory.find(address, u64::from(bytes)) {
                                let _guard = strong_wide.then(|| memory.lock(address));
                                allocation.store(offset, bytes, values.0[lane]);
                            }
                        });
                    }
                }
                if CHECKED {
                    self.store_global_poison(warp, pc, registers, addresses, bytes, width, ok);
                }
            }
            Space::Shared => {
                self.activity += 1;
                let (offsets, ok) = self.check_window::<CHECKED>(warp, space, addresses, mask, &request);
                let at = |lane: usize| offsets.0[lane] as usize;
                store_bytes(warp, program, &mut self.shared, at, registers, bytes, ok);
                self.store_shared_poison(warp, registers, &offsets, bytes, ok);
            }
            Space::Local => {
                let (offsets, ok) = self.check_window::<CHECKED>(warp, space, addresses, mask, &request);
                let stride = program.local_bytes as usize;
                let mut memory = std::mem::take(&mut warp.local);
                let at = |lane: usize| lane * stride + offsets.0[lane] as usize;
                store_bytes(warp, program, &mut memory, at, registers, bytes, ok);
                warp.local = memory;
                if CHECKED {
                    for (e, r) in registers.iter().enumerate() {
                        let p = poison::of(warp, *r);
                        for_lanes(ok, |lane| {
                            let start = at(lane) + e * bytes as usize;
                            for i in 0..bytes as usize {
                                warp.local_unwritten[start + i] = u8::from(p.0[lane] >> (i * 8) & 0xff != 0);
                            }
                        });
                    }
                }
            }
            Space::Const | Space::Param | Space::Generic => {
                let lane = mask.trailing_zeros() as usize;
                let message = "store to read-only memory".to_owned();
                self.report_text(FindingClass::OutOfBounds, warp, pc, Some(lane), message);
                self.fault();
            }
        }
    }

    fn store_shared_poison(&mut self, warp: &Warp, registers: &[Any], offsets: &L64, bytes: u32, ok: u32) {
        let Some(written) = &mut self.shared_written else { return };
        if registers.iter().all(|r| poison::lanes_with(warp, *r) & ok == 0) {
            let width = bytes * registers.len() as u32;
            for_lanes(ok, |lane| written.put_bits(offsets.0[lane], width, u64::MAX));
            return;
        }
        for (e, r) in registers.iter().enumerate() {
            let p = poison::of(warp, *r);
            for_lanes(ok, |lane| {
                let start = offsets.0[lane] + e as u64 * u64::from(bytes);
                written.put_bits(start, bytes, !bits_to_bytes(p.0[lane]));
            });
        }
    }

    #[allow(clippy::too_many_arguments)]
    #[inline(never)]
    fn store_global_poison(
        &mut self,
        warp: &Warp,
        pc: u32,
        registers: &[Any],
        addresses: &L64,
        bytes: u32,
        width: u32,
        ok: u32,
    ) {
        let used = if bytes >= 8 { u64::MAX } else { (1u64 << (bytes * 8)) - 1 };
        for (e, r) in registers.iter().enumerate() {
            let bad = poison::lanes_with(warp, *r) & ok;
            if bad == 0 {
                continue;
            }
            let p = poison::of(warp, *r);
            if let Some(lane) = super::lanes::lanes_of(bad).find(|lane| p.0[*lane] & used != 0) {
                self.report_poisoned_store(warp, pc, lane, addresses.0[lane] + e as u64 * u64::from(bytes));
            }
        }
        if let Some(written) = &self.launch.written {
            let mut written = written.lock().unwrap_or_else(|p| p.into_inner());
            let memory = self.launch.memory;
            for_lanes(ok, |lane| {
                if let Ok((allocation, offset)) = memory.find(addresses.0[lane], u64::from(width)) {
                    written[allocation.id as usize].set(offset, u64::from(width));
                }
            });
        }
    }

    /// A value that nothing wrote goes to global memory.
    pub(crate) fn report_poisoned_store(&self, warp: &Warp, pc: u32, lane: usize, address: u64) {
        self.report(FindingClass::Uninitialized, warp, pc, Some(lane), || {
            let message = "a value that nothing wrote is stored to global memory".to_owned();
            (Some(self.launch.memory.describe(address)), None, message)
        });
    }
}

fn load_bytes(
    warp: &mut Warp,
    memory: &[u8],
    at: impl Fn(usize) -> usize,
    access: &Access,
    registers: &[Any],
    ok: u32,
) {
    let bytes = u32::from(access.bytes);
    for (e, d) in registers.iter().enumerate() {
        let skip = e * bytes as usize;
        match *d {
            Any::W(d) if access.extend == Extend::Zero => {
                let mut values = L32::splat(0);
                match bytes {
                    4 => for_lanes(ok, |lane| values.0[lane] = read_le(memory, at(lane) + skip, 4) as u32),
                    2 => for_lanes(ok, |lane| values.0[lane] = read_le(memory, at(lane) + skip, 2) as u32),
                    _ => for_lanes(ok, |lane| values.0[lane] = read_le(memory, at(lane) + skip, 1) as u32),
                }
                warp.r32[d as usize].blend(&values, ok);
            }
            d => {
                let mut values = L64::splat(0);
                for_lanes(ok, |lane| {
                    values.0[lane] = extend(read_le(memory, at(lane) + skip, bytes), access.extend);
                });
                super::run::narrow(warp, d, &values, ok);
            }
        }
    }
}

fn store_bytes(
    warp: &Warp,
    program: &super::program::Program,
    memory: &mut [u8],
    at: impl Fn(usize) -> usize,
    registers: &[Any],
    bytes: u32,
    ok: u32,
) {
    for (e, r) in registers.iter().enumerate() {
        let skip = e * bytes as usize;
        match *r {
            Any::W(r) if bytes == 4 => {
                let values = warp.w(program, r);
                for_lanes(ok, |lane| write_le(memory, at(lane) + skip, 4, u64::from(values.0[lane])));
            }
            r => {
                let values = super::run::widen(warp, program, r);
                for_lanes(ok, |lane| write_le(memory, at(lane) + skip, bytes, values.0[lane]));
            }
        }
    }
}

/// Poison of loaded registers from the unwritten bytes of every lane.
fn set_load_poison(warp: &mut Warp, access: &Access, registers: &[Any], missing: &[u64; 32], any: u64, ok: u32) {
    for (e, d) in registers.iter().enumerate() {
        if any == 0 {
            poison::clean(warp, *d, ok);
            continue;
        }
        let bytes = u32::from(access.bytes);
        let mut p = L64::splat(0);
        for_lanes(ok, |lane| {
            let own = missing[lane] >> (e as u32 * bytes) & (u64::MAX >> (64 - bytes));
            p.0[lane] = extend(bytes_to_bits(own), access.extend);
        });
        poison::set(warp, *d, &p, ok);
    }
}
