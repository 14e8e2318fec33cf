//! One running block: accesses, barriers and fences. Mbarriers and copies are in `mbarrier.rs` and `copies.rs`.

use super::api::{Access, AccessKind, Conflict, MemSpace};
use super::cell::Op;
use super::clock::{Core, Know, Lanes, join_shared};
use super::copies::AsyncOp;
use super::event::{Event, How, THREAD, level};
use super::launch::LaunchCheck;
use super::mbarrier::Mbarrier;
use super::object::{Object, Party};
use super::shadow::{AddressMap, Shadow};
use super::warp::{Warp, freeze, own};
use crate::ir::{Fence, Ordering, Scope, Space};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The order of one block's threads and the shadow of its shared memory.
///
/// Calls are made in the order in which the machine performs the operations. Masks select lanes of the named warp.
/// Shared memory costs what global memory does, see [`LaunchCheck`]; a thread's knowledge costs 16 bytes per warp of
/// the block for each set of lanes that know different things.
#[derive(Debug)]
pub struct BlockCheck {
    pub(super) launch: Arc<LaunchCheck>,
    pub(super) block: u32,
    pub(super) cluster: u32,
    pub(super) warps: Vec<Warp>,
    pub(super) shared: Shadow,
    barriers: BTreeMap<u32, Barrier>,
    pub(super) mbarriers: AddressMap<Mbarrier>,
    pub(super) operations: Vec<Option<AsyncOp>>,
    pub(super) free_operations: Vec<u32>,
}

/// A named barrier that some participants have reached.
#[derive(Debug, Default)]
struct Barrier {
    arrived: Know,
    waiting: Vec<(u32, u32)>,
}

impl BlockCheck {
    /// A block at its start: `block` is its linear index in the grid, `cluster` that of its cluster (any number of its
    /// own without clusters), `threads` at most 1024, `shared_bytes` the size of its shared window.
    pub fn new(launch: Arc<LaunchCheck>, block: u32, cluster: u32, threads: u32, shared_bytes: u32) -> Self {
        let warps = (0..threads.div_ceil(32)).map(|w| Warp::new(u32::MAX >> (32 - (threads - w * 32).min(32))));
        BlockCheck {
            launch,
            block,
            cluster,
            warps: warps.collect(),
            shared: Shadow::new(u64::from(shared_bytes)),
            barriers: BTreeMap::new(),
            mbarriers: AddressMap::default(),
            operations: Vec::new(),
            free_operations: Vec::new(),
        }
    }

    /// Checks one warp access and records it; for strong accesses also performs the release or acquire (so an acquire
    /// load must be reported when it is performed, each time it is performed). Appends to `conflicts`.
    pub fn access(&mut self, access: &Access<'_>, conflicts: &mut Vec<Conflict>) {
        let atomic = matches!(access.kind, AccessKind::Atomic | AccessKind::Reduce);
        let strong = atomic || access.ordering != Ordering::Weak;
        let write = atomic || access.kind == AccessKind::Write;
        let scope = if access.ordering == Ordering::Volatile { Scope::Sys } else { access.scope };
        let how = match access.kind {
            _ if strong => How::strong(write, scope),
            AccessKind::ReadNc => How::NC_READ,
            AccessKind::Write => How::WEAK_WRITE,
            _ => How::READ,
        };
        self.check(access, how, conflicts);
        if strong {
            self.synchronize(access, level(scope));
        }
    }

    /// Holds a per-lane access against the shadow, group by group of equal knowledge.
    pub(super) fn check(&mut self, access: &Access<'_>, how: How, conflicts: &mut Vec<Conflict>) {
        let start = conflicts.len();
        let event = self.event(access.warp, THREAD, self.warps[access.warp as usize].now, access.place, how);
        for group in &self.warps[access.warp as usize].groups {
            let mask = group.mask & access.mask;
            if mask == 0 {
                continue;
            }
            let who = self.lanes(access.warp);
            let mut op = Op::new(access.space, who, &group.know.core, &self.warps, event, start, conflicts);
            match access.space {
                MemSpace::Shared => self.shared.access(&mut op, mask, access.addr, access.bytes),
                MemSpace::Global => self.launch.access(&mut op, mask, access.addr, access.bytes),
            }
        }
    }

    /// An event of one family of this block.
    pub(super) fn event(&self, warp: u32, family: u32, epoch: u32, place: u32, how: How) -> Event {
        let slot = family * self.warps.len() as u32 + warp;
        Event { block: self.block, cluster: self.cluster, slot, epoch, place, issuer: warp * 32, how }
    }

    /// The lanes of a warp as they look or publish now.
    pub(super) fn lanes(&self, warp: u32) -> Lanes {
        let now = self.warps[warp as usize].now;
        Lanes { block: self.block, warp, warps: self.warps.len() as u32, mask: 0, now }
    }

    /// Published knowledge of one lane.
    fn published(&self, warp: u32, lane: u32, core: &Core) -> Arc<Core> {
        let lanes = Lanes { mask: self.warps[warp as usize].clock_mask(1 << lane), ..self.lanes(warp) };
        let mut out = Core::default();
        out.absorb(core, &lanes);
        Arc::new(out)
    }

    /// Releases and acquires of a strong access.
    fn synchronize(&mut self, access: &Access<'_>, level: usize) {
        let acquires = matches!(access.ordering, Ordering::Acquire | Ordering::AcqRel);
        let releases = matches!(access.ordering, Ordering::Release | Ordering::AcqRel);
        let mut rest = access.mask;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            let addr = access.addr[lane as usize];
            let mut mask = 1 << lane;
            if access.kind == AccessKind::Read {
                // Readers of one address learn the same.
                mask = (lane..32)
                    .filter(|&l| rest >> l & 1 != 0 && access.addr[l as usize] == addr)
                    .fold(0, |m, l| m | 1 << l);
            }
            rest &= !mask;
            let by = Party { block: self.block, cluster: self.cluster, thread: access.warp * 32 + lane };
            if matches!(access.kind, AccessKind::Read | AccessKind::Atomic) {
                self.acquire(access, by, addr, mask, level, acquires);
            }
            if access.kind != AccessKind::Read {
                self.release(access, by, addr, lane, level, releases);
            }
        }
    }

    fn with_objects<T>(&mut self, space: MemSpace, addr: u64, f: impl FnOnce(&mut AddressMap<Object>) -> T) -> T {
        match space {
            MemSpace::Shared => f(&mut self.shared.objects),
            MemSpace::Global => f(&mut self.launch.lock(self.launch.part(addr).0).objects),
        }
    }

    fn acquire(&mut self, access: &Access<'_>, by: Party, addr: u64, mask: u32, level: usize, acquires: bool) {
        let found = self.with_objects(access.space, addr, |objects| {
            let object = objects.get(&addr).filter(|object| !object.is_empty())?;
            let mut cores: [Core; 3] = Default::default();
            (0..=level).for_each(|at| object.acquire(by, at, &mut cores[at]));
            Some(cores)
        });
        let Some(cores) = found else { return };
        let cores = cores.map(Arc::new);
        self.warps[access.warp as usize].update(mask, |know| {
            for (at, core) in cores.iter().enumerate().take(level + 1) {
                if acquires {
                    know.core.join(core);
                } else {
                    join_shared(&mut know.pending[at], &Some(core.clone()));
                }
            }
        });
    }

    fn release(&mut self, access: &Access<'_>, by: Party, addr: u64, lane: u32, level: usize, releases: bool) {
        let warp = &self.warps[access.warp as usize];
        let know = warp.know(lane);
        let published: Vec<(usize, Arc<Core>)> = if releases {
            let core = self.published(access.warp, lane, &know.core);
            (0..=level).map(|at| (at, core.clone())).collect()
        } else {
            let fenced = know.fenced.iter().enumerate().take(level + 1);
            fenced.filter_map(|(at, core)| Some((at, self.published(access.warp, lane, core.as_ref()?)))).collect()
        };
        let store = access.kind == AccessKind::Write;
        self.with_objects(access.space, addr, |objects| {
            if published.is_empty() && !objects.contains_key(&addr) {
                return;
            }
            let object = objects.entry(addr).or_default();
            if store {
                object.overwrite(by);
            }
            published.iter().for_each(|(at, core)| object.release(by, *at, core));
        });
        if releases {
            self.warps[access.warp as usize].tick();
        }
    }

    /// `bar.warp.sync` completed for the lanes of `mask` (all at once).
    pub fn warp_sync(&mut self, warp: u32, mask: u32) {
        let lanes = self.lanes(warp);
        let warp = &mut self.warps[warp as usize];
        let mut know = Know::default();
        warp.publish(lanes, mask, &mut know);
        warp.tick();
        warp.replace(mask, Arc::new(own(know)));
    }

    /// Lanes of a warp arrive at barrier `id` of the block: `bar.sync`, `bar.red` (`waits`) or `bar.arrive`.
    pub fn barrier_arrive(&mut self, id: u32, warp: u32, mask: u32, waits: bool) {
        let lanes = self.lanes(warp);
        let barrier = self.barriers.entry(id).or_default();
        self.warps[warp as usize].publish(lanes, mask, &mut barrier.arrived);
        self.warps[warp as usize].tick();
        if waits {
            barrier.waiting.push((warp, mask));
        }
    }

    /// Barrier `id` has all its participants; those that wait go on with what every participant knew.
    pub fn barrier_complete(&mut self, id: u32) {
        let Some(barrier) = self.barriers.remove(&id) else { return };
        let know = Arc::new(own(barrier.arrived));
        for (warp, mask) in barrier.waiting {
            self.warps[warp as usize].replace(mask, know.clone());
        }
    }

    /// `barrier.cluster.arrive` by the lanes of `mask`; `release` is false for the relaxed form. When the whole cluster
    /// has arrived, call [`LaunchCheck::cluster_complete`].
    pub fn cluster_arrive(&mut self, warp: u32, mask: u32, release: bool) {
        let lanes = self.lanes(warp);
        let mut know = Know::default();
        self.warps[warp as usize].publish(lanes, mask, &mut know);
        self.warps[warp as usize].tick();
        let core = if release { Some(know.core) } else { know.fenced[1].as_deref().cloned() };
        if let Some(core) = core {
            self.launch.with_cluster(self.cluster, |barrier| barrier.arrived.collect(self.block, &core));
        }
    }

    /// `barrier.cluster.wait` returned for the lanes of `mask`.
    pub fn cluster_wait(&mut self, warp: u32, mask: u32) {
        let mut core = Core::default();
        self.launch.with_cluster(self.cluster, |barrier| core.join_blocks(self.block, &barrier.done));
        self.warps[warp as usize].update(mask, |know| know.core.join(&core));
    }

    /// A fence by the lanes of `mask`.
    pub fn fence(&mut self, warp: u32, mask: u32, fence: Fence) {
        let warp_state = &mut self.warps[warp as usize];
        let now = warp_state.now;
        let (acquires, releases) = match fence {
            Fence::Sc(scope) | Fence::AcqRel(scope) => (Some(scope), Some(scope)),
            Fence::Acquire(scope) => (Some(scope), None),
            Fence::Release(scope) => (None, Some(scope)),
            Fence::MbarrierInit => return self.fence_mbarrier_init(warp, mask),
            Fence::ProxyAsync(space) => {
                warp_state.update(mask, |know| {
                    let seen = freeze(&know.core, now).main;
                    if space != Space::Global {
                        know.core.proxy[0] = Some(Box::new(seen.clone()));
                    }
                    if matches!(space, Space::Generic | Space::Global) {
                        know.core.proxy[1] = Some(Box::new(seen));
                    }
                });
                return warp_state.tick();
            }
            Fence::ProxyAlias => return,
        };
        warp_state.update(mask, |know| {
            if let Some(scope) = acquires {
                for pending in &mut know.pending[..=level(scope)] {
                    if let Some(core) = pending.take() {
                        know.core.join(&core);
                    }
                }
            }
            if let Some(scope) = releases {
                let seen = Arc::new(freeze(&know.core, now));
                know.fenced[..=level(scope)].fill(Some(seen));
            }
        });
        if releases.is_some() {
            warp_state.tick();
        }
    }
}
