//! Free pages of an arena, the same numbers on every rank.

use std::sync::Arc;
use transfer::fault::{Faults, Point};
use transfer::layout::{Layout, PagesByClass};

/// Pages of every class, dealt out room by room.
#[derive(Debug, Clone)]
pub struct ArenaPages {
    free: PagesByClass,
    num_pages: Vec<u32>,
    faults: Arc<Faults>,
}

impl ArenaPages {
    /// The free pages of an arena.
    pub fn new(layout: &Layout) -> Self {
        let num_pages: Vec<u32> = layout.classes().iter().map(|class| class.num_pages).collect();
        let free = num_pages.iter().map(|&pages| (0..pages).rev().collect()).collect();
        Self { free, num_pages, faults: Arc::new(Faults::none()) }
    }

    /// With faults of [`Point::Quarantine`].
    pub(crate) fn set_faults(&mut self, faults: Arc<Faults>) {
        self.faults = faults;
    }

    /// Whether pages of a room that is over may be given back: with proof of quiet, or where a fault does without.
    pub(crate) fn may_leave(&self, quiet: bool) -> bool {
        quiet || self.faults.at(Point::Quarantine, "").is_some()
    }

    /// Whether so many pages would fit an empty arena.
    pub fn could_hold(&self, counts: &[u32]) -> bool {
        counts.iter().zip(&self.num_pages).all(|(count, pages)| count <= pages)
    }

    /// Takes pages, all or none.
    pub fn take(&mut self, counts: &[u32]) -> Option<PagesByClass> {
        let fits = self.free.iter().zip(counts).all(|(free, &count)| free.len() >= count as usize);
        let take = |(free, &count): (&mut Vec<u32>, &u32)| free.split_off(free.len() - count as usize);
        fits.then(|| self.free.iter_mut().zip(counts).map(take).collect())
    }

    /// Gives pages back.
    pub fn give_back(&mut self, pages: PagesByClass) {
        for (free, pages) in self.free.iter_mut().zip(pages) {
            free.extend(pages);
        }
    }

    /// Whether every page is free.
    pub fn is_whole(&self) -> bool {
        self.free.iter().zip(&self.num_pages).all(|(free, &pages)| free.len() == pages as usize)
    }
}
