//! Do the bytes that arrived equal the bytes that were sent? xxh3-64 over the live bytes of every page of every item.
//!
//! The sender sums a unit after it is computed, the receiver before it publishes, and in debug runs once more at the last
//! read, where a late write shows. Sums stand in the order of [`Layout::copies`]: item by item, pages as listed.

use crate::arena::{Arena, ArenaError};
use crate::ids::Unit;
use crate::layout::{Item, Layout, LayoutError, PagesByClass};
use std::fmt;
use thiserror::Error;

/// Bytes in which a difference is reported.
const LINE: usize = 64;

/// Why pages could not be summed or compared.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChecksumError {
    /// Pages that the layout does not have.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An arena smaller than its layout.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Sums of other pages than these.
    #[error("unit {unit}: {got} checksums for {expected} pages")]
    Count {
        /// Unit.
        unit: Unit,
        /// Pages here.
        expected: usize,
        /// Sums given.
        got: usize,
    },
    /// Units of different make.
    #[error("unit {unit}: the other layout has other items or page bytes")]
    Items {
        /// Unit.
        unit: Unit,
    },
}

/// Pages of one arena.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Memory.
    pub arena: &'a Arena,
    /// What lies where in it.
    pub layout: &'a Layout,
    /// The pages.
    pub pages: &'a PagesByClass,
}

/// A page whose bytes differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// Item.
    pub item: String,
    /// Unit.
    pub unit: Unit,
    /// Page number here.
    pub page: u32,
    /// First 64 bytes that differ, where both copies are at hand.
    pub first: Option<Difference>,
}

/// The first bytes that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Byte in the page, a multiple of 64.
    pub at: usize,
    /// Bytes here (fewer than 64 at a page's end).
    pub ours: Vec<u8>,
    /// Bytes there.
    pub theirs: Vec<u8>,
}

/// Pages compared, and those that differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages compared.
    pub pages: usize,
    /// Pages that differ.
    pub misses: Vec<Miss>,
}

impl Report {
    /// Whether every page matches.
    pub fn matches(&self) -> bool {
        self.misses.is_empty()
    }

    /// Adds another unit's pages.
    pub fn extend(&mut self, other: Report) {
        self.pages += other.pages;
        self.misses.extend(other.misses);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {} of {} match", self.pages - self.misses.len(), self.pages)?;
        for Miss { item, unit, page, first } in &self.misses {
            write!(f, "\n{item}, unit {unit}, page {page}")?;
            if let Some(Difference { at, ours, theirs }) = first {
                write!(f, ": bytes {at}..{}", at + ours.len())?;
                write!(f, "\n  ours   {}\n  theirs {}", Hex(ours), Hex(theirs))?;
            }
        }
        Ok(())
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Rooms of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rooms {
    /// Rooms compared.
    pub rooms: usize,
    /// Rooms of which every page matches.
    pub matching: usize,
}

impl Rooms {
    /// Counts a room.
    pub fn add(&mut self, report: &Report) {
        self.rooms += 1;
        self.matching += usize::from(report.matches());
    }
}

impl fmt::Display for Rooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rooms match", self.matching, self.rooms)
    }
}

/// Sums of a unit's pages.
///
/// # Errors
/// Pages that are not there.
pub fn sums(place: Place<'_>, unit: Unit) -> Result<Vec<u64>, ChecksumError> {
    let mut bytes = Vec::new();
    let sum = |(item, page)| {
        load(place, item, page, &mut bytes)?;
        Ok(xxhash_rust::xxh3::xxh3_64(&bytes))
    };
    pages(place, unit)?.into_iter().map(sum).collect()
}

/// Compares pages with the sums that the sender made.
///
/// # Errors
/// Pages that are not there; sums of another number of pages.
pub fn verify(place: Place<'_>, unit: Unit, expected: &[u64]) -> Result<Report, ChecksumError> {
    let ours = sums(place, unit)?;
    if ours.len() != expected.len() {
        return Err(ChecksumError::Count { unit, expected: ours.len(), got: expected.len() });
    }
    let of = pages(place, unit)?;
    let differing = of.iter().zip(ours.iter().zip(expected)).filter(|(_, (ours, theirs))| ours != theirs);
    let miss = |&(item, page): &(&Item, u32)| Miss { item: item.spec.name.clone(), unit, page, first: None };
    Ok(Report { pages: of.len(), misses: differing.map(|(page, _)| miss(page)).collect() })
}

/// Compares pages byte by byte where both arenas are at hand: in simulations and tests.
///
/// # Errors
/// Pages that are not there; layouts or lists that do not go together.
pub fn compare(ours: Place<'_>, theirs: Place<'_>, unit: Unit) -> Result<Report, ChecksumError> {
    let (our_pages, their_pages) = (pages(ours, unit)?, pages(theirs, unit)?);
    if our_pages.len() != their_pages.len() {
        return Err(ChecksumError::Count { unit, expected: our_pages.len(), got: their_pages.len() });
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut report = Report { pages: our_pages.len(), misses: Vec::new() };
    for ((item, page), (other, other_page)) in our_pages.into_iter().zip(their_pages) {
        if (&item.spec.name, item.spec.page_bytes) != (&other.spec.name, other.spec.page_bytes) {
            return Err(ChecksumError::Items { unit });
        }
        load(ours, item, page, &mut left)?;
        load(theirs, other, other_page, &mut right)?;
        let lines = || left.chunks(LINE).zip(right.chunks(LINE));
        if let Some(line) = lines().position(|(ours, theirs)| ours != theirs) {
            let at = line * LINE;
            let [ours, theirs] = [&left, &right].map(|bytes| bytes[at..bytes.len().min(at + LINE)].to_vec());
            let first = Some(Difference { at, ours, theirs });
            report.misses.push(Miss { item: item.spec.name.clone(), unit, page, first });
        }
    }
    Ok(report)
}

fn pages<'a>(place: Place<'a>, unit: Unit) -> Result<Vec<(&'a Item, u32)>, ChecksumError> {
    place.layout.check_pages(place.pages)?;
    let of_item = |item: &'a Item| place.pages[item.spec.class.0 as usize].iter().map(move |&page| (item, page));
    Ok(place.layout.unit(unit).flat_map(of_item).collect())
}

fn load(place: Place<'_>, item: &Item, page: u32, bytes: &mut Vec<u8>) -> Result<(), ArenaError> {
    let (offset, len) = place.layout.place(item, page);
    // A page is part of an arena, which exists in memory.
    bytes.resize(len as usize, 0);
    place.arena.read(offset, bytes)
}

#[cfg(all(test, not(loom)))]
mod tests;
