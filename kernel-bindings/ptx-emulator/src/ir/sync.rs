//! Memory order, and what lanes, warps and blocks do together.

use super::operand::{Address, Dst, Operand};
use super::types::Space;

/// Memory scope.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// Memory ordering of an access or atomic.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ordering {
    Weak,
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// Fences.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fence {
    /// `fence.sc` / `membar`
    Sc(Scope),
    /// `fence.acq_rel`
    AcqRel(Scope),
    /// `fence.acquire` / `fence.release` one-sided forms
    Acquire(Scope),
    Release(Scope),
    /// `fence.mbarrier_init.release.cluster`
    MbarrierInit,
    /// `fence.proxy.async[.global|.shared::cta|...]`
    ProxyAsync(Space),
    /// `fence.proxy.alias`
    ProxyAlias,
}

/// `atom`/`red` operators.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// `bar.red` operators.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BarRed {
    Popc,
    And,
    Or,
}

/// `redux.sync` operators (and the reductions of `bar.red`).
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redux {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// `shfl.sync` modes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// `vote.sync` modes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

/// `mbarrier` operations. Field names follow the operands of the text; `space` is that of `addr` (`Generic` where the
/// text names none).
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Mbarrier {
    /// `mbarrier.init`
    Init { addr: Address, count: Operand, space: Space },
    /// `mbarrier.inval`
    Inval { addr: Address, space: Space },
    /// `mbarrier.arrive[.noComplete][.expect_tx]`, with an optional state destination and count / tx-count.
    Arrive {
        state: Option<Dst>,
        addr: Address,
        count: Option<Operand>,
        expect_tx: bool,
        no_complete: bool,
        drop: bool,
        ordering: Ordering,
        scope: Scope,
        space: Space,
    },
    /// `mbarrier.expect_tx` / `mbarrier.complete_tx` without arrival.
    Tx { addr: Address, bytes: Operand, complete: bool, space: Space },
    /// `mbarrier.test_wait` / `try_wait`, by state or by parity.
    Wait {
        done: Dst,
        addr: Address,
        state_or_parity: Operand,
        parity: bool,
        may_suspend: bool,
        hint: Option<Operand>,
        ordering: Ordering,
        scope: Scope,
        space: Space,
    },
    /// `mbarrier.pending_count`
    PendingCount { d: Dst, state: Operand },
}

/// Forms of `cp.async.bulk` (non-tensor).
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BulkDirection {
    GlobalToShared,
    SharedToGlobal,
    SharedToSharedCluster,
}
