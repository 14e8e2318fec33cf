//! Moves, loads, stores, address conversion, cache hints.

use super::SCOPES;
use crate::ir::{Address, Op, Operand, Ordering, Scope, Space, Symbol, Type, Type::*};
use crate::parse::cursor::RawKind;
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::{Inst, type_name};
use crate::parse::operand::{may_be_wider, same_width, space_name};
use crate::parse::target::sm;

/// Types of `ld` and `st`.
const STORED: [Type; 15] = [B8, B16, B32, B64, B128, U8, U16, U32, U64, S8, S16, S32, S64, F32, F64];

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    match inst.name {
        "mov" => mov(f, inst),
        "ld" => ld(f, inst),
        "st" => st(f, inst),
        "cvta" => cvta(f, inst),
        "isspacep" => {
            let space = inst.must(
                f,
                &[
                    ("global", Space::Global),
                    ("shared", Space::Shared),
                    ("shared::cta", Space::Shared),
                    ("shared::cluster", Space::SharedCluster),
                    ("local", Space::Local),
                    ("const", Space::Const),
                    ("param", Space::Param),
                    ("param::entry", Space::Param),
                ],
            )?;
            if space == Space::SharedCluster {
                inst.need(f, sm(90, 7, 8))?;
            }
            inst.exactly(f, 2)?;
            let d = f.dst(inst, 0, Pred)?;
            let a = f.src(inst, 1, U64).or_else(|e| f.src(inst, 1, U32).map_err(|_| e))?;
            Ok(Op::Isspacep { space, d, a })
        }
        "mapa" => {
            inst.need(f, sm(90, 7, 8))?;
            let space = inst.mods.take_of(&[("shared::cluster", Space::SharedCluster)]).unwrap_or(Space::Generic);
            let ty = inst.ty_of(f, &[U32, U64])?;
            inst.exactly(f, 3)?;
            let d = f.dst(inst, 0, ty)?;
            Ok(Op::Mapa { ty, space, d, a: f.src(inst, 1, ty)?, b: f.src(inst, 2, U32)? })
        }
        "createpolicy" => createpolicy(f, inst),
        _ => hint(f, inst),
    }
}

fn mov<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let ty = inst.ty_of(f, &[Pred, B16, B32, B64, B128, U16, U32, U64, S16, S32, S64, F32, F64])?;
    if ty == B128 {
        inst.need(f, sm(70, 8, 3))?;
    }
    inst.exactly(f, 2)?;
    let bits = matches!(ty, B16 | B32 | B64 | B128);
    // `{a, b}` packs or unpacks; elements share the width evenly.
    let part = |f: &Function<'_, 'a>, n: usize| match (ty.bits() as usize / n.max(1), n) {
        (8, 2 | 4) => Ok(B8),
        (16, 2 | 4) => Ok(B16),
        (32, 2 | 4) => Ok(B32),
        (64, 2) => Ok(B64),
        _ => Err(inst.syntax(f, &format!("a vector of {n} elements does not make .{}", type_name(ty)))),
    };
    let (to, from) = (matches!(inst.args[0].kind, RawKind::Vector(_)), matches!(inst.args[1].kind, RawKind::Vector(_)));
    if (to || from) && (!bits || (to && from)) {
        return Err(inst.syntax(f, "only mov.b16, .b32, .b64 and .b128 pack or unpack, on one side"));
    }
    if to || from {
        f.alike(inst, usize::from(from))?;
    }
    if to {
        let n = f.elements(inst, 0).len();
        let part = part(f, n)?;
        let d = f.dst_list(inst, 0, n, part, same_width)?;
        return Ok(Op::Mov { ty, d: crate::ir::Dst::Vector(d), a: f.src(inst, 1, ty)? });
    }
    if from {
        let n = f.elements(inst, 1).len();
        let part = part(f, n)?;
        let a = f.src_list(inst, 1, n, part, same_width)?;
        return Ok(Op::Mov { ty, d: f.dst(inst, 0, ty)?, a: Operand::Vector(a) });
    }
    Ok(Op::Mov { ty, d: f.dst(inst, 0, ty)?, a: f.src(inst, 1, ty)? })
}

const SPACES: [(&str, Space); 9] = [
    ("global", Space::Global),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("shared::cluster", Space::SharedCluster),
    ("local", Space::Local),
    ("const", Space::Const),
    ("param", Space::Param),
    ("param::entry", Space::Param),
    ("generic", Space::Generic),
];

/// Modifiers that `ld` and `st` share.
struct Access {
    space: Space,
    ordering: Ordering,
    scope: Option<Scope>,
    vector: usize,
    ty: Type,
    policy: bool,
}

/// Hints that change no value: eviction priorities, prefetch sizes, cache policies.
struct Hints {
    eviction: bool,
    /// `.L2::evict_*`
    l2_eviction: bool,
    prefetch: bool,
    policy: bool,
}

fn take_hints<'a>(f: &Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Hints, ParseError> {
    const L1: [&str; 5] =
        ["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"];
    const L2: [&str; 3] = ["L2::evict_normal", "L2::evict_first", "L2::evict_last"];
    let eviction = L1.iter().any(|w| inst.mods.take(w));
    if eviction {
        inst.need(f, sm(70, 7, 4))?;
    }
    let l2_eviction = L2.iter().any(|w| inst.mods.take(w));
    if l2_eviction {
        inst.need(f, sm(100, 8, 8))?;
    }
    let mut prefetch = false;
    if inst.name == "ld" {
        if inst.mods.take("L2::64B") || inst.mods.take("L2::128B") {
            inst.need(f, sm(75, 7, 4))?;
            prefetch = true;
        } else if inst.mods.take("L2::256B") {
            inst.need(f, sm(80, 7, 4))?;
            prefetch = true;
        }
    }
    Ok(Hints { eviction, l2_eviction, prefetch, policy: take_policy(f, inst)? })
}

/// `.L2::cache_hint`: true if a policy operand follows.
pub(super) fn take_policy<'a>(f: &Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<bool, ParseError> {
    let policy = inst.mods.take("L2::cache_hint");
    if policy {
        inst.need(f, sm(80, 7, 4))?;
    }
    Ok(policy)
}

/// Checks the cache policy, which is the last operand if there is one. Its value changes no result.
pub(super) fn check_policy<'a>(f: &mut Function<'_, 'a>, inst: &Inst<'a>, policy: bool) -> Result<(), ParseError> {
    if policy {
        f.src(inst, inst.args.len() - 1, U64)?;
    }
    Ok(())
}

fn access<'a>(
    f: &mut Function<'_, 'a>,
    inst: &mut Inst<'a>,
    strong: (&str, Ordering),
    cop: &[&str],
) -> Result<Access, ParseError> {
    if inst.mods.has("param::func") {
        return Err(inst.unsupported(f, "calls of device functions are not supported"));
    }
    if inst.mods.has("async") || inst.mods.has("bulk") {
        return Err(inst.unsupported(f, "the asynchronous form is not supported"));
    }
    let mmio = inst.mods.take("mmio");
    let orderings = [
        ("weak", Ordering::Weak),
        ("volatile", Ordering::Volatile),
        ("relaxed", Ordering::Relaxed),
        (strong.0, strong.1),
    ];
    let ordering = inst.mods.take_of(&orderings).unwrap_or(Ordering::Weak);
    let scoped = !matches!(ordering, Ordering::Weak | Ordering::Volatile);
    let scope = if scoped {
        // Orderings came with sm_70 and PTX 6.0, the lowest that are read here.
        Some(inst.must(f, &SCOPES)?)
    } else {
        None
    };
    if scope == Some(Scope::Cluster) {
        inst.need(f, sm(90, 7, 8))?;
    }
    if mmio {
        inst.need(f, sm(70, 8, 2))?;
        if ordering != Ordering::Relaxed || scope != Some(Scope::Sys) {
            return Err(inst.syntax(f, ".mmio needs .relaxed.sys"));
        }
    }
    let space = inst.mods.take_of(&SPACES).unwrap_or(Space::Generic);
    if space == Space::SharedCluster {
        inst.need(f, sm(90, 7, 8))?;
    }
    let cached = cop.iter().any(|w| inst.mods.take(w));
    if cached && ordering != Ordering::Weak {
        return Err(inst.syntax(f, "a cache operator belongs to a weak access"));
    }
    let hints = take_hints(f, inst)?;
    if (hints.policy || hints.eviction || hints.prefetch) && !matches!(space, Space::Global | Space::Generic) {
        return Err(inst.syntax(f, "cache hints belong to global or generic addresses"));
    }
    let vector = inst.mods.take_of(&[("v2", 2usize), ("v4", 4), ("v8", 8)]);
    let ty = inst.ty_of(f, &STORED)?;
    if ty == B128 {
        inst.need(f, if scope == Some(Scope::Sys) { sm(70, 8, 4) } else { sm(70, 8, 3) })?;
    }
    if mmio && vector.is_some() {
        return Err(inst.syntax(f, ".mmio has no vector form"));
    }
    let vector = vector.unwrap_or(1);
    let bytes = ty.bytes() as usize * vector;
    if bytes > 16 || vector == 8 {
        let long = bytes == 32 && matches!(ty.bytes(), 4 | 8);
        if !long {
            let what = format!("there is no vector of {vector} x .{}", type_name(ty));
            return Err(inst.syntax(f, &what));
        }
        if !matches!(space, Space::Global | Space::Generic) {
            return Err(inst.syntax(f, "a vector of 32 bytes needs a global address"));
        }
        inst.need(f, sm(100, 8, 8))?;
    } else if hints.l2_eviction {
        return Err(inst.syntax(f, "an L2 eviction priority belongs to a vector of 32 bytes"));
    }
    Ok(Access { space, ordering, scope, vector, ty, policy: hints.policy })
}

/// A scalar access may write its register as a vector of one, `{ %r1 }`: Triton does.
fn unwrap_one(inst: &mut Inst<'_>, i: usize) {
    if let RawKind::Vector(items) = &inst.args[i].kind
        && let [one] = items.as_slice()
    {
        inst.args[i] = one.clone();
    }
}

fn ld<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let nc = inst.mods.take("nc");
    let a = access(f, inst, ("acquire", Ordering::Acquire), &["ca", "cg", "cs", "lu", "cv"])?;
    if nc && (a.space != Space::Global || a.ordering != Ordering::Weak) {
        return Err(inst.syntax(f, ".nc belongs to a weak load from .global"));
    }
    let n = 2 + usize::from(a.policy);
    inst.exactly(f, n)?;
    let addr: Address = f.addr(inst, 1, a.space)?;
    check_policy(f, inst, a.policy)?;
    let d = if a.vector == 1 {
        unwrap_one(inst, 0);
        f.wide_dst(inst, 0, a.ty)?
    } else {
        crate::ir::Dst::Vector(f.dst_list(inst, 0, a.vector, a.ty, may_be_wider)?)
    };
    Ok(Op::Ld { space: a.space, ty: a.ty, d, addr, ordering: a.ordering, scope: a.scope, nc })
}

fn st<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let a = access(f, inst, ("release", Ordering::Release), &["wb", "cg", "cs", "wt"])?;
    if matches!(a.space, Space::Const | Space::Param) {
        return Err(inst.syntax(f, &format!(".{} cannot be written", space_name(a.space))));
    }
    let n = 2 + usize::from(a.policy);
    inst.exactly(f, n)?;
    let addr = f.addr(inst, 0, a.space)?;
    check_policy(f, inst, a.policy)?;
    let value = if a.vector == 1 {
        unwrap_one(inst, 1);
        f.wide_src(inst, 1, a.ty)?
    } else {
        Operand::Vector(f.src_list(inst, 1, a.vector, a.ty, may_be_wider)?)
    };
    Ok(Op::St { space: a.space, ty: a.ty, addr, a: value, ordering: a.ordering, scope: a.scope })
}

fn cvta<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let to_space = inst.mods.take("to");
    let space = inst.must(
        f,
        &[
            ("global", Space::Global),
            ("shared", Space::Shared),
            ("shared::cta", Space::Shared),
            ("shared::cluster", Space::SharedCluster),
            ("local", Space::Local),
            ("const", Space::Const),
            ("param", Space::Param),
            ("param::entry", Space::Param),
        ],
    )?;
    match space {
        Space::SharedCluster => inst.need(f, sm(90, 7, 8))?,
        Space::Param => inst.need(f, sm(70, 7, 7))?,
        _ => {}
    }
    let ty = inst.ty_of(f, &[U64])?;
    inst.exactly(f, 2)?;
    let d = f.dst(inst, 0, ty)?;
    let a = f.src(inst, 1, ty)?;
    if let Operand::Symbol(symbol, _) = a {
        let own = match symbol {
            Symbol::Module(i) => f.module.variables.get(i as usize).map(|v| v.space),
            Symbol::Entry(i) => f.variables.get(i as usize).map(|v| v.space),
            Symbol::Param(_) => Some(Space::Param),
        };
        let shared = space == Space::SharedCluster && own == Some(Space::Shared);
        if to_space || (own != Some(space) && !shared) {
            let what = format!("operand 2: expected a .{} variable or a register", space_name(space));
            return Err(inst.type_error(f, &what));
        }
    }
    Ok(Op::Cvta { to_space, space, ty, d, a })
}

fn createpolicy<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.need(f, sm(80, 7, 4))?;
    let form = inst.must(f, &[("fractional", 0), ("range", 1), ("cvt", 2)])?;
    inst.ty_of(f, &[B64])?;
    if form == 2 {
        inst.must_word(f, "L2")?;
        inst.exactly(f, 2)?;
        f.src(inst, 1, U64)?;
        return Ok(Op::CreatePolicy { d: f.dst(inst, 0, U64)? });
    }
    let priorities =
        [("L2::evict_last", ()), ("L2::evict_normal", ()), ("L2::evict_first", ()), ("L2::evict_unchanged", ())];
    inst.must(f, &priorities)?;
    let _ = inst.mods.take("L2::evict_first") || inst.mods.take("L2::evict_unchanged");
    if form == 0 {
        inst.between(f, 1, 2)?;
        if inst.args.len() == 2 {
            f.src(inst, 1, F32)?;
        }
    } else {
        inst.mods.take("global");
        inst.exactly(f, 4)?;
        f.addr(inst, 1, Space::Global)?;
        f.src(inst, 2, U32)?;
        f.src(inst, 3, U32)?;
    }
    Ok(Op::CreatePolicy { d: f.dst(inst, 0, U64)? })
}

/// Instructions that speak to caches alone.
fn hint<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if inst.mods.has("tensormap") {
        return Err(inst.unsupported(f, "tensor maps are not supported"));
    }
    let space = inst.mods.take_of(&[("global", Space::Global), ("local", Space::Local)]).unwrap_or(Space::Generic);
    match inst.name {
        "prefetch" => {
            let evict = [("L2::evict_last", true), ("L2::evict_normal", true), ("L1", false), ("L2", false)];
            if inst.must(f, &evict)? {
                inst.need(f, sm(80, 7, 4))?;
                if space == Space::Local {
                    return Err(inst.syntax(f, "an eviction priority belongs to global or generic addresses"));
                }
            }
            inst.exactly(f, 1)?;
        }
        "prefetchu" => {
            inst.must_word(f, "L1")?;
            if space != Space::Generic {
                return Err(inst.syntax(f, "prefetchu takes a generic address"));
            }
            inst.exactly(f, 1)?;
        }
        _ => {
            inst.need(f, sm(80, 7, 4))?;
            inst.must_word(f, if inst.name == "discard" { "L2" } else { "L2::evict_normal" })?;
            if space == Space::Local {
                return Err(inst.syntax(f, "expected .global or a generic address"));
            }
            inst.exactly(f, 2)?;
            f.imm(inst, 1, 128..=128, "the size")?;
        }
    }
    f.addr(inst, 0, space)?;
    Ok(Op::Hint)
}
