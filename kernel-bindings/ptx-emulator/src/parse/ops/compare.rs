//! Comparisons and selections.

use super::form::*;
use crate::ir::{BoolOp, Cmp, Dst, FloatClass, Op, Operand, Type, Type::*};
use crate::parse::cursor::RawKind;
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::{Inst, type_name};
use crate::parse::operand::same_width;
use crate::parse::target::sm;

const COMPARED: &[Form] = &[
    form(B16),
    form(B32),
    form(B64),
    form(U16),
    form(U32),
    form(U64),
    form(S16),
    form(S32),
    form(S64),
    form(F32).may(FTZ),
    form(F64),
    form(F16).may(FTZ),
    form(F16x2).may(FTZ),
    form(BF16).need(sm(90, 7, 8)),
    form(BF16x2).need(sm(90, 7, 8)),
];

const COMPARISONS: [(&str, Cmp); 18] = [
    ("eq", Cmp::Eq),
    ("ne", Cmp::Ne),
    ("lt", Cmp::Lt),
    ("le", Cmp::Le),
    ("gt", Cmp::Gt),
    ("ge", Cmp::Ge),
    ("lo", Cmp::Lo),
    ("ls", Cmp::Ls),
    ("hi", Cmp::Hi),
    ("hs", Cmp::Hs),
    ("equ", Cmp::Equ),
    ("neu", Cmp::Neu),
    ("ltu", Cmp::Ltu),
    ("leu", Cmp::Leu),
    ("gtu", Cmp::Gtu),
    ("geu", Cmp::Geu),
    ("num", Cmp::Num),
    ("nan", Cmp::Nan),
];

const COMBINE: [(&str, BoolOp); 3] = [("and", BoolOp::And), ("or", BoolOp::Or), ("xor", BoolOp::Xor)];

const SELECTED: [Type; 11] = [B16, B32, B64, U16, U32, U64, S16, S32, S64, F32, F64];

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    match inst.name {
        "setp" => setp(f, inst),
        "set" => set(f, inst),
        "selp" => {
            let ty = inst.ty_of(f, &SELECTED)?;
            inst.exactly(f, 4)?;
            let d = f.dst(inst, 0, ty)?;
            Ok(Op::Selp { ty, d, a: f.src(inst, 1, ty)?, b: f.src(inst, 2, ty)?, p: f.pred_src(inst, 3)? })
        }
        "slct" => {
            let ty = inst.ty_of(f, &SELECTED)?;
            let sel = inst.ty_of(f, &[S32, F32])?;
            let ftz = sel == F32 && inst.mods.take("ftz");
            inst.exactly(f, 4)?;
            let d = f.dst(inst, 0, ty)?;
            let (a, b, c) = (f.src(inst, 1, ty)?, f.src(inst, 2, ty)?, f.src(inst, 3, sel)?);
            Ok(Op::Slct { ty, sel, ftz, d, a, b, c })
        }
        _ => {
            let class = inst.must(
                f,
                &[
                    ("finite", FloatClass::Finite),
                    ("infinite", FloatClass::Infinite),
                    ("number", FloatClass::Number),
                    ("notanumber", FloatClass::NotANumber),
                    ("normal", FloatClass::Normal),
                    ("subnormal", FloatClass::Subnormal),
                ],
            )?;
            let ty = inst.ty_of(f, &[F32, F64])?;
            inst.exactly(f, 2)?;
            Ok(Op::Testp { class, ty, d: f.dst(inst, 0, Pred)?, a: f.src(inst, 1, ty)? })
        }
    }
}

/// The comparison, checked against the type.
fn comparison<'a>(f: &Function<'_, 'a>, inst: &Inst<'a>, cmp: Cmp, ty: Type) -> Result<(), ParseError> {
    use Cmp::*;
    let ok = match ty {
        B16 | B32 | B64 => matches!(cmp, Eq | Ne),
        S16 | S32 | S64 => matches!(cmp, Eq | Ne | Lt | Le | Gt | Ge),
        U16 | U32 | U64 => matches!(cmp, Eq | Ne | Lt | Le | Gt | Ge | Lo | Ls | Hi | Hs),
        _ => !matches!(cmp, Lo | Ls | Hi | Hs),
    };
    if ok {
        return Ok(());
    }
    Err(inst.unsupported(f, &format!("this comparison does not exist for .{}", type_name(ty))))
}

fn setp<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let cmp = inst.must(f, &COMPARISONS)?;
    let combine = inst.mods.take_of(&COMBINE);
    let (ty, mods) = take_form(f, inst, COMPARED)?;
    comparison(f, inst, cmp, ty)?;
    inst.exactly(f, if combine.is_some() { 4 } else { 3 })?;
    let (p, q) = match inst.args[0].kind.clone() {
        RawKind::Pair(_) if matches!(ty, F16 | BF16) => {
            return Err(inst.unsupported(f, &format!("a second predicate does not exist for .{}", type_name(ty))));
        }
        RawKind::Pair(pair) => {
            let p = f.scalar_dst(inst, &pair.0, Pred, same_width)?;
            (p, Some(f.scalar_dst(inst, &pair.1, Pred, same_width)?))
        }
        _ => (f.dst_or_sink(inst, 0, Pred)?, None),
    };
    let (a, b) = (f.src(inst, 1, ty)?, f.src(inst, 2, ty)?);
    let combine = combined(f, inst, combine)?;
    Ok(Op::Setp { cmp, combine, ty, ftz: mods.ftz, p, q, a, b })
}

fn combined<'a>(
    f: &mut Function<'_, 'a>,
    inst: &Inst<'a>,
    combine: Option<BoolOp>,
) -> Result<Option<(BoolOp, Operand)>, ParseError> {
    combine.map(|op| Ok((op, f.pred_src(inst, 3)?))).transpose()
}

fn set<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let cmp = inst.must(f, &COMPARISONS)?;
    let combine = inst.mods.take_of(&COMBINE);
    let to = inst.ty(f)?;
    let (ty, mods) = take_form(f, inst, COMPARED)?;
    comparison(f, inst, cmp, ty)?;
    let results: &[Type] = match ty {
        F16 => &[U32, S32, U16, S16, F16, BF16],
        BF16 => &[U32, S32, U16, S16, BF16],
        F16x2 => &[U32, S32, F16x2],
        BF16x2 => &[U32, S32, BF16x2],
        _ => &[U32, S32, F32, F16, BF16],
    };
    inst.check_ty(f, to, results)?;
    if to == BF16 {
        inst.need(f, sm(90, 7, 8))?;
    }
    if mods.ftz && to == BF16 {
        return Err(inst.unsupported(f, "modifier .ftz is not supported for .bf16"));
    }
    inst.exactly(f, if combine.is_some() { 4 } else { 3 })?;
    let d: Dst = f.dst(inst, 0, to)?;
    let (a, b) = (f.src(inst, 1, ty)?, f.src(inst, 2, ty)?);
    let combine = combined(f, inst, combine)?;
    Ok(Op::Set { cmp, combine, to, ty, ftz: mods.ftz, d, a, b })
}
