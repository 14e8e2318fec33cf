//! Free pages of a server, the same on every rank.

use crate::words::layout;
use transfer::hello::Side;
use transfer::layout::PagesByClass;

/// Pages of a pool, by class.
#[derive(Debug)]
pub(crate) struct Pool(PagesByClass, PagesByClass);

impl Pool {
    pub(crate) fn new(side: Side) -> Self {
        let all: PagesByClass = layout(side).classes().iter().map(|class| (0..class.num_pages).collect()).collect();
        Self(all.clone(), all)
    }

    pub(crate) fn take(&mut self, counts: &[usize]) -> Option<PagesByClass> {
        let enough = self.0.iter().zip(counts).all(|(free, &count)| free.len() >= count);
        enough.then(|| self.0.iter_mut().zip(counts).map(|(free, &count)| free.drain(..count).collect()).collect())
    }

    pub(crate) fn give(&mut self, pages: &PagesByClass) {
        // The page that came back last goes out first, so that a late write meets a new owner.
        self.0.iter_mut().zip(pages).for_each(|(free, pages)| pages.iter().for_each(|&page| free.insert(0, page)));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.iter().zip(&self.1).all(|(free, all)| free.len() == all.len())
    }

    pub(crate) fn free(&self) -> &PagesByClass {
        &self.0
    }
}
