//! The memory plan: bytes per token term by term, and what fits into a card.
//!
//! Everything comes out of [`CacheGeometry`], by which the runner allocates too. Bytes per token of context are those
//! of a full compressed pool; the window pool holds `ratio` window tokens per token of context, or a fixed number of
//! pages per running request.

use crate::geometry::{CacheBuffer, CacheGeometry, CacheShape, PoolName};
use crate::pools::PoolSizes;
use serde::Serialize;
use thiserror::Error;

/// How many window pages there are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowSizing {
    /// Window tokens per token of the compressed pool. What running requests do not use, the prefix cache does.
    Ratio(f64),
    /// What the largest number of running requests needs.
    PerRequest,
}

/// What to plan for; bytes are those of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanRequest {
    /// Memory of the rank.
    pub memory: u64,
    /// Of that, its weights and whatever else is not cache.
    pub not_cache: u64,
    /// Running requests.
    pub max_requests: u32,
    /// Tokens of a step, all of which may be of one prompt.
    pub max_batch_tokens: u32,
    /// Sizing of the window pool.
    pub window: WindowSizing,
}

/// One kind of buffer, over all layers that have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Term {
    /// What it holds.
    pub buffer: CacheBuffer,
    /// Pool whose pages it is part of.
    pub pool: PoolName,
    /// Layers.
    pub layers: u32,
    /// Bytes of a page's rows, in one layer.
    pub row_bytes_per_page: u64,
    /// Bytes behind them, in one layer.
    pub padding_per_page: u64,
    /// Bytes of rows per token of context, all layers. 0 where the number of pages does not follow the context.
    pub bytes_per_token: f64,
    /// Padding per token of context.
    pub padding_per_token: f64,
}

impl Term {
    /// Bytes of a page in all layers.
    pub fn page_bytes(&self) -> u64 {
        u64::from(self.layers) * (self.row_bytes_per_page + self.padding_per_page)
    }
}

/// One pool of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolPlan {
    /// Which.
    pub pool: PoolName,
    /// Pages.
    pub pages: u32,
    /// Bytes of a page in all layers.
    pub page_bytes: u64,
    /// Bytes of the pool.
    pub bytes: u64,
}

/// Bytes and counts of a cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// Term by term.
    pub terms: Vec<Term>,
    /// Pages of each pool.
    pub sizes: PoolSizes,
    /// Bytes of each pool.
    pub pools: Vec<PoolPlan>,
    /// Memory of the rank.
    pub memory: u64,
    /// Of that, not cache.
    pub not_cache: u64,
    /// Bytes that the cache takes: the sum of the pools.
    pub cache_bytes: u64,
    /// Tokens of context that the compressed pool holds.
    pub tokens: u64,
    /// Window pages of a decoding request, and its slot: bytes that do not grow with its context.
    pub fixed_per_request: u64,
    window_pages_per_request: u32,
    page_tokens: u32,
}

/// Memory that cannot hold a single sequence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "cache: expected at least {needed} B (one compressed page, {window_pages} window pages, {request_slots} request slots), got {got} B"
)]
pub struct PlanError {
    needed: u64,
    window_pages: u32,
    request_slots: u32,
    got: u64,
}

/// Terms of the cache in bytes per token of context.
pub fn terms(geometry: &CacheGeometry, window: WindowSizing) -> Vec<Term> {
    let shape = geometry.shape;
    CacheBuffer::ALL
        .into_iter()
        .map(|buffer| {
            let (rows, row_bytes) = geometry.rows(buffer);
            let row_bytes_per_page = u64::from(rows) * row_bytes;
            let padding_per_page = geometry.pages(buffer, 1).page_stride_bytes - row_bytes_per_page;
            let (pool, layers) = (geometry.pool(buffer), geometry.num_layers(buffer));
            let pages_per_token = match (pool, window) {
                (PoolName::Compressed, _) => f64::from(shape.page_tokens).recip(),
                (PoolName::Window, WindowSizing::Ratio(ratio)) => ratio / f64::from(shape.window_page_tokens),
                (PoolName::Window, WindowSizing::PerRequest) | (PoolName::Request, _) => 0.0,
            };
            let per_token = |bytes: u64| (bytes * u64::from(layers)) as f64 * pages_per_token;
            Term {
                buffer,
                pool,
                layers,
                row_bytes_per_page,
                padding_per_page,
                bytes_per_token: per_token(row_bytes_per_page),
                padding_per_token: per_token(padding_per_page),
            }
        })
        .collect()
}

const POOLS: [PoolName; 3] = [PoolName::Compressed, PoolName::Window, PoolName::Request];

fn page_bytes(terms: &[Term], pool: PoolName) -> u64 {
    terms.iter().filter(|term| term.pool == pool).map(Term::page_bytes).sum()
}

fn total(terms: &[Term], sizes: PoolSizes) -> u64 {
    let bytes = POOLS.iter().map(|&pool| u64::from(sizes.of(pool)).saturating_mul(page_bytes(terms, pool)));
    bytes.fold(0, u64::saturating_add)
}

/// Two tokens per request: a step in flight and the one behind it, or a token and its draft.
fn pages_per_request(shape: &CacheShape) -> u32 {
    shape.max_window_pages(2)
}

/// Window pages and request slots that go with compressed pages.
fn sizes(shape: &CacheShape, request: &PlanRequest, compressed_pages: u32) -> PoolSizes {
    let per_request = pages_per_request(shape);
    let chunk_pages = request.max_batch_tokens.div_ceil(shape.window_page_tokens);
    let window_pages = match request.window {
        WindowSizing::PerRequest => request.max_requests.max(1).saturating_mul(per_request).saturating_add(chunk_pages),
        WindowSizing::Ratio(ratio) => {
            let tokens = f64::from(compressed_pages) * f64::from(shape.page_tokens);
            let pages = (ratio * tokens / f64::from(shape.window_page_tokens)).ceil() as u32;
            pages.max(per_request.saturating_add(chunk_pages))
        }
    };
    let request_slots = if shape.has_request_slots() { request.max_requests.max(1) } else { 0 };
    PoolSizes { compressed_pages, window_pages, request_slots }
}

impl MemoryPlan {
    /// The largest compressed pool that fits, with the window pages and request slots that go with it.
    ///
    /// # Errors
    /// Not even one page fits beside what one sequence needs.
    pub fn new(geometry: &CacheGeometry, request: PlanRequest) -> Result<Self, PlanError> {
        let shape = geometry.shape;
        let terms = terms(geometry, request.window);
        let window_pages_per_request = pages_per_request(&shape);
        let sizes = |compressed_pages| sizes(&shape, &request, compressed_pages);
        let (page_bytes, total) = (|pool| page_bytes(&terms, pool), |sizes| total(&terms, sizes));
        let room = request.memory.saturating_sub(request.not_cache);
        let fits = |pages: u32| {
            let PoolSizes { window_pages, request_slots, .. } = sizes(pages);
            window_pages.max(request_slots) <= shape.max_pages() && total(sizes(pages)) <= room
        };
        if !fits(1) {
            let PoolSizes { window_pages, request_slots, .. } = sizes(1);
            return Err(PlanError { needed: total(sizes(1)), window_pages, request_slots, got: room });
        }
        let (mut most, mut too_many) = (1, shape.max_pages() + 1);
        while most + 1 < too_many {
            let middle = most + (too_many - most) / 2;
            *(if fits(middle) { &mut most } else { &mut too_many }) = middle;
        }
        let sizes = sizes(most);
        let pool = |&pool| {
            let (pages, page_bytes) = (sizes.of(pool), page_bytes(pool));
            PoolPlan { pool, pages, page_bytes, bytes: u64::from(pages) * page_bytes }
        };
        let slot_bytes = if shape.has_request_slots() { page_bytes(PoolName::Request) } else { 0 };
        Ok(Self {
            sizes,
            pools: POOLS.iter().map(pool).collect(),
            memory: request.memory,
            not_cache: request.not_cache,
            cache_bytes: total(sizes),
            tokens: u64::from(sizes.compressed_pages) * u64::from(shape.page_tokens),
            fixed_per_request: u64::from(window_pages_per_request) * page_bytes(PoolName::Window) + slot_bytes,
            window_pages_per_request,
            page_tokens: shape.page_tokens,
            terms,
        })
    }

    /// Bytes of a cache that holds so many compressed pages, and what goes with them.
    pub fn bytes_of(geometry: &CacheGeometry, request: &PlanRequest, compressed_pages: u32) -> u64 {
        total(&terms(geometry, request.window), sizes(&geometry.shape, request, compressed_pages))
    }

    /// Bytes per token of context without padding: the pool coefficient.
    pub fn bytes_per_token(&self) -> f64 {
        self.terms.iter().map(|term| term.bytes_per_token).sum()
    }

    /// Padding per token of context.
    pub fn padding_per_token(&self) -> f64 {
        self.terms.iter().map(|term| term.padding_per_token).sum()
    }

    /// Bytes per token that grow with a text without bound, padding not counted: compressed rows and index keys.
    pub fn growth_per_token(&self) -> f64 {
        let grows = self.terms.iter().filter(|term| term.pool == PoolName::Compressed);
        grows.map(|term| term.bytes_per_token).sum()
    }

    /// Decoding sequences of `context` tokens that fit at once, and the pool that ends it.
    pub fn sequences(&self, context: u32) -> (u32, PoolName) {
        let PoolSizes { compressed_pages, window_pages, request_slots } = self.sizes;
        let compressed = (compressed_pages / context.div_ceil(self.page_tokens).max(1), PoolName::Compressed);
        let window = (window_pages / self.window_pages_per_request, PoolName::Window);
        let slots = (request_slots, PoolName::Request);
        let limits = [Some(compressed), Some(window), Some(slots).filter(|_| request_slots > 0)];
        limits.into_iter().flatten().min().expect("two pools always count")
    }
}

#[cfg(test)]
mod tests;
