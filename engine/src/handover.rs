//! Cache pages of a request as bytes: which pages a text needs at a boundary, how a rank's arena is laid out, and copies
//! between the arena and the rank's cache buffers.
//!
//! A **unit** is a layer, the draft layer included; its items are the buffers that [`CacheGeometry::buffers`] lists for it, so
//! that what is allocated and what travels cannot differ. A **class** is a pool: a page number means the same text in every
//! item of its class.

mod copy;
mod order;
mod rank;
mod record;

pub use copy::{Get, Handover, PageMove, Put};
pub use order::{Export, Import, Order, PageRun, Work};
pub(crate) use rank::{ObeyError, RankExchange};
pub use rank::{RankParts, RankRooms};
pub use record::{HandoverRecord, PrefillRequest, RecordError, prompt_hash};

use crate::geometry::{CacheGeometry, CacheShape, HcaState, PoolName};
use crate::ids::{PageId, Position, SlotIndex};
use crate::pools::PoolSizes;
use std::ops::Range;
use transfer::ids::{Class, Unit};
use transfer::layout::{ClassSpec, ItemSpec, Layout, LayoutError, PagesByClass};

/// The pools in the order of their classes.
pub const POOLS: [PoolName; 3] = [PoolName::Compressed, PoolName::Window, PoolName::Request];

/// The class of a pool's pages.
pub const fn class(pool: PoolName) -> Class {
    match pool {
        PoolName::Compressed => Class(0),
        PoolName::Window => Class(1),
        PoolName::Request => Class(2),
    }
}

/// The classes of pools of these sizes.
pub fn classes(sizes: PoolSizes) -> [ClassSpec; 3] {
    let name = |pool| match pool {
        PoolName::Compressed => "compressed",
        PoolName::Window => "window",
        PoolName::Request => "request",
    };
    POOLS.map(|pool| ClassSpec { name: name(pool).into(), num_pages: sizes.of(pool) })
}

/// The arena of a rank with `sizes` pages: one item per buffer of the cache, of its rows without the padding of a page.
///
/// # Errors
/// More bytes than an address can name.
pub fn layout(geometry: &CacheGeometry, sizes: PoolSizes) -> Result<Layout, LayoutError> {
    let items = geometry.buffers(sizes).into_iter().map(|spec| {
        let (rows, row_bytes) = geometry.rows(spec.buffer);
        ItemSpec {
            unit: Unit(spec.layer),
            name: spec.buffer.name().into(),
            class: class(spec.pool),
            page_bytes: u64::from(rows) * row_bytes,
        }
    });
    Layout::new(classes(sizes).into(), items.collect())
}

/// What somebody who continues a text needs of it, as places in the tables of its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// Compressed pages.
    pub compressed: Range<u32>,
    /// Window pages.
    pub window: Range<u32>,
    /// Whether the rings of the running request are among them.
    pub request: bool,
}

impl Needed {
    /// Pages that a text of `tokens` cached tokens needs, where the receiver has those of its first `held` tokens already.
    ///
    /// A compressed page counts from its first completed row on. Of the window pages those count that hold a row or a state
    /// which the token at `tokens` or a later one reads. Rings of the request are empty wherever the HCA ratio divides the text.
    ///
    /// The window page before the last page's end is among them as well, so that the receiver can resume later texts there, unless
    /// these are more pages than another text of its length may need anyway ([`CacheShape::max_window_pages`]).
    ///
    /// # Panics
    /// `held` is no multiple of the page, where nobody could resume.
    pub fn at(shape: &CacheShape, held: u32, tokens: u32) -> Self {
        assert!(held.is_multiple_of(shape.page_tokens), "a text is resumed at a page's end, not at {held}");
        if tokens <= held {
            return Self { compressed: 0..0, window: 0..0, request: false };
        }
        let rows = tokens / shape.csa_ratio.min(shape.hca_ratio);
        let rows_per_page = shape.page_tokens / shape.csa_ratio.min(shape.hca_ratio);
        let first = held / shape.page_tokens;
        let (window, end) =
            (shape.first_needed(Position(tokens)).0.max(held), tokens.div_ceil(shape.window_page_tokens));
        let window = window / shape.window_page_tokens;
        let boundary = tokens - tokens % shape.page_tokens;
        let resume = (boundary > held).then(|| boundary / shape.window_page_tokens - 1);
        let resume = resume.filter(|&page| end - page <= shape.max_window_pages(1));
        let has_ring = matches!(shape.hca_state, HcaState::PerRequest);
        Self {
            compressed: first..rows.div_ceil(rows_per_page).max(first),
            window: resume.map_or(window, |page| page.min(window))..end,
            request: has_ring && !tokens.is_multiple_of(shape.hca_ratio),
        }
    }

    /// Pages by class.
    pub fn counts(&self) -> [u32; 3] {
        [self.compressed.len() as u32, self.window.len() as u32, u32::from(self.request)]
    }

    /// Whether nothing is needed.
    pub fn is_empty(&self) -> bool {
        self.counts() == [0; 3]
    }

    /// The pages themselves, from the tables of the text. `None` if a table lacks one.
    pub fn pages(
        &self,
        compressed: &[PageId],
        window: &[Option<PageId>],
        request: Option<SlotIndex>,
    ) -> Option<PagesByClass> {
        let range = |range: &Range<u32>| range.start as usize..range.end as usize;
        let compressed = compressed.get(range(&self.compressed))?.iter().map(|page| page.0).collect();
        let window =
            window.get(range(&self.window))?.iter().map(|page| page.map(|page| page.0)).collect::<Option<_>>()?;
        let request = if self.request { vec![request?.0] } else { Vec::new() };
        Some(vec![compressed, window, request])
    }
}
