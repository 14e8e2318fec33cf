//! Asynchronous copies: `cp.async` and its groups, bulk copies.

use super::api::{AsyncId, Bulk, BulkCompletion, Conflict, MemSpace};
use super::block::BlockCheck;
use super::cell::Op;
use super::event::{BULK_READ, BULK_WRITE, CP_ASYNC, Event, How, IN_FLIGHT};
use crate::ir::Scope;

/// An asynchronous operation between its issue and its end.
#[derive(Debug)]
pub(super) enum AsyncOp {
    /// `cp.async.mbarrier.arrive` of a lane: object, slot and lane of the copies, epoch that they are within.
    Arrive { addr: u32, slot: u32, lane: u32, epoch: u32 },
    /// A bulk copy that ends on an mbarrier: object, pins of its events (memory, part of it, pin).
    Copy { addr: u32, pins: Vec<(MemSpace, u32, u32)> },
    /// A bulk copy of a group: its end is known by the group.
    Grouped,
}

impl BlockCheck {
    /// `cp.async` of the lanes of `mask`: `bytes` (4, 8, 16) are written at `dst` (shared offsets), `src_bytes[lane]`
    /// of them read from `src` (global addresses), the rest zero-filled.
    #[allow(clippy::too_many_arguments)]
    pub fn cp_async(
        &mut self,
        warp: u32,
        mask: u32,
        dst: &[u64; 32],
        src: &[u64; 32],
        bytes: u32,
        src_bytes: &[u32; 32],
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        let start = conflicts.len();
        let epoch = self.warps[warp as usize].cp.issue();
        let read = self.event(warp, CP_ASYNC, epoch, place, How::READ);
        let write = Event { how: How::WEAK_WRITE, ..read };
        let who = self.lanes(warp);
        for group in &self.warps[warp as usize].groups {
            let mask = group.mask & mask;
            if mask == 0 {
                continue;
            }
            let know = &group.know.core;
            let mut rest = mask;
            while rest != 0 {
                let length = src_bytes[rest.trailing_zeros() as usize];
                let same = (0..32).filter(|&l| rest >> l & 1 != 0 && src_bytes[l as usize] == length);
                let same = same.fold(0, |m, l| m | 1 << l);
                rest &= !same;
                if length != 0 {
                    let mut op = Op::new(MemSpace::Global, who, know, &self.warps, read, start, conflicts);
                    self.launch.access(&mut op, same, src, length);
                }
            }
            let mut op = Op::new(MemSpace::Shared, who, know, &self.warps, write, start, conflicts);
            self.shared.access(&mut op, mask, dst, bytes);
        }
    }

    /// `cp.async.commit_group`
    pub fn cp_async_commit(&mut self, warp: u32, mask: u32) {
        self.warps[warp as usize].cp.commit(mask);
    }

    /// `cp.async.wait_group N` returned (`None`: `wait_all`, which also covers uncommitted copies).
    pub fn cp_async_wait(&mut self, warp: u32, mask: u32, groups: Option<u32>) {
        let warp = &mut self.warps[warp as usize];
        let mut done = warp.cp.wait(mask, groups.unwrap_or(0), true);
        if groups.is_none() {
            done = vec![(mask, warp.cp.seal())];
        }
        for (mask, epoch) in done {
            warp.update(mask, |know| {
                let own = &mut know.core.main.own[CP_ASYNC as usize];
                *own = epoch.max(*own);
            });
        }
    }

    /// `cp.async.mbarrier.arrive` by one lane: the arrival happens later, when [`BlockCheck::cp_async_arrived`] is
    /// called with the id. It publishes the lane's copies so far and nothing else that the lane did.
    pub fn cp_async_mbarrier_arrive(
        &mut self,
        warp: u32,
        lane: u32,
        addr: u32,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) -> AsyncId {
        self.mbarrier_touch(warp, 1 << lane, addr, place, conflicts);
        let slot = CP_ASYNC * self.warps.len() as u32 + warp;
        let epoch = self.warps[warp as usize].cp.seal();
        self.started(AsyncOp::Arrive { addr, slot, lane, epoch })
    }

    /// The arrival was performed. Call before [`BlockCheck::mbarrier_complete`] of the phase it ends.
    pub fn cp_async_arrived(&mut self, id: AsyncId) {
        if let Some(AsyncOp::Arrive { addr, slot, lane, epoch }) = self.ended(id) {
            let lanes = self.warps[slot as usize % self.warps.len()].clock_mask(1 << lane);
            self.mbarrier(addr).arrived.core.main.clock.raise(slot, lanes, epoch);
        }
    }

    /// A bulk copy is issued: checked as a read of the source and a write of the destination by the async proxy.
    pub fn bulk_issue(&mut self, bulk: &Bulk, completion: BulkCompletion, conflicts: &mut Vec<Conflict>) -> AsyncId {
        let (read, write) = match completion {
            BulkCompletion::Mbarrier(addr) => {
                self.mbarrier_for_copy(bulk.warp, bulk.lane, addr, bulk.place, conflicts);
                let event = self.event(bulk.warp, 0, IN_FLIGHT, bulk.place, How::READ);
                let event = Event { slot: self.mbarrier(addr).slot, issuer: bulk.warp * 32 + bulk.lane, ..event };
                (event, event)
            }
            BulkCompletion::Group => {
                let epoch = self.warps[bulk.warp as usize].bulk.issue();
                let event = |family| self.event(bulk.warp, family, epoch, bulk.place, How::READ);
                (event(BULK_READ), event(BULK_WRITE))
            }
        };
        let written = if bulk.reduce { How::strong(true, Scope::Gpu) } else { How::WEAK_WRITE };
        let read = Event { how: How::READ.asynchronous(), ..read };
        let write = Event { how: written.asynchronous(), ..write };
        let mut pins = Vec::new();
        let start = conflicts.len();
        for ((space, addr), event) in [(bulk.src, read), (bulk.dst, write)] {
            let who = self.lanes(bulk.warp);
            let know = &self.warps[bulk.warp as usize].know(bulk.lane).core;
            let mut op = Op::new(space, who, know, &self.warps, event, start, conflicts);
            let (lanes, bytes) = (1 << bulk.lane, u64::from(bulk.bytes));
            match space {
                MemSpace::Shared => {
                    let pin = self.shared.access_range(&mut op, lanes, addr, bytes, event.epoch == IN_FLIGHT);
                    pins.extend(pin.map(|pin| (space, 0, pin)));
                }
                MemSpace::Global => {
                    self.launch.access_range(&mut op, lanes, addr, bytes, |part, pin| pins.push((space, part, pin)));
                }
            }
        }
        self.started(match completion {
            BulkCompletion::Mbarrier(addr) => AsyncOp::Copy { addr, pins },
            BulkCompletion::Group => AsyncOp::Grouped,
        })
    }

    /// The copy's bytes are all in place; for an mbarrier copy: its `complete_tx` is being performed. Call before
    /// [`BlockCheck::mbarrier_complete`] of the phase it ends.
    pub fn bulk_landed(&mut self, id: AsyncId) {
        if let Some(AsyncOp::Copy { addr, pins }) = self.ended(id) {
            let epoch = self.mbarrier(addr).now;
            for (space, part, pin) in pins {
                match space {
                    MemSpace::Shared => self.shared.land(pin, epoch),
                    MemSpace::Global => self.launch.lock(part).land(pin, epoch),
                }
            }
        }
    }

    /// `cp.async.bulk.commit_group`
    pub fn bulk_commit(&mut self, warp: u32, mask: u32) {
        self.warps[warp as usize].bulk.commit(mask);
    }

    /// `cp.async.bulk.wait_group[.read] N` returned.
    pub fn bulk_wait(&mut self, warp: u32, mask: u32, groups: u32, read: bool) {
        let warp = &mut self.warps[warp as usize];
        for (mask, epoch) in warp.bulk.wait(mask, groups, !read) {
            warp.update(mask, |know| {
                let own = &mut know.core.main.own;
                own[BULK_READ as usize] = own[BULK_READ as usize].max(epoch);
                if !read {
                    own[BULK_WRITE as usize] = own[BULK_WRITE as usize].max(epoch);
                }
            });
        }
    }

    fn started(&mut self, operation: AsyncOp) -> AsyncId {
        match self.free_operations.pop() {
            Some(number) => {
                self.operations[number as usize] = Some(operation);
                AsyncId(number)
            }
            None => {
                self.operations.push(Some(operation));
                AsyncId(self.operations.len() as u32 - 1)
            }
        }
    }

    fn ended(&mut self, id: AsyncId) -> Option<AsyncOp> {
        let operation = self.operations.get_mut(id.0 as usize)?.take();
        if operation.is_some() {
            self.free_operations.push(id.0);
        }
        operation
    }
}
