//! What an instruction asks of `.version` and `.target`.

use crate::ir::{Target, TargetSuffix};

/// Lowest PTX version and the targets that have an instruction form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Lowest `.version`.
    pub(crate) ptx: (u32, u32),
    /// Which targets.
    pub(crate) on: On,
}

/// Targets that have an instruction form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// This architecture and every later one.
    Sm(u32),
    /// Only the `a` target of these architectures, and where the architecture founds a family (100 and later) the `f`
    /// and `a` targets of that family.
    Special(&'static [u32]),
}

/// `sm_NN` and later, from PTX `major.minor`.
pub(crate) const fn sm(sm: u32, major: u32, minor: u32) -> Need {
    Need { ptx: (major, minor), on: On::Sm(sm) }
}

/// The `a`/`f` targets of these architectures, from PTX `major.minor`.
pub(crate) const fn special(list: &'static [u32], major: u32, minor: u32) -> Need {
    Need { ptx: (major, minor), on: On::Special(list) }
}

/// Nothing in particular.
pub(crate) const ANY: Need = sm(0, 1, 0);

/// First member of the family of an architecture: instructions of `sm_120f` run on every member.
const fn family(sm: u32) -> u32 {
    match sm {
        100 | 103 => 100,
        101 | 110 => 110,
        120 | 121 => 120,
        other => other,
    }
}

impl On {
    fn holds(self, target: Target) -> bool {
        match self {
            On::Sm(sm) => target.sm >= sm,
            On::Special(list) => match target.suffix {
                TargetSuffix::None => false,
                TargetSuffix::Arch | TargetSuffix::Family => list.iter().any(|sm| family(*sm) == family(target.sm)),
            },
        }
    }

    fn name(self) -> String {
        match self {
            On::Sm(sm) => format!("sm_{sm} or later"),
            On::Special(list) => {
                let names: Vec<String> = list
                    .iter()
                    .map(|sm| if *sm < 100 { format!("sm_{sm}a") } else { format!("sm_{sm}a/sm_{sm}f") })
                    .collect();
                format!("one of {}", names.join(", "))
            }
        }
    }
}

/// Text of a target, e.g. `sm_120a`.
pub(crate) fn target_name(target: Target) -> String {
    let suffix = match target.suffix {
        TargetSuffix::None => "",
        TargetSuffix::Arch => "a",
        TargetSuffix::Family => "f",
    };
    format!("sm_{}{suffix}", target.sm)
}

impl Need {
    /// Why a module with this version and target may not use the form; `None` if it may.
    pub(crate) fn lacking(self, version: (u32, u32), target: Target) -> Option<String> {
        if !self.on.holds(target) {
            return Some(format!("needs .target {}, got {}", self.on.name(), target_name(target)));
        }
        if version < self.ptx {
            let ((a, b), (c, d)) = (self.ptx, version);
            return Some(format!("needs .version {a}.{b} or later, got {c}.{d}"));
        }
        None
    }
}

/// PTX version that brought a target; `None` for an architecture that is not known.
pub(crate) fn introduced(target: Target) -> Option<(u32, u32)> {
    use TargetSuffix::*;
    Some(match (target.sm, target.suffix) {
        (70, None) => (6, 0),
        (72, None) => (6, 1),
        (75, None) => (6, 3),
        (80, None) => (7, 0),
        (86, None) => (7, 1),
        (87, None) => (7, 4),
        (88, None) => (9, 0),
        (89 | 90, None) => (7, 8),
        (90, Arch) => (8, 0),
        (100 | 101, None | Arch) => (8, 6),
        (120, None | Arch) => (8, 7),
        (100 | 101 | 120, Family) | (103 | 121, _) => (8, 8),
        (110, _) => (9, 0),
        _ => return Option::None,
    })
}

/// Reads `sm_120a`.
pub(crate) fn parse_target(text: &str) -> Option<Target> {
    let rest = text.strip_prefix("sm_")?;
    let digits = rest.trim_end_matches(|c: char| !c.is_ascii_digit());
    let suffix = match &rest[digits.len()..] {
        "" => TargetSuffix::None,
        "a" => TargetSuffix::Arch,
        "f" => TargetSuffix::Family,
        _ => return None,
    };
    if digits.len() > 3 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Target { sm: digits.parse().ok()?, suffix })
}
