//! A set of units.

use crate::hello::MAX_UNITS;
use crate::ids::Unit;

/// Units of one room, at most [`MAX_UNITS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnitSet(pub u128);

impl UnitSet {
    /// No unit.
    pub const EMPTY: Self = Self(0);

    /// Units below `count`; all of [`MAX_UNITS`] when it is larger.
    pub fn first(count: u32) -> Self {
        Self(if count >= MAX_UNITS { u128::MAX } else { (1 << count) - 1 })
    }

    /// Adds a unit; whether it is new. One beyond [`MAX_UNITS`] is not added.
    pub fn insert(&mut self, unit: Unit) -> bool {
        let new = unit.0 < MAX_UNITS && !self.contains(unit);
        if new {
            self.0 |= 1 << unit.0;
        }
        new
    }

    /// Takes a unit out.
    pub fn remove(&mut self, unit: Unit) {
        if unit.0 < MAX_UNITS {
            self.0 &= !(1 << unit.0);
        }
    }

    /// Whether a unit is in it.
    pub fn contains(self, unit: Unit) -> bool {
        unit.0 < MAX_UNITS && self.0 >> unit.0 & 1 == 1
    }

    /// How many.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Units that are not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Units that are in both.
    pub fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Units, ascending.
    pub fn iter(self) -> impl Iterator<Item = Unit> {
        (0..MAX_UNITS).map(Unit).filter(move |&unit| self.contains(unit))
    }
}

impl FromIterator<Unit> for UnitSet {
    fn from_iter<I: IntoIterator<Item = Unit>>(units: I) -> Self {
        let mut set = Self::EMPTY;
        units.into_iter().for_each(|unit| _ = set.insert(unit));
        set
    }
}
