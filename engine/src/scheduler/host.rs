//! The tier under the prefix cache: which texts are copied to host memory, which are copied back, and who holds what meanwhile.
//!
//! **Loads.** A request whose beginning is in host memory and not on the device is admitted like any other, gets device pages for
//! what comes, and is **loading**: it holds pages and takes part in no step. Once every rank has checked the copy, nothing can
//! fail any more and the request runs; ranks wait inside the step, layer by layer, for what still moves. One that is computed
//! elsewhere first waits for the whole copy and then asks for the rest. Loaded pages are offered to the prefix cache when all of
//! them are here. A load that fails sends its request back to its place in the queue, before all that are younger, and the slots are
//! not read again.
//!
//! **Saves** follow a [`HostPolicy`]. Their pages are read by the ranks when the order that brings them is carried out, and are held
//! until it is answered.
//!
//! **No page and no slot changes hands under a copy.** A copy that is not wanted any more is dropped by an order; its device pages and
//! its slots return once that order has been answered. While pages will return that way the scheduler waits for them, as it waits
//! for steps in flight, before it preempts anybody.

mod loads;
mod saves;

use super::Scheduler;
use crate::host_cache::{HostCache, HostHit, HostOrders, HostSizes, HostStats, Save, SlotBytes};
use crate::ids::SequenceId;
use crate::pools::{Compressed, PageRef, Window};
use crate::prefix::NodeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfer::exchange::{CopyId, CopySeen};

/// When a text is copied to host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostPolicy {
    /// As soon as a page of it is full.
    WriteThrough,
    /// When a second request has been resumed from it.
    WriteThroughSelective,
    /// When the prefix cache is about to drop it.
    WriteBack,
}

/// Host memory of every rank, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostConfig {
    /// Slots, those on disk included.
    pub sizes: HostSizes,
    /// Of these, the last ones, on disk.
    pub on_disk: HostSizes,
    /// What is copied when.
    pub policy: HostPolicy,
    /// Copies to the host under way at most, and as many back.
    pub max_copies: u32,
    /// Bytes of a slot, for those who look.
    pub slot_bytes: SlotBytes,
}

impl HostConfig {
    /// Up to 64 copies each way.
    pub fn new(sizes: HostSizes, policy: HostPolicy) -> Self {
        Self { sizes, on_disk: HostSizes::default(), policy, max_copies: 64, slot_bytes: SlotBytes::default() }
    }
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In no order yet.
    Queued,
    /// In an order that was handed over.
    Ordered,
    /// An order to drop it waits or was handed over.
    Dropping,
}

#[derive(Debug)]
struct Load {
    sequence: SequenceId,
    hit: HostHit,
    stage: Stage,
    failed: bool,
}

#[derive(Debug)]
struct Saving {
    save: Save,
    stage: Stage,
    /// Until the order that reads them is answered.
    compressed: Option<PageRef<Compressed>>,
    window: Option<PageRef<Window>>,
}

/// The tier and the copies under way.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) cache: HostCache,
    config: HostConfig,
    loads: BTreeMap<CopyId, Load>,
    saves: BTreeMap<CopyId, Saving>,
    loading: BTreeSet<SequenceId>,
    /// Texts that will be saved, with their window pages or without.
    wanted: VecDeque<(NodeId, bool)>,
    orders: HostOrders,
    next_copy: u64,
}

impl Host {
    pub(super) fn new(config: HostConfig, page_tokens: u32) -> Self {
        Self {
            cache: HostCache::new(page_tokens, config.sizes, config.on_disk),
            config,
            loads: BTreeMap::new(),
            saves: BTreeMap::new(),
            loading: BTreeSet::new(),
            wanted: VecDeque::new(),
            orders: HostOrders::default(),
            next_copy: 1,
        }
    }

    fn next_copy(&mut self) -> CopyId {
        let id = CopyId(self.next_copy);
        self.next_copy += 1;
        id
    }

    /// Device pages that saves hold.
    pub(super) fn pages(&self) -> (impl Iterator<Item = &PageRef<Compressed>>, impl Iterator<Item = &PageRef<Window>>) {
        let compressed = self.saves.values().filter_map(|saving| saving.compressed.as_ref());
        (compressed, self.saves.values().filter_map(|saving| saving.window.as_ref()))
    }
}

impl Scheduler {
    /// What the next order has the ranks copy.
    pub fn take_host_orders(&mut self) -> HostOrders {
        self.save_wanted();
        let Some(host) = &mut self.host else { return HostOrders::default() };
        let orders = std::mem::take(&mut host.orders);
        for load in &orders.loads {
            host.loads.entry(load.id).and_modify(|load| load.stage = Stage::Ordered);
        }
        for save in &orders.saves {
            host.saves.entry(save.id).and_modify(|saving| saving.stage = Stage::Ordered);
        }
        orders
    }

    /// An order has been carried out by every rank: its saves have been read, and what it drops is not touched any more.
    pub fn host_carried_out(&mut self, orders: &HostOrders) {
        orders.saves.iter().for_each(|save| self.leave_saved_pages(save.id));
        for &id in &orders.drops {
            self.dropped_load(id);
            self.dropped_save(id);
        }
    }

    /// What the ranks have seen of the copies.
    pub fn host_seen(&mut self, copies: &BTreeMap<CopyId, CopySeen>) {
        for (&id, seen) in copies {
            self.load_seen(id, seen);
            self.save_seen(id, seen);
        }
    }

    /// The ranks have stopped: no copy will end, and nobody will read what it brought.
    pub fn host_lost(&mut self) {
        let Some(host) = &mut self.host else { return };
        host.orders = HostOrders::default();
        let ids: Vec<CopyId> = host.loads.keys().chain(host.saves.keys()).copied().collect();
        host.loads.values_mut().for_each(|load| load.stage = Stage::Dropping);
        host.saves.values_mut().for_each(|saving| saving.stage = Stage::Dropping);
        for id in ids {
            self.leave_saved_pages(id);
            self.dropped_load(id);
            self.dropped_save(id);
        }
    }

    /// Whether copies are under way or to be ordered: exchanges are needed although nothing is computed.
    pub fn has_copies(&self) -> bool {
        let Some(host) = &self.host else { return false };
        !(host.loads.is_empty() && host.saves.is_empty() && host.wanted.is_empty() && host.orders.is_empty())
    }

    /// Requests whose beginnings are copied out of host memory.
    pub fn num_loading(&self) -> usize {
        self.host.as_ref().map_or(0, |host| host.loading.len())
    }

    /// The tier under the prefix cache, to look at.
    pub fn host_cache(&self) -> Option<&HostCache> {
        self.host.as_ref().map(|host| &host.cache)
    }

    /// Counts of the tier since the start.
    pub fn host_stats(&self) -> HostStats {
        self.host_cache().map(HostCache::stats).unwrap_or_default()
    }

    /// Slots on disk.
    pub fn host_on_disk(&self) -> HostSizes {
        self.host.as_ref().map(|host| host.config.on_disk).unwrap_or_default()
    }

    /// Bytes of a slot.
    pub fn host_slot_bytes(&self) -> SlotBytes {
        self.host.as_ref().map(|host| host.config.slot_bytes).unwrap_or_default()
    }

    /// Whether a request that is older than this one waits again once its copy has been dropped.
    pub(super) fn comes_back_before(&self, id: SequenceId) -> bool {
        let Some(host) = &self.host else { return false };
        let waits = |load: &Load| host.loading.contains(&load.sequence) && load.sequence < id;
        host.loads.values().any(|load| load.stage == Stage::Dropping && waits(load))
    }

    /// Whether copies hold pages that return without anybody giving way: those that saves read, those of loads that are dropped,
    /// and those of loads that cannot fail any more.
    pub(super) fn copies_hold_pages(&self) -> bool {
        let Some(host) = &self.host else { return false };
        let (mut compressed, mut windows) = host.pages();
        let ends = |load: &Load| load.stage == Stage::Dropping || !host.loading.contains(&load.sequence);
        // Where no further save may be begun, those under way make room for one.
        let full = host.config.policy == HostPolicy::WriteBack && host.saves.len() >= host.config.max_copies as usize;
        compressed.next().is_some() || windows.next().is_some() || full || host.loads.values().any(ends)
    }
}
