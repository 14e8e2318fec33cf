//! The checked form of a PTX module: what the parser produces and the machine executes.
//!
//! Everything here is data. Names are resolved (a register is an index, a label is an instruction number, a symbol is
//! an index into the module's or function's variables), modifiers are enums, immediates are bit patterns already
//! converted to the type of the instruction. An instruction whose text uses anything that has no place here is refused
//! by the parser as `Unsupported`, by name and line.

use std::sync::Arc;

/// A parsed and checked PTX translation unit.
#[derive(Debug, Clone)]
pub struct Module {
    /// `.version`, as (major, minor).
    pub version: (u32, u32),
    /// `.target`, e.g. `sm_120a`.
    pub target: Target,
    /// Module-scope variables (`.global`, `.const`, `.shared`, `.extern .shared`).
    pub variables: Vec<Variable>,
    /// Entries (`.entry`); device functions are only supported where the parser can inline nothing, i.e. not at all.
    pub entries: Vec<Arc<Entry>>,
    /// `.file` table: index -> path, for `.loc`.
    pub files: Vec<(u32, String)>,
    /// The text that was parsed, for reports.
    pub text: Arc<str>,
    /// Byte offset in `text` of the start of every line.
    pub line_starts: Vec<u32>,
}

impl Module {
    /// The entry called `name`.
    pub fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// Source text of a line (from 1), without its line end and without surrounding blanks; empty if there is none.
    pub fn line_text(&self, line: u32) -> &str {
        let Some(index) = (line as usize).checked_sub(1).filter(|i| *i < self.line_starts.len()) else { return "" };
        let start = self.line_starts[index] as usize;
        let end = self.line_starts.get(index + 1).map_or(self.text.len(), |e| *e as usize);
        self.text[start..end].trim()
    }
}

/// `.target sm_NN[a|f]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// 89, 90, 100, 120, ...
    pub sm: u32,
    /// Suffix of the target.
    pub suffix: TargetSuffix,
}

/// The suffix that unlocks architecture- or family-specific instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetSuffix {
    /// `sm_NN`
    None,
    /// `sm_NNa`
    Arch,
    /// `sm_NNf`
    Family,
}

/// State spaces of variables and memory instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// No `.space` given: a generic address.
    Generic,
    /// `.global`
    Global,
    /// `.shared`, `.shared::cta`
    Shared,
    /// `.shared::cluster`
    SharedCluster,
    /// `.local`
    Local,
    /// `.const`
    Const,
    /// `.param` of the entry
    Param,
}

/// Fundamental and packed types.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F32x2,
    F64,
    TF32,
    E4M3,
    E5M2,
    E2M1,
    E2M3,
    E3M2,
    UE8M0,
    E4M3x2,
    E5M2x2,
    E2M1x2,
    E2M3x2,
    E3M2x2,
    UE8M0x2,
    E4M3x4,
    E5M2x4,
    S4,
    U4,
    B1,
}

impl Type {
    /// Width in bits of a register or memory operand of this type.
    pub const fn bits(self) -> u32 {
        use Type::*;
        match self {
            Pred | B1 => 1,
            S4 | U4 | E2M1 => 4,
            E2M3 | E3M2 | B8 | U8 | S8 | E4M3 | E5M2 | UE8M0 | E2M1x2 => 8,
            B16 | U16 | S16 | F16 | BF16 | E4M3x2 | E5M2x2 | E2M3x2 | E3M2x2 | UE8M0x2 => 16,
            B32 | U32 | S32 | F32 | TF32 | U16x2 | S16x2 | F16x2 | BF16x2 | E4M3x4 | E5M2x4 => 32,
            B64 | U64 | S64 | F64 | F32x2 => 64,
            B128 => 128,
        }
    }
    /// Width in bytes, at least one.
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }
}

/// Index of a register in [`Entry::registers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// A declared register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterDecl {
    /// Name with its `%`.
    pub name: String,
    /// Declared type.
    pub ty: Type,
}

/// A variable in some state space.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Name as written.
    pub name: String,
    /// `Shared`, `Global`, `Const` or `Local`.
    pub space: Space,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes; 0 for an unsized `.extern .shared` array (the dynamic shared memory).
    pub size: u64,
    /// Declared `.extern`.
    pub external: bool,
    /// Initialiser bytes, if any (`.global`/`.const`).
    pub init: Option<Vec<u8>>,
}

/// A reference to a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// [`Module::variables`]
    Module(u32),
    /// [`Entry::variables`]
    Entry(u32),
    /// [`Entry::params`]
    Param(u32),
}

/// One kernel parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name as written.
    pub name: String,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes.
    pub size: u32,
    /// Byte offset in the parameter buffer (natural layout of the PTX ABI).
    pub offset: u32,
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Entry symbol.
    pub name: String,
    /// Parameters in order, with offsets in the launch buffer.
    pub params: Vec<Param>,
    /// Size of the parameter buffer in bytes.
    pub param_bytes: u32,
    /// `.maxntid`, `.reqntid`
    pub maxntid: Option<[u32; 3]>,
    /// `.reqntid`
    pub reqntid: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub minnctapersm: Option<u32>,
    /// `.maxnreg`
    pub maxnreg: Option<u32>,
    /// `.reqnctapercluster`: the cluster shape that every launch must have.
    pub reqnctapercluster: Option<[u32; 3]>,
    /// `.maxclusterrank`
    pub maxclusterrank: Option<u32>,
    /// `.explicitcluster`: the launch must name a cluster shape.
    pub explicit_cluster: bool,
    /// `.blocksareclusters`: the grid of the launch counts clusters.
    pub blocks_are_clusters: bool,
    /// Registers.
    pub registers: Vec<RegisterDecl>,
    /// Function-scope variables (`.shared`, `.local`, demoted or not).
    pub variables: Vec<Variable>,
    /// Instructions; a label is an index into this list (possibly one past the end).
    pub code: Vec<Instruction>,
    /// Immediate post-dominator of every instruction as an instruction index; `code.len()` stands for the exit.
    pub ipdom: Vec<u32>,
    /// Label names by instruction index, for reports.
    pub labels: Vec<(u32, String)>,
    /// `.branchtargets` tables by index.
    pub branch_targets: Vec<Vec<u32>>,
}

/// `@p` or `@!p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// Predicate register.
    pub pred: Reg,
    /// True for `@!p`.
    pub negate: bool,
}

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

/// Special registers.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    /// A predicate.
    IsExplicitCluster,
    DynamicSmemSize,
    TotalSmemSize,
    AggrSmemSize,
}

/// A source operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A bit pattern, already in the type of the position it stands in (f32 immediates of an f32 instruction are f32
    /// bits, negative integers are sign-extended to 64 bits and then truncated to the type).
    Imm(u64),
    /// A special register.
    Special(Special),
    /// Address of a variable plus a byte offset, in the variable's own space.
    Symbol(Symbol, i64),
    /// `!%p` where a negated predicate operand is allowed.
    NotPred(Reg),
    /// `{a, b, ...}` in a source position.
    Vector(Vec<Operand>),
}

/// A destination operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dst {
    /// A register.
    Reg(Reg),
    /// `_`
    Sink,
    /// `{a, b, _, ...}`
    Vector(Vec<Dst>),
}

/// `[base + offset]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// What the address starts from.
    pub base: AddressBase,
    /// Byte offset.
    pub offset: i64,
}

/// Start of an address expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressBase {
    /// 32- or 64-bit register.
    Reg(Reg),
    /// A variable or parameter.
    Symbol(Symbol),
    /// An absolute address (in `offset`).
    Absolute,
}

/// Floating-point and conversion rounding.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    Rn,
    Rz,
    Rm,
    Rp,
    Rna,
    Rni,
    Rzi,
    Rmi,
    Rpi,
}

/// Memory scope.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// Memory ordering of an access or atomic.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ordering {
    Weak,
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// Comparison operators of `setp`/`set`/`slct`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Lo,
    Ls,
    Hi,
    Hs,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// Boolean combination of `setp`/`set`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// Two-source arithmetic and logic, typed by the instruction's `ty`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binary {
    Add,
    Sub,
    /// `mul.lo`, or `mul` of a float type.
    MulLo,
    MulHi,
    MulWide,
    Mul24Lo,
    Mul24Hi,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    CopySign,
}

/// One-source arithmetic and logic.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    Neg,
    Abs,
    Not,
    CNot,
    Popc,
    Clz,
    Brev,
    Bfind { shift_amount: bool },
    Rcp,
    Sqrt,
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
}

/// Three-source arithmetic.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ternary {
    MadLo,
    MadHi,
    MadWide,
    Mad24Lo,
    Mad24Hi,
    Fma,
    Sad,
    Min3,
    Max3,
}

/// Floating-point modifiers shared by arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FloatMods {
    /// Rounding; `None` = the instruction's default (nearest even).
    pub rounding: Option<Rounding>,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.approx`
    pub approx: bool,
    /// `.full` (division)
    pub full: bool,
    /// `.NaN` (min/max)
    pub nan: bool,
    /// `.relu` (fma, cvt)
    pub relu: bool,
    /// `.xorsign.abs` (min/max)
    pub xorsign_abs: bool,
    /// `.oob` (fma)
    pub oob: bool,
}

/// `shfl.sync` modes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// `vote.sync` modes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

/// `redux.sync` operators (and the reductions of `bar.red`).
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redux {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// `atom`/`red` operators.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// `prmt` modes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrmtMode {
    Default,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

/// Matrix shapes by m, n, k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Rows of A and D.
    pub m: u32,
    /// Columns of B and D.
    pub n: u32,
    /// Reduction length.
    pub k: u32,
}

/// `.kind::` of `mma`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MmaKind {
    Plain,
    F8f6f4,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

/// What kind of `mma.sync` this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MmaDesc {
    /// m, n, k.
    pub shape: Shape,
    /// `.kind::`
    pub kind: MmaKind,
    /// Element type of A.
    pub a: Type,
    /// Element type of B.
    pub b: Type,
    /// Type of C.
    pub c: Type,
    /// Type of D.
    pub d: Type,
    /// `.scale_vec::NX` and the scale type, when `.block_scale` is given.
    pub block_scale: Option<BlockScale>,
    /// `.satfinite` of the integer forms: saturate the s32 accumulator instead of wrapping.
    pub satfinite: bool,
}

/// `.block_scale` parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockScale {
    /// Scales per row of A / column of B: 1, 2 or 4.
    pub scale_vec: u32,
    /// `UE8M0` (or `E4M3`, i.e. ue4m3, for mxf4nvf4).
    pub ty: Type,
}

/// Selectors of one scale operand: `{byte_id, thread_id}`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleOperand {
    /// 32-bit register with the scale bytes.
    pub data: Operand,
    /// Byte selector (immediate or register).
    pub byte_id: Operand,
    /// Thread selector (immediate or register).
    pub thread_id: Operand,
}

/// Layout of `ldmatrix`/`stmatrix`/`movmatrix`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixShape {
    M8n8,
    M16n16,
    M8n16,
    M16n8,
}

/// Element handling of `ldmatrix`/`stmatrix`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixElement {
    B16,
    B8,
    /// `.b8x16.b6x16_p32`
    B8x16B6x16P32,
    /// `.b8x16.b4x16_p64`
    B8x16B4x16P64,
}

/// `mbarrier` operations. Field names follow the operands of the text; `space` is that of `addr` (`Generic` where the
/// text names none).
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Mbarrier {
    /// `mbarrier.init`
    Init { addr: Address, count: Operand, space: Space },
    /// `mbarrier.inval`
    Inval { addr: Address, space: Space },
    /// `mbarrier.arrive[.noComplete][.expect_tx]`, with an optional state destination and count / tx-count.
    Arrive {
        state: Option<Dst>,
        addr: Address,
        count: Option<Operand>,
        expect_tx: bool,
        no_complete: bool,
        drop: bool,
        ordering: Ordering,
        scope: Scope,
        space: Space,
    },
    /// `mbarrier.expect_tx` / `mbarrier.complete_tx` without arrival.
    Tx { addr: Address, bytes: Operand, complete: bool, space: Space },
    /// `mbarrier.test_wait` / `try_wait`, by state or by parity.
    Wait {
        done: Dst,
        addr: Address,
        state_or_parity: Operand,
        parity: bool,
        may_suspend: bool,
        hint: Option<Operand>,
        ordering: Ordering,
        scope: Scope,
        space: Space,
    },
    /// `mbarrier.pending_count`
    PendingCount { d: Dst, state: Operand },
}

/// Forms of `cp.async.bulk` (non-tensor).
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BulkDirection {
    GlobalToShared,
    SharedToGlobal,
    SharedToSharedCluster,
}

/// Fences.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fence {
    /// `fence.sc` / `membar`
    Sc(Scope),
    /// `fence.acq_rel`
    AcqRel(Scope),
    /// `fence.acquire` / `fence.release` one-sided forms
    Acquire(Scope),
    Release(Scope),
    /// `fence.mbarrier_init.release.cluster`
    MbarrierInit,
    /// `fence.proxy.async[.global|.shared::cta|...]`
    ProxyAsync(Space),
    /// `fence.proxy.alias`
    ProxyAlias,
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

/// `testp` classes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatClass {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// `bar.red` operators.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BarRed {
    Popc,
    And,
    Or,
}
