//! Where the registers of the text live in a warp's register files.

use super::liveness::{Interval, intervals};
use crate::exec::program::Slot;
use crate::ir::{Entry, Type};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// Gives every interval a slot so that those that overlap get different ones.
fn share(items: &mut [(u32, u32, usize)], assign: &mut impl FnMut(usize, Slot)) -> usize {
    items.sort_unstable();
    // Slots in use, by the end of their interval, and free ones, lowest first.
    let mut busy: BinaryHeap<Reverse<(u32, Slot)>> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<Slot>> = BinaryHeap::new();
    let mut count = 0;
    for (first, last, register) in items.iter() {
        while let Some(Reverse((end, slot))) = busy.peek().copied()
            && end < *first
        {
            busy.pop();
            free.push(Reverse(slot));
        }
        let slot = match free.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                count += 1;
                count - 1
            }
        };
        busy.push(Reverse((*last, slot)));
        assign(*register, slot);
    }
    count as usize
}

impl Registers {
    /// Shares the slots of 32- and 64-bit registers between those that are never alive together. Predicate slot 0 is the
    /// constant true.
    pub(crate) fn assign(entry: &Entry) -> Self {
        let alive = intervals(entry);
        let items = |wanted: &dyn Fn(Type) -> bool| -> Vec<(u32, u32, usize)> {
            let known = |(i, interval): (usize, &Interval)| {
                let (first, last) = (*interval)?;
                wanted(entry.registers[i].ty).then_some((first, last, i))
            };
            alive.iter().enumerate().filter_map(known).collect()
        };
        // A register that never occurs is never looked up.
        let mut locations = vec![Location::P(0); entry.registers.len()];
        let num32 = share(&mut items(&|ty| ty != Type::Pred && ty.bits() <= 32), &mut |i, slot| {
            locations[i] = Location::W(slot);
        });
        let mut num64 = share(&mut items(&|ty| ty.bits() == 64), &mut |i, slot| locations[i] = Location::X(slot));
        let mut num_pred = 1;
        for (i, register) in entry.registers.iter().enumerate() {
            if register.ty == Type::Pred {
                locations[i] = Location::P(num_pred);
                num_pred += 1;
            } else if register.ty.bits() > 64 {
                locations[i] = Location::Pair(num64 as Slot);
                num64 += 2;
            }
        }
        Self { locations, num32, num64, num_pred: num_pred as usize, sink32: None, sink64: None }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_overlap_do_not_share() {
        // Pseudo-random intervals; the count must equal the largest number alive at once.
        let mut rng = crate::exec::rng::Rng::new(5, 5);
        let mut items: Vec<(u32, u32, usize)> = (0..300)
            .map(|i| {
                let first = rng.below(1000) as u32;
                (first, first + rng.below(50) as u32, i)
            })
            .collect();
        let mut slots = vec![u32::MAX; 300];
        let count = share(&mut items, &mut |i, slot| slots[i] = slot);
        let most = (0..1100).map(|t| items.iter().filter(|(a, b, _)| (*a..=*b).contains(&t)).count()).max().unwrap();
        assert_eq!(count, most);
        for (i, (a, b, x)) in items.iter().enumerate() {
            for (c, d, y) in &items[i + 1..] {
                assert!(b < c || d < a || slots[*x] != slots[*y]);
            }
        }
    }
}
