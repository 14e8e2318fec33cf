//! Copies out of host memory, and the requests that wait for them.

use super::{Host, Load, Stage};
use crate::geometry::PoolName;
use crate::handover::{Needed, PageMove, class};
use crate::host_cache::{HostHit, HostLoad};
use crate::ids::SequenceId;
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Role};
use transfer::exchange::{CopyId, CopySeen};

impl Scheduler {
    /// Whether as many loads are under way as may be.
    pub(in crate::scheduler) fn loads_are_full(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.loads.len() >= host.config.max_copies as usize)
    }

    pub(in crate::scheduler) fn unpin(&mut self, hit: Option<HostHit>) {
        if let (Some(host), Some(hit)) = (&mut self.host, hit) {
            host.cache.unpin(hit);
        }
    }

    pub(in crate::scheduler) fn youngest_loading(&self) -> Option<SequenceId> {
        self.host.as_ref()?.loading.last().copied()
    }

    /// An admitted sequence has the pages that the hit's copies go to: those behind its first `on_device` compressed ones, and the
    /// window page before the hit's end.
    pub(in crate::scheduler) fn begin_load(&mut self, id: SequenceId, hit: HostHit, on_device: usize) {
        let sequence = self.sequences.get_mut(&id).expect("admitted sequences exist");
        let host = self.host.as_mut().expect("a hit comes out of the tier");
        let moved = |pool, cache: u32, slot: u32| PageMove { class: class(pool), cache, arena: slot };
        let compressed = sequence.compressed[on_device..].iter().zip(&hit.compressed);
        let mut pages: Vec<PageMove> =
            compressed.map(|(page, slot)| moved(PoolName::Compressed, page.id().0, slot.0)).collect();
        let last = (hit.tokens / self.shape.window_page_tokens) as usize - 1;
        let window = sequence.window[last].as_ref().expect("it was taken for the load");
        pages.push(moved(PoolName::Window, window.id().0, hit.window.0));
        let copy = host.next_copy();
        sequence.phase = Phase::Loading;
        sequence.load = Some(copy);
        host.loading.insert(id);
        host.orders.loads.push(HostLoad { id: copy, pages: pages.into(), generation: sequence.generation });
        host.loads.insert(copy, Load { sequence: id, hit, stage: Stage::Queued, failed: false });
    }

    pub(super) fn load_seen(&mut self, copy: CopyId, seen: &CopySeen) {
        let Some(load) = self.host.as_mut().and_then(|host| host.loads.get_mut(&copy)) else { return };
        if load.stage != Stage::Ordered {
            return;
        }
        let id = load.sequence;
        let sequence = &self.sequences[&id];
        let loading = sequence.phase == Phase::Loading;
        match seen {
            CopySeen::Moving => {}
            // Who computes the rest elsewhere is asked once all is here.
            CopySeen::Checked if loading && sequence.role != Role::Remote => self.loaded(id),
            CopySeen::Checked => {}
            CopySeen::Done => {
                if loading {
                    self.loaded(id);
                }
                self.finish_load(copy);
            }
            CopySeen::Failed(_) => {
                load.failed = true;
                self.drop_load(id);
            }
        }
    }

    /// A loading sequence goes on.
    fn loaded(&mut self, id: SequenceId) {
        let sequence = &self.sequences[&id];
        let (cached, tokens) = (sequence.scheduled, sequence.tokens.len() as u32);
        let remote = (sequence.role == Role::Remote).then(|| Needed::at(&self.shape, cached, tokens));
        self.host.iter_mut().for_each(|host| _ = host.loading.remove(&id));
        self.go_on(id, cached, remote);
    }

    /// Every byte is here, on every rank: the text is offered to the prefix cache.
    fn finish_load(&mut self, copy: CopyId) {
        let Some((host, load)) = self.take_load(copy) else { return };
        host.orders.drops.push(copy);
        host.cache.finish_load(load.hit);
        let id = load.sequence;
        let sequence = self.sequences.get_mut(&id).expect("a request stays while its load is under way");
        sequence.load = None;
        self.publish(id);
        let sequence = &self.sequences[&id];
        if sequence.phase == Phase::Landing {
            let cached = sequence.committed;
            let first = Needed::at(&self.shape, cached, sequence.tokens.len() as u32).window.start;
            self.leave_unread_window(id, cached, first);
        }
    }

    fn take_load(&mut self, copy: CopyId) -> Option<(&mut Host, Load)> {
        let host = self.host.as_mut()?;
        let load = host.loads.remove(&copy)?;
        Some((host, load))
    }

    /// Drops the copy that a sequence waits for, if it has one: its pages return with the order that does so. False if there is none,
    /// or none any more.
    pub(in crate::scheduler) fn drop_load(&mut self, id: SequenceId) -> bool {
        let Some(copy) = self.sequences.get(&id).and_then(|sequence| sequence.load) else { return false };
        let Some(host) = &mut self.host else { return false };
        let Some(load) = host.loads.get_mut(&copy) else { return false };
        match load.stage {
            Stage::Dropping => {}
            Stage::Ordered => {
                load.stage = Stage::Dropping;
                host.orders.drops.push(copy);
            }
            Stage::Queued => {
                load.stage = Stage::Dropping;
                host.orders.loads.retain(|load| load.id != copy);
                self.dropped_load(copy);
            }
        }
        true
    }

    /// A request has ended: its copy is dropped, if it has one.
    pub(in crate::scheduler) fn stop_loading(&mut self, id: SequenceId) {
        self.host.iter_mut().for_each(|host| _ = host.loading.remove(&id));
        self.drop_load(id);
    }

    /// Nobody reads or writes for a load any more: its request waits again, or goes if it has ended.
    pub(super) fn dropped_load(&mut self, copy: CopyId) {
        let Some((host, load)) = self.take_load(copy) else { return };
        let id = load.sequence;
        host.loading.remove(&id);
        match load.failed {
            true => host.cache.forget(load.hit),
            false => host.cache.unpin(load.hit),
        }
        let sequence = self.sequences.get_mut(&id).expect("a request stays while its load is under way");
        sequence.load = None;
        match sequence.phase {
            Phase::Ended => self.end(id),
            Phase::Loading => self.give_way(id),
            // Its steps have waited for every row.
            _ => {}
        }
    }
}
