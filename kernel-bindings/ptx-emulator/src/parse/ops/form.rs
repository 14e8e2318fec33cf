//! Forms of arithmetic instructions as data: a type, the modifiers it takes, and what the target must have.

use crate::ir::{FloatMods, Rounding, Type};
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::{Inst, type_name};
use crate::parse::target::{ANY, Need};

/// Optional modifiers as bits.
pub(crate) const FTZ: u16 = 1;
pub(crate) const SAT: u16 = 2;
pub(crate) const APPROX: u16 = 4;
pub(crate) const FULL: u16 = 8;
pub(crate) const NAN: u16 = 16;
pub(crate) const RELU: u16 = 32;
pub(crate) const XORSIGN: u16 = 64;
pub(crate) const OOB: u16 = 128;

/// Rounding modes as bits.
pub(crate) const RN: u16 = 1;
pub(crate) const RZ: u16 = 2;
pub(crate) const RM: u16 = 4;
pub(crate) const RP: u16 = 8;
pub(crate) const DIRECTED: u16 = RN | RZ | RM | RP;

/// One form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    ty: Type,
    /// Modifiers that may stand.
    allowed: u16,
    /// Modifiers that must stand.
    required: u16,
    /// Rounding modes that may stand.
    rounding: u16,
    /// One of them must stand.
    rounded: bool,
    need: Need,
}

/// A form without modifiers.
pub(crate) const fn form(ty: Type) -> Form {
    Form { ty, allowed: 0, required: 0, rounding: 0, rounded: false, need: ANY }
}

impl Form {
    /// Modifiers that may stand.
    pub(crate) const fn may(mut self, mods: u16) -> Form {
        self.allowed |= mods;
        self
    }

    /// Modifiers that must stand.
    pub(crate) const fn must(mut self, mods: u16) -> Form {
        self.allowed |= mods;
        self.required |= mods;
        self
    }

    /// Rounding modes, optional.
    pub(crate) const fn round(mut self, modes: u16) -> Form {
        self.rounding = modes;
        self
    }

    /// Rounding modes, one of which must stand.
    pub(crate) const fn rounded(mut self, modes: u16) -> Form {
        self.rounding = modes;
        self.rounded = true;
        self
    }

    /// What the target must have.
    pub(crate) const fn need(mut self, need: Need) -> Form {
        self.need = need;
        self
    }
}

const FLAGS: [(&str, u16); 8] = [
    ("ftz", FTZ),
    ("sat", SAT),
    ("approx", APPROX),
    ("full", FULL),
    ("NaN", NAN),
    ("relu", RELU),
    ("xorsign", XORSIGN),
    ("oob", OOB),
];

const ROUNDINGS: [(&str, (u16, Rounding)); 4] =
    [("rn", (RN, Rounding::Rn)), ("rz", (RZ, Rounding::Rz)), ("rm", (RM, Rounding::Rm)), ("rp", (RP, Rounding::Rp))];

fn names(flags: u16) -> String {
    let words: Vec<String> = FLAGS.iter().filter(|(_, b)| flags & b != 0).map(|(n, _)| format!(".{n}")).collect();
    words.join(" ")
}

/// Uses up the modifiers and type of an instruction that has these forms.
pub(crate) fn take_form<'a>(
    f: &Function<'_, 'a>,
    inst: &mut Inst<'a>,
    forms: &[Form],
) -> Result<(Type, FloatMods), ParseError> {
    let ty = inst.ty(f)?;
    let mut flags = 0;
    for (word, bit) in FLAGS {
        if inst.mods.take(word) {
            flags |= bit;
        }
    }
    if flags & XORSIGN != 0 {
        inst.must_word(f, "abs")?;
    }
    let rounding = inst.mods.take_of(&ROUNDINGS);
    let of_type = || forms.iter().filter(|form| form.ty == ty);
    if of_type().next().is_none() {
        let mut list: Vec<Type> = Vec::new();
        for form in forms {
            if !list.contains(&form.ty) {
                list.push(form.ty);
            }
        }
        inst.check_ty(f, ty, &list)?;
    }
    let fits = |form: &&Form| {
        flags & !form.allowed == 0
            && form.required & !flags == 0
            && rounding.map_or(!form.rounded, |(bit, _)| form.rounding & bit != 0)
    };
    let Some(found) = of_type().find(fits) else {
        // Name what is wrong with respect to the form that comes nearest.
        let form =
            of_type().min_by_key(|form| (flags & !form.allowed).count_ones() + (form.required & !flags).count_ones());
        let ty = type_name(ty);
        let what = match form {
            Some(form) if flags & !form.allowed != 0 => {
                format!("modifier {} is not supported for .{ty}", names(flags & !form.allowed))
            }
            Some(form) if form.required & !flags != 0 => {
                format!("expected modifier {} for .{ty}", names(form.required & !flags))
            }
            Some(form) => {
                let modes: Vec<String> = ROUNDINGS
                    .iter()
                    .filter(|(_, (bit, _))| form.rounding & bit != 0)
                    .map(|(n, _)| format!(".{n}"))
                    .collect();
                match (rounding, modes.is_empty()) {
                    (None, _) => format!("expected a rounding modifier, one of {}, for .{ty}", modes.join(" ")),
                    (Some(_), true) => format!("a rounding modifier is not supported for .{ty}"),
                    (Some(_), false) => format!("expected rounding modifier {} for .{ty}", modes.join(" or ")),
                }
            }
            None => format!("type .{ty} has no such form"),
        };
        return Err(inst.unsupported(f, &what));
    };
    inst.need(f, found.need)?;
    let mods = FloatMods {
        rounding: rounding.map(|(_, r)| r),
        ftz: flags & FTZ != 0,
        sat: flags & SAT != 0,
        approx: flags & APPROX != 0,
        full: flags & FULL != 0,
        nan: flags & NAN != 0,
        relu: flags & RELU != 0,
        xorsign_abs: flags & XORSIGN != 0,
        oob: flags & OOB != 0,
    };
    Ok((ty, mods))
}
