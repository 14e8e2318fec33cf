//! Pools of cache pages: free lists and reference counts.
//!
//! A page is held through a [`PageRef`], which can be neither copied nor given back twice: sharing makes a second one,
//! and releasing consumes it. A page returns to the free list with its last reference.

use crate::ids::{Generation, PageId};
use std::marker::PhantomData;
use thiserror::Error;

/// What a pool holds; keeps references of different pools apart.
pub trait PoolKind {
    /// Name in messages.
    const NAME: &'static str;
}

/// Compressed rows and index keys of `page_tokens` tokens, in every CSA and HCA layer.
#[derive(Debug)]
pub enum Compressed {}
/// Window rows of `window_page_tokens` tokens in every layer, and the compressor rings of that stretch.
#[derive(Debug)]
pub enum Window {}
/// The HCA rings of a running request, under the ring-per-request policy.
#[derive(Debug)]
pub enum RequestSlots {}

impl PoolKind for Compressed {
    const NAME: &'static str = "compressed";
}
impl PoolKind for Window {
    const NAME: &'static str = "window";
}
impl PoolKind for RequestSlots {
    const NAME: &'static str = "request";
}

/// One reference to a page. Dropping it without [`Pool::release`] leaks the page, which [`Pool::audit`] reports.
#[derive(Debug)]
#[must_use = "a page returns to its pool through Pool::release alone"]
pub struct PageRef<K> {
    page: PageId,
    generation: Generation,
    kind: PhantomData<fn() -> K>,
}

impl<K> PageRef<K> {
    /// Which page.
    pub fn id(&self) -> PageId {
        self.page
    }

    /// Who was given it first.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    fn new(page: PageId, generation: Generation) -> Self {
        Self { page, generation, kind: PhantomData }
    }
}

/// Pages of one kind.
#[derive(Debug)]
pub struct Pool<K> {
    refs: Vec<u32>,
    free: Vec<PageId>,
    kind: PhantomData<fn() -> K>,
}

/// A page whose references are not those that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{pool} page {page}: expected {counted} references and {free} places in the free list, got {held} holders")]
pub struct AuditError {
    pool: &'static str,
    page: PageId,
    counted: u32,
    held: u32,
    free: u32,
}

impl<K: PoolKind> Pool<K> {
    /// A pool of free pages. Page 0 is handed out first.
    pub fn new(num_pages: u32) -> Self {
        Self { refs: vec![0; num_pages as usize], free: (0..num_pages).rev().map(PageId).collect(), kind: PhantomData }
    }

    /// Takes a free page for nobody in particular. The page given back last goes first.
    pub fn alloc(&mut self) -> Option<PageRef<K>> {
        self.alloc_for(Generation::default())
    }

    /// [`Pool::alloc`] for an admission, whose number the page keeps.
    pub fn alloc_for(&mut self, generation: Generation) -> Option<PageRef<K>> {
        let page = self.free.pop()?;
        self.refs[page.0 as usize] = 1;
        Some(PageRef::new(page, generation))
    }

    /// A second reference to the same page.
    pub fn share(&mut self, page: &PageRef<K>) -> PageRef<K> {
        self.refs[page.page.0 as usize] += 1;
        PageRef::new(page.page, page.generation)
    }

    /// Gives a reference back; true if it was the last one and the page is free again.
    ///
    /// # Panics
    /// The reference belongs to another pool of the same kind.
    pub fn release(&mut self, page: PageRef<K>) -> bool {
        let refs = &mut self.refs[page.page.0 as usize];
        *refs = refs.checked_sub(1).unwrap_or_else(|| panic!("{} page {} of another pool", K::NAME, page.page));
        if *refs == 0 {
            self.free.push(page.page);
        }
        *refs == 0
    }

    /// Whether this is the only reference.
    pub fn is_unique(&self, page: &PageRef<K>) -> bool {
        self.refs[page.page.0 as usize] == 1
    }

    /// Whether nobody holds the page.
    pub fn is_free(&self, page: PageId) -> bool {
        self.refs[page.0 as usize] == 0
    }

    /// Pages in the pool.
    pub fn num_pages(&self) -> u32 {
        self.refs.len() as u32
    }

    /// Pages that nobody holds.
    pub fn num_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Compares the counts with everybody who holds a reference.
    ///
    /// # Errors
    /// The first page that is leaked, held without being counted, or free while it is held.
    pub fn audit<'a>(&self, holders: impl IntoIterator<Item = &'a PageRef<K>>) -> Result<(), AuditError>
    where
        K: 'a,
    {
        let mut held = vec![0_u32; self.refs.len()];
        let mut free = vec![0_u32; self.refs.len()];
        holders.into_iter().for_each(|page| held[page.page.0 as usize] += 1);
        self.free.iter().for_each(|page| free[page.0 as usize] += 1);
        for (page, &counted) in self.refs.iter().enumerate() {
            let (held, free) = (held[page], free[page]);
            if held != counted || free != u32::from(counted == 0) {
                return Err(AuditError { pool: K::NAME, page: PageId(page as u32), counted, held, free });
            }
        }
        Ok(())
    }
}

/// Pages of every pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct PoolSizes {
    /// Compressed pages.
    pub compressed_pages: u32,
    /// Window pages.
    pub window_pages: u32,
    /// Slots of running requests; 0 unless HCA rings are per request.
    pub request_slots: u32,
}

/// The pools of an engine.
#[derive(Debug)]
pub struct Pools {
    /// Compressed pages.
    pub compressed: Pool<Compressed>,
    /// Window pages.
    pub window: Pool<Window>,
    /// Slots of running requests.
    pub requests: Pool<RequestSlots>,
}

impl Pools {
    /// Pools of free pages.
    pub fn new(sizes: PoolSizes) -> Self {
        Self {
            compressed: Pool::new(sizes.compressed_pages),
            window: Pool::new(sizes.window_pages),
            requests: Pool::new(sizes.request_slots),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_with_its_last_reference() {
        let mut pool = Pool::<Window>::new(2);
        let first = pool.alloc().unwrap();
        let second = pool.alloc().unwrap();
        assert!(pool.alloc().is_none());
        assert_eq!((first.id(), second.id()), (PageId(0), PageId(1)));
        let shared = pool.share(&second);
        assert!(pool.is_unique(&first) && !pool.is_unique(&second));
        assert!(!pool.release(second), "the shared reference keeps it");
        assert_eq!(pool.num_free(), 0);
        assert!(pool.release(shared));
        assert_eq!(pool.alloc().unwrap().id(), PageId(1), "given back last, handed out first");
        let _ = first;
    }

    #[test]
    fn audit_finds_leaks_and_strangers() {
        let mut pool = Pool::<Compressed>::new(2);
        let page = pool.alloc().unwrap();
        assert_eq!(pool.audit([&page]), Ok(()));
        let text = pool.audit([]).unwrap_err().to_string();
        assert_eq!(text, "compressed page 0: expected 1 references and 0 places in the free list, got 0 holders");
        assert!(pool.audit([&page, &page]).is_err());
        assert!(pool.audit([&PageRef::new(PageId(1), Generation(1))]).is_err(), "held while it is free");
        assert!(pool.release(page));
        assert_eq!(pool.audit([]), Ok(()));
        pool.free.push(PageId(0));
        assert!(pool.audit([]).is_err(), "twice in the free list");
    }
}
