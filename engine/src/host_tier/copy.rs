//! What a rank knows of a copy, and the cache pages that a load fills.

use super::HostTierError;
use super::parts::{Part, Parts};
use crate::handover::PageRun;
use crate::host_cache::HostLoad;
use crate::ids::Generation;
use std::sync::Arc;
use transfer::exchange::CopySeen;
use transfer::gate::{Countdown, GateError, PageGate, Pages, PendingPages};
use transfer::ids::Unit;
use transfer::layout::Layout;

/// A save or a load.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) parts: Arc<Parts>,
    pub(super) seen: CopySeen,
    /// Parts that are not stored, or not in the cache.
    pub(super) left: usize,
    /// Of a load: whose the cache pages are.
    pub(super) generation: Option<Generation>,
    /// Of a load that is under way.
    pub(super) landing: Option<Landing>,
}

impl Copy {
    /// Whether a step that reads these pages needs something of this copy that is not there.
    pub(super) fn is_awaited_by(&self, read: &[PageRun]) -> bool {
        let Some(generation) = self.generation.filter(|_| self.seen != CopySeen::Done) else { return false };
        let brings = |class, page| self.parts.moves.iter().any(|pages| (pages.class, pages.cache) == (class, page));
        let mut own = read.iter().filter(|run| run.generation == generation);
        own.any(|run| run.pages.iter().any(|&page| brings(run.class, page)))
    }
}

/// Cache pages between claim and publication.
#[derive(Debug)]
pub(super) struct Landing {
    pending: Arc<PendingPages>,
    /// By unit; dropped when nothing is written any more.
    units: Vec<Countdown>,
}

impl Landing {
    /// Claims the pages of a load and announces its parts to the gate.
    pub(super) fn new(
        gate: &Arc<PageGate>,
        layout: &Layout,
        load: &HostLoad,
        parts: &Parts,
    ) -> Result<Self, HostTierError> {
        let claimed = PageRun::claim(&PageRun::of_moves(&parts.moves, load.generation), gate)?;
        let count = claimed.iter().flat_map(PendingPages::pages).map(|run| run.pages.len()).sum();
        let mut claimed = claimed.into_iter();
        let Some(pending) = claimed.next().filter(|_| count == parts.moves.len()) else {
            return Err(HostTierError::Claim { id: load.id, pages: parts.moves.len(), claimed: count });
        };
        let pending = Arc::new(pending);
        let landing = |unit: u32| {
            let items = layout.items().iter().enumerate().filter(|(_, item)| item.spec.unit.0 == unit);
            let copies: Vec<_> = items.map(|(at, item)| (item.spec.name.as_str(), parts.of_item(at))).collect();
            gate.landing(Unit(unit), &pending, &copies)
        };
        let units = (0..gate.num_units()).map(landing).collect::<Result<_, _>>()?;
        Ok(Self { pending, units })
    }

    fn runs(&self) -> Vec<Pages<'_>> {
        self.pending.pages().collect()
    }

    /// A part is in the cache; the last one of a unit publishes it.
    pub(super) fn landed(&self, layout: &Layout, part: &Part) -> Result<(), GateError> {
        let before = layout.items()[..part.item].iter().filter(|item| item.spec.unit == part.unit).count();
        self.units[part.unit.0 as usize].done(before).map(drop)
    }

    /// Whether the gate lets readers of a unit through.
    pub(super) fn is_published(&self, gate: &PageGate, unit: Unit) -> Result<bool, GateError> {
        match gate.readable(unit, &self.runs()) {
            Ok(_) => Ok(true),
            Err(GateError::Unpublished { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the pages back: whoever is given them next, be it the same generation, claims them anew.
    pub(super) fn give_up(mut self, gate: &PageGate) -> Result<(), GateError> {
        self.units.clear();
        gate.revoke(&self.runs())
    }
}
