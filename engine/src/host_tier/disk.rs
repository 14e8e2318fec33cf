//! Slots in a file, behind those in memory.

use super::slots::{MemorySlots, SlotStore};
use super::{DiskConfig, HostTierError};
use crate::host_cache::HostSizes;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use transfer::ids::Class;
use transfer::layout::Layout;

/// Files that this process has made.
static FILES: AtomicU64 = AtomicU64::new(0);

/// A file of slots. It has no name: nothing of it is left when the process ends, however that happens.
#[derive(Debug)]
pub(super) struct FileSlots {
    layout: Layout,
    file: File,
    /// For messages.
    dir: PathBuf,
}

impl FileSlots {
    /// A new file in a folder that exists.
    pub(super) fn new(layout: Layout, config: &DiskConfig) -> Result<Self, HostTierError> {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = config.dir.join(format!("host-cache-{}-{number}.slots", std::process::id()));
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path).and_then(|file| {
            std::fs::remove_file(&path)?;
            file.set_len(layout.bytes())?;
            Ok(file)
        });
        let file = made.map_err(|source| HostTierError::Disk { path, source })?;
        Ok(Self::over(file, layout, config.dir.clone()))
    }

    /// Slots in a file that is there.
    pub(super) fn over(file: File, layout: Layout, dir: PathBuf) -> Self {
        Self { layout, file, dir }
    }

    fn place(&self, item: usize, slot: u32) -> u64 {
        self.layout.place(&self.layout.items()[item], slot).0
    }

    fn failed(&self, what: &str) -> impl Fn(std::io::Error) -> String {
        let what = format!("{what} slots in {}", self.dir.display());
        move |error| format!("{what}: {error}")
    }
}

impl SlotStore for FileSlots {
    fn write(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), String> {
        self.file.write_all_at(page, self.place(item, slot)).map_err(self.failed("writing"))
    }

    fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), String> {
        self.file.read_exact_at(page, self.place(item, slot)).map_err(self.failed("reading"))
    }
}

/// The first slots of a class in memory, the others in a file.
#[derive(Debug)]
pub(super) struct TieredSlots {
    pub(super) memory: MemorySlots,
    pub(super) file: FileSlots,
    /// Slots in memory.
    pub(super) in_memory: HostSizes,
}

impl TieredSlots {
    /// Where a slot lies, and its number there.
    fn of(&mut self, item: usize, slot: u32) -> (&mut dyn SlotStore, u32) {
        let in_memory = self.in_memory.of(self.file.layout.items()[item].spec.class);
        match slot.checked_sub(in_memory) {
            None => (&mut self.memory, slot),
            Some(slot) => (&mut self.file, slot),
        }
    }
}

impl SlotStore for TieredSlots {
    fn write(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), String> {
        let (store, slot) = self.of(item, slot);
        store.write(item, slot, page)
    }

    fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), String> {
        let (store, slot) = self.of(item, slot);
        store.read(item, slot, page)
    }
}

/// Slots whose pages are summed: all, those in a file, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Summed {
    /// First slot of each class.
    from: HostSizes,
}

impl Summed {
    pub(super) fn new(verify: bool, disk: Option<HostSizes>) -> Self {
        let all = |first| HostSizes { compressed_slots: first, window_slots: first };
        Self { from: if verify { all(0) } else { disk.unwrap_or(all(u32::MAX)) } }
    }

    pub(super) fn holds(self, class: Class, slot: u32) -> bool {
        slot >= self.from.of(class)
    }

    /// Whether any slot is.
    pub(super) fn any(self) -> bool {
        self.from.compressed_slots.min(self.from.window_slots) < u32::MAX
    }
}
