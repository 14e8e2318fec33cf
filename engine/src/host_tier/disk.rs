//! Slots in a file, behind those in memory.

use super::slots::{MemorySlots, SlotStore};
use super::{DiskConfig, HostTierConfig, HostTierError};
use crate::handover::PageMove;
use crate::host_cache::HostSizes;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use transfer::ids::Class;
use transfer::layout::Layout;

/// Files that this process has made.
static FILES: AtomicU64 = AtomicU64::new(0);
const NAME: [&str; 2] = ["host-cache-", ".slots"];

/// A file of slots. It has a name for a moment only: nothing of it is left when the process ends, however that happens. One that ends
/// in that moment leaves an empty file, which the next removes.
#[derive(Debug)]
pub(super) struct FileSlots {
    layout: Layout,
    file: File,
    /// For messages.
    dir: PathBuf,
}

impl FileSlots {
    /// A new file in a folder that exists. Its bytes are taken from the disk here, where the file system can do that.
    pub(super) fn new(layout: Layout, config: &DiskConfig) -> Result<Self, HostTierError> {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let [head, tail] = NAME;
        let path = config.dir.join(format!("{head}{}-{number}{tail}", std::process::id()));
        let bytes = layout.bytes();
        let made = clean(&config.dir).and_then(|()| {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            remove(&path)?;
            reserve(&file, bytes)?;
            Ok(file)
        });
        let file = made.map_err(|source| HostTierError::Disk { path, bytes, source })?;
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

/// Removes a name, unless somebody else has.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the names of files of slots. Who makes one at this moment needs its name no more.
fn clean(dir: &Path) -> std::io::Result<()> {
    let [head, tail] = NAME;
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(head) && name.ends_with(tail)) {
            remove(&dir.join(name))?;
        }
    }
    Ok(())
}

/// Takes the bytes of a file from its disk, so that a disk that fills up later does not matter.
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // Not every file system can; then writing a page may fail, which ends its copy.
        Err(Errno::OPNOTSUPP) => file.set_len(bytes),
        Err(error) => Err(error.into()),
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

/// Slots of each class from a number on.
#[derive(Debug, Clone, Copy)]
struct SlotsFrom {
    first: HostSizes,
}

impl SlotsFrom {
    const fn every(first: u32) -> Self {
        Self { first: HostSizes { compressed_slots: first, window_slots: first } }
    }

    fn holds(self, class: Class, slot: u32) -> bool {
        slot >= self.first.of(class)
    }
}

/// Slots that are in a file, and slots whose pages are summed: those, all, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kinds {
    on_disk: SlotsFrom,
    summed: SlotsFrom,
}

impl Kinds {
    pub(super) fn of(config: &HostTierConfig) -> Self {
        let on_disk = config.disk.as_ref().map_or(SlotsFrom::every(u32::MAX), |_| SlotsFrom { first: config.sizes });
        Self { on_disk, summed: if config.verify { SlotsFrom::every(0) } else { on_disk } }
    }

    pub(super) fn is_summed(self, class: Class, slot: u32) -> bool {
        self.summed.holds(class, slot)
    }

    /// Whether any slot is.
    pub(super) fn any_summed(self) -> bool {
        self.summed.first.compressed_slots.min(self.summed.first.window_slots) < u32::MAX
    }

    /// When the pages of a load are compared.
    pub(super) fn check(self, pages: &[PageMove]) -> Check {
        let any = |of: SlotsFrom| pages.iter().any(|pages| of.holds(pages.class, pages.arena));
        match (any(self.on_disk), any(self.summed)) {
            (true, _) => Check::Behind,
            (false, true) => Check::Before,
            (false, false) => Check::No,
        }
    }
}

/// When the pages of a load are compared with their sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// They have none.
    No,
    /// Before any is staged: nothing can fail behind that.
    Before,
    /// As they are read: a disk may fail at the last of them, so that nobody reads one before all have come.
    Behind,
}
