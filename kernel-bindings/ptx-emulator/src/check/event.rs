//! Events: the (who, when, where, how) of accesses, stored once and named by number in the shadow cells.

use crate::ir::Scope;

/// Kinds of per-lane actors. Slot `family * warps + warp` is the entry of a warp's lanes in that family; slots from
/// `FAMILIES * warps` on are mbarriers (one lane each).
pub(super) const FAMILIES: usize = 4;
/// The threads themselves.
pub(super) const THREAD: u32 = 0;
/// A thread's `cp.async` copies; the epoch is that of the group.
pub(super) const CP_ASYNC: u32 = 1;
/// Source reads of a thread's bulk groups (`wait_group.read` suffices).
pub(super) const BULK_READ: u32 = 2;
/// Destination writes of a thread's bulk groups.
pub(super) const BULK_WRITE: u32 = 3;

/// Epoch of a copy that has not landed: nobody can know it.
pub(super) const IN_FLIGHT: u32 = u32::MAX;

/// How an access touches memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct How(u16);

impl How {
    const WRITE: u16 = 1;
    const STRONG: u16 = 2;
    const ASYNC: u16 = 4;
    const NC: u16 = 8;
    const LEVEL: u16 = 4;

    pub(super) const READ: How = How(0);
    pub(super) const WEAK_WRITE: How = How(How::WRITE);

    /// A strong access at a scope.
    pub(super) fn strong(write: bool, scope: Scope) -> How {
        How(u16::from(write) | How::STRONG | (level(scope) as u16) << How::LEVEL)
    }
    /// `ld.global.nc`
    pub(super) const NC_READ: How = How(How::NC);
    /// By the async proxy.
    pub(super) fn asynchronous(self) -> How {
        How(self.0 | How::ASYNC)
    }
    #[inline]
    pub(super) fn write(self) -> bool {
        self.0 & How::WRITE != 0
    }
    #[inline]
    pub(super) fn is_weak_write(self) -> bool {
        self.0 & (How::WRITE | How::STRONG) == How::WRITE
    }
    #[inline]
    pub(super) fn is_strong(self) -> bool {
        self.0 & How::STRONG != 0
    }
    #[inline]
    pub(super) fn is_async(self) -> bool {
        self.0 & How::ASYNC != 0
    }
    #[inline]
    pub(super) fn is_nc(self) -> bool {
        self.0 & How::NC != 0
    }
    /// Scope of a strong access as a level.
    #[inline]
    pub(super) fn level(self) -> usize {
        usize::from(self.0 >> How::LEVEL)
    }
}

/// 0 block, 1 cluster, 2 wider.
pub(super) fn level(scope: Scope) -> usize {
    match scope {
        Scope::Cta => 0,
        Scope::Cluster => 1,
        Scope::Gpu | Scope::Sys => 2,
    }
}

/// One access of some lanes of a slot, at one epoch, from one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) block: u32,
    pub(super) cluster: u32,
    pub(super) slot: u32,
    pub(super) epoch: u32,
    pub(super) place: u32,
    /// Warp and lane that issued it, `warp * 32 + lane`, where the slot does not say (mbarrier copies).
    pub(super) issuer: u32,
    pub(super) how: How,
}
