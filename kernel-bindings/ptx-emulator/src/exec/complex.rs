//! Instructions with more than register effects, by kind.

use super::barrier::Arrival;
use super::block::Block;
use super::lanes::{FULL, L64, Lanes, lanes_of};
use super::poison;
use super::program::{Any, Ins, Op, Slot, Space};
use super::run::{Flow, logic, narrow, set_value, value, widen};
use super::warp::{State, Warp};
use crate::finding::FindingClass;
use crate::memory::WINDOW_BYTES;
use std::sync::atomic;

impl Block<'_, '_> {
    /// Runs an instruction for the lanes of `mask`, which are all that its guard lets through. Fragment `index` stands
    /// at it.
    pub(crate) fn complex<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        ins: &Ins,
        mask: u32,
    ) -> Flow {
        let program = self.launch.program;
        match &ins.op {
            Op::Scalar { f, bits, d, args } => {
                let cut = if *bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
                let sources = args.map(|a| widen(warp, program, a));
                let mut out = L64::splat(0);
                for lane in lanes_of(mask) {
                    out.0[lane] = f.eval(sources.each_ref().map(|s| s.0[lane])).unwrap_or(0) & cut;
                }
                if CHECKED {
                    let f = |x| f.eval(x).unwrap_or(0) & cut;
                    poison::scalar(warp, program, ins.rule, f, *args, *d, mask);
                }
                narrow(warp, *d, &out, mask);
                Flow::Next
            }
            Op::TestScalar { f, g, p, q, args, combine } => {
                let [a, b] = args.map(|a| widen(warp, program, a));
                let test = |f: &super::scalar::Scalar| {
                    lanes_of(mask)
                        .filter(|lane| f.eval([a.0[*lane], b.0[*lane], 0, 0]) == Some(1))
                        .fold(0u32, |m, lane| m | 1 << lane)
                };
                let first = test(f);
                let second = g.as_ref().map_or(!first, |g| test(g));
                if CHECKED {
                    poison::test(warp, *args, *p, *q, combine.map(|(_, c)| c), mask);
                }
                let (first, second) = match *combine {
                    None => (first, second),
                    Some((op, c)) => (logic(op, first, warp.p(c)), logic(op, second, warp.p(c))),
                };
                warp.set_p(*p, first, mask);
                warp.set_p(*q, second, mask);
                Flow::Next
            }
            Op::Pack { bits, d, sources } => {
                let parts = &program.lists[sources.start as usize..][..sources.len as usize];
                self.pack::<CHECKED>(warp, *bits, *d, parts, mask);
                Flow::Next
            }
            Op::Unpack { bits, a, destinations } => {
                let parts = &program.lists[destinations.start as usize..][..destinations.len as usize];
                self.unpack::<CHECKED>(warp, *bits, *a, parts, mask);
                Flow::Next
            }
            Op::Mov128 { d, a } => {
                for half in 0..2 {
                    let v = *warp.x(program, a + half);
                    if CHECKED {
                        let p = poison::of64(warp, a + half);
                        poison::set64(warp, d + half, &p, mask);
                    }
                    warp.r64[(d + half) as usize].blend(&v, mask);
                }
                Flow::Next
            }
            Op::Carry { subtract, carry_in, carry_out, d, a, b } => {
                let (x, y) = (widen(warp, program, *a), widen(warp, program, *b));
                let bits = if matches!(a, Any::X(_)) || matches!(b, Any::X(_)) { 64 } else { 32 };
                self.with_carry::<CHECKED>(warp, *carry_in, *carry_out, *d, &[*a, *b], mask, bits, |lane, carry| {
                    let (x, y) = (u128::from(x.0[lane]), u128::from(y.0[lane]));
                    if *subtract { x.wrapping_sub(y).wrapping_sub(carry) } else { x + y + carry }
                });
                Flow::Next
            }
            Op::MadCarry { hi, signed, carry_in, carry_out, d, a, b, c } => {
                let (x, y, z) = (widen(warp, program, *a), widen(warp, program, *b), widen(warp, program, *c));
                let bits = if matches!(d, Any::X(_)) { 64 } else { 32 };
                let sources = [*a, *b, *c];
                self.with_carry::<CHECKED>(warp, *carry_in, *carry_out, *d, &sources, mask, bits, |lane, carry| {
                    let extend = |v: u64| {
                        if *signed { i128::from((v << (64 - bits)) as i64 >> (64 - bits)) } else { i128::from(v) }
                    };
                    let product = extend(x.0[lane]).wrapping_mul(extend(y.0[lane])) as u128;
                    let part = if *hi { product >> bits } else { product };
                    let cut = if bits == 64 { u128::from(u64::MAX) } else { u128::from(u32::MAX) };
                    (part & cut) + u128::from(z.0[lane]) + carry
                });
                Flow::Next
            }
            Op::Lop3P { lut, d, p, op, q, a, b, c } => {
                let (x, y, z) = (*warp.w(program, *a), *warp.w(program, *b), *warp.w(program, *c));
                let r = super::lanes::map3(&x, &y, &z, |x, y, z| super::run::lop3(*lut, x, y, z));
                if CHECKED {
                    let shadow = poison::lop3_poison(warp, program, *lut, [*a, *b, *c]);
                    let bad = lanes_of(mask).filter(|l| shadow.0[*l] != 0).fold(0, |m, l| m | 1 << l) | warp.pp(*q);
                    poison::set32(warp, *d, &shadow, mask);
                    warp.set_pp(*p, bad, mask);
                }
                let nonzero = lanes_of(mask).filter(|l| r.0[*l] != 0).fold(0, |m, l| m | 1 << l);
                let result = logic(*op, nonzero, warp.p(*q));
                warp.r32[*d as usize].blend(&r, mask);
                warp.set_p(*p, result, mask);
                Flow::Next
            }
            Op::ReadSpecial { special, d } => {
                self.read_special(warp, *special, *d, mask);
                Flow::Next
            }
            Op::Atom(op) => self.atomic::<CHECKED>(warp, pc, op, mask),
            Op::IsSpace { space, p, a } => {
                let addresses = widen(warp, program, *a);
                if CHECKED {
                    let bad = poison::lanes_with(warp, *a);
                    warp.set_pp(*p, bad, mask);
                }
                let inside = lanes_of(mask)
                    .filter(|l| {
                        let address = addresses.0[*l];
                        let (found, _) = super::access::space_of(address);
                        // Global is what is left, except the first window, which holds null.
                        found == *space && (found != Space::Global || address >= WINDOW_BYTES)
                    })
                    .fold(0, |m, l| m | 1 << l);
                warp.set_p(*p, inside, mask);
                Flow::Next
            }
            Op::Mapa { d, a, rank } => {
                let ranks = *warp.w(program, *rank);
                let size = self.launch.clusters.as_ref().map_or(1, |clusters| clusters.size());
                if let Some(lane) = lanes_of(mask).find(|l| ranks.0[*l] >= size) {
                    let message = format!("mapa to block {} of a cluster of {size}", ranks.0[lane]);
                    self.report_text(FindingClass::OutOfBounds, warp, pc, Some(lane), message);
                }
                let mut v = widen(warp, program, *a);
                if size > 1 {
                    for lane in lanes_of(mask) {
                        v.0[lane] = super::cluster::map(v.0[lane], ranks.0[lane].min(size - 1));
                    }
                }
                if CHECKED {
                    let p = poison::of(warp, *a);
                    poison::set(warp, *d, &p, mask);
                }
                narrow(warp, *d, &v, mask);
                Flow::Next
            }
            Op::BrxIdx { index: source, table } => self.branch_table::<CHECKED>(warp, index, pc, *source, *table),
            Op::Trap => {
                let lane = mask.trailing_zeros() as usize;
                let message = "trap: the kernel gave up".to_owned();
                self.report_text(FindingClass::BadLaunch, warp, pc, Some(lane), message);
                self.aborted = true;
                self.launch.stop.store(true, atomic::Ordering::Relaxed);
                Flow::Abort
            }
            Op::Yield => Flow::Yield,
            Op::BarSync { id, threads, aligned } => {
                let arrival = Arrival { id: *id, threads: *threads, aligned: *aligned, waits: true, reduction: None };
                self.barrier::<CHECKED>(warp, index, pc, &arrival)
            }
            Op::BarArrive { id, threads, aligned } => {
                let arrival = Arrival { id: *id, threads: *threads, aligned: *aligned, waits: false, reduction: None };
                self.barrier::<CHECKED>(warp, index, pc, &arrival)
            }
            Op::BarRed { id, threads, aligned, op, d, p } => {
                let reduction = Some((*op, *d, *p));
                let arrival = Arrival { id: *id, threads: *threads, aligned: *aligned, waits: true, reduction };
                self.barrier::<CHECKED>(warp, index, pc, &arrival)
            }
            Op::WarpSync { mask } => self.warp_sync::<CHECKED>(warp, index, pc, *mask),
            Op::ClusterArrive => self.cluster_barrier(warp, index, pc, false),
            Op::ClusterWait => self.cluster_barrier(warp, index, pc, true),
            Op::Fence(fence) => {
                atomic::fence(atomic::Ordering::SeqCst);
                if let Some(check) = &mut self.check {
                    check.fence(warp.id, mask, *fence);
                }
                Flow::Next
            }
            Op::Shfl { mode, d, p, a, b, c, mask } => {
                self.shfl::<CHECKED>(warp, index, pc, *mode, [*d, *a, *b, *c], *p, *mask)
            }
            Op::Vote { mode, d, p, mask } => self.vote::<CHECKED>(warp, index, pc, *mode, *d, *p, *mask),
            Op::Match { all, d, p, a, mask } => self.match_sync::<CHECKED>(warp, index, pc, *all, *d, *p, *a, *mask),
            Op::Redux { op, ty, d, a, mask } => self.redux::<CHECKED>(warp, index, pc, *op, *ty, *d, *a, *mask),
            Op::Elect { d, p, mask } => self.elect::<CHECKED>(warp, index, pc, *d, *p, *mask),
            Op::ActiveMask { d } => {
                narrow(warp, Any::W(*d), &L64::splat(u64::from(mask)), mask);
                if CHECKED {
                    poison::clean(warp, Any::W(*d), mask);
                }
                Flow::Next
            }
            Op::Mma(op) => self.mma::<CHECKED>(warp, index, pc, op),
            Op::Matrix(op) => self.matrix::<CHECKED>(warp, index, pc, op),
            Op::Movmatrix { d, a } => self.movmatrix::<CHECKED>(warp, index, pc, *d, *a),
            Op::CpAsync(op) => self.cp_async::<CHECKED>(warp, pc, op, mask),
            Op::CpAsyncCommit => {
                self.cp_async_commit(warp, mask);
                Flow::Next
            }
            Op::CpAsyncWait { groups } => {
                self.cp_async_wait(warp, mask, *groups);
                Flow::Next
            }
            Op::Mbar { op, addr, space } => self.mbarrier::<CHECKED>(warp, pc, op, *addr, *space, mask),
            Op::PendingCount { d, state } => {
                for lane in lanes_of(mask) {
                    let token = value(warp, program, Any::X(*state), lane);
                    set_value(warp, Any::W(*d), lane, token & 0xf_ffff);
                }
                if CHECKED {
                    poison::any(warp, program, &[Any::X(*state)], Any::W(*d), mask);
                }
                Flow::Next
            }
            Op::Bulk(op) => self.bulk::<CHECKED>(warp, pc, op, mask),
            Op::BulkCommit => {
                self.bulk_commit(warp, mask);
                Flow::Next
            }
            Op::BulkWait { groups, read } => {
                self.bulk_wait(warp, mask, *groups, *read);
                Flow::Next
            }
            // Launches of a stream run one after the other, so the grids before this one have ended.
            Op::GridDepControl => Flow::Next,
            Op::SetMaxNReg { increase, registers } => self.set_max_registers(warp, index, pc, *increase, *registers),
            _ => Flow::Next,
        }
    }

    fn pack<const CHECKED: bool>(&mut self, warp: &mut Warp, bits: u32, d: Any, parts: &[Any], mask: u32) {
        let program = self.launch.program;
        let cut = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let per_half = (64 / bits) as usize;
        // A 128-bit destination takes its two halves one after the other.
        for (half, parts) in parts.chunks(per_half).enumerate() {
            let (mut out, mut shadow) = (L64::splat(0), L64::splat(0));
            for (i, part) in parts.iter().enumerate() {
                let v = widen(warp, program, *part);
                for lane in 0..32 {
                    out.0[lane] |= (v.0[lane] & cut) << (i as u32 * bits);
                }
                if CHECKED && poison::lanes_with(warp, *part) & mask != 0 {
                    let p = poison::of(warp, *part);
                    for lane in 0..32 {
                        shadow.0[lane] |= (p.0[lane] & cut) << (i as u32 * bits);
                    }
                }
            }
            let d = match d {
                Any::X(slot) => Any::X(slot + half as Slot),
                other => other,
            };
            if CHECKED {
                poison::set(warp, d, &shadow, mask);
            }
            narrow(warp, d, &out, mask);
        }
    }

    fn unpack<const CHECKED: bool>(&mut self, warp: &mut Warp, bits: u32, a: Any, parts: &[Any], mask: u32) {
        let program = self.launch.program;
        let cut = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let per_half = (64 / bits) as usize;
        let halves = parts.len().div_ceil(per_half);
        // Read everything before a destination that may be the source is written.
        let sources: Vec<(L64, L64)> = (0..halves as Slot)
            .map(|half| {
                let a = match a {
                    Any::X(slot) => Any::X(slot + half),
                    other => other,
                };
                (widen(warp, program, a), if CHECKED { poison::of(warp, a) } else { L64::splat(0) })
            })
            .collect();
        for (i, d) in parts.iter().enumerate() {
            let (v, p) = &sources[i / per_half];
            let shift = (i % per_half) as u32 * bits;
            let part = |x: &L64| Lanes(x.0.map(|x| x >> shift & cut));
            if CHECKED {
                poison::set(warp, *d, &part(p), mask);
            }
            narrow(warp, *d, &part(v), mask);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn with_carry<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        carry_in: bool,
        carry_out: bool,
        d: Any,
        sources: &[Any],
        mask: u32,
        bits: u32,
        f: impl Fn(usize, u128) -> u128,
    ) {
        let mut out = L64::splat(0);
        let mut carries = 0;
        for lane in lanes_of(mask) {
            let carry = if carry_in { u128::from(warp.carry >> lane & 1) } else { 0 };
            let sum = f(lane, carry);
            out.0[lane] = if bits == 64 { sum as u64 } else { u64::from(sum as u32) };
            // A borrow shows as set bits above the width, a carry as the bit above it.
            carries |= ((sum >> bits & 1) as u32) << lane;
        }
        if CHECKED {
            let mut bad = sources.iter().fold(0, |m, s| m | poison::lanes_with(warp, *s));
            if carry_in {
                bad |= warp.shadow.carry;
            }
            let all = Lanes(std::array::from_fn(|i| u64::from(bad >> i & 1).wrapping_neg()));
            poison::set(warp, d, &all, mask);
            if carry_out {
                warp.shadow.carry = warp.shadow.carry & !mask | bad & mask;
            }
        }
        narrow(warp, d, &out, mask);
        if carry_out {
            warp.carry = warp.carry & !mask | carries & mask;
        }
    }

    fn branch_table<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        source: Slot,
        table: u32,
    ) -> Flow {
        let program = self.launch.program;
        let mask = warp.fragments[index].mask;
        let targets = &program.branch_targets[table as usize];
        let choice = *warp.w(program, source);
        if CHECKED {
            let bad = poison::lanes_with(warp, Any::W(source)) & mask;
            if bad != 0 {
                let lane = bad.trailing_zeros() as usize;
                let message = "the branch depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
            }
        }
        if let Some(lane) = lanes_of(mask).find(|l| choice.0[*l] as usize >= targets.len()) {
            let message = format!("index {} of a branch table with {} entries", choice.0[lane], targets.len());
            self.report_text(FindingClass::OutOfBounds, warp, pc, Some(lane), message);
            self.fault();
        }
        let target = |lane: usize| targets[(choice.0[lane] as usize).min(targets.len() - 1)];
        let exit = program.code.len() as u32;
        let meet = program.meet(pc);
        let mut rest = mask;
        let mut at = index;
        while rest != 0 {
            let to = target(rest.trailing_zeros() as usize);
            let same = lanes_of(rest).filter(|l| target(*l) == to).fold(0, |m, l| m | 1 << l);
            rest &= !same;
            if rest == 0 {
                warp.fragments[at].pc = to;
            } else {
                // The remaining lanes stay at the branch for the next round of this loop.
                warp.diverge(at, (to, same), (pc, rest), meet, exit);
                at = warp.fragments.len() - 1;
            }
        }
        Flow::Again
    }

    /// `setmaxnreg`: the register budget of the SM must hold at every moment.
    fn set_max_registers(&mut self, warp: &mut Warp, index: usize, pc: u32, increase: bool, registers: u32) -> Flow {
        let met = match self.meet(warp, index, pc, &super::lanes::L32::splat(FULL)) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let lane = Some(met.lanes.trailing_zeros() as usize & 31);
        if !(24..=256).contains(&registers) || !registers.is_multiple_of(8) {
            let message = format!("setmaxnreg to {registers} registers: 24 to 256 in steps of 8");
            self.report_text(FindingClass::BadLaunch, warp, pc, lane, message);
            return met.flow;
        }
        if increase && registers < warp.registers || !increase && registers > warp.registers {
            let (have, word) = (warp.registers, if increase { "inc" } else { "dec" });
            let message = format!("setmaxnreg.{word} to {registers} registers from {have}");
            self.report_text(FindingClass::BadLaunch, warp, pc, lane, message);
            return met.flow;
        }
        // The running warp's own entry in the list is empty while it runs.
        let others: u32 = self.warps.iter().filter(|w| w.exists != 0).map(|w| w.registers).sum();
        let budget = self.launch.config.device.registers_per_sm / 32;
        if increase && others + registers > budget {
            // Blocks until registers are released; if nobody does, that is a deadlock.
            if met.flow == Flow::Next {
                return Flow::Wait(State::Poll { progress: self.progress, addr: u32::MAX });
            }
        }
        if !increase && registers != warp.registers {
            self.progress += 1;
        }
        warp.registers = registers;
        self.activity += 1;
        met.flow
    }
}
