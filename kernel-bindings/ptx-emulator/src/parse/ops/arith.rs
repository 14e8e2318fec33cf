//! One-, two- and three-source arithmetic and logic.

use super::form::*;
use crate::ir::{Binary, Dst, FloatMods, Op, Operand, Ternary, Type, Type::*, Unary};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::target::sm;

const ADD: &[Form] = &[
    form(U16),
    form(U32),
    form(U64),
    form(S16),
    form(S32).may(SAT),
    form(S64),
    form(U16x2).need(sm(90, 8, 0)),
    form(S16x2).need(sm(90, 8, 0)),
    form(F32).round(DIRECTED).may(FTZ | SAT),
    form(F64).round(DIRECTED),
    form(F32x2).round(DIRECTED).may(FTZ).need(sm(100, 8, 6)),
    form(F16).round(RN).may(FTZ | SAT),
    form(F16x2).round(RN).may(FTZ | SAT),
    form(BF16).round(RN).need(sm(90, 7, 8)),
    form(BF16x2).round(RN).need(sm(90, 7, 8)),
];
/// As `add` without the packed integers.
const SUB: &[Form] = &[
    form(U16),
    form(U32),
    form(U64),
    form(S16),
    form(S32).may(SAT),
    form(S64),
    form(F32).round(DIRECTED).may(FTZ | SAT),
    form(F64).round(DIRECTED),
    form(F32x2).round(DIRECTED).may(FTZ).need(sm(100, 8, 6)),
    form(F16).round(RN).may(FTZ | SAT),
    form(F16x2).round(RN).may(FTZ | SAT),
    form(BF16).round(RN).need(sm(90, 7, 8)),
    form(BF16x2).round(RN).need(sm(90, 7, 8)),
];
const MUL_FLOAT: &[Form] = &[
    form(F32).round(DIRECTED).may(FTZ | SAT),
    form(F64).round(DIRECTED),
    form(F32x2).round(DIRECTED).may(FTZ).need(sm(100, 8, 6)),
    form(F16).round(RN).may(FTZ | SAT),
    form(F16x2).round(RN).may(FTZ | SAT),
    form(BF16).round(RN).need(sm(90, 7, 8)),
    form(BF16x2).round(RN).need(sm(90, 7, 8)),
];
const INTEGERS: &[Form] = &[form(U16), form(U32), form(U64), form(S16), form(S32), form(S64)];
const NARROW: &[Form] = &[form(U16), form(U32), form(S16), form(S32)];
const WORDS: &[Form] = &[form(U32), form(S32)];
const CARRY: &[Form] = &[form(U32), form(S32), form(U64), form(S64)];
const DIV: &[Form] = &[
    form(U16),
    form(U32),
    form(U64),
    form(S16),
    form(S32),
    form(S64),
    form(F32).must(APPROX).may(FTZ),
    form(F32).must(FULL).may(FTZ),
    form(F32).rounded(DIRECTED).may(FTZ),
    form(F64).rounded(DIRECTED),
];
const MIN_MAX: &[Form] = &[
    form(U16),
    form(U32),
    form(U64),
    form(S16),
    form(S32),
    form(S32).must(RELU).need(sm(90, 8, 0)),
    form(S64),
    form(U16x2).need(sm(90, 8, 0)),
    form(S16x2).may(RELU).need(sm(90, 8, 0)),
    form(F32).may(FTZ),
    form(F32).must(NAN).may(FTZ).need(sm(80, 7, 0)),
    form(F32).must(XORSIGN).may(FTZ | NAN).need(sm(86, 7, 2)),
    form(F64),
    form(F16).may(FTZ | NAN).need(sm(80, 7, 0)),
    form(F16x2).may(FTZ | NAN).need(sm(80, 7, 0)),
    form(BF16).may(NAN).need(sm(80, 7, 0)),
    form(BF16x2).may(NAN).need(sm(80, 7, 0)),
    form(F16).must(XORSIGN).may(FTZ | NAN).need(sm(86, 7, 2)),
    form(F16x2).must(XORSIGN).may(FTZ | NAN).need(sm(86, 7, 2)),
    form(BF16).must(XORSIGN).may(NAN).need(sm(86, 7, 2)),
    form(BF16x2).must(XORSIGN).may(NAN).need(sm(86, 7, 2)),
];
const MIN_MAX_3: &[Form] = &[form(F32).may(FTZ | NAN).need(sm(100, 8, 8))];
const LOGIC: &[Form] = &[form(Pred), form(B16), form(B32), form(B64)];
const BITS: &[Form] = &[form(B16), form(B32), form(B64)];
const LONG_BITS: &[Form] = &[form(B32), form(B64)];
const SHIFT_RIGHT: &[Form] =
    &[form(B16), form(B32), form(B64), form(U16), form(U32), form(U64), form(S16), form(S32), form(S64)];
const COPYSIGN: &[Form] = &[form(F32), form(F64)];
const ABS_NEG: &[Form] = &[
    form(S16),
    form(S32),
    form(S64),
    form(F32).may(FTZ),
    form(F64),
    form(F16).may(FTZ),
    form(F16x2).may(FTZ),
    form(BF16).need(sm(80, 7, 0)),
    form(BF16x2).need(sm(80, 7, 0)),
];
const FIND: &[Form] = &[form(U32), form(U64), form(S32), form(S64)];
const RCP: &[Form] = &[
    form(F32).must(APPROX).may(FTZ),
    form(F32).rounded(DIRECTED).may(FTZ),
    form(F64).must(APPROX | FTZ),
    form(F64).rounded(DIRECTED),
];
const SQRT: &[Form] =
    &[form(F32).must(APPROX).may(FTZ), form(F32).rounded(DIRECTED).may(FTZ), form(F64).rounded(DIRECTED)];
const RSQRT: &[Form] = &[form(F32).must(APPROX).may(FTZ), form(F64).must(APPROX).may(FTZ)];
const APPROX_F32: &[Form] = &[form(F32).must(APPROX).may(FTZ)];
const EX2: &[Form] = &[
    form(F32).must(APPROX).may(FTZ),
    form(F16).must(APPROX).need(sm(75, 7, 0)),
    form(F16x2).must(APPROX).need(sm(75, 7, 0)),
    form(BF16).must(APPROX | FTZ).need(sm(90, 7, 8)),
    form(BF16x2).must(APPROX | FTZ).need(sm(90, 7, 8)),
];
const TANH: &[Form] = &[
    form(F32).must(APPROX).need(sm(75, 7, 0)),
    form(F16).must(APPROX).need(sm(75, 7, 0)),
    form(F16x2).must(APPROX).need(sm(75, 7, 0)),
    form(BF16).must(APPROX).need(sm(90, 7, 8)),
    form(BF16x2).must(APPROX).need(sm(90, 7, 8)),
];
const FMA: &[Form] = &[
    form(F32).rounded(DIRECTED).may(FTZ | SAT),
    form(F64).rounded(DIRECTED),
    form(F32x2).rounded(DIRECTED).may(FTZ).need(sm(100, 8, 6)),
    form(F16).rounded(RN).may(FTZ | SAT),
    form(F16x2).rounded(RN).may(FTZ | SAT),
    form(F16).rounded(RN).must(RELU).may(FTZ).need(sm(80, 7, 0)),
    form(F16x2).rounded(RN).must(RELU).may(FTZ).need(sm(80, 7, 0)),
    form(BF16).rounded(RN).may(RELU).need(sm(80, 7, 0)),
    form(BF16x2).rounded(RN).may(RELU).need(sm(80, 7, 0)),
    form(F16).rounded(RN).must(OOB).may(RELU).need(sm(90, 8, 1)),
    form(F16x2).rounded(RN).must(OOB).may(RELU).need(sm(90, 8, 1)),
    form(BF16).rounded(RN).must(OOB).may(RELU).need(sm(90, 8, 1)),
    form(BF16x2).rounded(RN).must(OOB).may(RELU).need(sm(90, 8, 1)),
];
const MAD_FLOAT: &[Form] = &[form(F32).rounded(DIRECTED).may(FTZ | SAT), form(F64).rounded(DIRECTED)];
const MAD_HI: &[Form] = &[form(U16), form(U32), form(U64), form(S16), form(S32).may(SAT), form(S64)];
const MAD24_HI: &[Form] = &[form(U32), form(S32).may(SAT)];

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if matches!(inst.name, "add" | "sub" | "fma") && inst.mods.has("f32") {
        let half = inst.mods.clone().take_of(&[("f16", F16), ("bf16", BF16)]);
        if let Some(half) = half {
            return mixed(f, inst, half);
        }
    }
    let hi_lo: &[(&str, char)] = &[("lo", 'l'), ("hi", 'h'), ("wide", 'w')];
    match inst.name {
        "add" | "sub" if inst.mods.take("cc") => carry(f, inst, false, true),
        "addc" | "subc" => {
            let out = inst.mods.take("cc");
            carry(f, inst, true, out)
        }
        "madc" => mad_carry(f, inst, true),
        "mad" if inst.mods.has("cc") => mad_carry(f, inst, false),
        "add" => binary(f, inst, Binary::Add, ADD),
        "sub" => binary(f, inst, Binary::Sub, SUB),
        "mul" => match inst.mods.take_of(hi_lo) {
            Some('l') => binary(f, inst, Binary::MulLo, INTEGERS),
            Some('h') => binary(f, inst, Binary::MulHi, INTEGERS),
            Some(_) => binary(f, inst, Binary::MulWide, NARROW),
            None => binary(f, inst, Binary::MulLo, MUL_FLOAT),
        },
        "mul24" => match inst.must(f, &hi_lo[..2])? {
            'l' => binary(f, inst, Binary::Mul24Lo, WORDS),
            _ => binary(f, inst, Binary::Mul24Hi, WORDS),
        },
        "div" => binary(f, inst, Binary::Div, DIV),
        "rem" => binary(f, inst, Binary::Rem, INTEGERS),
        "min" if inst.args.len() == 4 => ternary(f, inst, Ternary::Min3, MIN_MAX_3),
        "max" if inst.args.len() == 4 => ternary(f, inst, Ternary::Max3, MIN_MAX_3),
        "min" => binary(f, inst, Binary::Min, MIN_MAX),
        "max" => binary(f, inst, Binary::Max, MIN_MAX),
        "and" => binary(f, inst, Binary::And, LOGIC),
        "or" => binary(f, inst, Binary::Or, LOGIC),
        "xor" => binary(f, inst, Binary::Xor, LOGIC),
        "shl" => binary(f, inst, Binary::Shl, BITS),
        "shr" => binary(f, inst, Binary::Shr, SHIFT_RIGHT),
        "copysign" => binary(f, inst, Binary::CopySign, COPYSIGN),
        "abs" => unary(f, inst, Unary::Abs, ABS_NEG),
        "neg" => unary(f, inst, Unary::Neg, ABS_NEG),
        "not" => unary(f, inst, Unary::Not, LOGIC),
        "cnot" => unary(f, inst, Unary::CNot, BITS),
        "popc" => unary(f, inst, Unary::Popc, LONG_BITS),
        "clz" => unary(f, inst, Unary::Clz, LONG_BITS),
        "brev" => unary(f, inst, Unary::Brev, LONG_BITS),
        "bfind" => {
            let shift_amount = inst.mods.take("shiftamt");
            unary(f, inst, Unary::Bfind { shift_amount }, FIND)
        }
        "rcp" => unary(f, inst, Unary::Rcp, RCP),
        "sqrt" => unary(f, inst, Unary::Sqrt, SQRT),
        "rsqrt" => unary(f, inst, Unary::Rsqrt, RSQRT),
        "ex2" => unary(f, inst, Unary::Ex2, EX2),
        "lg2" => unary(f, inst, Unary::Lg2, APPROX_F32),
        "sin" => unary(f, inst, Unary::Sin, APPROX_F32),
        "cos" => unary(f, inst, Unary::Cos, APPROX_F32),
        "tanh" => unary(f, inst, Unary::Tanh, TANH),
        "fma" => ternary(f, inst, Ternary::Fma, FMA),
        "mad" => match inst.mods.take_of(hi_lo) {
            Some('l') => ternary(f, inst, Ternary::MadLo, INTEGERS),
            Some('h') => ternary(f, inst, Ternary::MadHi, MAD_HI),
            Some(_) => ternary(f, inst, Ternary::MadWide, NARROW),
            None => ternary(f, inst, Ternary::Fma, MAD_FLOAT),
        },
        "mad24" => match inst.must(f, &hi_lo[..2])? {
            'l' => ternary(f, inst, Ternary::Mad24Lo, WORDS),
            _ => ternary(f, inst, Ternary::Mad24Hi, MAD24_HI),
        },
        "sad" => ternary(f, inst, Ternary::Sad, INTEGERS),
        _ => Err(inst.unsupported(f, "unknown instruction")),
    }
}

/// `add.f32.f16 d, a, c` and its like: half-precision sources of a single-precision operation. Widening is exact, so
/// each such source becomes a conversion to a register of its own in front of the operation.
fn mixed<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, half: Type) -> Result<Op, ParseError> {
    const SUM: &[Form] = &[form(F32).round(DIRECTED).may(SAT).need(sm(100, 8, 6))];
    const PRODUCT: &[Form] = &[form(F32).rounded(DIRECTED).may(SAT).need(sm(100, 8, 6))];
    let fma = inst.name == "fma";
    let (ty, mods) = take_form(f, inst, if fma { PRODUCT } else { SUM })?;
    inst.ty_of(f, &[half])?;
    inst.exactly(f, if fma { 4 } else { 3 })?;
    let widened = |f: &mut Function<'_, 'a>, i: usize| {
        let a = f.reg_src(inst, i, half)?;
        let reg = f.scopes.scratch(F32);
        let mods = FloatMods::default();
        f.push(inst, Op::Cvt { to: F32, from: half, mods, satfinite: false, d: Dst::Reg(reg), a, b: None });
        Ok(Operand::Reg(reg))
    };
    let a = widened(f, 1)?;
    if fma {
        let b = widened(f, 2)?;
        let d = f.dst(inst, 0, ty)?;
        return Ok(Op::Ternary { op: Ternary::Fma, ty, mods, d, a, b, c: f.src(inst, 3, ty)? });
    }
    let op = if inst.name == "add" { Binary::Add } else { Binary::Sub };
    Ok(Op::Binary { op, ty, mods, d: f.dst(inst, 0, ty)?, a, b: f.src(inst, 2, ty)? })
}

/// Twice the width.
const fn wide(ty: Type) -> Type {
    match ty {
        U16 => U32,
        S16 => S32,
        U32 => U64,
        _ => S64,
    }
}

fn unary<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, op: Unary, forms: &[Form]) -> Result<Op, ParseError> {
    let (ty, mods) = take_form(f, inst, forms)?;
    inst.exactly(f, 2)?;
    let to = match op {
        Unary::Popc | Unary::Clz | Unary::Bfind { .. } => U32,
        _ => ty,
    };
    Ok(Op::Unary { op, ty, mods, d: f.dst(inst, 0, to)?, a: f.src(inst, 1, ty)? })
}

fn binary<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, op: Binary, forms: &[Form]) -> Result<Op, ParseError> {
    let (ty, mods) = take_form(f, inst, forms)?;
    inst.exactly(f, 3)?;
    let to = if op == Binary::MulWide { wide(ty) } else { ty };
    let by = if matches!(op, Binary::Shl | Binary::Shr) { U32 } else { ty };
    Ok(Op::Binary { op, ty, mods, d: f.dst(inst, 0, to)?, a: f.src(inst, 1, ty)?, b: f.src(inst, 2, by)? })
}

fn ternary<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, op: Ternary, forms: &[Form]) -> Result<Op, ParseError> {
    let (ty, mods) = take_form(f, inst, forms)?;
    inst.exactly(f, 4)?;
    let sum = if op == Ternary::MadWide { wide(ty) } else { ty };
    let d = f.dst(inst, 0, sum)?;
    Ok(Op::Ternary { op, ty, mods, d, a: f.src(inst, 1, ty)?, b: f.src(inst, 2, ty)?, c: f.src(inst, 3, sum)? })
}

fn carry<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, carry_in: bool, carry_out: bool) -> Result<Op, ParseError> {
    let (ty, _) = take_form(f, inst, CARRY)?;
    inst.exactly(f, 3)?;
    let subtract = inst.name.starts_with("sub");
    let d = f.dst(inst, 0, ty)?;
    Ok(Op::Carry { subtract, carry_in, carry_out, ty, d, a: f.src(inst, 1, ty)?, b: f.src(inst, 2, ty)? })
}

fn mad_carry<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>, carry_in: bool) -> Result<Op, ParseError> {
    let carry_out = inst.mods.take("cc");
    let hi = inst.must(f, &[("lo", false), ("hi", true)])?;
    let (ty, _) = take_form(f, inst, CARRY)?;
    inst.exactly(f, 4)?;
    let d = f.dst(inst, 0, ty)?;
    let (a, b, c) = (f.src(inst, 1, ty)?, f.src(inst, 2, ty)?, f.src(inst, 3, ty)?);
    Ok(Op::MadCarry { hi, carry_in, carry_out, ty, d, a, b, c })
}
