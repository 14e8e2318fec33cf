//! Instructions.

use super::arith::{Binary, BoolOp, Cmp, FloatClass, FloatMods, PrmtMode, Ternary, Unary};
use super::matrix::{MatrixElement, MatrixShape, MmaDesc, ScaleOperand};
use super::operand::{Address, Dst, Operand, Reg};
use super::sync::{Atomic, BarRed, BulkDirection, Fence, Mbarrier, Ordering, Redux, Scope, ShflMode, VoteMode};
use super::types::{Space, Type};

/// One instruction.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// Guard predicate.
    pub guard: Option<Guard>,
    /// What it does.
    pub op: Op,
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// `.loc` in force: (file number, line).
    pub loc: Option<(u32, u32)>,
}

/// `@p` or `@!p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// Predicate register.
    pub pred: Reg,
    /// True for `@!p`.
    pub negate: bool,
}

/// What an instruction does. Types are those of the text; field names follow its operands (`d`, `a`, `b`, `c`).
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `mov`: also packs a source vector into a wider scalar and unpacks a scalar into a destination vector.
    Mov { ty: Type, d: Dst, a: Operand },
    /// One-source arithmetic.
    Unary { op: Unary, ty: Type, mods: FloatMods, d: Dst, a: Operand },
    /// Two-source arithmetic; predicate logic (`and.pred` and so on) has `Type::Pred`.
    Binary { op: Binary, ty: Type, mods: FloatMods, d: Dst, a: Operand, b: Operand },
    /// Three-source arithmetic.
    Ternary { op: Ternary, ty: Type, mods: FloatMods, d: Dst, a: Operand, b: Operand, c: Operand },
    /// `add.cc`, `addc[.cc]`, `sub.cc`, `subc[.cc]`
    Carry { subtract: bool, carry_in: bool, carry_out: bool, ty: Type, d: Dst, a: Operand, b: Operand },
    /// `mad{c}.{lo,hi}[.cc]`
    MadCarry { hi: bool, carry_in: bool, carry_out: bool, ty: Type, d: Dst, a: Operand, b: Operand, c: Operand },
    /// `lop3.b32`; with a predicate destination for `lop3.BoolOp`.
    Lop3 { d: Dst, p: Option<(BoolOp, Reg, Operand)>, a: Operand, b: Operand, c: Operand, lut: u8 },
    /// `shf.{l,r}.{wrap,clamp}.b32`
    Shf { left: bool, wrap: bool, d: Dst, a: Operand, b: Operand, c: Operand },
    /// `prmt.b32`
    Prmt { mode: PrmtMode, d: Dst, a: Operand, b: Operand, selector: Operand },
    /// `bfe`
    Bfe { ty: Type, d: Dst, a: Operand, pos: Operand, len: Operand },
    /// `bfi`
    Bfi { ty: Type, d: Dst, a: Operand, b: Operand, pos: Operand, len: Operand },
    /// `bmsk`
    Bmsk { clamp: bool, d: Dst, a: Operand, b: Operand },
    /// `szext`
    Szext { clamp: bool, ty: Type, d: Dst, a: Operand, b: Operand },
    /// `fns.b32`
    Fns { d: Dst, mask: Operand, base: Operand, offset: Operand },
    /// `dp4a`: unsigned or signed by operand; `dp2a` with `hi`.
    Dp4a { a_signed: bool, b_signed: bool, d: Dst, a: Operand, b: Operand, c: Operand },
    /// `dp2a.{lo,hi}`
    Dp2a { hi: bool, a_signed: bool, b_signed: bool, d: Dst, a: Operand, b: Operand, c: Operand },
    /// `cvt`
    Cvt {
        to: Type,
        from: Type,
        mods: FloatMods,
        satfinite: bool,
        d: Dst,
        a: Operand,
        /// Second source of the packed forms (`cvt.rn.bf16x2.f32 d, a, b`: `a` is the upper half).
        b: Option<Operand>,
    },
    /// `cvt.pack.sat`
    CvtPack { to: Type, from: Type, d: Dst, a: Operand, b: Operand, c: Option<Operand> },
    /// `setp`: `p|q = (a cmp b) boolop c`. For f16x2-like types `q` is the second element's result.
    Setp {
        cmp: Cmp,
        combine: Option<(BoolOp, Operand)>,
        ty: Type,
        ftz: bool,
        p: Dst,
        q: Option<Dst>,
        a: Operand,
        b: Operand,
    },
    /// `set`: integer or float destination.
    Set { cmp: Cmp, combine: Option<(BoolOp, Operand)>, to: Type, ty: Type, ftz: bool, d: Dst, a: Operand, b: Operand },
    /// `selp`
    Selp { ty: Type, d: Dst, a: Operand, b: Operand, p: Operand },
    /// `slct`
    Slct { ty: Type, sel: Type, ftz: bool, d: Dst, a: Operand, b: Operand, c: Operand },
    /// `testp`: class is one of finite, infinite, number, notanumber, normal, subnormal.
    Testp { class: FloatClass, ty: Type, d: Dst, a: Operand },
    /// `ld`
    Ld { space: Space, ty: Type, d: Dst, addr: Address, ordering: Ordering, scope: Option<Scope>, nc: bool },
    /// `st`
    St { space: Space, ty: Type, addr: Address, a: Operand, ordering: Ordering, scope: Option<Scope> },
    /// `atom` (d given) / `red` (d = None). `ty` is the element type; a vector `.vN` form has vector operands.
    Atom {
        op: Atomic,
        space: Space,
        ty: Type,
        d: Option<Dst>,
        addr: Address,
        b: Operand,
        c: Option<Operand>,
        ordering: Ordering,
        scope: Scope,
        noftz: bool,
    },
    /// `cvta[.to].space`
    Cvta { to_space: bool, space: Space, ty: Type, d: Dst, a: Operand },
    /// `isspacep`
    Isspacep { space: Space, d: Dst, a: Operand },
    /// `mapa`: address of `a` in block `b` of the cluster; `space` is `SharedCluster` (shared window in, shared window
    /// out) or `Generic`.
    Mapa { ty: Type, space: Space, d: Dst, a: Operand, b: Operand },
    /// `prefetch`, `prefetchu`, `applypriority`, `discard`-like hints with an address: bounds are not checked.
    Hint,
    /// `createpolicy`: the result is an opaque 64-bit value.
    CreatePolicy { d: Dst },
    /// Branch to an instruction index. `uni` is the `.uni` promise.
    Bra { target: u32, uni: bool },
    /// `brx.idx`
    BrxIdx { index: Operand, table: u32, uni: bool },
    /// `ret` of an entry and `exit`.
    Exit,
    /// `trap`, `brkpt`
    Trap,
    /// `nanosleep`, `pmevent` and the like: nothing but a scheduling hint.
    Nop,
    /// `bar.sync` / `barrier.sync`; `aligned` is implied by `bar`.
    BarSync { id: Operand, threads: Option<Operand>, aligned: bool },
    /// `bar.arrive` / `barrier.arrive`
    BarArrive { id: Operand, threads: Operand, aligned: bool },
    /// `bar.red` / `barrier.red`: popc (u32 result) or and/or (predicate result).
    BarRed { id: Operand, threads: Option<Operand>, aligned: bool, op: BarRed, d: Dst, p: Operand },
    /// `bar.warp.sync`
    WarpSync { mask: Operand },
    /// `barrier.cluster.arrive` / `wait`
    ClusterArrive { ordering: Ordering, aligned: bool },
    /// `barrier.cluster.wait`
    ClusterWait { aligned: bool },
    /// Fences.
    Fence(Fence),
    /// `shfl.sync`: `d|p`.
    Shfl { mode: ShflMode, d: Dst, p: Option<Dst>, a: Operand, b: Operand, c: Operand, mask: Operand },
    /// `vote.sync`
    Vote { mode: VoteMode, d: Dst, p: Operand, mask: Operand },
    /// `match.sync`: `all` has the optional predicate destination.
    Match { all: bool, ty: Type, d: Dst, p: Option<Dst>, a: Operand, mask: Operand },
    /// `redux.sync`
    Redux { op: Redux, ty: Type, d: Dst, a: Operand, mask: Operand },
    /// `activemask.b32`
    ActiveMask { d: Dst },
    /// `elect.sync d|p, mask`
    Elect { d: Dst, p: Dst, mask: Operand },
    /// `mma.sync.aligned`; operands are the fragments' registers in order.
    Mma {
        desc: MmaDesc,
        d: Vec<Dst>,
        a: Vec<Operand>,
        b: Vec<Operand>,
        c: Vec<Operand>,
        scale_a: Option<ScaleOperand>,
        scale_b: Option<ScaleOperand>,
    },
    /// `ldmatrix.sync.aligned`; `num` is 1, 2 or 4.
    Ldmatrix {
        shape: MatrixShape,
        num: u32,
        trans: bool,
        element: MatrixElement,
        d: Vec<Dst>,
        addr: Address,
        space: Space,
    },
    /// `stmatrix.sync.aligned`
    Stmatrix {
        shape: MatrixShape,
        num: u32,
        trans: bool,
        element: MatrixElement,
        addr: Address,
        a: Vec<Operand>,
        space: Space,
    },
    /// `movmatrix.sync.aligned.m8n8.trans.b16`
    Movmatrix { d: Dst, a: Operand },
    /// `cp.async.{ca,cg}.shared.global [dst], [src], size{, src_size}` (`ignore` = the ignore-src predicate form).
    CpAsync { dst: Address, src: Address, size: u32, src_size: Option<Operand>, ignore: Option<Operand>, cg: bool },
    /// `cp.async.commit_group`
    CpAsyncCommit,
    /// `cp.async.wait_group N`; `None` = `wait_all`
    CpAsyncWait { groups: Option<u32> },
    /// `cp.async.mbarrier.arrive[.noinc]`
    CpAsyncMbarrierArrive { addr: Address, noinc: bool, space: Space },
    /// mbarrier family.
    Mbarrier(Mbarrier),
    /// `cp.async.bulk`: `mbar` for complete_tx forms, bulk_group otherwise.
    Bulk { direction: BulkDirection, dst: Address, src: Address, size: Operand, mbar: Option<Address> },
    /// `cp.async.bulk.prefetch.L2`
    BulkPrefetch { addr: Address, size: Operand },
    /// `cp.async.bulk.commit_group`
    BulkCommit,
    /// `cp.async.bulk.wait_group[.read] N`
    BulkWait { groups: u32, read: bool },
    /// `cp.reduce.async.bulk` shared::cta -> global
    BulkReduce { op: Atomic, ty: Type, dst: Address, src: Address, size: Operand },
    /// `griddepcontrol.wait` (true) / `launch_dependents` (false)
    GridDepControl { wait: bool },
    /// `setmaxnreg.{inc,dec}`
    SetMaxNReg { increase: bool, registers: u32 },
}
