//! Vector clocks, compact for warps that stay together.

use super::event::{Event, FAMILIES};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lane mask of a whole warp.
pub(super) const ALL: u32 = u32::MAX;

/// A vector clock over the *slots* of a block.
///
/// A slot is one warp's threads, one warp's asynchronous agents of one kind (a lane's `cp.async` groups, its bulk
/// groups), or one mbarrier's transactions; see [`super::event`]. `base[slot]` holds for all 32 lanes; the few slots
/// whose lanes differ have a row on top. So a comparison with a convergent warp is one load and one compare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock {
    base: Vec<u32>,
    rows: Vec<Row>,
}

/// Entries of one slot by lane; each is at least the slot's base and at least one is above it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    slot: u32,
    at: [u32; 32],
}

impl Clock {
    /// Lanes of `mask` whose entry in `slot` is below `epoch`.
    #[inline]
    pub(super) fn missing(&self, slot: u32, mask: u32, epoch: u32) -> u32 {
        if self.base.get(slot as usize).is_some_and(|&base| base >= epoch) {
            0
        } else {
            self.missing_lanes(slot, mask, epoch)
        }
    }

    #[cold]
    fn missing_lanes(&self, slot: u32, mask: u32, epoch: u32) -> u32 {
        let Ok(i) = self.rows.binary_search_by_key(&slot, |row| row.slot) else {
            return mask;
        };
        let at = &self.rows[i].at;
        (0..32).filter(|&lane| mask >> lane & 1 != 0 && at[lane as usize] < epoch).fold(0, |m, lane| m | 1 << lane)
    }

    /// True when all lanes of the slot are known up to `epoch` without looking at single lanes.
    #[inline]
    pub(super) fn covers_all(&self, slot: u32, epoch: u32) -> bool {
        self.base.get(slot as usize).is_some_and(|&base| base >= epoch)
    }

    /// Raises the entries of the lanes of `mask` to at least `epoch`.
    pub(super) fn raise(&mut self, slot: u32, mask: u32, epoch: u32) {
        if epoch == 0 || mask == 0 || self.covers_all(slot, epoch) {
            return;
        }
        if self.base.len() <= slot as usize {
            self.base.resize(slot as usize + 1, 0);
        }
        let found = self.rows.binary_search_by_key(&slot, |row| row.slot);
        if mask == ALL && found.is_err() {
            self.base[slot as usize] = epoch;
            return;
        }
        let i = found.unwrap_or_else(|i| {
            self.rows.insert(i, Row { slot, at: [self.base[slot as usize]; 32] });
            i
        });
        for (lane, at) in self.rows[i].at.iter_mut().enumerate() {
            if mask >> lane & 1 != 0 {
                *at = (*at).max(epoch);
            }
        }
        self.settle(i);
    }

    /// Moves what all lanes of row `i` share into the base; true when the row went away.
    fn settle(&mut self, i: usize) -> bool {
        let row = &self.rows[i];
        let (low, high) = row.at.iter().fold((u32::MAX, 0), |(low, high), &at| (low.min(at), high.max(at)));
        self.base[row.slot as usize] = low;
        if low == high {
            self.rows.remove(i);
        }
        low == high
    }

    /// Entry-wise maximum.
    pub(super) fn join(&mut self, other: &Clock) {
        if self.base.len() < other.base.len() {
            self.base.resize(other.base.len(), 0);
        }
        for (mine, &theirs) in self.base.iter_mut().zip(&other.base) {
            *mine = (*mine).max(theirs);
        }
        if self.rows.is_empty() && other.rows.is_empty() {
            return;
        }
        for row in &other.rows {
            let i = self.rows.binary_search_by_key(&row.slot, |row| row.slot).unwrap_or_else(|i| {
                self.rows.insert(i, Row { slot: row.slot, at: [0; 32] });
                i
            });
            for (mine, &theirs) in self.rows[i].at.iter_mut().zip(&row.at) {
                *mine = (*mine).max(theirs);
            }
        }
        let mut i = 0;
        while i < self.rows.len() {
            let base = self.base[self.rows[i].slot as usize];
            self.rows[i].at.iter_mut().for_each(|at| *at = (*at).max(base));
            if !self.settle(i) {
                i += 1;
            }
        }
    }
}

/// What is known of other blocks: block -> its clock.
pub(super) type Foreign = BTreeMap<u32, Arc<Clock>>;

/// The lanes of one warp that publish or look: all of one clock group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    pub(super) block: u32,
    pub(super) warp: u32,
    /// Warps of a block: the stride between families of slots.
    pub(super) warps: u32,
    /// [`ALL`] when every thread that the warp has takes part.
    pub(super) mask: u32,
    /// The warp's current epoch.
    pub(super) now: u32,
}

/// Knowledge of one kind (ordered before; ordered and fenced for the async proxy; ...) of the lanes of a group.
///
/// `own[family]` is what each lane knows of *its own* slot entry of that family, in addition to the clock; the group
/// shares one value because its lanes' knowledge is equal but for the owner. [`OWN_NOW`] stands for "up to now".
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) clock: Clock,
    pub(super) foreign: Option<Arc<Foreign>>,
    pub(super) own: [u32; FAMILIES],
}

/// In [`View::own`]: whatever the thread itself did.
pub(super) const OWN_NOW: u32 = u32::MAX;

impl View {
    /// Lanes of `mask` whose part in `event` is not known, leaving aside what a lane knows of itself.
    #[inline]
    pub(super) fn missing(&self, block: u32, event: &Event, mask: u32) -> u32 {
        if event.block == block {
            self.clock.missing(event.slot, mask, event.epoch)
        } else {
            let clock = self.foreign.as_ref().and_then(|foreign| foreign.get(&event.block));
            clock.map_or(mask, |clock| clock.missing(event.slot, mask, event.epoch))
        }
    }

    /// True when the whole slot is known up to the event, for every lane of the group alike.
    #[inline]
    pub(super) fn covers_all(&self, block: u32, event: &Event) -> bool {
        if event.block == block {
            self.clock.covers_all(event.slot, event.epoch)
        } else {
            let clock = self.foreign.as_ref().and_then(|foreign| foreign.get(&event.block));
            clock.is_some_and(|clock| clock.covers_all(event.slot, event.epoch))
        }
    }

    /// True when a lane's own share of the event is known to itself.
    #[inline]
    pub(super) fn owns(&self, lanes: &Lanes, event: &Event) -> bool {
        event.block == lanes.block
            && event.slot < FAMILIES as u32 * lanes.warps
            && event.slot % lanes.warps == lanes.warp
            && self.own[(event.slot / lanes.warps) as usize] >= event.epoch
    }

    /// Takes in what the publishing lanes know, their own entries included.
    pub(super) fn absorb(&mut self, from: &View, lanes: &Lanes) {
        self.join(from);
        for (family, &own) in from.own.iter().enumerate() {
            let own = if own == OWN_NOW { lanes.now } else { own };
            self.clock.raise(family as u32 * lanes.warps + lanes.warp, lanes.mask, own);
        }
    }

    /// Takes in the clocks of `other` (published knowledge of the same block).
    pub(super) fn join(&mut self, other: &View) {
        self.clock.join(&other.clock);
        if let Some(theirs) = &other.foreign {
            self.join_foreign(theirs);
        }
    }

    fn join_foreign(&mut self, theirs: &Arc<Foreign>) {
        match &mut self.foreign {
            None => self.foreign = Some(theirs.clone()),
            Some(mine) if Arc::ptr_eq(mine, theirs) => {}
            Some(mine) => {
                let mine = Arc::make_mut(mine);
                for (&block, clock) in theirs.iter() {
                    add_foreign(mine, block, clock);
                }
            }
        }
    }

    /// Takes in knowledge published by any blocks, for the use of `block`.
    fn join_blocks(&mut self, block: u32, theirs: &Arc<Foreign>) {
        if let Some(clock) = theirs.get(&block) {
            self.clock.join(clock);
        }
        if theirs.len() > usize::from(theirs.contains_key(&block)) {
            self.join_foreign(theirs);
        }
    }

    /// Adds published knowledge of `block` to this collection over blocks.
    fn collect(&mut self, block: u32, published: &View) {
        if let Some(theirs) = &published.foreign {
            self.join_foreign(theirs);
        }
        let foreign = Arc::make_mut(self.foreign.get_or_insert_default());
        add_foreign(foreign, block, &Arc::new(published.clock.clone()));
    }
}

fn add_foreign(to: &mut Foreign, block: u32, clock: &Arc<Clock>) {
    match to.entry(block) {
        std::collections::btree_map::Entry::Vacant(entry) => {
            entry.insert(clock.clone());
        }
        std::collections::btree_map::Entry::Occupied(mut entry) => {
            if !Arc::ptr_eq(entry.get(), clock) {
                Arc::make_mut(entry.get_mut()).join(clock);
            }
        }
    }
}

/// What is ordered before, and what of it the async proxy sees, per memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Core {
    pub(super) main: View,
    /// Covered by `fence.proxy.async`: shared, global.
    pub(super) proxy: [Option<Box<View>>; 2],
}

impl Core {
    pub(super) fn absorb(&mut self, from: &Core, lanes: &Lanes) {
        self.main.absorb(&from.main, lanes);
        for (mine, theirs) in self.proxy.iter_mut().zip(&from.proxy) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().absorb(theirs, lanes);
            }
        }
    }

    pub(super) fn join(&mut self, other: &Core) {
        self.main.join(&other.main);
        for (mine, theirs) in self.proxy.iter_mut().zip(&other.proxy) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().join(theirs);
            }
        }
    }

    /// Adds published knowledge of `block` to a collection over blocks (all of it in the foreign maps).
    pub(super) fn collect(&mut self, block: u32, published: &Core) {
        self.main.collect(block, &published.main);
        for (mine, theirs) in self.proxy.iter_mut().zip(&published.proxy) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().collect(block, theirs);
            }
        }
    }

    /// Takes in a collection over blocks.
    pub(super) fn join_blocks(&mut self, block: u32, collection: &Core) {
        if let Some(foreign) = &collection.main.foreign {
            self.main.join_blocks(block, foreign);
        }
        for (mine, theirs) in self.proxy.iter_mut().zip(&collection.proxy) {
            if let Some(foreign) = theirs.as_ref().and_then(|view| view.foreign.as_ref()) {
                mine.get_or_insert_default().join_blocks(block, foreign);
            }
        }
    }
}

/// Scopes that matter: block, cluster, everything wider.
pub(super) const LEVELS: usize = 3;

/// All that a group of lanes knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Know {
    pub(super) core: Core,
    /// Covered by a fence of at least that scope: what a later relaxed write releases.
    pub(super) fenced: [Option<Arc<Core>>; LEVELS],
    /// Seen by relaxed reads: what a later fence of at least that scope acquires.
    pub(super) pending: [Option<Arc<Core>>; LEVELS],
}

impl Know {
    /// Takes in what the publishing lanes know.
    pub(super) fn absorb(&mut self, from: &Know, lanes: &Lanes) {
        self.core.absorb(&from.core, lanes);
        for (mine, theirs) in self.side_mut().zip(from.side()) {
            if let Some(theirs) = theirs {
                Arc::make_mut(mine.get_or_insert_default()).absorb(theirs, lanes);
            }
        }
    }

    /// Takes in published knowledge.
    pub(super) fn join(&mut self, other: &Know) {
        self.core.join(&other.core);
        for (mine, theirs) in self.side_mut().zip(other.side()) {
            join_shared(mine, theirs);
        }
    }

    fn side(&self) -> impl Iterator<Item = &Option<Arc<Core>>> {
        self.fenced.iter().chain(&self.pending)
    }

    fn side_mut(&mut self) -> impl Iterator<Item = &mut Option<Arc<Core>>> {
        self.fenced.iter_mut().chain(&mut self.pending)
    }
}

/// Joins published knowledge into a component that may be shared or absent.
pub(super) fn join_shared(mine: &mut Option<Arc<Core>>, theirs: &Option<Arc<Core>>) {
    match (mine, theirs) {
        (_, None) => {}
        (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
        (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => {}
        (Some(mine), Some(theirs)) => Arc::make_mut(mine).join(theirs),
    }
}
