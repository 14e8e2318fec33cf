//! Shadow memory: pages of cells, the table of events they name, and the releases made through each address.

use super::cell::{Cell, LIST, NONE, Op, SPLIT, Tables};
use super::event::{Event, How};
use super::object::Object;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of an unsplit cell.
const CELL: u64 = 16;
const CELLS: usize = (PAGE / CELL) as usize;
/// Entries of the cache that finds the number of a recent event.
const RECENT: usize = 256;

/// Multiplicative hash for page numbers and addresses: fast, and the same in every run.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

pub(super) type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// Race state of one memory, or of one part of global memory.
///
/// Size: 16 bytes per 16 bytes touched by whole-cell accesses, 64 more where words differ, 64 more per word where bytes
/// differ, 8 per further record of a cell (at most [`super::cell::MAX_RECORDS`]), 28 per event; events that no cell
/// names are dropped when the table has doubled.
#[derive(Debug)]
pub(super) struct Shadow {
    index: AddressMap<u32>,
    pages: Vec<Box<[Cell; CELLS]>>,
    /// The page touched last: its number, its place in `pages`.
    last_page: (u64, u32),
    tables: Tables,
    recent: Box<[u32; RECENT]>,
    /// Events of copies in flight, by pin number; their epoch is written when they land.
    pins: Vec<u32>,
    free_pins: Vec<u32>,
    collect_at: usize,
    /// Addresses through which something was released.
    pub(super) objects: AddressMap<Object>,
}

impl Default for Shadow {
    fn default() -> Self {
        Shadow::new(0)
    }
}

impl Shadow {
    /// Empty, with room for `bytes` that are likely to be touched.
    pub(super) fn new(bytes: u64) -> Self {
        let pages = bytes.div_ceil(PAGE) as usize;
        let nothing = Event { block: 0, cluster: 0, slot: 0, epoch: 0, place: 0, issuer: 0, how: How::READ };
        Shadow {
            index: AddressMap::with_capacity_and_hasher(pages, BuildHasherDefault::default()),
            pages: Vec::with_capacity(pages),
            last_page: (u64::MAX, 0),
            tables: Tables::new(nothing),
            recent: Box::new([NONE; RECENT]),
            pins: Vec::new(),
            free_pins: Vec::new(),
            collect_at: 1 << 16,
            objects: AddressMap::default(),
        }
    }

    /// Makes the access of the lanes of `mask`, lane by lane, `bytes` at `addr[lane]`.
    pub(super) fn access(&mut self, op: &mut Op<'_>, mask: u32, addr: &[u64; 32], bytes: u32) {
        self.enter(op);
        let mut rest = mask;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            let at = addr[lane as usize];
            let mut run = 0;
            // Neighbouring lanes at one address are one step (a broadcast is one record).
            while rest != 0 && addr[rest.trailing_zeros() as usize] == at {
                run |= rest & rest.wrapping_neg();
                rest &= rest - 1;
            }
            if !run.is_power_of_two() && op.event.how.is_weak_write() {
                op.clash(run, at);
            }
            self.touch(op, run, at, u64::from(bytes));
        }
    }

    /// Makes one access to a range that is not per lane (a bulk copy); returns the pin of its event if asked for.
    pub(super) fn access_range(
        &mut self,
        op: &mut Op<'_>,
        lanes: u32,
        addr: u64,
        bytes: u64,
        pin: bool,
    ) -> Option<u32> {
        let id = self.enter(op);
        self.touch(op, lanes, addr, bytes);
        pin.then(|| {
            let number = self.free_pins.pop().unwrap_or_else(|| {
                self.pins.push(NONE);
                self.pins.len() as u32 - 1
            });
            self.pins[number as usize] = id;
            number
        })
    }

    /// The copy behind the pin landed in this epoch of its agent.
    pub(super) fn land(&mut self, pin: u32, epoch: u32) {
        let id = std::mem::replace(&mut self.pins[pin as usize], NONE);
        // A copy that no cell names any more (its bytes were raced over) may have lost its event.
        if id != NONE {
            self.tables.events[id as usize].epoch = epoch;
        }
        self.free_pins.push(pin);
    }

    fn enter(&mut self, op: &mut Op<'_>) -> u32 {
        if self.tables.events.len() >= self.collect_at {
            self.collect();
        }
        let e = &op.event;
        let mix =
            (e.place ^ e.slot.wrapping_mul(0x9e37_79b9) ^ e.block.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0xc2b2_ae35);
        let recent = &mut self.recent[(mix >> 24) as usize % RECENT];
        let id = if *recent != NONE && self.tables.events[*recent as usize] == *e {
            *recent
        } else {
            self.tables.events.push(*e);
            self.tables.events.len() as u32 - 1
        };
        // A copy in flight keeps an event to itself: its epoch will be written.
        if e.epoch != super::event::IN_FLIGHT {
            *recent = id;
        }
        op.enter(id);
        id
    }

    fn touch(&mut self, op: &mut Op<'_>, lanes: u32, addr: u64, bytes: u64) {
        let (mut at, end) = (addr, addr + bytes);
        while at < end {
            let page_number = at / PAGE;
            let page_end = end.min((page_number + 1) * PAGE);
            if self.last_page.0 != page_number {
                self.last_page = (page_number, self.page(page_number));
            }
            let cells = &mut self.pages[self.last_page.1 as usize];
            while at < page_end {
                let base = at & !(CELL - 1);
                let next = page_end.min(base + CELL);
                let cell = &mut cells[(base % PAGE / CELL) as usize];
                if next - at == CELL && cell.w.event != SPLIT {
                    self.tables.leaf(cell, op, lanes, base);
                } else {
                    let part = (at - base) as u32..(next - base) as u32;
                    self.tables.touch(cell, CELL as u32, part, op, lanes, base);
                }
                at = next;
            }
        }
        if op.event.how.is_weak_write() && !self.objects.is_empty() {
            // A weak write ends what was released through the bytes it overwrites.
            if bytes as usize <= self.objects.len() {
                (addr..end).for_each(|a| drop(self.objects.remove(&a)));
            } else {
                self.objects.retain(|a, _| !(addr..end).contains(a));
            }
        }
    }

    fn page(&mut self, number: u64) -> u32 {
        *self.index.entry(number).or_insert_with(|| {
            self.pages.push(Box::new([Cell::default(); CELLS]));
            self.pages.len() as u32 - 1
        })
    }

    /// Drops the events that nothing names any more.
    fn collect(&mut self) {
        let tables = &mut self.tables;
        let mut keep = vec![false; tables.events.len()];
        keep[NONE as usize] = true;
        let mut mark = |cell: &Cell| {
            if cell.w.event < SPLIT {
                keep[cell.w.event as usize] = true;
                keep[cell.r.event as usize] = true;
            }
        };
        self.pages.iter().flat_map(|page| page.iter()).for_each(&mut mark);
        tables.splits.iter().flatten().for_each(&mut mark);
        tables.lists.iter().flatten().for_each(|rec| keep[rec.event as usize] = true);
        let mut number = vec![NONE; keep.len()];
        let mut next = 0;
        for (old, &keep) in keep.iter().enumerate() {
            if keep {
                number[old] = next;
                tables.events[next as usize] = tables.events[old];
                next += 1;
            }
        }
        tables.events.truncate(next as usize);
        let rename = |cell: &mut Cell| {
            if cell.w.event < SPLIT {
                cell.w.event = number[cell.w.event as usize];
                cell.r.event = number[cell.r.event as usize];
            }
        };
        self.pages.iter_mut().flat_map(|page| page.iter_mut()).for_each(rename);
        tables.splits.iter_mut().flatten().for_each(rename);
        tables.lists.iter_mut().flatten().for_each(|rec| rec.event = number[rec.event as usize]);
        self.pins.iter_mut().for_each(|id| *id = number[*id as usize]);
        self.recent.fill(NONE);
        self.collect_at = (1 << 16).max(2 * tables.events.len());
    }
}

const _: () = assert!(LIST > SPLIT);
