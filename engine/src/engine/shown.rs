//! What the loop shows of itself to other threads.

use super::Turns;
use crate::host_cache::{HostSizes, HostStats};
use crate::pools::{Pool, PoolKind};
use crate::progress::Part;
use crate::scheduler::{Scheduler, SchedulerStats};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Pages of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct PoolUse {
    /// All of them.
    pub pages: u32,
    /// Those that nobody holds.
    pub free: u32,
    /// Those that the prefix cache holds, of which running texts may hold some as well.
    pub cached: u32,
}

impl PoolUse {
    fn of<K: PoolKind>(pool: &Pool<K>) -> Self {
        Self { pages: pool.num_pages(), free: pool.num_free(), cached: 0 }
    }
}

/// The tier in host memory, as the scheduler has it; every rank has the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct HostUse {
    /// Slots of compressed pages.
    pub compressed: PoolUse,
    /// Slots of window pages.
    pub window: PoolUse,
    /// Of these slots, those on disk.
    pub on_disk: HostSizes,
    /// Bytes of the slots that hold something, on one rank.
    pub used_bytes: u64,
    /// Requests whose beginnings are being copied back.
    pub loading: usize,
    /// Counts since the start.
    pub stats: HostStats,
}

impl HostUse {
    fn of(scheduler: &Scheduler) -> Option<Self> {
        let cache = scheduler.host_cache()?;
        let (compressed, window) = cache.pools();
        let (compressed, window) = (PoolUse::of(compressed), PoolUse::of(window));
        let bytes = scheduler.host_slot_bytes();
        let used = |pool: PoolUse, bytes: u64| u64::from(pool.pages - pool.free) * bytes;
        Some(Self {
            compressed,
            window,
            on_disk: scheduler.host_on_disk(),
            used_bytes: used(compressed, bytes.compressed) + used(window, bytes.window),
            loading: scheduler.num_loading(),
            stats: cache.stats(),
        })
    }
}

/// What the loop last said about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Counts since the start.
    pub stats: SchedulerStats,
    /// Requests without pages.
    pub waiting: usize,
    /// Requests that take part in steps.
    pub running: usize,
    /// Pages of compressed rows.
    pub compressed: PoolUse,
    /// Pages of window rows.
    pub window: PoolUse,
    /// Rings of running requests.
    pub requests: PoolUse,
    /// Host memory under the prefix cache, if there is any.
    pub host: Option<HostUse>,
}

impl Snapshot {
    pub(super) fn of(scheduler: &Scheduler) -> Self {
        let (pools, prefix) = (scheduler.pools(), scheduler.prefix());
        Self {
            stats: scheduler.stats(),
            waiting: scheduler.num_waiting(),
            running: scheduler.num_running(),
            compressed: PoolUse { cached: prefix.len() as u32, ..PoolUse::of(&pools.compressed) },
            window: PoolUse { cached: prefix.num_windows() as u32, ..PoolUse::of(&pools.window) },
            requests: PoolUse::of(&pools.requests),
            host: HostUse::of(scheduler),
        }
    }
}

/// What the loop shows to other threads; looking never waits for a step.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) snapshot: Mutex<Snapshot>,
    /// Commands that the loop has not taken yet.
    pub(super) commands: Arc<Part>,
    /// Requests that have not ended; a unit of work is a finished step.
    pub(super) engine: Arc<Part>,
    pub(super) ranks: Vec<Arc<Part>>,
    pub(super) failure: OnceLock<String>,
}

impl Shown {
    pub(super) fn snapshot(&self) -> MutexGuard<'_, Snapshot> {
        // Plain counts are whole whoever panicked.
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn show(&self, engine: &dyn Turns) {
        *self.snapshot() = Snapshot::of(engine.scheduler());
        self.engine.set_waiting(engine.scheduler().num_sequences() as u64);
    }
}
