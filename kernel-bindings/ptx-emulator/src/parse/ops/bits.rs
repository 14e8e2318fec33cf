//! Bit fields, permutes, funnel shifts, dot products.

use crate::ir::{BoolOp, Dst, Op, PrmtMode, Type::*};
use crate::parse::cursor::RawKind;
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::operand::same_width;
use crate::parse::target::sm;

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    const WRAP: [(&str, bool); 2] = [("wrap", true), ("clamp", false)];
    match inst.name {
        "lop3" => lop3(f, inst),
        "shf" => {
            let left = inst.must(f, &[("l", true), ("r", false)])?;
            let wrap = inst.must(f, &WRAP)?;
            inst.ty_of(f, &[B32])?;
            inst.exactly(f, 4)?;
            let d = f.dst(inst, 0, B32)?;
            Ok(Op::Shf { left, wrap, d, a: f.src(inst, 1, B32)?, b: f.src(inst, 2, B32)?, c: f.src(inst, 3, U32)? })
        }
        "prmt" => {
            inst.ty_of(f, &[B32])?;
            let modes = [
                ("f4e", PrmtMode::F4e),
                ("b4e", PrmtMode::B4e),
                ("rc8", PrmtMode::Rc8),
                ("ecl", PrmtMode::Ecl),
                ("ecr", PrmtMode::Ecr),
                ("rc16", PrmtMode::Rc16),
            ];
            let mode = inst.mods.take_of(&modes).unwrap_or(PrmtMode::Default);
            inst.exactly(f, 4)?;
            let d = f.dst(inst, 0, B32)?;
            Ok(Op::Prmt { mode, d, a: f.src(inst, 1, B32)?, b: f.src(inst, 2, B32)?, selector: f.src(inst, 3, B32)? })
        }
        "bfe" => {
            let ty = inst.ty_of(f, &[U32, U64, S32, S64])?;
            inst.exactly(f, 4)?;
            let d = f.dst(inst, 0, ty)?;
            Ok(Op::Bfe { ty, d, a: f.src(inst, 1, ty)?, pos: f.src(inst, 2, U32)?, len: f.src(inst, 3, U32)? })
        }
        "bfi" => {
            let ty = inst.ty_of(f, &[B32, B64])?;
            inst.exactly(f, 5)?;
            let d = f.dst(inst, 0, ty)?;
            let (a, b) = (f.src(inst, 1, ty)?, f.src(inst, 2, ty)?);
            Ok(Op::Bfi { ty, d, a, b, pos: f.src(inst, 3, U32)?, len: f.src(inst, 4, U32)? })
        }
        "bmsk" => {
            inst.need(f, sm(70, 7, 6))?;
            let clamp = !inst.must(f, &WRAP)?;
            inst.ty_of(f, &[B32])?;
            inst.exactly(f, 3)?;
            Ok(Op::Bmsk { clamp, d: f.dst(inst, 0, B32)?, a: f.src(inst, 1, U32)?, b: f.src(inst, 2, U32)? })
        }
        "szext" => {
            inst.need(f, sm(70, 7, 6))?;
            let clamp = !inst.must(f, &WRAP)?;
            let ty = inst.ty_of(f, &[U32, S32])?;
            inst.exactly(f, 3)?;
            Ok(Op::Szext { clamp, ty, d: f.dst(inst, 0, ty)?, a: f.src(inst, 1, ty)?, b: f.src(inst, 2, U32)? })
        }
        "fns" => {
            inst.ty_of(f, &[B32])?;
            inst.exactly(f, 4)?;
            let d = f.dst(inst, 0, B32)?;
            Ok(Op::Fns { d, mask: f.src(inst, 1, B32)?, base: f.src(inst, 2, U32)?, offset: f.src(inst, 3, S32)? })
        }
        _ => dot(f, inst),
    }
}

fn dot<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let hi = if inst.name == "dp2a" { Some(inst.must(f, &[("lo", false), ("hi", true)])?) } else { None };
    let (ta, tb) = (inst.ty_of(f, &[U32, S32])?, inst.ty_of(f, &[U32, S32])?);
    inst.exactly(f, 4)?;
    let sum = if ta == S32 || tb == S32 { S32 } else { U32 };
    let d = f.dst(inst, 0, sum)?;
    let (a, b, c) = (f.src(inst, 1, ta)?, f.src(inst, 2, tb)?, f.src(inst, 3, sum)?);
    let (a_signed, b_signed) = (ta == S32, tb == S32);
    Ok(match hi {
        None => Op::Dp4a { a_signed, b_signed, d, a, b, c },
        Some(hi) => Op::Dp2a { hi, a_signed, b_signed, d, a, b, c },
    })
}

fn lop3<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let combine = inst.mods.take_of(&[("or", BoolOp::Or), ("and", BoolOp::And)]);
    inst.ty_of(f, &[B32])?;
    if combine.is_some() {
        inst.need(f, sm(70, 8, 2))?;
    }
    inst.exactly(f, if combine.is_some() { 6 } else { 5 })?;
    let (d, p) = match combine {
        None => (f.dst(inst, 0, B32)?, None),
        Some(op) => {
            let RawKind::Pair(pair) = inst.args[0].kind.clone() else {
                return Err(inst.syntax(f, "expected the destinations `d|p`"));
            };
            let d = f.scalar_dst(inst, &pair.0, B32, same_width)?;
            let Dst::Reg(p) = f.scalar_dst(inst, &pair.1, Pred, same_width)? else {
                return Err(inst.syntax(f, "expected a predicate register after `|`"));
            };
            (d, Some((op, p, f.pred_src(inst, 5)?)))
        }
    };
    let (a, b, c) = (f.src(inst, 1, B32)?, f.src(inst, 2, B32)?, f.src(inst, 3, B32)?);
    let lut = f.imm(inst, 4, 0..=255, "the look-up table")? as u8;
    Ok(Op::Lop3 { d, p, a, b, c, lut })
}
