//! What the scheduler has the ranks copy between cache pages and host slots, with a step.

use crate::handover::{PageMove, PageRun};
use crate::ids::Generation;
use std::sync::Arc;
use transfer::exchange::CopyId;

/// Cache pages -> host slots. The pages are read when the order is carried out, behind its step; they hold what they held before
/// the step, for full pages are never written again. `arena` of a move is the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSave {
    /// Number.
    pub id: CopyId,
    /// Pages and slots, the same for every unit.
    pub pages: Arc<[PageMove]>,
    /// The cache pages, by who was given them.
    pub runs: Arc<[PageRun]>,
}

/// Host slots -> cache pages. `arena` of a move is the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLoad {
    /// Number.
    pub id: CopyId,
    /// Pages and slots, the same for every unit.
    pub pages: Arc<[PageMove]>,
    /// Whose the cache pages are.
    pub generation: Generation,
}

/// The host tier's part of an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostOrders {
    /// Behind the step.
    pub saves: Vec<HostSave>,
    /// Begun before the step, which may wait for them layer by layer once they are checked.
    pub loads: Vec<HostLoad>,
    /// Copies that have ended and are not reported any more. One that has not ended is given up: its slots are free after this
    /// order, and a load has stopped writing cache pages. A load that failed holds its cache pages until then.
    pub drops: Vec<CopyId>,
}

impl HostOrders {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.saves.is_empty() && self.loads.is_empty() && self.drops.is_empty()
    }
}
