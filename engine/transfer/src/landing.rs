//! Pages that peers write into, and who still holds them.
//!
//! The coordinator allots page numbers for all ranks at once (their arenas have one geometry). A room's pages have up to
//! four owners: the request, the writer, the reader (the ranks copy landed units into cache pages), a host copy. They are
//! free when nobody owns them. An abort removes the request alone; the writer leaves by [`Proof`] only: not by time, not for
//! a released handle, an error code or a peer that is gone from a list. Pages whose request has gone while a writer is
//! possible are in quarantine; its budget and age name a peer to be torn down, which is a proof.
//!
//! Pure: time is handed in, from one clock of the caller.

use crate::fault::{Faults, Point};
use crate::ids::{PeerId, RoomKey};
use crate::layout::{Layout, PagesByClass};
use crate::room::Proof;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Who may hold pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The request; from [`LandingPool::alloc`] on.
    Request,
    /// A peer: from the moment DEST is sent.
    Writer,
    /// Ranks that copy landed pages.
    Reader,
    /// A copy to host memory.
    HostCopy,
}

/// An owner that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The request: finished, failed or aborted.
    Request,
    /// The writer, and why it cannot write any more.
    Writer(Proof),
    /// The last reader.
    Reader,
    /// The host copy has ended.
    HostCopy,
}

impl Leaving {
    fn owner(self) -> Owner {
        match self {
            Self::Request => Owner::Request,
            Self::Writer(_) => Owner::Writer,
            Self::Reader => Owner::Reader,
            Self::HostCopy => Owner::HostCopy,
        }
    }
}

/// A call that contradicts what the pool knows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LandingError {
    /// A room that has pages already.
    #[error("{0} has landing pages already")]
    Again(RoomKey),
    /// A room without pages.
    #[error("{0} has no landing pages")]
    Unknown(RoomKey),
    /// Not an owner.
    #[error("{room}: {owner:?} does not own its landing pages")]
    NotOwner {
        /// Room.
        room: RoomKey,
        /// Who should have.
        owner: Owner,
    },
    /// An owner twice.
    #[error("{room}: {owner:?} owns its landing pages already")]
    OwnsAlready {
        /// Room.
        room: RoomKey,
        /// Who.
        owner: Owner,
    },
    /// Counts of another number of classes.
    #[error("landing pages of {got} classes asked for, the pool has {expected}")]
    Classes {
        /// Classes of the pool.
        expected: usize,
        /// Counts given.
        got: usize,
    },
    /// The books do not balance.
    #[error("landing page {page} of class {class} is held {held} times (rooms and free list together), expected once")]
    Audit {
        /// Class.
        class: usize,
        /// Page.
        page: u32,
        /// Times.
        held: u32,
    },
}

#[derive(Debug)]
struct Holding {
    pages: PagesByClass,
    peer: PeerId,
    owners: u8,
    bytes: u64,
    /// Since when its request has been gone with a writer left, and the order of that.
    quarantined: Option<(Duration, u64)>,
}

/// Landing pages of one arena geometry.
#[derive(Debug)]
pub struct LandingPool {
    /// Free page numbers by class; the last is taken first.
    free: PagesByClass,
    num_pages: Vec<u32>,
    /// Arena bytes behind one page number, all units and items.
    page_bytes: Vec<u64>,
    rooms: BTreeMap<RoomKey, Holding>,
    quarantined_bytes: u64,
    budget_bytes: u64,
    max_age: Duration,
    next_order: u64,
    faults: Arc<Faults>,
}

impl LandingPool {
    /// A pool of free pages: per class their number and the arena bytes of one. Above `budget_bytes` in quarantine, or after
    /// `max_age` there, a peer is to be torn down. `faults` may hold a rule for [`Point::Quarantine`].
    pub fn new(
        num_pages: &[u32],
        page_bytes: &[u64],
        budget_bytes: u64,
        max_age: Duration,
        faults: Arc<Faults>,
    ) -> Self {
        assert_eq!(num_pages.len(), page_bytes.len(), "one size per class");
        Self {
            free: num_pages.iter().map(|&pages| (0..pages).rev().collect()).collect(),
            num_pages: num_pages.into(),
            page_bytes: page_bytes.into(),
            rooms: BTreeMap::new(),
            quarantined_bytes: 0,
            budget_bytes,
            max_age,
            next_order: 0,
            faults,
        }
    }

    /// The pool of a landing arena's layout.
    pub fn of(layout: &Layout, budget_bytes: u64, max_age: Duration, faults: Arc<Faults>) -> Self {
        let num_pages: Vec<_> = layout.classes().iter().map(|class| class.num_pages).collect();
        let mut page_bytes = vec![0; num_pages.len()];
        for item in layout.items() {
            page_bytes[item.spec.class.0 as usize] += item.stride;
        }
        Self::new(&num_pages, &page_bytes, budget_bytes, max_age, faults)
    }

    /// Pages for a room, owned by its request; `None` while there are too few. `peer` is who will write them.
    ///
    /// # Errors
    /// A room that has some; counts of another number of classes.
    pub fn alloc(&mut self, room: RoomKey, peer: PeerId, counts: &[u32]) -> Result<Option<PagesByClass>, LandingError> {
        if counts.len() != self.free.len() {
            return Err(LandingError::Classes { expected: self.free.len(), got: counts.len() });
        }
        if self.rooms.contains_key(&room) {
            return Err(LandingError::Again(room));
        }
        if self.free.iter().zip(counts).any(|(free, &count)| free.len() < count as usize) {
            return Ok(None);
        }
        let take = |(free, &count): (&mut Vec<u32>, &u32)| free.split_off(free.len() - count as usize);
        let pages: PagesByClass = self.free.iter_mut().zip(counts).map(take).collect();
        let bytes = self.page_bytes.iter().zip(counts).map(|(bytes, &count)| bytes * u64::from(count)).sum();
        let holding = Holding { pages: pages.clone(), peer, owners: bit(Owner::Request), bytes, quarantined: None };
        self.rooms.insert(room, holding);
        Ok(Some(pages))
    }

    /// One more owner. The writer enters before DEST is sent.
    ///
    /// # Errors
    /// A room without pages (they may be somebody else's by now); an owner twice.
    pub fn enter(&mut self, room: RoomKey, owner: Owner) -> Result<(), LandingError> {
        let holding = self.rooms.get_mut(&room).ok_or(LandingError::Unknown(room))?;
        if holding.owners & bit(owner) != 0 {
            return Err(LandingError::OwnsAlready { room, owner });
        }
        holding.owners |= bit(owner);
        Ok(())
    }

    /// One owner less. True: it was the last, the pages are free.
    ///
    /// # Errors
    /// A room without pages; somebody who is no owner.
    pub fn release(&mut self, room: RoomKey, leaving: Leaving, now: Duration) -> Result<bool, LandingError> {
        let owner = leaving.owner();
        let holding = self.rooms.get_mut(&room).ok_or(LandingError::Unknown(room))?;
        if holding.owners & bit(owner) == 0 {
            return Err(LandingError::NotOwner { room, owner });
        }
        holding.owners &= !bit(owner);
        if owner == Owner::Request && holding.owners & bit(Owner::Writer) != 0 {
            if self.faults.at(Point::Quarantine, "").is_some() {
                holding.owners &= !bit(Owner::Writer);
            } else {
                holding.quarantined = Some((now, self.next_order));
                self.next_order += 1;
                self.quarantined_bytes += holding.bytes;
            }
        }
        if owner == Owner::Writer && holding.quarantined.take().is_some() {
            self.quarantined_bytes -= holding.bytes;
        }
        if holding.owners != 0 {
            return Ok(false);
        }
        if let Some(holding) = self.rooms.remove(&room) {
            for (free, pages) in self.free.iter_mut().zip(holding.pages) {
                free.extend(pages);
            }
        }
        Ok(true)
    }

    /// Pages of a room.
    pub fn pages(&self, room: RoomKey) -> Option<&PagesByClass> {
        self.rooms.get(&room).map(|holding| &holding.pages)
    }

    /// Rooms with pages, in their order.
    pub fn rooms(&self) -> impl Iterator<Item = RoomKey> {
        self.rooms.keys().copied()
    }

    /// Free pages by class.
    pub fn num_free(&self) -> Vec<u32> {
        self.free.iter().map(|free| free.len() as u32).collect()
    }

    /// Arena bytes in quarantine.
    pub fn quarantined_bytes(&self) -> u64 {
        self.quarantined_bytes
    }

    /// The peer to tear down, if quarantine is over its budget or a room in it over its age: that of the oldest room there.
    /// The answer stays the same until the proof arrives and the writer leaves.
    pub fn overdue(&self, now: Duration) -> Option<PeerId> {
        let quarantined = self.rooms.values().filter_map(|holding| Some((holding.quarantined?, holding.peer)));
        let ((since, _), peer) = quarantined.min_by_key(|((_, order), _)| *order)?;
        (self.quarantined_bytes > self.budget_bytes || now.saturating_sub(since) >= self.max_age).then_some(peer)
    }

    /// Checks that every page is free or held by one room, once.
    ///
    /// # Errors
    /// The first page for which that is not so.
    pub fn audit(&self) -> Result<(), LandingError> {
        for (class, &num_pages) in self.num_pages.iter().enumerate() {
            let mut held = vec![0u32; num_pages as usize];
            let rooms = self.rooms.values().flat_map(|holding| &holding.pages[class]);
            for &page in self.free[class].iter().chain(rooms) {
                match held.get_mut(page as usize) {
                    Some(held) => *held += 1,
                    None => return Err(LandingError::Audit { class, page, held: 1 }),
                }
            }
            if let Some(page) = held.iter().position(|&held| held != 1) {
                return Err(LandingError::Audit { class, page: page as u32, held: held[page] });
            }
        }
        Ok(())
    }
}

fn bit(owner: Owner) -> u8 {
    1 << owner as u8
}

#[cfg(all(test, not(loom)))]
mod tests;
