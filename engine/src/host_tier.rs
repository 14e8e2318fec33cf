//! Host memory of one rank: slots that hold copies of cache pages, and the copies between the two.
//!
//! Two threads share the work, and each kind of memory has one that touches it. The **rank's thread** alone reads and writes
//! cache pages; the **copy engine**, a thread of its own, alone reads and writes slots. Between them go staging buffers, a fixed
//! number each way, each with pages of one item. On a card the same seam holds with pinned buffers and a stream of its own.
//!
//! * A save is read behind its step, page by page through the gate, so that the answer to an order means that its pages have been
//!   read. When every buffer is on its way to the slots, the rank waits for one: at the speed of memory, and not beyond a deadline.
//! * A load claims its cache pages, is checked (sums of every page, if verification is on) and staged unit by unit, the unit that
//!   is nearest to being read first. The rank takes staged pages in at the start of an order, without waiting, and inside a step
//!   that reads them: before layer L it waits for what is left of unit L. The gate publishes a unit with its last page.
//! * Jobs are carried out in the order in which they were handed over. What is dropped is therefore over, for slots, before
//!   anything that is ordered later; and cache pages are written by the thread that drops.
//!
//! Slots may be in a file, behind those in memory. Their pages are always summed, and what the disk does not do ends a copy. They
//! are compared as they are read, once, so that a load with pages in the file is not Checked before it is Done: a disk may fail
//! at the last page, and no step waits for a disk.
//!
//! A slot counts as filled when a whole save into it has been stored, and as empty again when the next one begins.

mod copier;
mod copy;
mod disk;
mod parts;
mod port;
mod rank;
mod slots;

pub use slots::{MemorySlots, SlotStore};

use crate::engine::Bell;
use crate::geometry::{CacheGeometry, PoolName};
use crate::handover::{Handover, class, layout};
use crate::host_cache::{HostSizes, SlotBytes};
use crate::pools::PoolSizes;
use crate::progress::Part;
use disk::{FileSlots, Kinds, TieredSlots};
use port::CopierPort;
use slots::Slots;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use transfer::arena::ArenaError;
use transfer::exchange::CopyId;
use transfer::fault::Faults;
use transfer::gate::GateError;
use transfer::ids::{Class, Unit};
use transfer::layout::{Layout, LayoutError};
use transfer::reason::Reason;

/// Slots in a file.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Folder of the file, which has no name there and goes with the process.
    pub dir: PathBuf,
    /// Slots in the file; their numbers follow those in memory.
    pub sizes: HostSizes,
}

impl DiskConfig {
    /// The most slots that take no more than `budget` bytes of a file in `dir`, in the proportion of
    /// [`HostSizes::of_pages`].
    ///
    /// # Errors
    /// The bytes that one of each take, where those are more.
    pub fn within(dir: PathBuf, budget: u64, geometry: &CacheGeometry) -> Result<Self, u64> {
        let bytes = |sizes| layout(geometry, pool_sizes(sizes)).map_or(u64::MAX, |layout| layout.bytes());
        Ok(Self { dir, sizes: most_slots(budget, geometry, bytes)? })
    }
}

/// The most slots of which `bytes` are no more than `budget`; the bytes of the fewest, where those are more.
fn most_slots(budget: u64, geometry: &CacheGeometry, bytes: impl Fn(HostSizes) -> u64) -> Result<HostSizes, u64> {
    let bytes = |pages| bytes(HostSizes::of_pages(pages));
    if bytes(1) > budget {
        return Err(bytes(1));
    }
    let (mut most, mut too_many) = (1, geometry.shape.max_pages());
    while most + 1 < too_many {
        let middle = most + (too_many - most) / 2;
        *(if bytes(middle) <= budget { &mut most } else { &mut too_many }) = middle;
    }
    Ok(HostSizes::of_pages(most))
}

/// What a rank's tier is made of.
#[derive(Debug, Clone)]
pub struct HostTierConfig {
    /// Slots in memory.
    pub sizes: HostSizes,
    /// More slots on a disk.
    pub disk: Option<DiskConfig>,
    /// Whether every page is summed when it is stored and compared before it is loaded.
    pub verify: bool,
    /// Staging buffers each way, at least one.
    pub staging_buffers: u32,
    /// Bytes of a staging buffer; one page of the largest item if that is more.
    pub staging_bytes: u64,
    /// How long the rank waits for the copy engine before the step fails.
    pub deadline: Duration,
    /// Faults at [`HostSave`](transfer::fault::Point::HostSave) and [`HostLoad`](transfer::fault::Point::HostLoad).
    pub faults: Arc<Faults>,
    /// Rung when a copy gets on: the engine's thread may wait for that.
    pub bell: Bell,
    /// Of the copy engine, among the parts of the engine.
    pub name: String,
}

impl HostTierConfig {
    /// Slots of these numbers, everything else as it usually is.
    pub fn new(sizes: HostSizes) -> Self {
        Self {
            sizes,
            disk: None,
            verify: false,
            staging_buffers: 4,
            staging_bytes: 1 << 20,
            deadline: Duration::from_secs(10),
            faults: Arc::new(Faults::none()),
            bell: Bell::new(),
            name: "host copies".into(),
        }
    }

    /// All slots, those on disk included.
    pub fn slots(&self) -> HostSizes {
        let disk = self.on_disk();
        HostSizes {
            compressed_slots: self.sizes.compressed_slots.saturating_add(disk.compressed_slots),
            window_slots: self.sizes.window_slots.saturating_add(disk.window_slots),
        }
    }

    /// Slots on disk.
    pub fn on_disk(&self) -> HostSizes {
        self.disk.as_ref().map(|disk| disk.sizes).unwrap_or_default()
    }

    /// Where the bytes of every slot in memory lie.
    ///
    /// # Errors
    /// More bytes than an address can name.
    pub fn layout(&self, geometry: &CacheGeometry) -> Result<Layout, LayoutError> {
        layout(geometry, pool_sizes(self.sizes))
    }

    /// Bytes of the file on disk, 0 without one.
    ///
    /// # Errors
    /// As [`HostTierConfig::layout`].
    pub fn disk_bytes(&self, geometry: &CacheGeometry) -> Result<u64, LayoutError> {
        self.disk.as_ref().map_or(Ok(0), |disk| Ok(layout(geometry, pool_sizes(disk.sizes))?.bytes()))
    }

    /// The most slots that take no more than `budget` bytes of a rank, staging buffers included, one window slot for every
    /// [`COMPRESSED_PER_WINDOW`](HostSizes::COMPRESSED_PER_WINDOW) compressed ones.
    ///
    /// # Errors
    /// The bytes that one of each take, where those are more.
    pub fn within(budget: u64, geometry: &CacheGeometry) -> Result<Self, u64> {
        let bytes = |sizes| Self::new(sizes).bytes(geometry).unwrap_or(u64::MAX);
        Ok(Self::new(most_slots(budget, geometry, bytes)?))
    }

    /// Bytes of a slot of either kind.
    ///
    /// # Errors
    /// As [`HostTierConfig::layout`].
    pub fn slot_bytes(&self, geometry: &CacheGeometry) -> Result<SlotBytes, LayoutError> {
        let layout = self.layout(geometry)?;
        let of = |pool| {
            let items = layout.items().iter().filter(|item| item.spec.class == class(pool));
            items.map(|item| item.spec.page_bytes).sum()
        };
        Ok(SlotBytes { compressed: of(PoolName::Compressed), window: of(PoolName::Window) })
    }

    /// Bytes of host memory that a rank's tier takes: slots, and staging buffers both ways.
    ///
    /// # Errors
    /// As [`HostTierConfig::layout`].
    pub fn bytes(&self, geometry: &CacheGeometry) -> Result<u64, LayoutError> {
        let layout = self.layout(geometry)?;
        Ok(layout.bytes() + 2 * u64::from(self.buffers()) * self.buffer_bytes(&layout))
    }

    fn buffers(&self) -> u32 {
        self.staging_buffers.max(1)
    }

    fn buffer_bytes(&self, layout: &Layout) -> u64 {
        let largest = layout.items().iter().map(|item| item.spec.page_bytes).max().unwrap_or(0);
        largest.max(self.staging_bytes)
    }
}

fn pool_sizes(sizes: HostSizes) -> PoolSizes {
    PoolSizes { compressed_pages: sizes.compressed_slots, window_pages: sizes.window_slots, request_slots: 0 }
}

/// Why there is no tier, or why it ends a step.
#[derive(Debug, Error)]
pub enum HostTierError {
    /// More bytes than an address can name.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// More bytes than there are.
    #[error("host slots: {0}")]
    Memory(#[from] ArenaError),
    /// Cache pages that are not what they should be.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// No file for slots.
    #[error("host slots in {}, {bytes} B: {source}", path.display())]
    Disk {
        /// File.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the system says.
        source: std::io::Error,
    },
    /// No thread.
    #[error("the copy engine does not start: {0}")]
    Thread(std::io::Error),
    /// A queue of jobs that does not move.
    #[error("the copy engine took no job within {0:?}")]
    Full(Duration),
    /// The thread has ended.
    #[error("the copy engine has stopped")]
    Stopped,
    /// A number for the second time.
    #[error("{0} was ordered before")]
    Again(CopyId),
    /// Slots that the tier does not have.
    #[error("{id}: slot {slot} of class {class}, of which the tier has {slots}")]
    Slot {
        /// Copy.
        id: CopyId,
        /// Class.
        class: Class,
        /// Slot.
        slot: u32,
        /// Slots of that class.
        slots: u32,
    },
    /// Pages that are readable, or twice in one load.
    #[error("{id}: {claimed} of {pages} cache pages could be claimed, the others are its generation's already")]
    Claim {
        /// Copy.
        id: CopyId,
        /// Pages of the load.
        pages: usize,
        /// Pages that were free to claim.
        claimed: usize,
    },
    /// A wait that took too long.
    #[error("{id}: unit {unit} was not {what} within {waited:?}")]
    Deadline {
        /// Copy.
        id: CopyId,
        /// Unit.
        unit: Unit,
        /// `stored` or `loaded`.
        what: &'static str,
        /// How long the rank waited.
        waited: Duration,
    },
    /// A step reads what a failed load should have brought.
    #[error("{id} has failed, and the step reads its pages: {reason}")]
    Failed {
        /// Copy.
        id: CopyId,
        /// Why.
        reason: Reason,
    },
}

/// The tier of one rank, as its thread holds it.
#[derive(Debug)]
pub struct HostTier {
    handover: Handover,
    port: CopierPort,
    /// Bytes of a staging buffer.
    buffer_bytes: usize,
    bytes: u64,
    kinds: Kinds,
}

impl HostTier {
    /// An empty tier for a rank with a cache of this geometry. All its memory is taken here.
    ///
    /// # Errors
    /// Too little memory; no file; no thread.
    pub fn new(geometry: &CacheGeometry, config: &HostTierConfig) -> Result<Self, HostTierError> {
        let memory = MemorySlots::new(config.layout(geometry)?)?;
        let store: Box<dyn SlotStore> = match &config.disk {
            None => Box::new(memory),
            Some(disk) => {
                let file = FileSlots::new(layout(geometry, pool_sizes(disk.sizes))?, disk)?;
                Box::new(TieredSlots { memory, file, in_memory: config.sizes })
            }
        };
        Self::on(geometry, config, store)
    }

    /// A tier over slots that somebody else keeps.
    ///
    /// # Errors
    /// As [`HostTier::new`].
    pub fn on(
        geometry: &CacheGeometry,
        config: &HostTierConfig,
        store: Box<dyn SlotStore>,
    ) -> Result<Self, HostTierError> {
        let handover = Handover::new(geometry, pool_sizes(config.slots()))?;
        let layout = handover.layout();
        let buffer_bytes = config.buffer_bytes(layout) as usize;
        let kinds = Kinds::of(config);
        let slots = Slots::new(layout.clone(), store, kinds, Arc::clone(&config.faults));
        let port = CopierPort::start(slots, config.buffers(), buffer_bytes, config)?;
        Ok(Self { handover, port, buffer_bytes, bytes: config.bytes(geometry)?, kinds })
    }

    /// The copy engine's progress: copies that wait for it, and pages that it has moved.
    pub fn part(&self) -> &Arc<Part> {
        &self.port.part
    }

    /// Bytes of host memory: slots and staging buffers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
