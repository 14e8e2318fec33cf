//! Asynchronous copies: `cp.async`, `cp.async.bulk`, `cp.reduce.async.bulk`.

use super::memory::{check_policy, take_policy};
use crate::ir::{Atomic, BulkDirection, Op, Operand, Space, Type, Type::*};
use crate::parse::cursor::RawKind;
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::scope::Named;
use crate::parse::target::sm;

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if inst.mods.take("reduce") {
        return reduce(f, inst);
    }
    inst.must_word(f, "async")?;
    if inst.mods.take("bulk") {
        return bulk(f, inst);
    }
    inst.need(f, sm(80, 7, 0))?;
    if inst.mods.take("commit_group") {
        inst.exactly(f, 0)?;
        return Ok(Op::CpAsyncCommit);
    }
    if inst.mods.take("wait_all") {
        inst.exactly(f, 0)?;
        return Ok(Op::CpAsyncWait { groups: None });
    }
    if inst.mods.take("wait_group") {
        inst.exactly(f, 1)?;
        let groups = f.imm(inst, 0, 0..=i64::from(u32::MAX), "the number of groups")? as u32;
        return Ok(Op::CpAsyncWait { groups: Some(groups) });
    }
    if inst.mods.take("mbarrier") {
        inst.must_word(f, "arrive")?;
        let noinc = inst.mods.take("noinc");
        let space = barrier_space(inst);
        inst.ty_of(f, &[B64])?;
        inst.exactly(f, 1)?;
        return Ok(Op::CpAsyncMbarrierArrive { addr: f.addr(inst, 0, space)?, noinc, space });
    }
    copy(f, inst)
}

/// `.shared`, `.shared::cta` or nothing.
pub(super) fn barrier_space(inst: &mut Inst<'_>) -> Space {
    let spaces = [("shared", Space::Shared), ("shared::cta", Space::Shared)];
    inst.mods.take_of(&spaces).unwrap_or(Space::Generic)
}

fn copy<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let cg = inst.must(f, &[("ca", false), ("cg", true)])?;
    let spaces = [("shared", Space::Shared), ("shared::cta", Space::Shared), ("global", Space::Global)];
    if (inst.must(f, &spaces)?, inst.must(f, &spaces)?) != (Space::Shared, Space::Global) {
        return Err(inst.unsupported(f, "cp.async copies to .shared from .global, in this order"));
    }
    let policy = take_policy(f, inst)?;
    if ["L2::64B", "L2::128B", "L2::256B"].iter().any(|w| inst.mods.take(w)) {
        inst.need(f, sm(80, 7, 4))?;
    }
    inst.between(f, 3 + usize::from(policy), 4 + usize::from(policy))?;
    let (dst, src) = (f.addr(inst, 0, Space::Shared)?, f.addr(inst, 1, Space::Global)?);
    let size = f.imm(inst, 2, 0..=i64::from(u32::MAX), "the copy size")? as u32;
    if !matches!((size, cg), (4 | 8, false) | (16, _)) {
        let sizes = if cg { "16" } else { "4, 8 or 16" };
        return Err(inst.syntax(f, &format!("operand 3: expected a copy size of {sizes} bytes, got {size}")));
    }
    check_policy(f, inst, policy)?;
    let (mut src_size, mut ignore) = (None, None);
    if inst.args.len() == 4 + usize::from(policy) {
        let predicate = match inst.args[3].kind {
            RawKind::Name(name) => matches!(f.find(name), Some(Named::Reg(_, Pred))),
            RawKind::Not(_) => true,
            _ => false,
        };
        if predicate {
            ignore = Some(f.pred_src(inst, 3)?);
        } else {
            let bytes = f.src(inst, 3, U32)?;
            if let Operand::Imm(n) = bytes
                && n > u64::from(size)
            {
                let what = format!("operand 4: expected a source size of at most {size} bytes, got {n}");
                return Err(inst.syntax(f, &what));
            }
            src_size = Some(bytes);
        }
    }
    Ok(Op::CpAsync { dst, src, size, src_size, ignore, cg })
}

const BULK_SPACES: [(&str, Space); 3] =
    [("global", Space::Global), ("shared::cta", Space::Shared), ("shared::cluster", Space::SharedCluster)];

fn bulk<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.need(f, sm(90, 8, 0))?;
    if inst.mods.take("commit_group") {
        inst.exactly(f, 0)?;
        return Ok(Op::BulkCommit);
    }
    if inst.mods.take("wait_group") {
        let read = inst.mods.take("read");
        inst.exactly(f, 1)?;
        let groups = f.imm(inst, 0, 0..=i64::from(u32::MAX), "the number of groups")? as u32;
        return Ok(Op::BulkWait { groups, read });
    }
    if inst.mods.take("prefetch") {
        inst.must_word(f, "L2")?;
        inst.must_word(f, "global")?;
        let policy = take_policy(f, inst)?;
        inst.exactly(f, 2 + usize::from(policy))?;
        check_policy(f, inst, policy)?;
        return Ok(Op::BulkPrefetch { addr: f.addr(inst, 0, Space::Global)?, size: bulk_size(f, inst, 1)? });
    }
    for word in ["multicast::cluster", "cp_mask", "ignore_oob"] {
        if inst.mods.has(word) {
            return Err(inst.unsupported(f, &format!("modifier .{word} is not supported")));
        }
    }
    let (to, from) = (inst.must(f, &BULK_SPACES)?, inst.must(f, &BULK_SPACES)?);
    let direction = match (to, from) {
        (Space::SharedCluster, Space::Global) => BulkDirection::GlobalToShared,
        (Space::Shared, Space::Global) => {
            inst.need(f, sm(90, 8, 6))?;
            BulkDirection::GlobalToShared
        }
        (Space::Global, Space::Shared) => BulkDirection::SharedToGlobal,
        (Space::SharedCluster, Space::Shared) => BulkDirection::SharedToSharedCluster,
        _ => return Err(inst.unsupported(f, "there is no copy between these two spaces")),
    };
    let group = direction == BulkDirection::SharedToGlobal;
    inst.must_word(f, if group { "bulk_group" } else { "mbarrier::complete_tx::bytes" })?;
    let policy = direction != BulkDirection::SharedToSharedCluster && take_policy(f, inst)?;
    inst.exactly(f, 4 - usize::from(group) + usize::from(policy))?;
    check_policy(f, inst, policy)?;
    let (dst, src) = (f.addr(inst, 0, to)?, f.addr(inst, 1, from)?);
    let size = bulk_size(f, inst, 2)?;
    let mbar = if group { None } else { Some(f.addr(inst, 3, Space::Shared)?) };
    Ok(Op::Bulk { direction, dst, src, size, mbar })
}

/// Byte count of a bulk copy, a multiple of 16.
fn bulk_size<'a>(f: &mut Function<'_, 'a>, inst: &Inst<'a>, i: usize) -> Result<Operand, ParseError> {
    let size = f.src(inst, i, U32)?;
    if let Operand::Imm(n) = size
        && n % 16 != 0
    {
        return Err(inst.syntax(f, &format!("operand {}: expected a multiple of 16 bytes, got {n}", i + 1)));
    }
    Ok(size)
}

fn reduce<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.must_word(f, "async")?;
    inst.must_word(f, "bulk")?;
    inst.need(f, sm(90, 8, 0))?;
    let (to, from) = (inst.must(f, &BULK_SPACES)?, inst.must(f, &BULK_SPACES)?);
    if (to, from) != (Space::Global, Space::Shared) {
        return Err(inst.unsupported(f, "only the reduction from .shared::cta to .global is supported"));
    }
    inst.must_word(f, "bulk_group")?;
    let policy = take_policy(f, inst)?;
    let ops = [
        ("add", Atomic::Add),
        ("min", Atomic::Min),
        ("max", Atomic::Max),
        ("and", Atomic::And),
        ("or", Atomic::Or),
        ("xor", Atomic::Xor),
        ("inc", Atomic::Inc),
        ("dec", Atomic::Dec),
    ];
    let op = inst.must(f, &ops)?;
    let noftz = inst.mods.take("noftz");
    let types: &[Type] = match op {
        Atomic::Add => &[U32, S32, U64, F32, F64, F16, BF16],
        Atomic::Min | Atomic::Max => &[U32, S32, U64, S64, F16, BF16],
        Atomic::And | Atomic::Or | Atomic::Xor => &[B32, B64],
        _ => &[U32],
    };
    let ty = inst.ty_of(f, types)?;
    if noftz != (op == Atomic::Add && matches!(ty, F16 | BF16)) {
        return Err(inst.unsupported(f, "modifier .noftz belongs to .add.f16 and .add.bf16, which need it"));
    }
    inst.exactly(f, 3 + usize::from(policy))?;
    check_policy(f, inst, policy)?;
    let (dst, src) = (f.addr(inst, 0, to)?, f.addr(inst, 1, from)?);
    Ok(Op::BulkReduce { op, ty, dst, src, size: bulk_size(f, inst, 2)? })
}
