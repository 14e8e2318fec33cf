//! Exchanges between the lanes of a warp.

use crate::ir::{Dst, Op, Redux, ShflMode, Type::*, VoteMode};
use crate::parse::cursor::RawKind;
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::operand::same_width;
use crate::parse::target::{sm, special};

/// Forms without `.sync` went with sm_70.
fn sync<'a>(f: &Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<(), ParseError> {
    if inst.mods.take("sync") {
        return Ok(());
    }
    Err(inst.unsupported(f, "the form without .sync does not exist from sm_70 on"))
}

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    match inst.name {
        "shfl" => {
            sync(f, inst)?;
            let modes =
                [("up", ShflMode::Up), ("down", ShflMode::Down), ("bfly", ShflMode::Bfly), ("idx", ShflMode::Idx)];
            let mode = inst.must(f, &modes)?;
            inst.ty_of(f, &[B32])?;
            inst.exactly(f, 5)?;
            let (d, p) = f.dst_pair(inst, 0, B32)?;
            if d == Dst::Sink {
                return Err(inst.syntax(f, "operand 1: `_` is not allowed here"));
            }
            let (a, b, c) = (f.src(inst, 1, B32)?, f.src(inst, 2, U32)?, f.src(inst, 3, U32)?);
            Ok(Op::Shfl { mode, d, p, a, b, c, mask: f.src(inst, 4, B32)? })
        }
        "vote" => {
            sync(f, inst)?;
            let modes =
                [("all", VoteMode::All), ("any", VoteMode::Any), ("uni", VoteMode::Uni), ("ballot", VoteMode::Ballot)];
            let mode = inst.must(f, &modes)?;
            let ty = inst.ty_of(f, if mode == VoteMode::Ballot { &[B32] } else { &[Pred] })?;
            inst.exactly(f, 3)?;
            Ok(Op::Vote { mode, d: f.dst(inst, 0, ty)?, p: f.pred_src(inst, 1)?, mask: f.src(inst, 2, B32)? })
        }
        "match" => {
            sync(f, inst)?;
            let all = inst.must(f, &[("all", true), ("any", false)])?;
            let ty = inst.ty_of(f, &[B32, B64])?;
            inst.exactly(f, 3)?;
            let (d, p) = if all { f.dst_pair(inst, 0, U32)? } else { (f.dst(inst, 0, U32)?, None) };
            let a = f.src(inst, 1, if ty == B32 { U32 } else { U64 })?;
            Ok(Op::Match { all, ty, d, p, a, mask: f.src(inst, 2, B32)? })
        }
        "redux" => {
            sync(f, inst)?;
            let ops = [
                ("add", Redux::Add),
                ("min", Redux::Min),
                ("max", Redux::Max),
                ("and", Redux::And),
                ("or", Redux::Or),
                ("xor", Redux::Xor),
            ];
            let op = inst.must(f, &ops)?;
            if inst.mods.has("f32") {
                inst.need(f, special(&[100], 8, 6))?;
                return Err(inst.unsupported(f, "the floating-point form is not supported"));
            }
            let arithmetic = matches!(op, Redux::Add | Redux::Min | Redux::Max);
            let ty = inst.ty_of(f, if arithmetic { &[U32, S32] } else { &[B32] })?;
            inst.need(f, sm(80, 7, 0))?;
            inst.exactly(f, 3)?;
            Ok(Op::Redux { op, ty, d: f.dst(inst, 0, U32)?, a: f.src(inst, 1, U32)?, mask: f.src(inst, 2, B32)? })
        }
        "elect" => {
            sync(f, inst)?;
            inst.need(f, sm(90, 8, 0))?;
            inst.exactly(f, 2)?;
            let RawKind::Pair(pair) = inst.args[0].kind.clone() else {
                return Err(inst.syntax(f, "operand 1: expected `d|p`"));
            };
            let d = f.scalar_dst(inst, &pair.0, U32, same_width)?;
            let p = f.scalar_dst(inst, &pair.1, Pred, same_width)?;
            Ok(Op::Elect { d, p, mask: f.src(inst, 1, B32)? })
        }
        _ => {
            inst.ty_of(f, &[B32])?;
            inst.exactly(f, 1)?;
            Ok(Op::ActiveMask { d: f.dst(inst, 0, B32)? })
        }
    }
}
