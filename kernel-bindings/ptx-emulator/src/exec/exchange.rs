//! Instructions that lanes of a warp execute together: shuffles, votes, matches, reductions, and the meeting itself.

use super::block::Block;
use super::lanes::{FULL, L32, Lanes, lanes_of};
use super::poison;
use super::program::{Any, NONE, Op, Slot};
use super::run::{Flow, narrow, widen};
use super::warp::{Fragment, State, Warp};
use crate::finding::FindingClass;
use crate::ir::{Redux, ShflMode, Type, VoteMode};

/// Lanes that execute an instruction together, and what the running fragment does afterwards.
pub(crate) struct Met {
    pub(crate) lanes: u32,
    pub(crate) flow: Flow,
}

impl Block<'_, '_> {
    /// The lanes of fragment `index` arrive at an instruction that the live lanes of each lane's mask execute together.
    /// `None` when some are missing: the fragment then waits.
    pub(crate) fn meet(&mut self, warp: &mut Warp, index: usize, pc: u32, masks: &L32) -> Result<Met, Flow> {
        self.meet_at(warp, index, pc, masks, true)
    }

    /// The same; with `advance` unset the lanes meet in front of the instruction instead of behind it.
    pub(crate) fn meet_at(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        masks: &L32,
        advance: bool,
    ) -> Result<Met, Flow> {
        let own = warp.fragments[index].mask;
        // The usual case: the fragment is everybody.
        let first = masks.0[own.trailing_zeros() as usize];
        if first & warp.alive == own && lanes_of(own).all(|lane| masks.0[lane] == first) {
            return Ok(Met { lanes: own, flow: Flow::Next });
        }
        let mut present = own;
        let at_warp_sync = matches!(self.launch.program.code[pc as usize].op, Op::WarpSync { .. });
        let mut members = vec![index];
        for (i, fragment) in warp.fragments.iter().enumerate() {
            // `bar.warp.sync` may be executed at several places; everything else is one instruction.
            let same = fragment.pc == pc
                || at_warp_sync
                    && matches!(
                        self.launch.program.code.get(fragment.pc as usize).map(|i| &i.op),
                        Some(Op::WarpSync { .. })
                    );
            if i != index && same && matches!(fragment.state, State::Collect { .. }) {
                present |= fragment.mask;
                members.push(i);
            }
        }
        let mask_of = |lane: usize| {
            let fragment = warp.fragments.iter().find(|f| f.mask >> lane & 1 == 1);
            match fragment.map(|f| f.pc) {
                Some(other) if other != pc => self.warp_sync_mask(warp, other, lane),
                _ => masks.0[lane],
            }
        };
        let mut ready = 0;
        if warp.forced == pc {
            ready = present;
            warp.forced = NONE;
        } else {
            for lane in lanes_of(present) {
                let mask = mask_of(lane) | 1 << lane;
                let group = lanes_of(present).filter(|l| mask_of(*l) | 1 << l == mask).fold(0, |m, l| m | 1 << l);
                if mask & warp.alive & !group == 0 {
                    ready |= 1 << lane;
                }
            }
        }
        if ready == 0 {
            return Err(Flow::Wait(State::Collect { epoch: warp.epoch }));
        }
        // Take the lanes that are complete out of their fragments and send them on as one.
        let mut moved: Vec<Fragment> = Vec::new();
        let mut left = Vec::new();
        for i in members {
            let fragment = &mut warp.fragments[i];
            let lanes = fragment.mask & ready;
            fragment.mask &= !ready;
            if i == index {
                fragment.state = State::Collect { epoch: warp.epoch };
            }
            if lanes == 0 {
                continue;
            }
            let (pc, join) = (fragment.pc + u32::from(advance), fragment.join);
            match moved.iter_mut().find(|m| m.pc == pc) {
                Some(same) => {
                    if same.join != join {
                        let common = warp.common_join(same.join, join);
                        left.push((same.join, common, same.mask));
                        left.push((join, common, lanes));
                        same.join = common;
                    }
                    same.mask |= lanes;
                }
                None => moved.push(Fragment { pc, mask: lanes, join, state: State::Ready }),
            }
        }
        warp.fragments.retain(|f| f.mask != 0);
        warp.fragments.extend(moved);
        for (from, to, lanes) in left {
            warp.leave_joins(from, to, lanes);
        }
        Ok(Met { lanes: ready, flow: Flow::Again })
    }

    fn warp_sync_mask(&self, warp: &Warp, pc: u32, lane: usize) -> u32 {
        match self.launch.program.code[pc as usize].op {
            Op::WarpSync { mask } => warp.w(self.launch.program, mask).0[lane],
            _ => FULL,
        }
    }

    /// Lanes that wait for lanes that cannot come: reports it and lets those present go on. Returns whether it did.
    pub(crate) fn break_up(&mut self, warp: &mut Warp) -> bool {
        let Some(waiting) = warp.fragments.iter().position(|f| matches!(f.state, State::Collect { .. })) else {
            return false;
        };
        // Lanes that poll may still come; if they never do, that is a deadlock and not a divergence.
        if warp.fragments.iter().any(|f| matches!(f.state, State::Poll { .. })) {
            return false;
        }
        let program = self.launch.program;
        let barrier_first = warp.fragments.iter().position(|f| {
            matches!(f.state, State::Barrier(_))
                || matches!(f.state, State::Collect { .. }) && is_barrier(&program.code[f.pc as usize].op)
        });
        let chosen = barrier_first.unwrap_or(waiting);
        let Fragment { pc, mask, .. } = warp.fragments[chosen];
        let absent = warp.alive & !mask;
        let lane = Some(mask.trailing_zeros() as usize);
        let op = &program.code[pc as usize].op;
        let elsewhere = self.where_are(warp, absent);
        if is_barrier(op) {
            let message =
                format!("barrier reached by lanes {mask:#010x} of a warp whose lanes {absent:#010x} {elsewhere}");
            self.report_text(FindingClass::DivergentBarrier, warp, pc, lane, message);
            self.aborted = true;
            return true;
        }
        let (class, what) = match op {
            Op::Mma(_) | Op::Matrix(_) | Op::Movmatrix { .. } | Op::SetMaxNReg { .. } => {
                (FindingClass::PartialWarp, "warp-wide instruction executed")
            }
            _ => (FindingClass::InactiveLane, "executed with a mask that names absent lanes"),
        };
        let message = format!("{what} by lanes {mask:#010x} while lanes {absent:#010x} {elsewhere}");
        self.report_text(class, warp, pc, lane, message);
        warp.forced = pc;
        for fragment in &mut warp.fragments {
            if fragment.pc == pc && matches!(fragment.state, State::Collect { .. }) {
                fragment.state = State::Ready;
                break;
            }
        }
        true
    }

    fn where_are(&self, warp: &Warp, lanes: u32) -> String {
        if lanes == 0 {
            return "do not exist or have exited".to_owned();
        }
        for fragment in &warp.fragments {
            if fragment.mask & lanes != 0 {
                let line = self.launch.entry.code.get(fragment.pc as usize).map_or(0, |i| i.line);
                return format!("are at line {line}");
            }
        }
        match warp.joins.iter().find(|j| j.expected != 0 && j.arrived & lanes != 0) {
            Some(join) => {
                let line = self.launch.entry.code.get(join.pc as usize).map_or(0, |i| i.line);
                format!("wait for them at line {line}")
            }
            None => "are elsewhere".to_owned(),
        }
    }

    /// Checks the member masks of a collective instruction; reports callers outside their own mask.
    fn check_masks(&mut self, warp: &Warp, pc: u32, masks: &L32, slot: Slot, lanes: u32, exited_matter: bool) {
        let bad = poison::lanes_with(warp, Any::W(slot)) & lanes;
        if bad != 0 {
            let lane = bad.trailing_zeros() as usize;
            let message = "the member mask depends on a value that nothing wrote".to_owned();
            self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
        }
        if let Some(lane) = lanes_of(lanes).find(|lane| masks.0[*lane] >> lane & 1 == 0) {
            let message = format!("member mask {:#010x} does not name the lane that uses it", masks.0[lane]);
            self.report_text(FindingClass::InactiveLane, warp, pc, Some(lane), message);
        }
        if exited_matter {
            let gone = warp.exists & !warp.alive;
            if let Some(lane) = lanes_of(lanes).find(|lane| masks.0[*lane] & gone != 0) {
                let message = format!("member mask {:#010x} names lanes {gone:#010x} that have exited", masks.0[lane]);
                self.report_text(FindingClass::InactiveLane, warp, pc, Some(lane), message);
            }
        }
    }

    pub(crate) fn warp_sync<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        mask: Slot,
    ) -> Flow {
        let masks = *warp.w(self.launch.program, mask);
        if CHECKED {
            self.check_masks(warp, pc, &masks, mask, warp.fragments[index].mask, false);
        }
        match self.meet(warp, index, pc, &masks) {
            Err(flow) => flow,
            Ok(met) => {
                if let Some(check) = &mut self.check {
                    // Lanes with different masks are different meetings.
                    let mut rest = met.lanes;
                    while rest != 0 {
                        let first = masks.0[rest.trailing_zeros() as usize];
                        let group = lanes_of(rest).filter(|l| masks.0[*l] == first).fold(0, |m, l| m | 1 << l);
                        check.warp_sync(warp.id, group);
                        rest &= !group;
                    }
                }
                met.flow
            }
        }
    }

    /// Runs `f` once per group of lanes with the same member mask.
    fn groups(masks: &L32, lanes: u32, mut f: impl FnMut(u32, u32)) {
        let mut rest = lanes;
        while rest != 0 {
            let mask = masks.0[rest.trailing_zeros() as usize];
            let group = lanes_of(rest).filter(|l| masks.0[*l] == mask).fold(0, |m, l| m | 1 << l);
            f(mask, group);
            rest &= !group;
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn shfl<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        mode: ShflMode,
        [d, a, b, c]: [Slot; 4],
        p: u32,
        mask: Slot,
    ) -> Flow {
        let program = self.launch.program;
        let masks = *warp.w(program, mask);
        let met = match self.meet(warp, index, pc, &masks) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let lanes = met.lanes;
        let (va, vb, vc) = (*warp.w(program, a), *warp.w(program, b), *warp.w(program, c));
        let (mut out, mut valid) = (va, 0);
        let mut from = [0usize; 32];
        let mut absent = None;
        for lane in lanes_of(lanes) {
            let (bval, cval, segment) = (vb.0[lane] & 31, vc.0[lane] & 31, vc.0[lane] >> 8 & 31);
            let id = lane as u32;
            let max = id & segment | cval & !segment;
            let min = id & segment;
            let (source, inside) = match mode {
                ShflMode::Up => (id as i32 - bval as i32, id as i32 - bval as i32 >= max as i32),
                ShflMode::Down => ((id + bval) as i32, id + bval <= max),
                ShflMode::Bfly => ((id ^ bval) as i32, id ^ bval <= max),
                ShflMode::Idx => ((min | bval & !segment) as i32, (min | bval & !segment) <= max),
            };
            let source = if inside { source as usize & 31 } else { lane };
            if inside {
                valid |= 1 << lane;
            }
            from[lane] = source;
            if lanes >> source & 1 == 0 || masks.0[lane] >> source & 1 == 0 {
                absent = absent.or(Some((lane, source)));
                continue;
            }
            out.0[lane] = va.0[source];
        }
        if CHECKED {
            self.check_masks(warp, pc, &masks, mask, lanes, false);
            if let Some((lane, source)) = absent {
                let message = format!("lane {lane} reads lane {source}, which does not take part");
                self.report_text(FindingClass::InactiveLane, warp, pc, Some(lane), message);
            }
            let steer = (poison::lanes_with(warp, Any::W(b)) | poison::lanes_with(warp, Any::W(c))) & lanes;
            if steer != 0 {
                let lane = steer.trailing_zeros() as usize;
                let message = "the source lane depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
            }
            let pa = poison::of32(warp, a);
            let moved = Lanes(std::array::from_fn(|i| pa.0[from[i]]));
            poison::set32(warp, d, &moved, lanes);
            warp.set_pp(p, 0, lanes);
        }
        warp.r32[d as usize].blend(&out, lanes);
        warp.set_p(p, valid, lanes);
        met.flow
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn vote<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        mode: VoteMode,
        d: Any,
        p: u32,
        mask: Slot,
    ) -> Flow {
        let masks = *warp.w(self.launch.program, mask);
        let met = match self.meet(warp, index, pc, &masks) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let votes = warp.p(p);
        let dirty = if CHECKED { warp.pp(p) } else { 0 };
        if CHECKED {
            self.check_masks(warp, pc, &masks, mask, met.lanes, true);
        }
        let mut results = super::lanes::L64::splat(0);
        let mut shadow = super::lanes::L64::splat(0);
        Self::groups(&masks, met.lanes, |_, group| {
            let yes = votes & group;
            let result = match mode {
                VoteMode::All => u64::from(yes == group),
                VoteMode::Any => u64::from(yes != 0),
                VoteMode::Uni => u64::from(yes == group || yes == 0),
                VoteMode::Ballot => u64::from(yes),
            };
            let unknown = dirty & group;
            let poison = if mode == VoteMode::Ballot { u64::from(unknown) } else { u64::from(unknown != 0) };
            for lane in lanes_of(group) {
                results.0[lane] = result;
                shadow.0[lane] = poison;
            }
        });
        if CHECKED {
            poison::set(warp, d, &shadow, met.lanes);
        }
        narrow(warp, d, &results, met.lanes);
        met.flow
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn match_sync<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        all: bool,
        d: Slot,
        p: u32,
        a: Any,
        mask: Slot,
    ) -> Flow {
        let program = self.launch.program;
        let masks = *warp.w(program, mask);
        let met = match self.meet(warp, index, pc, &masks) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let values = widen(warp, program, a);
        let mut out = L32::splat(0);
        let mut same = 0;
        Self::groups(&masks, met.lanes, |mask, group| {
            for lane in lanes_of(group) {
                let equal = lanes_of(group).filter(|l| values.0[*l] == values.0[lane]).fold(0u32, |m, l| m | 1 << l);
                if all {
                    if equal == group {
                        out.0[lane] = mask;
                        same |= 1 << lane;
                    }
                } else {
                    out.0[lane] = equal;
                }
            }
        });
        if CHECKED {
            self.check_masks(warp, pc, &masks, mask, met.lanes, true);
            let bad = poison::lanes_with(warp, a) & met.lanes;
            let all = if bad != 0 { FULL } else { 0 };
            poison::set32(warp, d, &L32::splat(all), met.lanes);
            warp.set_pp(p, all, met.lanes);
        }
        warp.r32[d as usize].blend(&out, met.lanes);
        warp.set_p(p, same, met.lanes);
        met.flow
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn redux<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        op: Redux,
        ty: Type,
        d: Slot,
        a: Slot,
        mask: Slot,
    ) -> Flow {
        let program = self.launch.program;
        let masks = *warp.w(program, mask);
        let met = match self.meet(warp, index, pc, &masks) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        let values = *warp.w(program, a);
        let mut out = L32::splat(0);
        Self::groups(&masks, met.lanes, |_, group| {
            let items = lanes_of(group).map(|l| values.0[l]);
            let result = items.reduce(|x, y| match (op, ty) {
                (Redux::Add, _) => x.wrapping_add(y),
                (Redux::Min, Type::S32) => (x as i32).min(y as i32) as u32,
                (Redux::Max, Type::S32) => (x as i32).max(y as i32) as u32,
                (Redux::Min, _) => x.min(y),
                (Redux::Max, _) => x.max(y),
                (Redux::And, _) => x & y,
                (Redux::Or, _) => x | y,
                (Redux::Xor, _) => x ^ y,
            });
            for lane in lanes_of(group) {
                out.0[lane] = result.unwrap_or(0);
            }
        });
        if CHECKED {
            self.check_masks(warp, pc, &masks, mask, met.lanes, true);
            let bad = poison::lanes_with(warp, Any::W(a)) & met.lanes;
            poison::set32(warp, d, &L32::splat(if bad != 0 { FULL } else { 0 }), met.lanes);
        }
        warp.r32[d as usize].blend(&out, met.lanes);
        met.flow
    }

    pub(crate) fn elect<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        d: Slot,
        p: u32,
        mask: Slot,
    ) -> Flow {
        let masks = *warp.w(self.launch.program, mask);
        let met = match self.meet(warp, index, pc, &masks) {
            Err(flow) => return flow,
            Ok(met) => met,
        };
        if CHECKED {
            self.check_masks(warp, pc, &masks, mask, met.lanes, true);
            poison::clean(warp, Any::W(d), met.lanes);
            warp.set_pp(p, 0, met.lanes);
        }
        let mut leaders = 0;
        let mut out = L32::splat(0);
        Self::groups(&masks, met.lanes, |_, group| {
            let leader = group.trailing_zeros();
            leaders |= 1 << leader;
            for lane in lanes_of(group) {
                out.0[lane] = leader;
            }
        });
        warp.r32[d as usize].blend(&out, met.lanes);
        warp.set_p(p, leaders, met.lanes);
        met.flow
    }
}

/// Instructions whose absence of lanes is a divergent barrier.
fn is_barrier(op: &Op) -> bool {
    matches!(
        op,
        Op::BarSync { .. }
            | Op::BarArrive { .. }
            | Op::BarRed { .. }
            | Op::WarpSync { .. }
            | Op::ClusterArrive
            | Op::ClusterWait
    )
}
