//! Addresses of a warp instruction: computed, told apart by space, checked against bounds and alignment.

use super::block::Block;
use super::lanes::{FULL, L64, lanes_of};
use super::program::{Addr, Any, Base, Space};
use super::warp::Warp;
use crate::check::{Access, AccessKind, MemSpace};
use crate::finding::FindingClass;
use crate::ir::{Ordering, Scope};
use crate::memory::{CONST_WINDOW, LOCAL_WINDOW, Miss, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES, WINDOW_START};

/// What a warp access asks for, besides its addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) pc: u32,
    /// Bytes per lane.
    pub(crate) width: u32,
    /// Alignment in bytes.
    pub(crate) align: u32,
    pub(crate) kind: AccessKind,
    pub(crate) ordering: Ordering,
    pub(crate) scope: Scope,
}

/// Runs `f` for every lane of `mask`.
#[inline(always)]
pub(crate) fn for_lanes(mask: u32, mut f: impl FnMut(usize)) {
    if mask == FULL {
        for lane in 0..32 {
            f(lane);
        }
    } else {
        for lane in lanes_of(mask) {
            f(lane);
        }
    }
}

/// Lowest and highest address of the lanes of `mask`, and the union of their low bits.
#[inline(always)]
pub(crate) fn span(addresses: &L64, mask: u32) -> (u64, u64, u64) {
    let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
    for i in 0..32 {
        let active = mask >> i & 1 == 1;
        let address = addresses.0[i];
        low = low.min(if active { address } else { u64::MAX });
        high = high.max(if active { address } else { 0 });
        bits |= if active { address } else { 0 };
    }
    (low, high, bits)
}

impl Block<'_, '_> {
    /// Addresses of all lanes.
    #[inline(always)]
    pub(crate) fn addresses(&self, warp: &Warp, addr: Addr) -> L64 {
        let program = self.launch.program;
        let mut out = L64::splat(0);
        match addr.base {
            Base::X(slot) => {
                let base = warp.x(program, slot);
                for i in 0..32 {
                    out.0[i] = base.0[i].wrapping_add(addr.offset as u64);
                }
            }
            Base::W(slot) => {
                let base = warp.w(program, slot);
                for i in 0..32 {
                    out.0[i] = u64::from(base.0[i].wrapping_add(addr.offset as u32));
                }
            }
            Base::Absolute => out = L64::splat(addr.offset as u64),
        }
        out
    }

    /// The lanes of `mask` whose address does not depend on poison; reports the others.
    #[inline(always)]
    pub(crate) fn clean_addresses(&self, warp: &Warp, pc: u32, addr: Addr, mask: u32) -> u32 {
        let source = match addr.base {
            Base::X(slot) => Any::X(slot),
            Base::W(slot) => Any::W(slot),
            Base::Absolute => return mask,
        };
        let bad = super::poison::lanes_with(warp, source) & mask;
        if bad != 0 {
            let lane = bad.trailing_zeros() as usize;
            let message = "the address depends on a value that nothing wrote".to_owned();
            self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
        }
        mask & !bad
    }

    /// Splits generic addresses by space and makes them addresses of those spaces; calls `f` once per space.
    #[inline(always)]
    pub(crate) fn by_space(
        &mut self,
        warp: &mut Warp,
        space: Space,
        addresses: &L64,
        mask: u32,
        mut f: impl FnMut(&mut Self, &mut Warp, Space, &L64, u32),
    ) {
        let launch = self.launch;
        if let (Space::Shared, Some(clusters)) = (space, &launch.clusters) {
            let addresses = self.cluster_addresses(clusters, addresses, mask);
            return f(self, warp, Space::Global, &addresses, mask);
        }
        if space != Space::Generic {
            return f(self, warp, space, addresses, mask);
        }
        let mut rest = mask;
        while rest != 0 {
            let first = addresses.0[rest.trailing_zeros() as usize];
            let (space, window) = space_of(first);
            let mut same = 0;
            let mut local = L64::splat(0);
            for_lanes(rest, |lane| {
                let (other, _) = space_of(addresses.0[lane]);
                if other == space {
                    same |= 1 << lane;
                    local.0[lane] = addresses.0[lane].wrapping_sub(window);
                }
            });
            match (space, &launch.clusters) {
                (Space::Shared, Some(clusters)) => {
                    let addresses = self.cluster_addresses(clusters, &local, same);
                    f(self, warp, Space::Global, &addresses, same);
                }
                _ => f(self, warp, space, &local, same),
            }
            rest &= !same;
        }
    }

    /// Size of a window, for spaces that are not global.
    fn window_bytes(&self, space: Space) -> u64 {
        match space {
            Space::Shared => self.shared.len() as u64,
            Space::Local => u64::from(self.launch.program.local_bytes),
            Space::Const => self.launch.program.constants.len() as u64,
            Space::Param => self.launch.params.len() as u64,
            Space::Global | Space::Generic => 0,
        }
    }

    /// Checks an access outside global memory; returns the lanes that may go on and turns addresses into offsets.
    #[inline(always)]
    pub(crate) fn check_window<const CHECKED: bool>(
        &mut self,
        warp: &Warp,
        space: Space,
        addresses: &L64,
        mask: u32,
        request: &Request,
    ) -> (L64, u32) {
        let size = self.window_bytes(space);
        let start = u64::from(WINDOW_START);
        let (low, high, bits) = span(addresses, mask);
        let mut offsets = L64::splat(0);
        for i in 0..32 {
            offsets.0[i] = addresses.0[i].wrapping_sub(start);
        }
        let good = low >= start
            && high.wrapping_sub(start).saturating_add(u64::from(request.width)) <= size
            && bits & u64::from(request.align - 1) == 0;
        let ok = if good { mask } else { self.bad_window(warp, space, addresses, mask, request, size) };
        if CHECKED && space == Space::Shared && ok != 0 {
            self.check_access(warp, MemSpace::Shared, &offsets, ok, request);
        }
        (offsets, ok)
    }

    #[cold]
    fn bad_window(
        &mut self,
        warp: &Warp,
        space: Space,
        addresses: &L64,
        mask: u32,
        request: &Request,
        size: u64,
    ) -> u32 {
        let mut ok = mask;
        let name = match space {
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Const => "const",
            _ => "param",
        };
        for lane in lanes_of(mask) {
            let offset = addresses.0[lane] as i64 - i64::from(WINDOW_START);
            let place = if offset < 0 { format!("{name}-{:#x}", -offset) } else { format!("{name}+{offset:#x}") };
            let width = request.width;
            if offset < 0 || (offset as u64).saturating_add(u64::from(width)) > size {
                ok &= !(1 << lane);
                let message = format!("access of {width} bytes outside the {size} bytes of {name} memory");
                self.report(FindingClass::OutOfBounds, warp, request.pc, Some(lane), || (Some(place), None, message));
            } else if addresses.0[lane] & u64::from(request.align - 1) != 0 {
                ok &= !(1 << lane);
                let message = format!("address is not a multiple of {}", request.align);
                self.report(FindingClass::Misaligned, warp, request.pc, Some(lane), || (Some(place), None, message));
            }
        }
        if ok != mask {
            self.fault();
        }
        ok
    }

    /// Checks a global access; returns the lanes that may go on, and whether they all lie in one allocation.
    #[inline(always)]
    pub(crate) fn check_global<const CHECKED: bool>(
        &mut self,
        warp: &Warp,
        addresses: &L64,
        mask: u32,
        request: &Request,
    ) -> (u32, Option<u32>) {
        let (low, high, bits) = span(addresses, mask);
        let aligned = bits & u64::from(request.align - 1) == 0;
        let one = match self.launch.memory.find(low, (high - low).saturating_add(u64::from(request.width))) {
            Ok((allocation, _)) if aligned => Some(allocation.id),
            _ => None,
        };
        let ok = if one.is_some() { mask } else { self.each_global(warp, addresses, mask, request) };
        if CHECKED && ok != 0 {
            self.check_access(warp, MemSpace::Global, addresses, ok, request);
        }
        (ok, one)
    }

    #[cold]
    fn each_global(&mut self, warp: &Warp, addresses: &L64, mask: u32, request: &Request) -> u32 {
        let mut ok = mask;
        let memory = self.launch.memory;
        for lane in lanes_of(mask) {
            let address = addresses.0[lane];
            let width = request.width;
            let (class, message) = match memory.find(address, u64::from(width)) {
                Ok(_) if address & u64::from(request.align - 1) == 0 => continue,
                Ok(_) => (FindingClass::Misaligned, format!("address is not a multiple of {}", request.align)),
                Err(Miss::Freed) => {
                    (FindingClass::UseAfterFree, format!("access of {width} bytes to an allocation that was freed"))
                }
                Err(Miss::OutOfBounds) => {
                    (FindingClass::OutOfBounds, format!("access of {width} bytes outside every allocation"))
                }
            };
            ok &= !(1 << lane);
            self.report(class, warp, request.pc, Some(lane), || (Some(memory.describe(address)), None, message));
        }
        if ok != mask {
            self.fault();
        }
        ok
    }

    /// A lane had no place to access: with checks off the launch ends here.
    pub(crate) fn fault(&mut self) {
        if self.launch.check.is_none() {
            self.aborted = true;
            self.launch.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Tells the sanitizer.
    #[inline(never)]
    pub(crate) fn check_access(&mut self, warp: &Warp, space: MemSpace, addresses: &L64, mask: u32, request: &Request) {
        let Some(check) = &mut self.check else { return };
        let access = Access {
            space,
            warp: warp.id,
            mask,
            addr: &addresses.0,
            bytes: request.width,
            kind: request.kind,
            ordering: request.ordering,
            scope: request.scope,
            place: request.pc,
        };
        check.access(&access, &mut self.conflicts);
        self.drain_conflicts(warp.id, request.pc);
    }
}

/// Space of a generic address and the start of its window.
#[inline(always)]
pub(crate) fn space_of(address: u64) -> (Space, u64) {
    match address & !(WINDOW_BYTES - 1) {
        SHARED_WINDOW => (Space::Shared, SHARED_WINDOW),
        LOCAL_WINDOW => (Space::Local, LOCAL_WINDOW),
        CONST_WINDOW => (Space::Const, CONST_WINDOW),
        PARAM_WINDOW => (Space::Param, PARAM_WINDOW),
        _ => (Space::Global, 0),
    }
}
