//! `atom` and `red`.

use super::SCOPES;
use super::memory::{check_policy, take_policy};
use crate::ir::{Atomic, Dst, Op, Operand, Ordering, Scope, Space, Type, Type::*};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::operand::same_width;
use crate::parse::target::{ANY, Need, sm};

const OPS: [(&str, Atomic); 10] = [
    ("add", Atomic::Add),
    ("min", Atomic::Min),
    ("max", Atomic::Max),
    ("and", Atomic::And),
    ("or", Atomic::Or),
    ("xor", Atomic::Xor),
    ("exch", Atomic::Exch),
    ("cas", Atomic::Cas),
    ("inc", Atomic::Inc),
    ("dec", Atomic::Dec),
];

/// Types of a scalar operation.
const fn scalar_types(op: Atomic) -> &'static [Type] {
    match op {
        Atomic::Add => &[U32, S32, U64, F32, F64, F16, F16x2, BF16, BF16x2],
        Atomic::Min | Atomic::Max => &[U32, S32, U64, S64],
        Atomic::And | Atomic::Or | Atomic::Xor => &[B32, B64],
        Atomic::Exch => &[B32, B64, B128],
        Atomic::Cas => &[B16, B32, B64, B128],
        Atomic::Inc | Atomic::Dec => &[U32],
    }
}

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if inst.mods.has("async") {
        return Err(inst.unsupported(f, "the asynchronous form is not supported"));
    }
    let atom = inst.name == "atom";
    let ordering = inst.mods.take_of(&[
        ("relaxed", Ordering::Relaxed),
        ("acquire", Ordering::Acquire),
        ("release", Ordering::Release),
        ("acq_rel", Ordering::AcqRel),
    ]);
    let ordering = ordering.unwrap_or(Ordering::Relaxed);
    if !atom && matches!(ordering, Ordering::Acquire | Ordering::AcqRel) {
        return Err(inst.unsupported(f, "red has no acquire: expected .relaxed or .release"));
    }
    let scope = inst.mods.take_of(&SCOPES).unwrap_or(Scope::Gpu);
    if scope == Scope::Cluster {
        inst.need(f, sm(90, 7, 8))?;
    }
    let spaces = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("shared::cluster", Space::SharedCluster),
    ];
    let space = inst.mods.take_of(&spaces).unwrap_or(Space::Generic);
    if space == Space::SharedCluster {
        inst.need(f, sm(90, 7, 8))?;
    }
    let op = inst.must(f, &OPS)?;
    if !atom && matches!(op, Atomic::Exch | Atomic::Cas) {
        return Err(inst.unsupported(f, "red has no .exch and no .cas"));
    }
    let noftz = inst.mods.take("noftz");
    let policy = take_policy(f, inst)?;
    let vector = inst.mods.take_of(&[("v2", 2usize), ("v4", 4), ("v8", 8)]);
    let ty = match vector {
        None => inst.ty_of(f, scalar_types(op))?,
        Some(_) => inst.ty_of(f, &[F32, F16, BF16, F16x2, BF16x2])?,
    };
    let half = matches!(ty, F16 | F16x2 | BF16 | BF16x2);
    if half != noftz {
        let what = if half { "expected modifier .noftz" } else { "modifier .noftz belongs to half-precision types" };
        return Err(inst.unsupported(f, what));
    }
    let need: Need = match (ty, vector) {
        (_, Some(_)) => sm(90, 8, 1),
        (F16, _) => sm(70, 6, 3),
        (F16x2, _) => sm(60, 6, 2),
        (BF16 | BF16x2, _) => sm(90, 7, 8),
        (B128, _) if scope == Scope::Sys => sm(90, 8, 4),
        (B128, _) => sm(90, 8, 3),
        (B16, _) => sm(70, 6, 3),
        _ => ANY,
    };
    inst.need(f, need)?;
    if let Some(n) = vector {
        let widest = if ty.bits() == 32 { 4 } else { 8 };
        if n > widest || (ty == F32 && op != Atomic::Add) {
            return Err(inst.unsupported(f, "this vector form does not exist"));
        }
        if !matches!(op, Atomic::Add | Atomic::Min | Atomic::Max) {
            return Err(inst.unsupported(f, "a vector form has .add, .min or .max"));
        }
        if !matches!(space, Space::Global | Space::Generic) {
            return Err(inst.unsupported(f, "a vector form needs .global"));
        }
    }
    let sources = 1 + usize::from(op == Atomic::Cas);
    let first = usize::from(atom);
    inst.exactly(f, first + 1 + sources + usize::from(policy))?;
    let d = match (atom, vector) {
        (false, _) => None,
        (true, None) => Some(f.dst_or_sink(inst, 0, ty)?),
        (true, Some(n)) => Some(Dst::Vector(f.dst_list(inst, 0, n, ty, same_width)?)),
    };
    let addr = f.addr(inst, first, space)?;
    check_policy(f, inst, policy)?;
    let b = match vector {
        None => f.src(inst, first + 1, ty)?,
        Some(n) => Operand::Vector(f.src_list(inst, first + 1, n, ty, same_width)?),
    };
    let c = if op == Atomic::Cas { Some(f.src(inst, first + 2, ty)?) } else { None };
    Ok(Op::Atom { op, space, ty, d, addr, b, c, ordering, scope, noftz })
}
