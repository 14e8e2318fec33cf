//! Asynchronous copies: `cp.async` groups, bulk copies, and when their bytes really move.
//!
//! An issued copy is a record. Its bytes move at once, at the latest legal moment, or in 16-byte pieces whenever the seed
//! says so ([`AsyncMode`]). The latest moment is the wait of a group, and for copies that end at an mbarrier the moment
//! at which no warp of the block can run without it. Then one copy lands, chosen by the seed.

use super::access::Request;
use super::block::Block;
use super::lanes::lanes_of;
use super::mbarrier::User;
use super::poison;
use super::program::{Any, BulkOp, CpAsync, NONE};
use super::run::Flow;
use super::warp::Warp;
use crate::check::{AccessKind, AsyncId, Bulk, BulkCompletion, MemSpace};
use crate::finding::FindingClass;
use crate::ir::{Atomic, BulkDirection, Ordering, Scope, Type};
use crate::machine::AsyncMode;
use std::collections::VecDeque;

/// Bytes of a piece in random mode.
const PIECE: u32 = 16;

/// `cp.async` of one warp instruction.
struct WarpCopy {
    pc: u32,
    /// Lanes whose end was not observed, and lanes whose bytes have not moved.
    open: u32,
    resting: u32,
    bytes: u32,
    dst: [u32; 32],
    src: [u64; 32],
    src_bytes: [u8; 32],
    group: [u32; 32],
    number: u64,
}

/// Copies of one warp.
struct WarpCopies {
    ops: VecDeque<WarpCopy>,
    /// Groups committed so far, per lane; also the number of the open group.
    groups: [u32; 32],
    bulk_groups: [u32; 32],
}

/// `cp.async.mbarrier.arrive`: an arrival once the lane's copies so far have landed.
pub(crate) struct Event {
    pub(crate) user: User,
    /// Shared offset of the object.
    pub(crate) at: u32,
    pub(crate) id: Option<AsyncId>,
}

/// A bulk copy.
struct BulkCopy {
    user: User,
    to_shared: bool,
    /// Shared offset and global address.
    shared: u32,
    global: u64,
    bytes: u32,
    mbar: Option<u32>,
    group: u32,
    reduce: Option<(Atomic, Type)>,
    /// Pieces that have not moved, in the order in which they will.
    pieces: Vec<u32>,
    /// Source bytes that were read but not written, by piece number (`wait_group.read` came first).
    staged: Vec<(u32, Vec<u8>, u64)>,
    /// `wait_group.read` has covered it.
    source_read: bool,
    id: Option<AsyncId>,
}

/// All copies of a block that are under way.
pub(crate) struct Copies {
    mode: AsyncMode,
    warps: Vec<WarpCopies>,
    events: Vec<(Event, u64)>,
    bulks: Vec<BulkCopy>,
    issued: u64,
}

impl Copies {
    pub(crate) fn new(threads: usize, mode: AsyncMode) -> Self {
        let mut warps = Vec::new();
        warps.resize_with(threads.div_ceil(32), || WarpCopies {
            ops: VecDeque::new(),
            groups: [0; 32],
            bulk_groups: [0; 32],
        });
        Self { mode, warps, events: Vec::new(), bulks: Vec::new(), issued: 0 }
    }

    /// Whether something that has not landed will arrive at this mbarrier.
    pub(crate) fn uses(&self, at: u32) -> bool {
        self.bulks.iter().any(|b| b.mbar == Some(at)) || self.events.iter().any(|(e, _)| e.at == at)
    }
}

impl Block<'_, '_> {
    pub(crate) fn cp_async<const CHECKED: bool>(&mut self, warp: &mut Warp, pc: u32, op: &CpAsync, mask: u32) -> Flow {
        let program = self.launch.program;
        let dst = self.addresses(warp, op.dst);
        let src = self.addresses(warp, op.src);
        let mut ok = mask;
        if CHECKED {
            ok = self.clean_addresses(warp, pc, op.dst, ok);
            ok = self.clean_addresses(warp, pc, op.src, ok);
            let steer = warp.pp(op.ignore)
                | if op.src_size == NONE { 0 } else { poison::lanes_with(warp, Any::W(op.src_size)) };
            if steer & ok != 0 {
                let lane = (steer & ok).trailing_zeros() as usize;
                let message = "the source size depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
            }
        }
        let ignored = warp.p(op.ignore);
        let mut src_bytes = [0u32; 32];
        for lane in lanes_of(ok) {
            let asked = if op.src_size == NONE { op.size } else { warp.w(program, op.src_size).0[lane] };
            if asked > op.size {
                let message = format!("source size {asked} is larger than the copy of {} bytes", op.size);
                self.report_text(FindingClass::OutOfBounds, warp, pc, Some(lane), message);
            }
            src_bytes[lane] = if ignored >> lane & 1 == 1 { 0 } else { asked.min(op.size) };
        }
        let mut request = Request {
            pc,
            width: op.size,
            align: op.size,
            kind: AccessKind::Write,
            ordering: Ordering::Weak,
            scope: Scope::Cta,
        };
        let (offsets, inside) = self.check_window::<false>(warp, super::program::Space::Shared, &dst, ok, &request);
        ok = inside;
        request.kind = AccessKind::Read;
        // Lanes that read nothing may have any address.
        let mut rest: u32 = lanes_of(ok).filter(|lane| src_bytes[*lane] > 0).fold(0, |m, l| m | 1 << l);
        while rest != 0 {
            let width = src_bytes[rest.trailing_zeros() as usize];
            let same = lanes_of(rest).filter(|lane| src_bytes[*lane] == width).fold(0, |m, l| m | 1 << l);
            request.width = width;
            let (good, _) = self.check_global::<false>(warp, &src, same, &request);
            // A lane without a source fills zeros, so that one fault is one finding.
            lanes_of(same & !good).for_each(|lane| src_bytes[lane] = 0);
            rest &= !same;
        }
        if self.aborted {
            return Flow::Abort;
        }
        if let Some(counters) = &mut self.counters {
            let traffic = &mut counters.per_instruction[pc as usize];
            traffic.async_load_bytes += lanes_of(ok).map(|lane| u64::from(src_bytes[lane])).sum::<u64>();
        }
        if let Some(check) = &mut self.check
            && ok != 0
        {
            let conflicts = &mut self.conflicts;
            check.cp_async(warp.id, ok, &offsets.0, &src.0, op.size, &src_bytes, pc, conflicts);
            self.drain_conflicts(warp.id, pc);
        }
        self.copies.issued += 1;
        let copies = &self.copies.warps[warp.id as usize];
        let mut copy = WarpCopy {
            pc,
            open: ok,
            resting: ok,
            bytes: op.size,
            dst: offsets.0.map(|o| o as u32),
            src: src.0,
            src_bytes: src_bytes.map(|b| b as u8),
            group: copies.groups,
            number: self.copies.issued,
        };
        if self.copies.mode == AsyncMode::Eager {
            self.move_lanes(&copy, ok);
            copy.resting = 0;
            if !CHECKED {
                return Flow::Next;
            }
        }
        self.copies.warps[warp.id as usize].ops.push_back(copy);
        Flow::Next
    }

    /// Moves the bytes of some lanes of a copy.
    fn move_lanes(&mut self, copy: &WarpCopy, lanes: u32) {
        let memory = self.launch.memory;
        for lane in lanes_of(lanes) {
            let (bytes, from) = (copy.bytes as usize, copy.src_bytes[lane] as usize);
            let mut data = [0u8; 16];
            let mut written = u64::MAX;
            if from > 0
                && let Ok((allocation, offset)) = memory.find(copy.src[lane], from as u64)
            {
                if from.is_multiple_of(4) {
                    for i in 0..from / 4 {
                        let word = allocation.load(offset + 4 * i as u64, 4) as u32;
                        data[i * 4..i * 4 + 4].copy_from_slice(&word.to_le_bytes());
                    }
                } else {
                    allocation.read(offset, &mut data[..from]);
                }
                if let Some(map) = &self.launch.written {
                    let map = map.lock().unwrap_or_else(|p| p.into_inner());
                    written = map[allocation.id as usize].bits(offset, from as u32) | u64::MAX << from;
                }
            }
            let at = copy.dst[lane] as usize;
            self.shared[at..at + bytes].copy_from_slice(&data[..bytes]);
            if let Some(map) = &mut self.shared_written {
                map.put_bits(at as u64, bytes as u32, written);
            }
        }
    }

    pub(crate) fn cp_async_commit(&mut self, warp: &Warp, mask: u32) {
        for lane in lanes_of(mask) {
            self.copies.warps[warp.id as usize].groups[lane] += 1;
        }
        if let Some(check) = &mut self.check {
            check.cp_async_commit(warp.id, mask);
        }
    }

    /// `groups` = [`NONE`] waits for everything, committed or not.
    pub(crate) fn cp_async_wait(&mut self, warp: &Warp, mask: u32, groups: u32) {
        let own = &mut self.copies.warps[warp.id as usize];
        let mut ops = std::mem::take(&mut own.ops);
        let current = own.groups;
        for op in &mut ops {
            let lanes = lanes_of(mask & op.open)
                .filter(|l| groups == NONE || op.group[*l].saturating_add(groups) < current[*l])
                .fold(0, |m, l| m | 1 << l);
            let resting = op.resting & lanes;
            if resting != 0 {
                self.move_lanes(op, resting);
                op.resting &= !lanes;
            }
            op.open &= !lanes;
        }
        ops.retain(|op| op.open != 0);
        self.copies.warps[warp.id as usize].ops = ops;
        if let Some(check) = &mut self.check {
            check.cp_async_wait(warp.id, mask, (groups != NONE).then_some(groups));
        }
    }

    /// `cp.async.mbarrier.arrive` was executed.
    pub(crate) fn cp_async_arrive(&mut self, event: Event) {
        if self.copies.mode == AsyncMode::Eager {
            let number = self.copies.issued;
            self.fire(event, number);
        } else {
            self.copies.events.push((event, self.copies.issued));
        }
    }

    /// Lands the copies that an arrival covers, then arrives.
    fn fire(&mut self, event: Event, number: u64) {
        let lane = 1 << event.user.lane;
        let mut ops = std::mem::take(&mut self.copies.warps[event.user.warp as usize].ops);
        for op in ops.iter_mut().filter(|op| op.number <= number) {
            if op.resting & lane != 0 {
                self.move_lanes(op, lane);
                op.resting &= !lane;
            }
            op.open &= !lane;
        }
        ops.retain(|op| op.open != 0);
        self.copies.warps[event.user.warp as usize].ops = ops;
        if let (Some(check), Some(id)) = (&mut self.check, event.id) {
            check.cp_async_arrived(id);
        }
        self.mbarrier_arrive(event.user, event.at, 1, false, false);
    }

    pub(crate) fn bulk<const CHECKED: bool>(&mut self, warp: &mut Warp, pc: u32, op: &BulkOp, mask: u32) -> Flow {
        let program = self.launch.program;
        let (dst, src) = (self.addresses(warp, op.dst), self.addresses(warp, op.src));
        let mbar = op.mbar.map(|addr| self.addresses(warp, addr));
        let mut ok = mask;
        if CHECKED {
            ok = self.clean_addresses(warp, pc, op.dst, ok);
            ok = self.clean_addresses(warp, pc, op.src, ok);
            if let Some(addr) = op.mbar {
                ok = self.clean_addresses(warp, pc, addr, ok);
            }
            let bad = poison::lanes_with(warp, Any::W(op.size)) & ok;
            if bad != 0 {
                let lane = bad.trailing_zeros() as usize;
                let message = "the size depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
                ok &= !bad;
            }
        }
        let to_shared = op.direction == BulkDirection::GlobalToShared;
        for lane in lanes_of(ok) {
            let bytes = warp.w(program, op.size).0[lane];
            let lane_mask = 1 << lane;
            if !bytes.is_multiple_of(16) {
                let message = format!("bulk copy of {bytes} bytes, which is not a multiple of 16");
                self.report_text(FindingClass::Misaligned, warp, pc, Some(lane), message);
                self.fault();
                continue;
            }
            let (shared, global) = if to_shared { (&dst, &src) } else { (&src, &dst) };
            let request = Request {
                pc,
                width: bytes,
                align: 16,
                kind: AccessKind::Read,
                ordering: Ordering::Weak,
                scope: Scope::Cta,
            };
            let space = super::program::Space::Shared;
            let (offsets, inside) = self.check_window::<false>(warp, space, shared, lane_mask, &request);
            let (found, _) = if bytes == 0 {
                (lane_mask, None)
            } else {
                self.check_global::<false>(warp, global, lane_mask, &request)
            };
            let mut mbar_at = None;
            if let Some(mbar) = &mbar {
                let request = Request { width: 8, align: 8, ..request };
                let (at, fine) = self.check_window::<false>(warp, space, mbar, lane_mask, &request);
                if fine == 0 {
                    continue;
                }
                mbar_at = Some(at.0[lane] as u32);
            }
            if inside == 0 || found == 0 {
                continue;
            }
            let (at, global) = (offsets.0[lane] as u32, global.0[lane]);
            let user = User { warp: warp.id, lane: lane as u32, pc };
            let (near, far) = ((MemSpace::Shared, u64::from(at)), (MemSpace::Global, global));
            let id = match &mut self.check {
                Some(check) => {
                    let (to, from) = if to_shared { (near, far) } else { (far, near) };
                    let bulk = Bulk {
                        warp: warp.id,
                        lane: lane as u32,
                        dst: to,
                        src: from,
                        bytes,
                        reduce: op.reduce.is_some(),
                        place: pc,
                    };
                    let completion = mbar_at.map_or(BulkCompletion::Group, BulkCompletion::Mbarrier);
                    Some(check.bulk_issue(&bulk, completion, &mut self.conflicts))
                }
                None => None,
            };
            self.drain_conflicts(warp.id, pc);
            if let Some(counters) = &mut self.counters {
                let traffic = &mut counters.per_instruction[pc as usize];
                if to_shared {
                    traffic.async_load_bytes += u64::from(bytes);
                } else {
                    traffic.async_store_bytes += u64::from(bytes);
                }
            }
            let mut pieces: Vec<u32> = (0..bytes / PIECE).collect();
            if self.copies.mode == AsyncMode::Random {
                self.rng.shuffle(&mut pieces);
            }
            let mut copy = BulkCopy {
                user,
                to_shared,
                shared: at,
                global,
                bytes,
                mbar: mbar_at,
                group: self.copies.warps[warp.id as usize].bulk_groups[lane],
                reduce: op.reduce,
                pieces,
                staged: Vec::new(),
                source_read: false,
                id,
            };
            if self.copies.mode == AsyncMode::Eager {
                self.move_all(&mut copy);
                if copy.mbar.is_some() {
                    self.land(copy);
                    continue;
                }
            }
            self.copies.bulks.push(copy);
        }
        if self.aborted { Flow::Abort } else { Flow::Next }
    }

    fn read_piece(&mut self, copy: &BulkCopy, piece: u32) -> (Vec<u8>, u64) {
        let skip = u64::from(piece * PIECE);
        let mut data = vec![0; PIECE as usize];
        let mut written = u64::MAX;
        if copy.to_shared {
            if let Ok((allocation, offset)) = self.launch.memory.find(copy.global + skip, u64::from(PIECE)) {
                allocation.read(offset, &mut data);
                if let Some(map) = &self.launch.written {
                    let map = map.lock().unwrap_or_else(|p| p.into_inner());
                    written = map[allocation.id as usize].bits(offset, PIECE);
                }
            }
        } else {
            let at = copy.shared as usize + skip as usize;
            data.copy_from_slice(&self.shared[at..at + PIECE as usize]);
            if let Some(map) = &self.shared_written {
                written = map.bits(at as u64, PIECE);
            }
        }
        (data, written & 0xffff)
    }

    fn write_piece(&mut self, copy: &BulkCopy, piece: u32, data: &[u8], written: u64) {
        let skip = u64::from(piece * PIECE);
        if copy.to_shared {
            let at = copy.shared as usize + skip as usize;
            self.shared[at..at + PIECE as usize].copy_from_slice(data);
            if let Some(map) = &mut self.shared_written {
                map.put_bits(at as u64, PIECE, written);
            }
            return;
        }
        let memory = self.launch.memory;
        let Ok((allocation, offset)) = memory.find(copy.global + skip, u64::from(PIECE)) else { return };
        if written != 0xffff {
            let at = super::launch::At {
                pc: copy.user.pc,
                block: self.index,
                warp: copy.user.warp,
                lane: Some(copy.user.lane),
            };
            let byte = u64::from((!written).trailing_zeros());
            self.launch.report(FindingClass::Uninitialized, at, || {
                let message = "a bulk copy stores shared memory that nothing wrote to global memory".to_owned();
                (Some(memory.describe(copy.global + skip + byte)), None, message)
            });
        }
        match copy.reduce {
            None => allocation.write(offset, data),
            Some((op, ty)) => {
                let width = ty.bytes().max(2);
                for (i, part) in data.chunks_exact(width as usize).enumerate() {
                    let mut b = [0; 8];
                    b[..part.len()].copy_from_slice(part);
                    let b = u64::from_le_bytes(b);
                    let at = offset + u64::from(width) * i as u64;
                    super::atomic::on_global(memory, allocation, at, width, |old| {
                        super::atomic::apply(op, ty, old, b, 0)
                    });
                }
            }
        }
        if let Some(map) = &self.launch.written {
            let mut map = map.lock().unwrap_or_else(|p| p.into_inner());
            map[allocation.id as usize].set(offset, u64::from(PIECE));
        }
    }

    /// Moves up to `count` pieces.
    fn move_pieces(&mut self, copy: &mut BulkCopy, count: usize) {
        for _ in 0..count {
            let Some(piece) = copy.pieces.pop() else { break };
            let (data, written) = self.read_piece(copy, piece);
            self.write_piece(copy, piece, &data, written);
        }
    }

    fn move_all(&mut self, copy: &mut BulkCopy) {
        self.move_pieces(copy, usize::MAX);
        for (piece, data, written) in std::mem::take(&mut copy.staged) {
            self.write_piece(copy, piece, &data, written);
        }
        self.activity += 1;
    }

    /// All bytes are in place: tell whoever waits.
    fn land(&mut self, copy: BulkCopy) {
        if let (Some(check), Some(id)) = (&mut self.check, copy.id) {
            check.bulk_landed(id);
        }
        if let Some(at) = copy.mbar {
            self.mbarrier_complete_tx(copy.user, at, copy.bytes);
        }
        self.progress += 1;
        self.activity += 1;
    }

    pub(crate) fn bulk_commit(&mut self, warp: &Warp, mask: u32) {
        for lane in lanes_of(mask) {
            self.copies.warps[warp.id as usize].bulk_groups[lane] += 1;
        }
        if let Some(check) = &mut self.check {
            check.bulk_commit(warp.id, mask);
        }
    }

    pub(crate) fn bulk_wait(&mut self, warp: &Warp, mask: u32, groups: u32, read: bool) {
        let current = self.copies.warps[warp.id as usize].bulk_groups;
        let mut bulks = std::mem::take(&mut self.copies.bulks);
        let mut kept = Vec::with_capacity(bulks.len());
        for mut copy in bulks.drain(..) {
            let lane = copy.user.lane as usize;
            let covered = copy.mbar.is_none()
                && copy.user.warp == warp.id
                && mask >> lane & 1 == 1
                && copy.group.saturating_add(groups) < current[lane];
            if !covered {
                kept.push(copy);
            } else if read {
                for piece in std::mem::take(&mut copy.pieces) {
                    let (data, written) = self.read_piece(&copy, piece);
                    copy.staged.push((piece, data, written));
                }
                copy.source_read = true;
                kept.push(copy);
            } else {
                self.move_all(&mut copy);
                self.land(copy);
            }
        }
        self.copies.bulks = kept;
        if let Some(check) = &mut self.check {
            check.bulk_wait(warp.id, mask, groups, read);
        }
    }

    /// In random mode: some pieces move, some copies land.
    pub(crate) fn copies_may_move(&mut self) {
        if self.copies.mode != AsyncMode::Random {
            return;
        }
        if !self.copies.bulks.is_empty() && self.rng.next() & 1 == 0 {
            let i = self.rng.below(self.copies.bulks.len());
            let mut copy = self.copies.bulks.swap_remove(i);
            let count = 1 + self.rng.below(copy.pieces.len().max(1));
            self.move_pieces(&mut copy, count);
            if copy.pieces.is_empty() && copy.mbar.is_some() && self.rng.next() & 1 == 0 {
                self.land(copy);
            } else {
                self.copies.bulks.push(copy);
            }
        }
        if !self.copies.events.is_empty() && self.rng.next() & 7 == 0 {
            let i = self.rng.below(self.copies.events.len());
            let (event, number) = self.copies.events.swap_remove(i);
            self.fire(event, number);
        }
        let w = self.rng.below(self.copies.warps.len());
        let n = self.copies.warps[w].ops.len();
        if n > 0 && self.rng.next() & 1 == 0 {
            let i = self.rng.below(n);
            let lanes = self.copies.warps[w].ops[i].resting & self.rng.next() as u32;
            if lanes != 0
                && let Some(mut op) = self.copies.warps[w].ops.remove(i)
            {
                self.move_lanes(&op, lanes);
                op.resting &= !lanes;
                self.copies.warps[w].ops.insert(i, op);
            }
        }
    }

    /// Nobody can run: one copy or arrival that an mbarrier waits for happens. Returns whether there was one.
    pub(crate) fn complete_one_copy(&mut self) -> bool {
        let bulks: Vec<usize> = (0..self.copies.bulks.len()).filter(|i| self.copies.bulks[*i].mbar.is_some()).collect();
        let total = bulks.len() + self.copies.events.len();
        if total == 0 {
            return false;
        }
        let choice = self.rng.below(total);
        if choice < bulks.len() {
            let mut copy = self.copies.bulks.remove(bulks[choice]);
            self.move_all(&mut copy);
            self.land(copy);
        } else {
            let (event, number) = self.copies.events.remove(choice - bulks.len());
            self.fire(event, number);
        }
        true
    }

    /// The block ends: what is still under way is a finding, and moves now.
    pub(crate) fn copies_at_exit(&mut self) {
        let report = |block: &Self, pc, warp, lane, what: &str| {
            let at = super::launch::At { pc, block: block.index, warp, lane: Some(lane) };
            block.launch.report(FindingClass::AsyncInFlightAtExit, at, || {
                (None, None, format!("the block ends before {what} was waited for"))
            });
        };
        for w in 0..self.copies.warps.len() {
            for op in std::mem::take(&mut self.copies.warps[w].ops) {
                report(self, op.pc, w as u32, op.open.trailing_zeros(), "this copy");
                self.move_lanes(&op, op.resting);
            }
        }
        for (event, _) in std::mem::take(&mut self.copies.events) {
            report(self, event.user.pc, event.user.warp, event.user.lane, "this arrival");
        }
        for mut copy in std::mem::take(&mut self.copies.bulks) {
            // After `wait_group.read` the source is read, and the writes may come after the end.
            if !copy.source_read {
                report(self, copy.user.pc, copy.user.warp, copy.user.lane, "this bulk copy");
            }
            self.move_all(&mut copy);
        }
    }
}
