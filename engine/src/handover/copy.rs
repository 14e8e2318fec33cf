//! Pages between cache buffers and an arena, one unit at a time.

use super::{PageRun, layout};
use crate::geometry::{CacheBuffer, CacheGeometry};
use crate::model::cache::{Caches, refused};
use crate::pools::PoolSizes;
use reference::ops::{Ops, OpsError};
use transfer::ids::{Class, Unit};
use transfer::layout::{Layout, LayoutError, PagesByClass};

/// A page of the cache and the page of the arena that stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMove {
    /// Class of both.
    pub class: Class,
    /// Page of the cache.
    pub cache: u32,
    /// Page of the arena.
    pub arena: u32,
}

impl PageMove {
    /// Pairs lists by class; the shorter list of a class ends it.
    pub fn pairs(cache: &PagesByClass, arena: &PagesByClass) -> Vec<Self> {
        let of_class = |(class, (cache, arena)): (u8, (&Vec<u32>, &Vec<u32>))| {
            let pairs: Vec<_> = cache.iter().copied().zip(arena.iter().copied()).collect();
            pairs.into_iter().map(move |(cache, arena)| Self { class: Class(class), cache, arena })
        };
        (0..).zip(cache.iter().zip(arena)).flat_map(of_class).collect()
    }
}

/// Takes the bytes that stand at a place of the arena.
pub type Put<'a> = dyn FnMut(u64, &[u8]) -> Result<(), String> + 'a;

/// Gives the bytes that stand at a place of the arena.
pub type Get<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), String> + 'a;

/// The way between a rank's cache buffers and its arena.
#[derive(Debug)]
pub struct Handover {
    layout: Layout,
    /// By item: which buffer it is, and bytes from page to page in it.
    buffers: Vec<(CacheBuffer, u64)>,
    page: Vec<u8>,
}

impl Handover {
    /// For a cache of this geometry and an arena of `arena` pages.
    ///
    /// # Errors
    /// An arena that no address reaches.
    pub fn new(geometry: &CacheGeometry, arena: PoolSizes) -> Result<Self, LayoutError> {
        let layout = layout(geometry, arena)?;
        let buffers: Vec<_> =
            geometry.buffers(arena).iter().map(|spec| (spec.buffer, spec.pages.page_stride_bytes)).collect();
        debug_assert_eq!(buffers.len(), layout.items().len(), "an item per buffer, in the same order");
        Ok(Self { layout, buffers, page: Vec::new() })
    }

    /// The arena.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the pages of a unit out of the cache, `runs` by who was given them; `put` takes each with its first byte in the arena.
    ///
    /// # Errors
    /// A page that a buffer does not have, or that the gate does not let through; the device; what `put` says.
    pub fn export<O: Ops>(
        &mut self,
        ops: &O,
        caches: &Caches<O::Buffer>,
        unit: Unit,
        moves: &[PageMove],
        runs: &[PageRun],
        put: &mut Put<'_>,
    ) -> Result<(), OpsError> {
        let Self { layout, buffers, page } = self;
        let cache = caches.layer(unit.0).ok_or_else(|| no_layer(ops, unit))?;
        let runs = runs.iter().map(PageRun::tagged).collect::<Result<Vec<_>, _>>().map_err(refused(ops))?;
        let readable = caches.gate().readable(unit, &runs).map_err(refused(ops))?;
        for (item, &(buffer, stride)) in layout.items().iter().zip(&*buffers).filter(|(item, _)| item.spec.unit == unit)
        {
            let memory = cache.buffer(buffer, &readable).ok_or_else(|| no_layer(ops, unit))?;
            for pages in moves.iter().filter(|pages| pages.class == item.spec.class) {
                let (place, bytes) = layout.place(item, pages.arena);
                page.resize(bytes as usize, 0);
                ops.download(memory, u64::from(pages.cache) * stride, page)?;
                put(place, page).map_err(refused(ops))?;
            }
        }
        Ok(())
    }

    /// Writes the pages of a unit into the cache; `get` fills each from its first byte in the arena.
    ///
    /// # Errors
    /// A page that a buffer does not have; the device; what `get` says.
    pub fn import<O: Ops>(
        &mut self,
        ops: &O,
        caches: &mut Caches<O::Buffer>,
        unit: Unit,
        moves: &[PageMove],
        get: &mut Get<'_>,
    ) -> Result<(), OpsError> {
        let of_unit: Vec<usize> =
            (0..self.buffers.len()).filter(|&i| self.layout.items()[i].spec.unit == unit).collect();
        of_unit.into_iter().try_for_each(|item| self.import_item(ops, caches, item, moves, get))
    }

    /// [`Handover::import`] of one item, by its place in the layout.
    ///
    /// # Errors
    /// As [`Handover::import`].
    pub fn import_item<O: Ops>(
        &mut self,
        ops: &O,
        caches: &mut Caches<O::Buffer>,
        item: usize,
        moves: &[PageMove],
        get: &mut Get<'_>,
    ) -> Result<(), OpsError> {
        let Self { layout, buffers, page } = self;
        let (item, (buffer, stride)) = (&layout.items()[item], buffers[item]);
        let unit = item.spec.unit;
        let cache = caches.layer_mut(unit.0).ok_or_else(|| no_layer(ops, unit))?;
        let memory = cache.buffer_mut(buffer).ok_or_else(|| no_layer(ops, unit))?;
        for pages in moves.iter().filter(|pages| pages.class == item.spec.class) {
            let (place, bytes) = layout.place(item, pages.arena);
            page.resize(bytes as usize, 0);
            get(place, page).map_err(refused(ops))?;
            ops.upload(memory, u64::from(pages.cache) * stride, page)?;
        }
        Ok(())
    }
}

fn no_layer<O: Ops>(ops: &O, unit: Unit) -> OpsError {
    OpsError::Device { device: ops.name(), message: format!("the cache has no layer {unit} with these buffers") }
}
