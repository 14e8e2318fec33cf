//! Ranks that copy pages between the fake model and host memory: late, in any order, one rank after the other, and not always
//! well. A copy moves bytes at any moment between its order and the order that drops it.

use crate::fake::{FakeModel, PageRows};
use engine::handover::PageMove;
use engine::host_cache::HostOrders;
use reference::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer::exchange::{CopyId, CopySeen, Report, merge};
use transfer::ids::Class;
use transfer::reason::{Code, Reason};

/// Where the bytes of a copy come from.
#[derive(Clone)]
enum Bytes {
    /// Read out of the cache; they land in the slots.
    Save(Vec<PageRows>),
    /// In the slots; they land in the cache.
    Load { landed: bool },
}

#[derive(Clone)]
struct Copy {
    pages: Arc<[PageMove]>,
    bytes: Bytes,
    /// By rank.
    seen: Vec<CopySeen>,
}

/// Host memory, and the copies under way.
pub(crate) struct Tier {
    ranks: usize,
    slots: BTreeMap<(Class, u32), PageRows>,
    copies: BTreeMap<CopyId, Copy>,
    rng: Rng,
    /// Of copies that begin.
    fail: f64,
    pub(crate) failed: u32,
}

impl Tier {
    pub(crate) fn new(ranks: usize, seed: u64, fail: f64) -> Self {
        let (slots, copies, rng) = (BTreeMap::new(), BTreeMap::new(), Rng::named(seed, "tier"));
        Self { ranks, slots, copies, rng, fail, failed: 0 }
    }

    /// Before the step of an order: loads begin. What the step may wait for lands.
    pub(crate) fn before_step(&mut self, orders: &HostOrders, model: &mut FakeModel) {
        let seen = vec![CopySeen::Moving; self.ranks];
        for load in &orders.loads {
            load.pages.iter().for_each(|page| model.poison(page.class, page.cache));
            let copy = Copy { pages: load.pages.clone(), bytes: Bytes::Load { landed: false }, seen: seen.clone() };
            assert!(self.copies.insert(load.id, copy).is_none(), "a number is given once");
        }
        let checked: Vec<CopyId> = self.copies.iter().filter(|(_, c)| c.is_checked()).map(|(&id, _)| id).collect();
        checked.into_iter().for_each(|id| self.land(id, model));
    }

    /// Behind the step: saves are read, and what is dropped is not touched any more.
    pub(crate) fn behind_step(&mut self, orders: &HostOrders, model: &mut FakeModel) {
        for save in &orders.saves {
            let rows: Vec<PageRows> = save.pages.iter().map(|page| model.page(page.class, page.cache)).collect();
            save.pages.iter().for_each(|page| _ = self.slots.remove(&(page.class, page.arena)));
            let seen = vec![CopySeen::Moving; self.ranks];
            let copy = Copy { pages: save.pages.clone(), bytes: Bytes::Save(rows), seen };
            assert!(self.copies.insert(save.id, copy).is_none(), "a number is given once");
        }
        for id in &orders.drops {
            assert!(self.copies.remove(id).is_some(), "{id} is dropped once");
        }
    }

    /// What all ranks see.
    pub(crate) fn seen(&self) -> BTreeMap<CopyId, CopySeen> {
        let report = |rank: usize| {
            let copies = self.copies.iter().map(|(&id, copy)| (id, copy.seen[rank].clone())).collect();
            Report { rank: rank as u32, copies, ..Report::default() }
        };
        merge(&(0..self.ranks).map(report).collect::<Vec<_>>()).expect("ranks that stand together").copies
    }

    /// A rank gets on with a copy.
    pub(crate) fn advance(&mut self, model: &mut FakeModel) {
        let ids: Vec<CopyId> = self.copies.keys().copied().collect();
        let Some(&id) = ids.get(self.rng.below(ids.len().max(1) as u64) as usize) else { return };
        let rank = self.rng.below(self.ranks as u64) as usize;
        let fails = self.rng.chance(self.fail);
        let early = self.rng.chance(0.2);
        let copy = self.copies.get_mut(&id).expect("just listed");
        if copy.seen.iter().any(|seen| matches!(seen, CopySeen::Failed(_))) && early {
            return self.scribble(id, model);
        }
        match (&copy.bytes, &copy.seen[rank]) {
            (_, CopySeen::Done | CopySeen::Failed(_)) => {}
            (_, CopySeen::Moving) if fails => {
                copy.seen[rank] = CopySeen::Failed(Reason::new(Code::Protocol, "a page that is not what was saved"));
                self.failed += 1;
            }
            (Bytes::Save(_), _) => {
                copy.seen[rank] = CopySeen::Done;
                if copy.is(&CopySeen::Done) {
                    self.store(id);
                }
            }
            (Bytes::Load { .. }, CopySeen::Moving) => {
                copy.seen[rank] = CopySeen::Checked;
                if early {
                    self.land(id, model);
                }
            }
            (Bytes::Load { landed }, CopySeen::Checked) => match landed {
                true => copy.seen[rank] = CopySeen::Done,
                false => self.land(id, model),
            },
        }
    }

    /// A copy that has failed on one rank still writes on another.
    fn scribble(&mut self, id: CopyId, model: &mut FakeModel) {
        let Copy { pages, bytes, .. } = &self.copies[&id];
        for page in pages.iter() {
            match bytes {
                Bytes::Load { .. } => model.poison(page.class, page.cache),
                Bytes::Save(_) => _ = self.slots.remove(&(page.class, page.arena)),
            }
        }
    }

    fn store(&mut self, id: CopyId) {
        let Copy { pages, bytes: Bytes::Save(rows), .. } = self.copies[&id].clone() else { return };
        for (page, rows) in pages.iter().zip(rows) {
            self.slots.insert((page.class, page.arena), rows);
        }
    }

    /// The bytes of a load come to stand in its pages.
    fn land(&mut self, id: CopyId, model: &mut FakeModel) {
        let Some(Copy { pages, bytes: Bytes::Load { landed }, .. }) = self.copies.get_mut(&id) else { return };
        if std::mem::replace(landed, true) {
            return;
        }
        for page in pages.iter() {
            match self.slots.get(&(page.class, page.arena)) {
                Some(rows) => model.set_page(page.class, page.cache, rows),
                None => panic!("{id} reads slot {} of class {}, which is being written", page.arena, page.class.0),
            }
        }
    }
}

impl Copy {
    fn is(&self, wanted: &CopySeen) -> bool {
        self.seen.iter().all(|seen| seen == wanted)
    }

    /// Whether a step may wait for it.
    fn is_checked(&self) -> bool {
        matches!(self.bytes, Bytes::Load { .. })
            && self.seen.iter().all(|seen| matches!(seen, CopySeen::Checked | CopySeen::Done))
    }
}
