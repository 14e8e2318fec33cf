//! What a rank's thread does for the tier around and inside a step.

use super::copier::Job;
use super::copy::{Copy, Landing};
use super::disk::Check;
use super::parts::Parts;
use super::port::Filling;
use super::{HostTier, HostTierError};
use crate::handover::{PageMove, PageRun};
use crate::host_cache::{HostLoad, HostOrders, HostSave};
use crate::model::cache::{Caches, refused};
use reference::ops::{Ops, OpsError};
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer::exchange::{CopyId, CopySeen};
use transfer::gate::PageGate;
use transfer::ids::Unit;
use transfer::reason::{Code, Reason};

impl HostTier {
    /// What stands before the step of an order: drops, then loads, then whatever is staged, without waiting.
    ///
    /// # Errors
    /// Orders that contradict what the tier knows; pages that the gate does not give; the device; a copy engine that is gone.
    pub fn begin<O: Ops>(
        &mut self,
        ops: &O,
        caches: &mut Caches<O::Buffer>,
        orders: &HostOrders,
    ) -> Result<(), OpsError> {
        let gate = caches.gate();
        orders.drops.iter().try_for_each(|&id| self.give_up(gate, id)).map_err(refused(ops))?;
        orders.loads.iter().try_for_each(|load| self.load(gate, load)).map_err(refused(ops))?;
        self.port.hear();
        // What is staged meanwhile waits for the next order, or a step would wait for pages that it does not read.
        (0..self.port.num_staged()).try_for_each(|_| self.take_in(ops, caches).map(drop))
    }

    /// What stands behind the step: the pages are read and handed to the copy engine.
    ///
    /// # Errors
    /// As [`HostTier::begin`]; no buffer until the deadline.
    pub fn save<O: Ops>(&mut self, ops: &O, caches: &Caches<O::Buffer>, saves: &[HostSave]) -> Result<(), OpsError> {
        saves.iter().try_for_each(|save| self.read_out(ops, caches, save))
    }

    /// Every copy that was ordered and not dropped.
    pub fn view(&mut self) -> BTreeMap<CopyId, CopySeen> {
        self.port.hear();
        self.port.copies.iter().map(|(&id, copy)| (id, copy.seen.clone())).collect()
    }

    /// Loads that a step with these reads has to wait for.
    pub fn awaited(&self, read: &[PageRun]) -> Vec<CopyId> {
        let copies = self.port.copies.iter();
        copies.filter(|(_, copy)| copy.is_awaited_by(read)).map(|(&id, _)| id).collect()
    }

    /// Takes staged pages in until a unit of all these loads may be read.
    ///
    /// # Errors
    /// As [`HostTier::begin`]; a load that has failed; a unit that does not come until the deadline.
    pub fn await_unit<O: Ops>(
        &mut self,
        ops: &O,
        caches: &mut Caches<O::Buffer>,
        unit: Unit,
        loads: &[CopyId],
    ) -> Result<(), OpsError> {
        let until = self.port.until();
        for &id in loads {
            while !self.is_published(caches.gate(), id, unit).map_err(refused(ops))? {
                if !self.take_in(ops, caches)? {
                    self.port.wait(until, (id, unit, "loaded")).map_err(refused(ops))?;
                }
            }
        }
        Ok(())
    }

    fn is_published(&self, gate: &PageGate, id: CopyId, unit: Unit) -> Result<bool, HostTierError> {
        let Some(copy) = self.port.copies.get(&id) else { return Ok(true) };
        match (&copy.seen, &copy.landing) {
            (CopySeen::Failed(reason), _) => Err(HostTierError::Failed { id, reason: reason.clone() }),
            (_, Some(landing)) => Ok(landing.is_published(gate, unit)?),
            (_, None) => Ok(true),
        }
    }

    /// Parts of a copy, once its number and its slots have been looked at.
    fn parts(&self, id: CopyId, moves: &[PageMove]) -> Result<Arc<Parts>, HostTierError> {
        if self.port.copies.contains_key(&id) {
            return Err(HostTierError::Again(id));
        }
        let layout = self.handover.layout();
        let slots = |pages: &PageMove| layout.classes().get(pages.class.0 as usize).map_or(0, |class| class.num_pages);
        if let Some(pages) = moves.iter().find(|pages| pages.arena >= slots(pages)) {
            return Err(HostTierError::Slot { id, class: pages.class, slot: pages.arena, slots: slots(pages) });
        }
        Ok(Arc::new(Parts::new(layout, moves, self.buffer_bytes)))
    }

    fn load(&mut self, gate: &Arc<PageGate>, load: &HostLoad) -> Result<(), HostTierError> {
        let parts = self.parts(load.id, &load.pages)?;
        let left = parts.list.len();
        let mut copy = Copy {
            parts: Arc::clone(&parts),
            seen: if self.kinds.check(&parts.moves) == Check::No { CopySeen::Checked } else { CopySeen::Moving },
            left,
            generation: Some(load.generation),
            landing: None,
        };
        let empty = parts.moves.iter().find(|pages| !self.port.filled.contains(&(pages.class, pages.arena)));
        if let Some(PageMove { class, arena, .. }) = empty {
            let name = &self.handover.layout().classes()[class.0 as usize].name;
            let why = format!("slot {arena} of class {name} holds no page");
            copy.seen = CopySeen::Failed(Reason::new(Code::HostMemory, why));
        } else if parts.moves.is_empty() {
            copy.seen = CopySeen::Done;
        } else {
            let landing = Landing::new(gate, self.handover.layout(), load, &parts)?;
            // Pages without a byte in any item are published by now.
            copy.landing = Some(landing).filter(|_| left > 0);
            match left {
                0 => copy.seen = CopySeen::Done,
                _ => self.port.send(Job::Load { id: load.id, parts })?,
            }
        }
        self.port.copies.insert(load.id, copy);
        Ok(())
    }

    /// A part of a save stands in the queue ahead of everything that is ordered later, so that only loads have to be stopped.
    fn give_up(&mut self, gate: &PageGate, id: CopyId) -> Result<(), HostTierError> {
        let landing = self.port.copies.remove(&id).and_then(|copy| copy.landing);
        let Some(landing) = landing else { return Ok(()) };
        landing.give_up(gate)?;
        self.port.send(Job::Stop(id))
    }

    /// Copies one staged part into the cache; `false` if there is none.
    fn take_in<O: Ops>(&mut self, ops: &O, caches: &mut Caches<O::Buffer>) -> Result<bool, OpsError> {
        let Self { handover, port, .. } = self;
        let Some((id, part, buffer)) = port.next_staged() else { return Ok(false) };
        if let Some(Copy { parts, seen, left, landing, .. }) = port.copies.get_mut(&id)
            && let Some(of) = landing
            && !matches!(seen, CopySeen::Failed(_))
        {
            let part = &parts.list[part];
            let moves = parts.pages(part);
            let mut pages = buffer.chunks_exact(part.bytes / moves.len());
            let mut get = |_: u64, page: &mut [u8]| {
                page.copy_from_slice(pages.next().ok_or("fewer pages than were asked for")?);
                Ok(())
            };
            handover.import_item(ops, caches, part.item, moves, &mut get)?;
            of.landed(handover.layout(), part).map_err(refused(ops))?;
            *left -= 1;
            if *left == 0 {
                (*seen, *landing) = (CopySeen::Done, None);
            }
        }
        port.send(Job::Return(buffer)).map_err(refused(ops))?;
        Ok(true)
    }

    fn read_out<O: Ops>(&mut self, ops: &O, caches: &Caches<O::Buffer>, save: &HostSave) -> Result<(), OpsError> {
        let id = save.id;
        let parts = self.parts(id, &save.pages).map_err(refused(ops))?;
        let Self { handover, port, .. } = self;
        for pages in &parts.moves {
            port.filled.remove(&(pages.class, pages.arena));
        }
        let left = parts.list.len();
        let seen = if left == 0 { CopySeen::Done } else { CopySeen::Moving };
        port.copies.insert(id, Copy { parts: Arc::clone(&parts), seen, left, generation: None, landing: None });
        let mut filling = Filling::default();
        for unit in (0..handover.layout().num_units()).map(Unit) {
            let mut put =
                |_: u64, page: &[u8]| port.put(id, &parts, &mut filling, page).map_err(|error| error.to_string());
            handover.export(ops, caches, unit, &parts.moves, &save.runs, &mut put)?;
        }
        Ok(())
    }
}
