//! What decoded instructions do.

use super::{Access, Addr, Any, AtomicOp, BulkOp, CpAsync, List, MatrixOp, MbarOp, MmaOp, Slot, Space};
use crate::exec::lanes::{L32, L64};
use crate::exec::scalar;
use crate::ir::{BarRed, BoolOp, Fence, Redux, ShflMode, Special, Type, VoteMode};

/// What a decoded instruction does. `W` operands live in the 32-bit file, `X` operands in the 64-bit file, `P` are
/// predicates; the arithmetic itself is a function over all lanes.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    W1 {
        f: fn(&L32) -> L32,
        d: Slot,
        a: Slot,
    },
    W2 {
        f: fn(&L32, &L32) -> L32,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    W3 {
        f: fn(&L32, &L32, &L32) -> L32,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    X1 {
        f: fn(&L64) -> L64,
        d: Slot,
        a: Slot,
    },
    X2 {
        f: fn(&L64, &L64) -> L64,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    X3 {
        f: fn(&L64, &L64, &L64) -> L64,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// 64-bit shift.
    Xxw {
        f: fn(&L64, &L32) -> L64,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Xw {
        f: fn(&L32) -> L64,
        d: Slot,
        a: Slot,
    },
    Xww {
        f: fn(&L32, &L32) -> L64,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Xwwx {
        f: fn(&L32, &L32, &L64) -> L64,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Wx {
        f: fn(&L64) -> L32,
        d: Slot,
        a: Slot,
    },
    /// `lop3` without predicate.
    Lop3 {
        lut: u8,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// `p = (a f b) combine c`, `q = !(a f b) combine c`.
    TestW {
        f: fn(&L32, &L32) -> u32,
        p: u32,
        q: u32,
        a: Slot,
        b: Slot,
        combine: Option<(BoolOp, u32)>,
    },
    TestX {
        f: fn(&L64, &L64) -> u32,
        p: u32,
        q: u32,
        a: Slot,
        b: Slot,
        combine: Option<(BoolOp, u32)>,
    },
    /// The same for types without a lane function; `g` is the comparison of the upper halves, which then sets `q`.
    TestScalar {
        f: Box<scalar::Scalar>,
        g: Option<Box<scalar::Scalar>>,
        p: u32,
        q: u32,
        args: [Any; 2],
        combine: Option<(BoolOp, u32)>,
    },
    SelW {
        d: Slot,
        a: Slot,
        b: Slot,
        p: u32,
    },
    SelX {
        d: Slot,
        a: Slot,
        b: Slot,
        p: u32,
    },
    /// `d = a op b` on predicates.
    Pred {
        op: BoolOp,
        d: u32,
        a: u32,
        b: u32,
    },
    /// Anything rare: one lane at a time; the result is cut to `bits`.
    Scalar {
        f: Box<scalar::Scalar>,
        bits: u32,
        d: Any,
        args: [Any; 4],
    },
    /// `d = sources side by side`, lowest first.
    Pack {
        bits: u32,
        d: Any,
        sources: List,
    },
    /// Two halves of a 32- or 64-bit register.
    Split16 {
        low: Slot,
        high: Slot,
        a: Slot,
    },
    Split32 {
        low: Slot,
        high: Slot,
        a: Slot,
    },
    Unpack {
        bits: u32,
        a: Any,
        destinations: List,
    },
    /// 128-bit move.
    Mov128 {
        d: Slot,
        a: Slot,
    },
    /// Add with carry; `d = a + b (+ carry)` or the difference.
    Carry {
        subtract: bool,
        carry_in: bool,
        carry_out: bool,
        d: Any,
        a: Any,
        b: Any,
    },
    MadCarry {
        hi: bool,
        signed: bool,
        carry_in: bool,
        carry_out: bool,
        d: Any,
        a: Any,
        b: Any,
        c: Any,
    },
    /// `lop3` with a predicate result.
    Lop3P {
        lut: u8,
        d: Slot,
        p: u32,
        op: BoolOp,
        q: u32,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    ReadSpecial {
        special: Special,
        d: Any,
    },
    Ld(Access),
    St(Access),
    Atom(Box<AtomicOp>),
    /// `isspacep`: the address lies in the window of that space.
    IsSpace {
        space: Space,
        p: u32,
        a: Any,
    },
    /// `mapa`, see [`super::cluster`]; in a cluster of one block the address itself.
    Mapa {
        d: Any,
        a: Any,
        rank: Slot,
    },
    Bra {
        target: u32,
    },
    BrxIdx {
        index: Slot,
        table: u32,
    },
    Exit,
    Trap,
    Nop,
    /// A hint that gives way to other warps.
    Yield,
    BarSync {
        id: Slot,
        threads: Slot,
        aligned: bool,
    },
    BarArrive {
        id: Slot,
        threads: Slot,
        aligned: bool,
    },
    BarRed {
        id: Slot,
        threads: Slot,
        aligned: bool,
        op: BarRed,
        d: Any,
        p: u32,
    },
    WarpSync {
        mask: Slot,
    },
    ClusterArrive,
    ClusterWait,
    Fence(Fence),
    Shfl {
        mode: ShflMode,
        d: Slot,
        p: u32,
        a: Slot,
        b: Slot,
        c: Slot,
        mask: Slot,
    },
    Vote {
        mode: VoteMode,
        d: Any,
        p: u32,
        mask: Slot,
    },
    Match {
        all: bool,
        d: Slot,
        p: u32,
        a: Any,
        mask: Slot,
    },
    Redux {
        op: Redux,
        ty: Type,
        d: Slot,
        a: Slot,
        mask: Slot,
    },
    ActiveMask {
        d: Slot,
    },
    Elect {
        d: Slot,
        p: u32,
        mask: Slot,
    },
    Mma(Box<MmaOp>),
    Matrix(Box<MatrixOp>),
    Movmatrix {
        d: Slot,
        a: Slot,
    },
    CpAsync(Box<CpAsync>),
    CpAsyncCommit,
    /// `NONE` = all
    CpAsyncWait {
        groups: u32,
    },
    Mbar {
        op: MbarOp,
        addr: Addr,
        space: Space,
    },
    PendingCount {
        d: Slot,
        state: Slot,
    },
    Bulk(Box<BulkOp>),
    BulkCommit,
    BulkWait {
        groups: u32,
        read: bool,
    },
    GridDepControl,
    SetMaxNReg {
        increase: bool,
        registers: u32,
    },
}
