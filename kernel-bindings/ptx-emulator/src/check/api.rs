//! Plain data that crosses the border between the machine and the sanitizer.

use crate::finding::FindingClass;
use crate::ir::{Ordering, Scope};

/// Memories that threads share. Local, const and parameter memory cannot race and are not reported to the sanitizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemSpace {
    /// The block's shared memory; addresses are byte offsets from its start.
    Shared,
    /// Global memory; addresses are device addresses.
    Global,
}

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// `ld`, `ldmatrix`.
    Read,
    /// `ld.global.nc`: must not meet a write of the same launch, ordered or not.
    ReadNc,
    /// `st`, `stmatrix`, `mbarrier.init`/`inval`.
    Write,
    /// `atom`: one read-modify-write, never a race against another strong access of an inclusive scope.
    Atomic,
    /// `red`: as `Atomic`, but its read is no part of an acquire pattern.
    Reduce,
}

/// One warp instruction's access to one space.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// Which memory.
    pub space: MemSpace,
    /// Warp in the block.
    pub warp: u32,
    /// Lanes that take part; the others' addresses are not looked at.
    pub mask: u32,
    /// Address per lane: a shared offset or a global address.
    pub addr: &'a [u64; 32],
    /// Bytes per lane (1 to 32); the range of each lane must lie inside its memory.
    pub bytes: u32,
    /// Read or write.
    pub kind: AccessKind,
    /// `Weak` for plain accesses; atomics are at least `Relaxed` (`Weak` is taken as `Relaxed` for them).
    pub ordering: Ordering,
    /// Scope of a strong access; ignored for weak ones. `Volatile` counts as `Sys`.
    pub scope: Scope,
    /// The instruction, opaque to the sanitizer; comes back in [`OtherAccess::place`].
    pub place: u32,
}

/// The earlier access of a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OtherAccess {
    /// Linear index of the block.
    pub block: u32,
    /// Warp of the thread that made the access or issued the copy.
    pub warp: u32,
    /// Its lane.
    pub lane: u32,
    /// Place id it was reported with.
    pub place: u32,
    /// It wrote.
    pub write: bool,
}

/// Two accesses that nothing orders, or an order that the async proxy does not see.
///
/// One call reports each pair of (class, other place) once, with the first lane and byte concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conflict {
    /// `SharedRace`, `GlobalRace`, `AsyncEarlyAccess`, `MissingProxyFence` or `NcLoadOfWritten`.
    pub class: FindingClass,
    /// Memory in which the two accesses meet (a copy touches two).
    pub space: MemSpace,
    /// Lane of the access being made.
    pub lane: u32,
    /// First byte concerned.
    pub addr: u64,
    /// The earlier access.
    pub other: OtherAccess,
}

/// A bulk copy (`cp.async.bulk`, `cp.reduce.async.bulk`) at its issue.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    /// Warp of the issuing thread.
    pub warp: u32,
    /// Its lane.
    pub lane: u32,
    /// Destination memory and first byte.
    pub dst: (MemSpace, u64),
    /// Source memory and first byte.
    pub src: (MemSpace, u64),
    /// Length in bytes.
    pub bytes: u32,
    /// The destination is reduced into (atomic at gpu scope) rather than overwritten.
    pub reduce: bool,
    /// The instruction.
    pub place: u32,
}

/// How the end of a bulk copy is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BulkCompletion {
    /// `complete_tx` on the mbarrier at this shared offset.
    Mbarrier(u32),
    /// The issuing thread's bulk group (`cp.async.bulk.commit_group` / `wait_group`).
    Group,
}

/// An asynchronous operation that was issued and has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AsyncId(pub(crate) u32);
