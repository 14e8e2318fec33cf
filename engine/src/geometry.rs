//! Sizes of the cache: tokens per page, rows per ring, bytes per page.

mod bytes;

pub use bytes::{BufferSpec, CacheBuffer, CacheGeometry, GeometryError, PoolName};

use crate::config::LayerKind;
use crate::ids::{PageId, Position};
use thiserror::Error;

/// Source tokens of a compressed page.
pub const PAGE_TOKENS: u32 = 256;

/// Where the HCA compressor keeps its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HcaState {
    /// A ring in every window page.
    PerWindowPage,
    /// One ring per running request, in a pool of its own.
    PerRequest,
}

/// Page and ring sizes in tokens and rows: what tables and slots depend on. The bytes are in [`CacheGeometry`].
///
/// A compressed page is `page_tokens` tokens of compressed rows and index keys; a window page `window_page_tokens`
/// tokens of window rows, together with the compressor rings of that stretch. The state slot of position `p` is
/// `table[p / state page tokens] * ring_rows + p % ring_rows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Tokens of a compressed page.
    pub page_tokens: u32,
    /// Tokens of a window page; a divisor of `page_tokens`.
    pub window_page_tokens: u32,
    /// Window in tokens, the query's own included; at most a window page.
    pub window: u32,
    /// Tokens per CSA row.
    pub csa_ratio: u32,
    /// Tokens per HCA row.
    pub hca_ratio: u32,
    /// Rows of a CSA ring (main and index alike), at least `2 * csa_ratio`.
    pub csa_ring_rows: u32,
    /// Rows of an HCA ring, at least `hca_ratio`.
    pub hca_ring_rows: u32,
    /// Where the HCA rings are.
    pub hca_state: HcaState,
}

/// A shape that does not work.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cache shape: expected {expected}, got {got}")]
pub struct ShapeError {
    expected: String,
    got: u32,
}

impl CacheShape {
    /// One HCA ring in every window page of 128 tokens: a finished window page alone restores a sequence.
    pub fn ring_per_page(window: u32, speculation: bool) -> Self {
        Self {
            window_page_tokens: 128,
            hca_state: HcaState::PerWindowPage,
            ..Self::ring_per_request(window, speculation)
        }
    }

    /// One HCA ring per running request, window pages of 256 tokens: a prefix is reused at a multiple of the HCA ratio,
    /// where that state is empty.
    pub fn ring_per_request(window: u32, speculation: bool) -> Self {
        let ratio = |kind: LayerKind| kind.ratio().expect("compressed kinds have a ratio");
        let (csa_ratio, hca_ratio) = (ratio(LayerKind::Csa), ratio(LayerKind::Hca));
        let rings = if speculation { 2 } else { 1 };
        Self {
            page_tokens: PAGE_TOKENS,
            window_page_tokens: PAGE_TOKENS,
            window,
            csa_ratio,
            hca_ratio,
            csa_ring_rows: rings * 2 * csa_ratio,
            hca_ring_rows: rings * hca_ratio,
            hca_state: HcaState::PerRequest,
        }
    }

    /// Refuses sizes with which a page boundary would not be a place to resume from.
    pub fn check(&self) -> Result<(), ShapeError> {
        let need = |ok: bool, expected: &dyn Fn() -> String, got: u32| match ok {
            true => Ok(()),
            false => Err(ShapeError { expected: expected(), got }),
        };
        let divides = |part: u32, whole: u32| part > 0 && whole > 0 && whole.is_multiple_of(part);
        let Self {
            page_tokens, window_page_tokens, window, csa_ratio, hca_ratio, csa_ring_rows, hca_ring_rows, ..
        } = *self;
        need(
            divides(csa_ratio, page_tokens),
            &|| format!("csa_ratio that divides page_tokens {page_tokens}"),
            csa_ratio,
        )?;
        need(
            divides(hca_ratio, page_tokens),
            &|| format!("hca_ratio that divides page_tokens {page_tokens}"),
            hca_ratio,
        )?;
        let divisor = || format!("window_page_tokens that divides page_tokens {page_tokens}");
        need(divides(window_page_tokens, page_tokens), &divisor, window_page_tokens)?;
        need(
            (1..=window_page_tokens).contains(&window),
            &|| format!("window of 1 to {window_page_tokens} tokens"),
            window,
        )?;
        let previous = || format!("window_page_tokens of at least two CSA windows ({})", 2 * csa_ratio);
        need(window_page_tokens >= 2 * csa_ratio, &previous, window_page_tokens)?;
        need(
            csa_ring_rows >= 2 * csa_ratio,
            &|| format!("csa_ring_rows of at least {}", 2 * csa_ratio),
            csa_ring_rows,
        )?;
        need(hca_ring_rows >= hca_ratio, &|| format!("hca_ring_rows of at least {hca_ratio}"), hca_ring_rows)?;
        if self.hca_state == HcaState::PerWindowPage {
            let whole = || format!("hca_ratio that divides window_page_tokens {window_page_tokens} (rings per page)");
            need(divides(hca_ratio, window_page_tokens), &whole, hca_ratio)?;
        }
        Ok(())
    }

    /// Whether running requests have rings of their own.
    pub const fn has_request_slots(&self) -> bool {
        matches!(self.hca_state, HcaState::PerRequest)
    }

    /// CSA rows of a compressed page.
    pub const fn csa_rows(&self) -> u32 {
        self.page_tokens / self.csa_ratio
    }

    /// HCA rows of a compressed page.
    pub const fn hca_rows(&self) -> u32 {
        self.page_tokens / self.hca_ratio
    }

    /// Tokens that share an entry of the HCA state table.
    pub const fn hca_state_page_tokens(&self) -> u32 {
        match self.hca_state {
            HcaState::PerWindowPage => self.window_page_tokens,
            HcaState::PerRequest => i32::MAX as u32,
        }
    }

    /// First position before `next` whose window row or CSA state a token at `next` or later still reads: the window
    /// before it, and the two CSA windows that a row pools.
    pub fn first_needed(&self, next: Position) -> Position {
        let reach = (self.window - 1).max(2 * self.csa_ratio - 1);
        Position(next.0.saturating_sub(reach))
    }

    /// Most window pages that a step of `tokens` tokens of one sequence touches, reads included.
    pub fn max_window_pages(&self, tokens: u32) -> u32 {
        let reach = (self.window - 1).max(2 * self.csa_ratio - 1);
        (reach + tokens - 1).div_ceil(self.window_page_tokens) + 1
    }

    /// Compressed pages of `tokens` tokens.
    pub fn compressed_pages(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }

    /// Most pages of a pool: a slot is a 32-bit signed number.
    pub fn max_pages(&self) -> u32 {
        let rows = [self.window_page_tokens, self.csa_rows(), self.csa_ring_rows, self.hca_ring_rows];
        i32::MAX as u32 / rows.into_iter().max().unwrap_or(1)
    }

    /// Slot of `row` in a pool whose pages hold `rows_per_page`.
    pub const fn slot(page: PageId, rows_per_page: u32, row: u32) -> i32 {
        (page.0 * rows_per_page + row % rows_per_page) as i32
    }
}
