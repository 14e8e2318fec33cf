//! Slots of a rank: their bytes, and sums of them.

use super::disk::Kinds;
use std::fmt::Debug;
use std::sync::Arc;
use transfer::arena::{Arena, ArenaError};
use transfer::fault::{Fault, Faults, Injected, Point};
use transfer::layout::Layout;
use transfer::reason::{Code, Reason};
use xxhash_rust::xxh3::xxh3_64;

/// Keeps the bytes of slots. One thread uses it.
pub trait SlotStore: Debug + Send {
    /// Replaces the page of an item, which is named by its place in the layout.
    ///
    /// # Errors
    /// A sentence, if the bytes are not there now. What the slot holds then is of no account.
    fn write(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), String>;

    /// Reads what was written.
    ///
    /// # Errors
    /// A sentence.
    fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), String>;
}

/// Slots in memory.
#[derive(Debug)]
pub struct MemorySlots {
    layout: Layout,
    arena: Arena,
}

impl MemorySlots {
    /// Slots of zeros.
    ///
    /// # Errors
    /// More than the allocator gives.
    pub fn new(layout: Layout) -> Result<Self, ArenaError> {
        Ok(Self { arena: Arena::of(&layout)?, layout })
    }

    fn place(&self, item: usize, slot: u32) -> u64 {
        self.layout.place(&self.layout.items()[item], slot).0
    }
}

impl SlotStore for MemorySlots {
    fn write(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), String> {
        self.arena.write(self.place(item, slot), page).map_err(|error| error.to_string())
    }

    fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), String> {
        self.arena.read(self.place(item, slot), page).map_err(|error| error.to_string())
    }
}

/// A store with sums, and with faults where a test wants them.
#[derive(Debug)]
pub(super) struct Slots {
    layout: Layout,
    store: Box<dyn SlotStore>,
    pub(super) kinds: Kinds,
    /// By item and slot; empty where none is summed.
    sums: Vec<Vec<u64>>,
    faults: Arc<Faults>,
    page: Vec<u8>,
}

impl Slots {
    pub(super) fn new(layout: Layout, store: Box<dyn SlotStore>, kinds: Kinds, faults: Arc<Faults>) -> Self {
        let slots = |class: u8| layout.classes()[class as usize].num_pages as usize;
        let of_item = |class| vec![0; slots(class)];
        let sums = match kinds.any_summed() {
            true => layout.items().iter().map(|item| of_item(item.spec.class.0)).collect(),
            false => Vec::new(),
        };
        Self { layout, store, kinds, sums, faults, page: Vec::new() }
    }

    /// The sum of a page that has one.
    fn sum(&mut self, item: usize, slot: u32) -> Option<&mut u64> {
        let class = self.layout.items()[item].spec.class;
        let sums = self.sums.get_mut(item).filter(|_| self.kinds.is_summed(class, slot))?;
        sums.get_mut(slot as usize)
    }

    pub(super) fn page_bytes(&self, item: usize) -> usize {
        self.layout.items()[item].spec.page_bytes as usize
    }

    /// Which fault an item meets now.
    pub(super) fn fault(&self, point: Point, item: usize) -> Option<Injected> {
        self.faults.at(point, &self.layout.items()[item].spec.name)
    }

    /// Stores pages that stand one behind the other.
    pub(super) fn write(
        &mut self,
        item: usize,
        slots: impl Iterator<Item = u32>,
        pages: &mut [u8],
    ) -> Result<(), Reason> {
        let fault = self.fault(Point::HostSave, item);
        let bytes = self.page_bytes(item);
        for (nth, (slot, page)) in slots.zip(pages.chunks_exact_mut(bytes)).enumerate() {
            if let Some(sum) = self.sum(item, slot) {
                *sum = xxh3_64(page);
            }
            if let Some(fault) = fault.filter(|_| nth == 0) {
                self.suffer(fault, item, slot, page)?;
            }
            self.store.write(item, slot, page).map_err(|why| self.reason(item, slot, &why))?;
        }
        Ok(())
    }

    /// A wrong byte behind the sum, a late or a failing store.
    fn suffer(&self, fault: Injected, item: usize, slot: u32, page: &mut [u8]) -> Result<(), Reason> {
        match fault.fault {
            Fault::Delay => std::thread::sleep(std::time::Duration::from_millis(fault.number)),
            Fault::Corrupt => page[fault.random as usize % page.len()] ^= 0x40,
            _ => return Err(self.reason(item, slot, "injected fault")),
        }
        Ok(())
    }

    /// Reads a page.
    pub(super) fn read(&mut self, item: usize, slot: u32, page: &mut [u8]) -> Result<(), Reason> {
        self.store.read(item, slot, page).map_err(|why| self.reason(item, slot, &why))
    }

    /// Reads a page to compare it with its sum, if it has one.
    pub(super) fn check(&mut self, item: usize, slot: u32) -> Result<(), Reason> {
        if self.sum(item, slot).is_none() {
            return Ok(());
        }
        let mut page = std::mem::take(&mut self.page);
        page.resize(self.page_bytes(item), 0);
        let same = self.read(item, slot, &mut page).and_then(|()| self.compare(item, slot, &page));
        self.page = page;
        same
    }

    /// Compares a page with its sum, if it has one.
    pub(super) fn compare(&mut self, item: usize, slot: u32, page: &[u8]) -> Result<(), Reason> {
        let Some(&mut expected) = self.sum(item, slot) else { return Ok(()) };
        let got = xxh3_64(page);
        match got == expected {
            true => Ok(()),
            false => {
                let why = format!("expected the sum {expected:016x}, got {got:016x}");
                Err(Reason { code: Code::Checksum, ..self.reason(item, slot, &why) })
            }
        }
    }

    /// Changes a byte of a page.
    pub(super) fn corrupt(&mut self, item: usize, slot: u32, random: u64) -> Result<(), Reason> {
        let mut page = vec![0; self.page_bytes(item)];
        self.read(item, slot, &mut page)?;
        let at = random as usize % page.len();
        page[at] ^= 0x40;
        self.store.write(item, slot, &page).map_err(|why| self.reason(item, slot, &why))
    }

    pub(super) fn reason(&self, item: usize, slot: u32, why: &str) -> Reason {
        let spec = &self.layout.items()[item].spec;
        Reason::new(Code::HostMemory, format!("{}, unit {}, slot {slot}: {why}", spec.name, spec.unit))
    }
}
