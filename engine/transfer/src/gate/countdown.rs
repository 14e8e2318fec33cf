//! Copies of a unit that are still under way; the last of them publishes it.

use super::{GateError, PageGate, PendingPages};
use crate::fault::Point;
use crate::ids::Unit;
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// Copies of one item.
#[derive(Debug)]
struct Copies {
    item: String,
    left: AtomicUsize,
    /// False for an item that a fault says not to wait for.
    awaited: bool,
}

/// Outstanding copies of one unit. Any thread reports a copy as done; the last one publishes the unit. Dropped before
/// that, the unit stays unpublished. While it lives, its pages are not given to anybody else.
#[derive(Debug)]
pub struct Countdown {
    gate: Arc<PageGate>,
    pages: Arc<PendingPages>,
    unit: Unit,
    copies: Box<[Copies]>,
    /// Awaited items with copies left.
    items: AtomicUsize,
    number: u64,
}

impl PageGate {
    /// Announces the copies that make up a unit, by item: `(name, number)`. Where there are none, it is published at once.
    ///
    /// # Errors
    /// A unit that is not there; pages revoked meanwhile.
    pub fn landing(
        self: &Arc<Self>,
        unit: Unit,
        pages: &Arc<PendingPages>,
        copies: &[(&str, usize)],
    ) -> Result<Countdown, GateError> {
        self.bit(unit)?;
        let number = {
            let mut state = self.lock();
            for run in pages.pages() {
                for &page in run.pages {
                    self.expect(run, page)?;
                }
            }
            state.enter(vec![pages.tag()])
        };
        let copies: Box<[_]> = copies
            .iter()
            .map(|&(item, left)| Copies {
                item: item.into(),
                left: AtomicUsize::new(left),
                awaited: left > 0 && self.faults.at(Point::Gate, item).is_none(),
            })
            .collect();
        let items = copies.iter().filter(|copies| copies.awaited).count();
        let landing = Countdown {
            gate: self.clone(),
            pages: pages.clone(),
            unit,
            copies,
            items: AtomicUsize::new(items),
            number,
        };
        if items == 0 {
            self.publish(unit, pages)?;
        }
        Ok(landing)
    }
}

impl Countdown {
    /// One copy of the item at that place of the announcement has landed whole. True: it was the last, the unit is published.
    ///
    /// # Errors
    /// More copies than announced; pages revoked meanwhile (the unit stays unpublished).
    pub fn done(&self, item: usize) -> Result<bool, GateError> {
        let overrun = |item: &str| GateError::Overrun { unit: self.unit, item: item.into() };
        let copies = self.copies.get(item).ok_or_else(|| overrun("an item that was not announced"))?;
        // Acquire and release on both counters: the last to count has seen the bytes of all others.
        let before = copies
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |left| left.checked_sub(1))
            .map_err(|_| overrun(&copies.item))?;
        if before > 1 || !copies.awaited || self.items.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(false);
        }
        self.gate.publish(self.unit, &self.pages)?;
        Ok(true)
    }

    /// Copies that have not landed, by item: what a deadline reports.
    pub fn missing(&self) -> impl Iterator<Item = (&str, usize)> {
        let left = |copies: &Copies| copies.left.load(Ordering::Relaxed);
        self.copies
            .iter()
            .filter(move |copies| left(copies) > 0)
            .map(move |copies| (copies.item.as_str(), left(copies)))
    }
}

impl Drop for Countdown {
    fn drop(&mut self) {
        self.gate.leave(self.number);
    }
}
