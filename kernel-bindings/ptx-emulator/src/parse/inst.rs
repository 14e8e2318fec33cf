//! An instruction's modifiers and operands before they are given a meaning.

use super::cursor::Raw;
use super::error::{ParseError, ParseErrorKind};
use super::function::Function;
use crate::ir::{Guard, Type};

/// Modifiers that are not yet used up.
#[derive(Debug, Clone)]
pub(crate) struct Mods<'a> {
    words: Vec<&'a str>,
    taken: u32,
}

/// Most modifiers of one instruction.
pub(crate) const MAX_MODS: usize = 32;

impl<'a> Mods<'a> {
    pub(crate) fn new(words: Vec<&'a str>) -> Mods<'a> {
        Mods { words, taken: 0 }
    }

    fn free(&self) -> impl Iterator<Item = (usize, &'a str)> + '_ {
        self.words.iter().copied().enumerate().filter(|(i, _)| self.taken & (1 << i) == 0)
    }

    /// True if a free modifier has this name; it is used up.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let found = self.free().find(|(_, w)| *w == word).map(|(i, _)| i);
        if let Some(i) = found {
            self.taken |= 1 << i;
        }
        found.is_some()
    }

    /// True if a free modifier has this name.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.free().any(|(_, w)| w == word)
    }

    /// Uses up the first free modifier that is one of these.
    pub(crate) fn take_of<T: Copy>(&mut self, list: &[(&str, T)]) -> Option<T> {
        self.take_by(|w| list.iter().find(|(name, _)| *name == w).map(|(_, v)| *v))
    }

    /// Uses up the first free modifier that `f` maps to something.
    pub(crate) fn take_by<T>(&mut self, f: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        let (i, v) = self.free().find_map(|(i, w)| f(w).map(|v| (i, v)))?;
        self.taken |= 1 << i;
        Some(v)
    }

    /// Uses up the first free type.
    pub(crate) fn take_type(&mut self) -> Option<Type> {
        self.take_by(type_of)
    }

    /// First free modifier.
    pub(crate) fn first_free(&self) -> Option<&'a str> {
        self.free().next().map(|(_, w)| w)
    }
}

/// An instruction of the text.
#[derive(Debug, Clone)]
pub(crate) struct Inst<'a> {
    /// Name without modifiers.
    pub(crate) name: &'a str,
    /// Name with modifiers, as written, for messages.
    pub(crate) full: &'a str,
    pub(crate) mods: Mods<'a>,
    pub(crate) args: Vec<Raw<'a>>,
    /// Token of the name.
    pub(crate) at: usize,
    /// Line of the name.
    pub(crate) line: u32,
    pub(crate) guard: Option<Guard>,
}

impl<'a> Inst<'a> {
    fn error(&self, f: &Function<'_, 'a>, kind: ParseErrorKind, what: &str) -> ParseError {
        f.cursor.error_at(self.at, kind, format!("`{}`: {what}", self.full))
    }

    pub(crate) fn syntax(&self, f: &Function<'_, 'a>, what: &str) -> ParseError {
        self.error(f, ParseErrorKind::Syntax, what)
    }

    pub(crate) fn unsupported(&self, f: &Function<'_, 'a>, what: &str) -> ParseError {
        self.error(f, ParseErrorKind::Unsupported, what)
    }

    pub(crate) fn type_error(&self, f: &Function<'_, 'a>, what: &str) -> ParseError {
        self.error(f, ParseErrorKind::Type, what)
    }

    /// Refuses what the module's target or version lacks.
    pub(crate) fn need(&self, f: &Function<'_, 'a>, need: super::target::Need) -> Result<(), ParseError> {
        match need.lacking(f.module.version, f.module.target) {
            None => Ok(()),
            Some(what) => Err(self.error(f, ParseErrorKind::Target, &what)),
        }
    }

    /// The next type modifier, which must be there.
    pub(crate) fn ty(&mut self, f: &Function<'_, 'a>) -> Result<Type, ParseError> {
        match self.mods.take_type() {
            Some(ty) => Ok(ty),
            None => Err(match self.mods.first_free() {
                Some(word) => self.unsupported(f, &format!("expected a type, got modifier .{word}")),
                None => self.syntax(f, "expected a type modifier"),
            }),
        }
    }

    /// A type that is one of `list`.
    pub(crate) fn ty_of(&mut self, f: &Function<'_, 'a>, list: &[Type]) -> Result<Type, ParseError> {
        let ty = self.ty(f)?;
        self.check_ty(f, ty, list)?;
        Ok(ty)
    }

    /// Refuses a type outside `list`.
    pub(crate) fn check_ty(&self, f: &Function<'_, 'a>, ty: Type, list: &[Type]) -> Result<(), ParseError> {
        if list.contains(&ty) {
            return Ok(());
        }
        let names: Vec<String> = list.iter().map(|t| format!(".{}", type_name(*t))).collect();
        Err(self
            .unsupported(f, &format!("type .{} has no such form, expected one of {}", type_name(ty), names.join(" "))))
    }

    /// A modifier that must be there.
    pub(crate) fn must<T: Copy>(&mut self, f: &Function<'_, 'a>, list: &[(&str, T)]) -> Result<T, ParseError> {
        match self.mods.take_of(list) {
            Some(v) => Ok(v),
            None => {
                let names: Vec<String> = list.iter().map(|(n, _)| format!(".{n}")).collect();
                let got = match self.mods.first_free() {
                    Some(word) => format!("got .{word}"),
                    None => "got none".into(),
                };
                Err(self.unsupported(f, &format!("expected modifier {}, {got}", names.join(" or "))))
            }
        }
    }

    /// A modifier of fixed name that must be there.
    pub(crate) fn must_word(&mut self, f: &Function<'_, 'a>, word: &str) -> Result<(), ParseError> {
        self.must(f, &[(word, ())])
    }

    /// Every modifier must be used up by now.
    pub(crate) fn done(&self, f: &Function<'_, 'a>) -> Result<(), ParseError> {
        match self.mods.first_free() {
            None => Ok(()),
            Some(word) => Err(self.unsupported(f, &format!("modifier .{word} is not supported here"))),
        }
    }

    /// Exactly this many operands, and no modifier left.
    pub(crate) fn exactly(&self, f: &Function<'_, 'a>, n: usize) -> Result<(), ParseError> {
        self.between(f, n, n)
    }

    /// From `min` to `max` operands, and no modifier left.
    pub(crate) fn between(&self, f: &Function<'_, 'a>, min: usize, max: usize) -> Result<(), ParseError> {
        self.done(f)?;
        let got = self.args.len();
        if (min..=max).contains(&got) {
            return Ok(());
        }
        let expected = if min == max { format!("{min}") } else { format!("{min} to {max}") };
        Err(self.syntax(f, &format!("expected {expected} operands, got {got}")))
    }
}

macro_rules! types {
    ($($word:literal $ty:ident),* $(,)?) => {
        /// Type of a modifier, without its dot.
        pub(crate) fn type_of(word: &str) -> Option<Type> {
            match word {
                $($word => Some(Type::$ty),)*
                _ => None,
            }
        }

        /// Spelling of a type, without its dot.
        pub(crate) const fn type_name(ty: Type) -> &'static str {
            match ty {
                $(Type::$ty => $word,)*
            }
        }
    };
}

types! {
    "pred" Pred, "b8" B8, "b16" B16, "b32" B32, "b64" B64, "b128" B128,
    "u8" U8, "u16" U16, "u32" U32, "u64" U64, "s8" S8, "s16" S16, "s32" S32, "s64" S64,
    "u16x2" U16x2, "s16x2" S16x2, "f16" F16, "f16x2" F16x2, "bf16" BF16, "bf16x2" BF16x2,
    "f32" F32, "f32x2" F32x2, "f64" F64, "tf32" TF32,
    "e4m3" E4M3, "e5m2" E5M2, "e2m1" E2M1, "e2m3" E2M3, "e3m2" E3M2, "ue8m0" UE8M0,
    "e4m3x2" E4M3x2, "e5m2x2" E5M2x2, "e2m1x2" E2M1x2, "e2m3x2" E2M3x2, "e3m2x2" E3M2x2, "ue8m0x2" UE8M0x2,
    "e4m3x4" E4M3x4, "e5m2x4" E5M2x4, "s4" S4, "u4" U4, "b1" B1,
}
