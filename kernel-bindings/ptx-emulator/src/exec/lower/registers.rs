//! Where the registers of the text live in a warp's register files.

use crate::exec::program::Slot;
use crate::ir::{Entry, Type};

/// Register file and slot of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// 32-bit file.
    W(Slot),
    /// 64-bit file.
    X(Slot),
    /// Two slots of the 64-bit file.
    Pair(Slot),
    /// Predicate.
    P(u32),
}

/// The assignment of an entry's registers.
pub(crate) struct Registers {
    pub(crate) locations: Vec<Location>,
    pub(crate) num32: usize,
    pub(crate) num64: usize,
    pub(crate) num_pred: usize,
    sink32: Option<Slot>,
    sink64: Option<Slot>,
}

impl Registers {
    /// One slot per register; predicate slot 0 is the constant true.
    pub(crate) fn assign(entry: &Entry) -> Self {
        let (mut num32, mut num64, mut num_pred) = (0, 0, 1);
        let take = |counter: &mut usize, n: usize| {
            *counter += n;
            (*counter - n) as u32
        };
        let locations = entry
            .registers
            .iter()
            .map(|register| match register.ty {
                Type::Pred => Location::P(take(&mut num_pred, 1)),
                ty if ty.bits() <= 32 => Location::W(take(&mut num32, 1)),
                ty if ty.bits() == 64 => Location::X(take(&mut num64, 1)),
                _ => Location::Pair(take(&mut num64, 2)),
            })
            .collect();
        Self { locations, num32, num64, num_pred, sink32: None, sink64: None }
    }

    /// A fresh slot of the 32-bit file.
    pub(crate) fn new32(&mut self) -> Slot {
        self.num32 += 1;
        self.num32 as u32 - 1
    }

    /// A fresh slot of the 64-bit file.
    pub(crate) fn new64(&mut self) -> Slot {
        self.num64 += 1;
        self.num64 as u32 - 1
    }

    /// A 32-bit slot that nobody reads.
    pub(crate) fn sink32(&mut self) -> Slot {
        if let Some(slot) = self.sink32 {
            return slot;
        }
        let slot = self.new32();
        self.sink32 = Some(slot);
        slot
    }

    /// A 64-bit slot that nobody reads.
    pub(crate) fn sink64(&mut self) -> Slot {
        if let Some(slot) = self.sink64 {
            return slot;
        }
        let slot = self.new64();
        self.sink64 = Some(slot);
        slot
    }
}
