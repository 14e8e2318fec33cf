//! Walks over the operands of an instruction of the checked form.

use crate::ir::{Address, AddressBase, Dst, Mbarrier, Op, Operand, Reg, ScaleOperand, Symbol};

/// Receives what an instruction names.
pub(crate) trait Visitor {
    /// A register that is read.
    fn read(&mut self, reg: Reg);
    /// A register that is written.
    fn write(&mut self, reg: Reg);
    /// A variable whose address is taken.
    fn symbol(&mut self, symbol: Symbol);
}

fn src(v: &mut impl Visitor, operand: &Operand) {
    match operand {
        Operand::Reg(reg) | Operand::NotPred(reg) => v.read(*reg),
        Operand::Symbol(symbol, _) => v.symbol(*symbol),
        Operand::Vector(parts) => parts.iter().for_each(|part| src(v, part)),
        Operand::Imm(_) | Operand::Special(_) => {}
    }
}

fn opt(v: &mut impl Visitor, operand: &Option<Operand>) {
    if let Some(operand) = operand {
        src(v, operand);
    }
}

fn dst(v: &mut impl Visitor, dst_: &Dst) {
    match dst_ {
        Dst::Reg(reg) => v.write(*reg),
        Dst::Sink => {}
        Dst::Vector(parts) => parts.iter().for_each(|part| dst(v, part)),
    }
}

fn dst_opt(v: &mut impl Visitor, d: &Option<Dst>) {
    if let Some(d) = d {
        dst(v, d);
    }
}

fn addr(v: &mut impl Visitor, address: &Address) {
    match address.base {
        AddressBase::Reg(reg) => v.read(reg),
        AddressBase::Symbol(symbol) => v.symbol(symbol),
        AddressBase::Absolute => {}
    }
}

fn scale(v: &mut impl Visitor, operand: &Option<ScaleOperand>) {
    if let Some(ScaleOperand { data, byte_id, thread_id }) = operand {
        src(v, data);
        src(v, byte_id);
        src(v, thread_id);
    }
}

fn mbarrier(v: &mut impl Visitor, m: &Mbarrier) {
    match m {
        Mbarrier::Init { addr: at, count, .. } => {
            addr(v, at);
            src(v, count);
        }
        Mbarrier::Inval { addr: at, .. } => addr(v, at),
        Mbarrier::Arrive { state, addr: at, count, .. } => {
            addr(v, at);
            opt(v, count);
            dst_opt(v, state);
        }
        Mbarrier::Tx { addr: at, bytes, .. } => {
            addr(v, at);
            src(v, bytes);
        }
        Mbarrier::Wait { done, addr: at, state_or_parity, hint, .. } => {
            addr(v, at);
            src(v, state_or_parity);
            opt(v, hint);
            dst(v, done);
        }
        Mbarrier::PendingCount { d, state } => {
            src(v, state);
            dst(v, d);
        }
    }
}

/// Reports every read, then every write of one operation.
pub(crate) fn walk(op: &Op, v: &mut impl Visitor) {
    match op {
        Op::Mov { d, a, .. }
        | Op::Unary { d, a, .. }
        | Op::Testp { d, a, .. }
        | Op::Cvta { d, a, .. }
        | Op::Isspacep { d, a, .. }
        | Op::Movmatrix { d, a } => {
            src(v, a);
            dst(v, d);
        }
        Op::Binary { d, a, b, .. }
        | Op::Carry { d, a, b, .. }
        | Op::Bmsk { d, a, b, .. }
        | Op::Szext { d, a, b, .. }
        | Op::Mapa { d, a, b, .. } => {
            src(v, a);
            src(v, b);
            dst(v, d);
        }
        Op::Ternary { d, a, b, c, .. }
        | Op::MadCarry { d, a, b, c, .. }
        | Op::Shf { d, a, b, c, .. }
        | Op::Prmt { d, a, b, selector: c, .. }
        | Op::Bfe { d, a, pos: b, len: c, .. }
        | Op::Fns { d, mask: a, base: b, offset: c }
        | Op::Dp4a { d, a, b, c, .. }
        | Op::Dp2a { d, a, b, c, .. }
        | Op::Slct { d, a, b, c, .. }
        | Op::Selp { d, a, b, p: c, .. } => {
            src(v, a);
            src(v, b);
            src(v, c);
            dst(v, d);
        }
        Op::Bfi { d, a, b, pos, len, .. } => {
            [a, b, pos, len].into_iter().for_each(|s| src(v, s));
            dst(v, d);
        }
        Op::Lop3 { d, p, a, b, c, .. } => {
            [a, b, c].into_iter().for_each(|s| src(v, s));
            if let Some((_, reg, q)) = p {
                src(v, q);
                v.write(*reg);
            }
            dst(v, d);
        }
        Op::Cvt { d, a, b, .. } => {
            src(v, a);
            opt(v, b);
            dst(v, d);
        }
        Op::CvtPack { d, a, b, c, .. } => {
            src(v, a);
            src(v, b);
            opt(v, c);
            dst(v, d);
        }
        Op::Setp { combine, p, q, a, b, .. } => {
            src(v, a);
            src(v, b);
            if let Some((_, c)) = combine {
                src(v, c);
            }
            dst(v, p);
            dst_opt(v, q);
        }
        Op::Set { combine, d, a, b, .. } => {
            src(v, a);
            src(v, b);
            if let Some((_, c)) = combine {
                src(v, c);
            }
            dst(v, d);
        }
        Op::Ld { d, addr: at, .. } => {
            addr(v, at);
            dst(v, d);
        }
        Op::St { addr: at, a, .. } => {
            addr(v, at);
            src(v, a);
        }
        Op::Atom { d, addr: at, b, c, .. } => {
            addr(v, at);
            src(v, b);
            opt(v, c);
            dst_opt(v, d);
        }
        Op::CreatePolicy { d } | Op::ActiveMask { d } => dst(v, d),
        Op::BrxIdx { index, .. } => src(v, index),
        Op::BarSync { id, threads, .. } => {
            src(v, id);
            opt(v, threads);
        }
        Op::BarArrive { id, threads, .. } => {
            src(v, id);
            src(v, threads);
        }
        Op::BarRed { id, threads, d, p, .. } => {
            src(v, id);
            opt(v, threads);
            src(v, p);
            dst(v, d);
        }
        Op::WarpSync { mask } => src(v, mask),
        Op::Shfl { d, p, a, b, c, mask, .. } => {
            [a, b, c, mask].into_iter().for_each(|s| src(v, s));
            dst(v, d);
            dst_opt(v, p);
        }
        Op::Vote { d, p, mask, .. } => {
            src(v, p);
            src(v, mask);
            dst(v, d);
        }
        Op::Match { d, p, a, mask, .. } => {
            src(v, a);
            src(v, mask);
            dst(v, d);
            dst_opt(v, p);
        }
        Op::Redux { d, a, mask, .. } => {
            src(v, a);
            src(v, mask);
            dst(v, d);
        }
        Op::Elect { d, p, mask } => {
            src(v, mask);
            dst(v, d);
            dst(v, p);
        }
        Op::Mma { d, a, b, c, scale_a, scale_b, .. } => {
            a.iter().chain(b).chain(c).for_each(|s| src(v, s));
            scale(v, scale_a);
            scale(v, scale_b);
            d.iter().for_each(|s| dst(v, s));
        }
        Op::Ldmatrix { d, addr: at, .. } => {
            addr(v, at);
            d.iter().for_each(|s| dst(v, s));
        }
        Op::Stmatrix { addr: at, a, .. } => {
            addr(v, at);
            a.iter().for_each(|s| src(v, s));
        }
        Op::CpAsync { dst: to, src: from, src_size, ignore, .. } => {
            addr(v, to);
            addr(v, from);
            opt(v, src_size);
            opt(v, ignore);
        }
        Op::CpAsyncMbarrierArrive { addr: at, .. } => addr(v, at),
        Op::Mbarrier(m) => mbarrier(v, m),
        Op::Bulk { dst: to, src: from, size, mbar, .. } => {
            addr(v, to);
            addr(v, from);
            src(v, size);
            if let Some(mbar) = mbar {
                addr(v, mbar);
            }
        }
        Op::BulkPrefetch { addr: at, size } => {
            addr(v, at);
            src(v, size);
        }
        Op::BulkReduce { dst: to, src: from, size, .. } => {
            addr(v, to);
            addr(v, from);
            src(v, size);
        }
        Op::Hint
        | Op::Bra { .. }
        | Op::Exit
        | Op::Trap
        | Op::Nop
        | Op::ClusterArrive { .. }
        | Op::ClusterWait { .. }
        | Op::Fence(_)
        | Op::CpAsyncCommit
        | Op::CpAsyncWait { .. }
        | Op::BulkCommit
        | Op::BulkWait { .. }
        | Op::GridDepControl { .. }
        | Op::SetMaxNReg { .. } => {}
    }
}
