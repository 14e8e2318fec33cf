//! `cvt` and `cvt.pack`.

use crate::ir::{FloatMods, Op, Rounding, Type, Type::*};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::{Inst, type_name};
use crate::parse::operand::{may_be_wider, same_width};
use crate::parse::target::{ANY, Need, sm, special};

/// Architectures that convert the 4- and 6-bit formats and ue8m0.
const NARROW: Need = special(&[100, 110, 120], 8, 6);

const ROUNDINGS: [(&str, Rounding); 9] = [
    ("rn", Rounding::Rn),
    ("rz", Rounding::Rz),
    ("rm", Rounding::Rm),
    ("rp", Rounding::Rp),
    ("rna", Rounding::Rna),
    ("rni", Rounding::Rni),
    ("rzi", Rounding::Rzi),
    ("rmi", Rounding::Rmi),
    ("rpi", Rounding::Rpi),
];

const fn is_int(ty: Type) -> bool {
    matches!(ty, U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
}

const fn is_float(ty: Type) -> bool {
    matches!(ty, F16 | BF16 | F32 | F64)
}

/// True if every value of the integer type `from` is one of `to`.
fn fits_within(from: Type, to: Type) -> bool {
    let signed = |ty: Type| matches!(ty, S8 | S16 | S32 | S64);
    match (signed(from), signed(to)) {
        (false, true) => from.bits() < to.bits(),
        (true, false) => false,
        _ => from.bits() <= to.bits(),
    }
}

/// What a conversion was written with.
#[derive(Clone, Copy)]
struct Written {
    rounding: Option<Rounding>,
    ftz: bool,
    sat: bool,
    satfinite: bool,
    relu: bool,
}

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    if inst.mods.take("pack") {
        return pack(f, inst);
    }
    if inst.mods.has("rs") {
        return Err(inst.unsupported(f, "stochastic rounding .rs is not supported"));
    }
    let w = Written {
        rounding: inst.mods.take_of(&ROUNDINGS),
        ftz: inst.mods.take("ftz"),
        sat: inst.mods.take("sat"),
        satfinite: inst.mods.take("satfinite"),
        relu: inst.mods.take("relu"),
    };
    let (to, from) = (inst.ty(f)?, inst.ty(f)?);
    inst.done(f)?;
    check(f, inst, to, from, w)?;
    // Two sources are packed into one result.
    let packed = from == F32 && matches!(to, F16x2 | BF16x2 | E4M3x2 | E5M2x2 | E2M1x2 | E2M3x2 | E3M2x2 | UE8M0x2);
    inst.exactly(f, 2 + usize::from(packed))?;
    let plain = |ty: Type| is_int(ty) || is_float(ty);
    let rule = if plain(to) && plain(from) { may_be_wider } else { same_width };
    let d = match f.scalar_dst(inst, &inst.args[0], to, rule)? {
        crate::ir::Dst::Sink => return Err(inst.syntax(f, "operand 1: `_` is not allowed here")),
        d => d,
    };
    let a = f.scalar(inst, &inst.args[1], from, rule)?;
    let b = if packed { Some(f.src(inst, 2, from)?) } else { None };
    let mods = FloatMods { rounding: w.rounding, ftz: w.ftz, sat: w.sat, relu: w.relu, ..FloatMods::default() };
    Ok(Op::Cvt { to, from, mods, satfinite: w.satfinite, d, a, b })
}

/// Refuses what the table of conversions does not have.
fn check<'a>(f: &Function<'_, 'a>, inst: &Inst<'a>, to: Type, from: Type, w: Written) -> Result<(), ParseError> {
    use Rounding::*;
    let no = |what: &str| Err(inst.unsupported(f, what));
    let float_rounding = matches!(w.rounding, Some(Rn | Rz | Rm | Rp));
    let int_rounding = matches!(w.rounding, Some(Rni | Rzi | Rmi | Rpi));
    let nearest_or_zero = matches!(w.rounding, Some(Rn | Rz));
    if w.sat && (w.satfinite || w.relu) {
        return no("modifier .sat excludes .satfinite and .relu");
    }
    if w.sat && (to == BF16 || from == BF16) {
        return no("modifier .sat is not supported for .bf16");
    }
    let need = match (to, from) {
        _ if is_int(to) && is_int(from) => {
            if w.rounding.is_some() || w.ftz || w.relu || w.satfinite {
                return no("a conversion between integers has no modifier but .sat");
            }
            if w.sat && fits_within(from, to) {
                return no("modifier .sat is not supported where every value fits");
            }
            ANY
        }
        _ if is_int(to) && is_float(from) => {
            if !int_rounding {
                return no("expected a rounding modifier, one of .rni .rzi .rmi .rpi");
            }
            if w.relu || w.satfinite || (w.ftz && from != F32) {
                return no("modifiers .relu, .satfinite and (but from .f32) .ftz are not supported here");
            }
            if from == BF16 { sm(90, 7, 8) } else { ANY }
        }
        _ if is_float(to) && is_int(from) => {
            if !float_rounding {
                return no("expected a rounding modifier, one of .rn .rz .rm .rp");
            }
            if w.relu || w.satfinite || (w.ftz && to != F32) {
                return no("modifiers .relu, .satfinite and (but to .f32) .ftz are not supported here");
            }
            if to == BF16 { sm(90, 7, 8) } else { ANY }
        }
        _ if is_float(to) && is_float(from) => return check_floats(f, inst, to, from, w),
        (F16x2 | BF16x2, F32) => {
            if !nearest_or_zero {
                return no("expected rounding modifier .rn or .rz");
            }
            if w.ftz || w.sat {
                return no("modifiers .ftz and .sat are not supported here");
            }
            if w.satfinite { sm(80, 8, 1) } else { sm(80, 7, 0) }
        }
        (TF32, F32) => {
            if w.ftz || w.sat || !matches!(w.rounding, Some(Rna | Rn | Rz)) || (w.relu && w.rounding == Some(Rna)) {
                return no("expected .rna, .rn or .rz, and no modifier but .satfinite and (not with .rna) .relu");
            }
            match (w.rounding, w.satfinite) {
                (Some(Rna), false) => sm(80, 7, 0),
                (Some(Rna), true) => sm(80, 8, 1),
                (_, false) => sm(90, 7, 8),
                (_, true) => sm(100, 8, 6),
            }
        }
        (E4M3x2 | E5M2x2 | E2M1x2, F32 | F16x2) | (E2M3x2 | E3M2x2, F32) => {
            if w.rounding != Some(Rn) || !w.satfinite || w.ftz || w.sat {
                return no("expected .rn.satfinite and no modifier but .relu");
            }
            if matches!(to, E4M3x2 | E5M2x2) { sm(89, 8, 1) } else { NARROW }
        }
        (F16x2, E4M3x2 | E5M2x2 | E2M1x2 | E2M3x2 | E3M2x2) => {
            if w.rounding != Some(Rn) || w.satfinite || w.ftz || w.sat {
                return no("expected .rn and no modifier but .relu");
            }
            if matches!(from, E4M3x2 | E5M2x2) { sm(89, 8, 1) } else { NARROW }
        }
        (UE8M0x2, F32 | BF16x2) => {
            if !matches!(w.rounding, Some(Rz | Rp)) || w.relu || w.ftz || w.sat {
                return no("expected .rz or .rp and no modifier but .satfinite");
            }
            NARROW
        }
        (BF16x2, UE8M0x2) => {
            if w.rounding != Some(Rn) || w.relu || w.ftz || w.sat || w.satfinite {
                return no("expected .rn and no other modifier");
            }
            NARROW
        }
        _ => return no(&format!("there is no conversion from .{} to .{}", type_name(from), type_name(to))),
    };
    inst.need(f, need)
}

/// Conversions between scalar floating-point types.
fn check_floats<'a>(f: &Function<'_, 'a>, inst: &Inst<'a>, to: Type, from: Type, w: Written) -> Result<(), ParseError> {
    use Rounding::*;
    let no = |what: &str| Err(inst.unsupported(f, what));
    let float_rounding = matches!(w.rounding, Some(Rn | Rz | Rm | Rp));
    let int_rounding = matches!(w.rounding, Some(Rni | Rzi | Rmi | Rpi));
    if w.ftz && to != F32 && from != F32 {
        return no("modifier .ftz needs .f32 on one side");
    }
    if w.relu || w.satfinite {
        // cvt.{rn,rz}{.relu}{.satfinite}.{f16,bf16}.f32
        if !(matches!(to, F16 | BF16) && from == F32 && matches!(w.rounding, Some(Rn | Rz))) || w.ftz {
            return no("modifiers .relu and .satfinite need .f16.f32 or .bf16.f32 with .rn or .rz");
        }
        return inst.need(f, if w.satfinite { sm(80, 8, 1) } else { sm(80, 7, 0) });
    }
    // Between the two 16-bit formats the rounding may be left out and is .rn then: ptxas 13.0 takes both, to the same code.
    let sixteen = matches!((to, from), (F16, BF16) | (BF16, F16));
    let narrowing = sixteen || to.bits() < from.bits();
    if narrowing && !float_rounding && !(sixteen && w.rounding.is_none()) {
        return no("expected a rounding modifier, one of .rn .rz .rm .rp");
    }
    // A widening from .bf16 may be written with a rounding, which does nothing.
    let idle = from == BF16 && to != BF16 && float_rounding;
    let whole = to as u8 == from as u8 && int_rounding;
    if !narrowing && w.rounding.is_some() && !idle && !whole {
        return no("a rounding modifier is not supported here");
    }
    let need = match (to, from) {
        (BF16, F32) => sm(80, 7, 0),
        (F32, BF16) if !w.ftz => sm(80, 7, 1),
        (BF16, _) | (_, BF16) => sm(90, 7, 8),
        _ => ANY,
    };
    inst.need(f, need)
}

/// `cvt.pack.sat.convertType.abType d, a, b;` and `cvt.pack.sat.convertType.abType.cType d, a, b, c;`
fn pack<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    inst.must_word(f, "sat")?;
    let to = inst.ty_of(f, &[U16, S16, U8, S8, U4, S4])?;
    let from = inst.ty_of(f, &[S32])?;
    if to.bits() == 16 {
        inst.need(f, sm(72, 6, 5))?;
        inst.exactly(f, 3)?;
    } else {
        inst.ty_of(f, &[B32])?;
        inst.need(f, if to.bits() == 8 { sm(72, 6, 5) } else { sm(75, 6, 5) })?;
        inst.exactly(f, 4)?;
    }
    let d = f.dst(inst, 0, U32)?;
    let (a, b) = (f.src(inst, 1, from)?, f.src(inst, 2, from)?);
    let c = if to.bits() == 16 { None } else { Some(f.src(inst, 3, B32)?) };
    Ok(Op::CvtPack { to, from, d, a, b, c })
}
