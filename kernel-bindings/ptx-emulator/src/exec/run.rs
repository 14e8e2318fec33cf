//! The interpreter: runs one warp until it blocks, gives way or has used up its turn.

use super::block::Block;
use super::lanes::{FULL, L32, L64, lanes_of, map1, map3};
use super::program::{ALWAYS, Any, Ins, Op, Program};
use super::warp::{Fragment, State, Warp};
use crate::finding::FindingClass;
use crate::ir::BoolOp;

/// What an instruction does to the fragment that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Goes on with the next instruction.
    Next,
    /// The fragment list changed (divergence, exit, lanes that met): pick again.
    Again,
    /// The fragment waits at this instruction.
    Wait(State),
    /// The fragment stands at the next instruction and waits.
    Sleep(State),
    /// Goes on with the next instruction after others had their turn.
    Yield,
    /// The block is over.
    Abort,
}

impl Block<'_, '_> {
    /// Runs fragments of a warp for up to `budget` instructions.
    pub(crate) fn run_warp<const CHECKED: bool>(&mut self, warp: &mut Warp, budget: u32) {
        let program: &Program = self.launch.program;
        let mut left = budget;
        let exit = program.code.len() as u32;
        while left > 0 && !self.aborted {
            let Some(index) = self.pick_fragment::<CHECKED>(warp) else { break };
            warp.current = index;
            let Fragment { mut pc, mask, join, .. } = warp.fragments[index];
            warp.fragments[index].state = State::Ready;
            let join_pc = if join == super::program::NONE { u32::MAX } else { warp.joins[join as usize].pc };
            loop {
                if pc == join_pc {
                    warp.park(index);
                    break;
                }
                if left == 0 {
                    warp.fragments[index].pc = pc;
                    break;
                }
                if pc >= exit {
                    self.exit(warp, index, mask);
                    break;
                }
                left -= 1;
                self.executed += 1;
                let ins = &program.code[pc as usize];
                let mut active = mask;
                if ins.guard != ALWAYS {
                    active &= warp.p(ins.guard);
                    if CHECKED && warp.pp(ins.guard) & mask != 0 {
                        self.poisoned_guard(warp, pc, warp.pp(ins.guard) & mask);
                    }
                }
                if let Some(counters) = &mut self.counters {
                    let traffic = &mut counters.per_instruction[pc as usize];
                    traffic.warp_instructions += 1;
                    traffic.lane_instructions += u64::from(active.count_ones());
                }
                if simple::<CHECKED>(warp, program, ins, active) {
                    pc += 1;
                    continue;
                }
                let flow = match &ins.op {
                    Op::Bra { target } => {
                        if active == mask {
                            pc = *target;
                            continue;
                        }
                        if active == 0 {
                            pc += 1;
                            continue;
                        }
                        let (taken, rest) = ((*target, active), (pc + 1, mask & !active));
                        let meet = program.meet(pc);
                        // Which side runs first is the schedule's choice.
                        if CHECKED && self.rng.next() & 1 == 1 {
                            warp.diverge(index, taken, rest, meet, exit);
                        } else {
                            warp.diverge(index, rest, taken, meet, exit);
                        }
                        Flow::Again
                    }
                    Op::Nop => Flow::Next,
                    Op::Ld(access) => {
                        if active != 0 {
                            self.load::<CHECKED>(warp, pc, access, active)
                        } else {
                            Flow::Next
                        }
                    }
                    Op::St(access) => {
                        if active != 0 {
                            self.store::<CHECKED>(warp, pc, access, active)
                        } else {
                            Flow::Next
                        }
                    }
                    Op::Exit => {
                        if active == 0 {
                            Flow::Next
                        } else {
                            warp.fragments[index].pc = pc + 1;
                            self.exit(warp, index, active);
                            Flow::Again
                        }
                    }
                    _ if active == 0 => Flow::Next,
                    _ => {
                        warp.fragments[index].pc = pc;
                        if active != mask && waits(&ins.op) {
                            // The lanes that the guard lets through are on their own until the next instruction.
                            warp.diverge(index, (pc, active), (pc + 1, mask & !active), pc + 1, exit);
                            Flow::Again
                        } else {
                            self.complex::<CHECKED>(warp, index, pc, ins, active)
                        }
                    }
                };
                match flow {
                    Flow::Next => pc += 1,
                    Flow::Again => break,
                    Flow::Wait(state) => {
                        warp.fragments[index].pc = pc;
                        warp.fragments[index].state = state;
                        break;
                    }
                    Flow::Sleep(state) => {
                        warp.fragments[index].pc = pc + 1;
                        warp.fragments[index].state = state;
                        break;
                    }
                    Flow::Yield => {
                        warp.fragments[index].pc = pc + 1;
                        return;
                    }
                    Flow::Abort => return,
                }
            }
        }
    }

    /// The fragment to run: the one that ran, while it can; when checks are on or it is at the end of its turn, any.
    fn pick_fragment<const CHECKED: bool>(&mut self, warp: &Warp) -> Option<usize> {
        let n = warp.fragments.len();
        match n {
            0 => None,
            1 => warp.can_run(&warp.fragments[0], self.progress).then_some(0),
            _ => {
                let start = if CHECKED { self.rng.below(n) } else { (warp.current + 1) % n };
                (0..n).map(|i| (start + i) % n).find(|i| warp.can_run(&warp.fragments[*i], self.progress))
            }
        }
    }

    fn exit(&mut self, warp: &mut Warp, index: usize, lanes: u32) {
        warp.exit(index, lanes);
        self.activity += 1;
        self.barriers_after_exit(warp);
    }

    #[cold]
    fn poisoned_guard(&mut self, warp: &Warp, pc: u32, lanes: u32) {
        let lane = lanes.trailing_zeros() as usize;
        let message = "the guard predicate depends on a value that nothing wrote".to_owned();
        self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
    }
}

/// Instructions at which lanes may wait for one another.
fn waits(op: &Op) -> bool {
    matches!(
        op,
        Op::BarSync { .. }
            | Op::BarArrive { .. }
            | Op::BarRed { .. }
            | Op::WarpSync { .. }
            | Op::Shfl { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::Mma(_)
            | Op::Matrix(_)
            | Op::Movmatrix { .. }
            | Op::ClusterArrive
            | Op::ClusterWait
            | Op::SetMaxNReg { .. }
            | Op::Mbar { op: super::program::MbarOp::Wait { .. }, .. }
            | Op::BrxIdx { .. }
    )
}

#[inline(always)]
fn combine(result: u32, combine: Option<(BoolOp, u32)>, warp: &Warp) -> u32 {
    match combine {
        None => result,
        Some((op, p)) => logic(op, result, warp.p(p)),
    }
}

#[inline(always)]
pub(crate) fn logic(op: BoolOp, a: u32, b: u32) -> u32 {
    match op {
        BoolOp::And => a & b,
        BoolOp::Or => a | b,
        BoolOp::Xor => a ^ b,
    }
}

/// Any three-input bit function, by its table.
#[inline(always)]
pub(crate) fn lop3(lut: u8, a: u32, b: u32, c: u32) -> u32 {
    let mut r = 0;
    for i in 0..8u32 {
        if lut >> i & 1 == 1 {
            let ta = if i & 4 != 0 { a } else { !a };
            let tb = if i & 2 != 0 { b } else { !b };
            let tc = if i & 1 != 0 { c } else { !c };
            r |= ta & tb & tc;
        }
    }
    r
}

fn lop3_lanes(lut: u8, a: &L32, b: &L32, c: &L32) -> L32 {
    match lut {
        // The tables that compilers emit most.
        0x96 => map3(a, b, c, |a, b, c| a ^ b ^ c),
        0xf8 => map3(a, b, c, |a, b, c| a | b & c),
        0xfe => map3(a, b, c, |a, b, c| a | b | c),
        0x80 => map3(a, b, c, |a, b, c| a & b & c),
        0xea => map3(a, b, c, |a, b, c| a & b | c),
        0xca => map3(a, b, c, |a: u32, b: u32, c: u32| a & b | !a & c),
        _ => map3(a, b, c, |a, b, c| lop3(lut, a, b, c)),
    }
}

/// Instructions that read and write registers only. Returns false for all others.
#[inline(always)]
fn simple<const CHECKED: bool>(warp: &mut Warp, program: &Program, ins: &Ins, mask: u32) -> bool {
    macro_rules! to_w {
        ($d:expr, $value:expr, $poison:expr) => {{
            let value = $value;
            if CHECKED {
                $poison;
            }
            warp.r32[$d as usize].blend(&value, mask);
        }};
    }
    macro_rules! to_x {
        ($d:expr, $value:expr, $poison:expr) => {{
            let value = $value;
            if CHECKED {
                $poison;
            }
            warp.r64[$d as usize].blend(&value, mask);
        }};
    }
    use super::poison as shadow;
    let rule = ins.rule;
    match &ins.op {
        Op::W1 { f, d, a } => {
            to_w!(*d, f(warp.w(program, *a)), shadow::w1(warp, program, rule, *f, *d, *a, mask));
        }
        Op::W2 { f, d, a, b } => to_w!(
            *d,
            f(warp.w(program, *a), warp.w(program, *b)),
            shadow::w2(warp, program, rule, *f, *d, [*a, *b], mask)
        ),
        Op::W3 { f, d, a, b, c } => to_w!(
            *d,
            f(warp.w(program, *a), warp.w(program, *b), warp.w(program, *c)),
            shadow::w3(warp, program, rule, *f, *d, [*a, *b, *c], mask)
        ),
        Op::X1 { f, d, a } => {
            to_x!(*d, f(warp.x(program, *a)), shadow::x1(warp, program, rule, *f, *d, *a, mask));
        }
        Op::X2 { f, d, a, b } => to_x!(
            *d,
            f(warp.x(program, *a), warp.x(program, *b)),
            shadow::x2(warp, program, rule, *f, *d, [*a, *b], mask)
        ),
        Op::X3 { f, d, a, b, c } => to_x!(
            *d,
            f(warp.x(program, *a), warp.x(program, *b), warp.x(program, *c)),
            shadow::any(warp, program, &[Any::X(*a), Any::X(*b), Any::X(*c)], Any::X(*d), mask)
        ),
        Op::Xxw { f, d, a, b } => {
            to_x!(*d, f(warp.x(program, *a), warp.w(program, *b)), shadow::xxw(warp, program, *f, *d, *a, *b, mask))
        }
        Op::Xw { f, d, a } => {
            to_x!(*d, f(warp.w(program, *a)), shadow::xw(warp, *f, *d, *a, mask));
        }
        Op::Wx { f, d, a } => {
            to_w!(*d, f(warp.x(program, *a)), shadow::wx(warp, *f, *d, *a, mask));
        }
        Op::Xww { f, d, a, b } => to_x!(
            *d,
            f(warp.w(program, *a), warp.w(program, *b)),
            shadow::xww(warp, program, rule, *f, *d, *a, *b, mask)
        ),
        Op::Xwwx { f, d, a, b, c } => to_x!(
            *d,
            f(warp.w(program, *a), warp.w(program, *b), warp.x(program, *c)),
            shadow::any(warp, program, &[Any::W(*a), Any::W(*b), Any::X(*c)], Any::X(*d), mask)
        ),
        Op::Split16 { low, high, a } => {
            let a = *warp.w(program, *a);
            if CHECKED {
                shadow::split16(warp, ins, mask);
            }
            warp.r32[*low as usize].blend(&map1(&a, |x: u32| x & 0xffff), mask);
            warp.r32[*high as usize].blend(&map1(&a, |x: u32| x >> 16), mask);
        }
        Op::Split32 { low, high, a } => {
            let a = *warp.x(program, *a);
            if CHECKED {
                shadow::split32(warp, ins, mask);
            }
            warp.r32[*low as usize].blend(&map1(&a, |x: u64| x as u32), mask);
            warp.r32[*high as usize].blend(&map1(&a, |x: u64| (x >> 32) as u32), mask);
        }
        Op::Lop3 { lut, d, a, b, c } => to_w!(
            *d,
            lop3_lanes(*lut, warp.w(program, *a), warp.w(program, *b), warp.w(program, *c)),
            shadow::lop3(warp, program, *lut, *d, [*a, *b, *c], mask)
        ),
        Op::TestW { f, p, q, a, b, combine: with } => {
            let result = f(warp.w(program, *a), warp.w(program, *b));
            if CHECKED {
                shadow::test(warp, [Any::W(*a), Any::W(*b)], *p, *q, with.map(|(_, c)| c), mask);
            }
            let (first, second) = (combine(result, *with, warp), combine(!result, *with, warp));
            warp.set_p(*p, first, mask);
            warp.set_p(*q, second, mask);
        }
        Op::TestX { f, p, q, a, b, combine: with } => {
            let result = f(warp.x(program, *a), warp.x(program, *b));
            if CHECKED {
                shadow::test(warp, [Any::X(*a), Any::X(*b)], *p, *q, with.map(|(_, c)| c), mask);
            }
            let (first, second) = (combine(result, *with, warp), combine(!result, *with, warp));
            warp.set_p(*p, first, mask);
            warp.set_p(*q, second, mask);
        }
        Op::SelW { d, a, b, p } => {
            let mut value = *warp.w(program, *b);
            value.blend(warp.w(program, *a), warp.p(*p));
            if CHECKED {
                shadow::select_w(warp, *d, *a, *b, *p, mask);
            }
            warp.r32[*d as usize].blend(&value, mask);
        }
        Op::SelX { d, a, b, p } => {
            let mut value = *warp.x(program, *b);
            value.blend(warp.x(program, *a), warp.p(*p));
            if CHECKED {
                shadow::select_x(warp, *d, *a, *b, *p, mask);
            }
            warp.r64[*d as usize].blend(&value, mask);
        }
        Op::Pred { op, d, a, b } => {
            let (x, y) = (warp.p(*a), warp.p(*b));
            if CHECKED {
                let (px, py) = (warp.pp(*a), warp.pp(*b));
                let poison = match op {
                    BoolOp::And => px & py | px & y | py & x,
                    BoolOp::Or => px & py | px & !y | py & !x,
                    BoolOp::Xor => px | py,
                };
                warp.set_pp(*d, poison, mask);
            }
            warp.set_p(*d, logic(*op, x, y), mask);
        }
        _ => return false,
    }
    true
}

/// Value of an operand in one lane.
#[inline]
pub(crate) fn value(warp: &Warp, program: &Program, source: Any, lane: usize) -> u64 {
    match source {
        Any::W(slot) => u64::from(warp.w(program, slot).0[lane]),
        Any::X(slot) => warp.x(program, slot).0[lane],
        Any::P(p) => u64::from(warp.p(p) >> lane & 1),
        Any::None => 0,
    }
}

/// Writes one lane of a destination.
#[inline]
pub(crate) fn set_value(warp: &mut Warp, destination: Any, lane: usize, value: u64) {
    match destination {
        Any::W(slot) => warp.r32[slot as usize].0[lane] = value as u32,
        Any::X(slot) => warp.r64[slot as usize].0[lane] = value,
        Any::P(slot) => warp.set_p(slot, if value & 1 == 1 { FULL } else { 0 }, 1 << lane),
        Any::None => {}
    }
}

/// All lanes of an operand, widened.
pub(crate) fn widen(warp: &Warp, program: &Program, source: Any) -> L64 {
    let mut out = L64::splat(0);
    match source {
        Any::X(slot) => return *warp.x(program, slot),
        Any::W(slot) => {
            let values = warp.w(program, slot);
            for i in 0..32 {
                out.0[i] = u64::from(values.0[i]);
            }
        }
        Any::P(p) => {
            for lane in lanes_of(warp.p(p)) {
                out.0[lane] = 1;
            }
        }
        Any::None => {}
    }
    out
}

/// Writes the lanes of `mask` of a destination.
pub(crate) fn narrow(warp: &mut Warp, destination: Any, values: &L64, mask: u32) {
    match destination {
        Any::X(slot) => warp.r64[slot as usize].blend(values, mask),
        Any::W(slot) => {
            let low = super::lanes::map1(values, |x: u64| x as u32);
            warp.r32[slot as usize].blend(&low, mask);
        }
        Any::P(slot) => {
            let bits = (0..32).fold(0, |m, i| m | ((values.0[i] & 1) as u32) << i);
            warp.set_p(slot, bits, mask);
        }
        Any::None => {}
    }
}
