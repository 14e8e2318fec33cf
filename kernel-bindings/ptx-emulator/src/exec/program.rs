//! The decoded form of an entry: what the interpreter runs.
//!
//! One [`Ins`] per instruction of the checked form, at the same index, so branch targets, post-dominators and lines need
//! no translation. Operands are slots of the warp's register files or of the program's constant pool: immediates,
//! variable addresses and launch constants are lane values like any other, and no operand needs decoding at run time.

mod op;

pub(crate) use op::Op;

use super::lanes::{L32, L64};
use crate::counters::Class;
use crate::ir::{Atomic, BulkDirection, Ordering, Scope, Special, Type};
use crate::tensor::MmaPlan;
use crate::tensor::matrix::MatrixMap;

/// Index into a register file; with [`CONST`] set, into the constant pool of the same width.
pub(crate) type Slot = u32;
/// Marks a slot of the constant pool; also marks a negated predicate source.
pub(crate) const CONST: u32 = 1 << 31;
/// Negation of a predicate source.
pub(crate) const NEGATE: u32 = 1 << 31;
/// A destination that nobody reads, an operand that is not there.
pub(crate) const NONE: u32 = u32::MAX;
/// Predicate slot that is always true.
pub(crate) const ALWAYS: u32 = 0;

/// How poison of the sources reaches the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Any poisoned bit of any source poisons the whole result.
    All,
    /// The instruction moves bits of the sources in this mask; the other sources steer, and poison there poisons all.
    Bits(u8),
    /// Bitwise logic: a result bit is poisoned if it depends on poisoned bits.
    Logic,
}

/// A slot with its register file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Any {
    /// 32-bit file (also narrower types, zero-extended).
    W(Slot),
    /// 64-bit file.
    X(Slot),
    /// Predicate source, possibly negated.
    P(u32),
    /// Nothing.
    None,
}

/// Memory a decoded access goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Const,
    Param,
}

/// Base register of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    W(Slot),
    X(Slot),
    Absolute,
}

/// `[base + offset]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addr {
    pub(crate) base: Base,
    pub(crate) offset: i64,
}

/// How a narrow value fills its register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extend {
    Zero,
    /// Sign-extended from 8, 16 or 32 bits to the register's width (16, 32 or 64 bits).
    Sign {
        from: u8,
        to: u8,
    },
}

/// A run of [`Program::lists`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// Load or store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Bytes of one element: 1, 2, 4, 8 or 16.
    pub(crate) bytes: u8,
    /// Elements.
    pub(crate) count: u8,
    pub(crate) extend: Extend,
    pub(crate) regs: List,
    pub(crate) addr: Addr,
    pub(crate) ordering: Ordering,
    pub(crate) scope: Scope,
    /// `ld.global.nc`
    pub(crate) nc: bool,
    /// A weak access of whole 32-bit registers.
    pub(crate) plain: bool,
}

/// Atomic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AtomicOp {
    pub(crate) op: Atomic,
    pub(crate) space: Space,
    pub(crate) ty: Type,
    pub(crate) count: u8,
    /// Old values, or empty for `red`.
    pub(crate) d: List,
    pub(crate) addr: Addr,
    pub(crate) b: List,
    pub(crate) c: Any,
    pub(crate) ordering: Ordering,
    pub(crate) scope: Scope,
}

/// `mma.sync`.
#[derive(Debug, Clone)]
pub(crate) struct MmaOp {
    pub(crate) plan: MmaPlan,
    pub(crate) d: Vec<Slot>,
    pub(crate) a: Vec<Slot>,
    pub(crate) b: Vec<Slot>,
    pub(crate) c: Vec<Slot>,
    /// data, byte selector, thread selector of A and of B.
    pub(crate) scales: Option<[[Slot; 3]; 2]>,
}

/// `ldmatrix`, `stmatrix`.
#[derive(Debug, Clone)]
pub(crate) struct MatrixOp {
    pub(crate) store: bool,
    pub(crate) map: MatrixMap,
    pub(crate) regs: Vec<Slot>,
    pub(crate) addr: Addr,
    pub(crate) space: Space,
}

/// `cp.async`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpAsync {
    pub(crate) dst: Addr,
    pub(crate) src: Addr,
    pub(crate) size: u32,
    pub(crate) src_size: Slot,
    pub(crate) ignore: u32,
}

/// `cp.async.bulk`, `cp.reduce.async.bulk`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BulkOp {
    pub(crate) direction: BulkDirection,
    pub(crate) dst: Addr,
    pub(crate) src: Addr,
    pub(crate) size: Slot,
    pub(crate) mbar: Option<Addr>,
    pub(crate) reduce: Option<(Atomic, Type)>,
}

/// mbarrier instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MbarOp {
    Init { count: Slot },
    Inval,
    Arrive { state: Slot, count: Slot, expect_tx: bool, no_complete: bool, drop: bool, ordering: Ordering },
    Tx { bytes: Slot, complete: bool },
    Wait { done: u32, state: Any, parity: bool, ordering: Ordering },
    CpAsyncArrive { noinc: bool },
}

/// One decoded instruction.
#[derive(Debug, Clone)]
pub(crate) struct Ins {
    /// Guard: predicate slot with [`NEGATE`], [`ALWAYS`] when there is none.
    pub(crate) guard: u32,
    pub(crate) rule: Rule,
    pub(crate) class: Class,
    pub(crate) op: Op,
}

/// A decoded entry.
pub(crate) struct Program {
    pub(crate) code: Vec<Ins>,
    /// Immediate post-dominators; `code.len()` is the exit.
    pub(crate) ipdom: Vec<u32>,
    pub(crate) branch_targets: Vec<Vec<u32>>,
    /// Register file sizes.
    pub(crate) num32: usize,
    pub(crate) num64: usize,
    pub(crate) num_pred: usize,
    /// Constant pools.
    pub(crate) const32: Vec<L32>,
    pub(crate) const64: Vec<L64>,
    /// Operand lists of vector instructions.
    pub(crate) lists: Vec<Any>,
    /// Special registers that are set once per warp: slot in the 32-bit file and which.
    pub(crate) specials: Vec<(Slot, Special)>,
    pub(crate) specials64: Vec<(Slot, Special)>,
    /// Static shared bytes; dynamic shared memory starts there, aligned.
    pub(crate) shared_static: u32,
    /// Offset where dynamic shared memory starts.
    pub(crate) shared_dynamic_at: u32,
    /// Bytes of local memory per thread.
    pub(crate) local_bytes: u32,
    /// Constant bank.
    pub(crate) constants: Vec<u8>,
}

impl Program {
    /// Where lanes that diverge at a branch meet again; the end of the code if they only meet to exit. Lanes that
    /// return early must not be waited for.
    pub(crate) fn meet(&self, pc: u32) -> u32 {
        let meet = self.ipdom[pc as usize];
        match self.code.get(meet as usize) {
            Some(Ins { guard: ALWAYS, op: Op::Exit, .. }) => self.code.len() as u32,
            _ => meet,
        }
    }

    /// Shape and element types of a matrix instruction, e.g. `m16n8k16.f32.bf16.bf16.f32`.
    pub(crate) fn matrix_name(&self, pc: usize) -> Option<(String, crate::ir::Shape)> {
        let Op::Mma(op) = &self.code[pc].op else { return None };
        let desc = op.plan.desc();
        let shape = desc.shape;
        let types = [desc.d, desc.a, desc.b, desc.c].map(|ty| format!("{ty:?}").to_lowercase()).join(".");
        let kind = match desc.kind {
            crate::ir::MmaKind::Plain => String::new(),
            kind => format!(".{}", format!("{kind:?}").to_lowercase()),
        };
        Some((format!("m{}n{}k{}{kind}.{types}", shape.m, shape.n, shape.k), shape))
    }
}
