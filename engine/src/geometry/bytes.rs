//! Bytes of the cache: what a page of each pool takes in each layer, and the buffers that hold them.

use super::{CacheShape, HcaState, ShapeError};
use crate::config::{LayerKind, ModelConfig};
use crate::pools::PoolSizes;
use kernel_bindings::layout;
use reference::ops::{IndexKFormat, KvFormat, Pages};
use thiserror::Error;

/// A pool of pages; one page id is the same page in every layer's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolName {
    /// Compressed rows and index keys.
    Compressed,
    /// Window rows and the compressor rings beside them.
    Window,
    /// HCA rings of running requests.
    Request,
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheBuffer {
    /// Window rows, of every layer and of the draft layer.
    WindowKv,
    /// Compressed rows of a CSA layer.
    CsaKv,
    /// Compressed rows of an HCA layer.
    HcaKv,
    /// Index keys of a CSA layer.
    IndexK,
    /// Rings of a CSA layer's compressor: `[pages * csa_ring_rows, 2 * 2 * head_dim]` f32.
    CsaState,
    /// Rings of a CSA layer's index compressor: `[pages * csa_ring_rows, 2 * 2 * index_head_dim]` f32.
    IndexState,
    /// Rings of an HCA layer's compressor: `[pages * hca_ring_rows, 2 * head_dim]` f32.
    HcaState,
}

impl CacheBuffer {
    /// Every kind, in the order in which a layer's buffers are listed.
    pub const ALL: [CacheBuffer; 7] = {
        use CacheBuffer::*;
        [WindowKv, CsaKv, HcaKv, IndexK, CsaState, IndexState, HcaState]
    };

    /// Name in reports and allocation labels.
    pub const fn name(self) -> &'static str {
        match self {
            CacheBuffer::WindowKv => "window KV",
            CacheBuffer::CsaKv => "CSA KV",
            CacheBuffer::HcaKv => "HCA KV",
            CacheBuffer::IndexK => "CSA index K",
            CacheBuffer::CsaState => "CSA main state",
            CacheBuffer::IndexState => "CSA index state",
            CacheBuffer::HcaState => "HCA state",
        }
    }

    /// Whether a layer of this kind has it.
    pub const fn in_layer(self, kind: LayerKind) -> bool {
        match self {
            CacheBuffer::WindowKv => true,
            CacheBuffer::CsaKv | CacheBuffer::IndexK | CacheBuffer::CsaState | CacheBuffer::IndexState => {
                matches!(kind, LayerKind::Csa)
            }
            CacheBuffer::HcaKv | CacheBuffer::HcaState => matches!(kind, LayerKind::Hca),
        }
    }
}

/// One buffer of one layer: what the runner allocates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// Pool whose pages it holds.
    pub pool: PoolName,
    /// Layer; the draft layer is the one behind the last of the trunk.
    pub layer: u32,
    /// What it holds.
    pub buffer: CacheBuffer,
    /// Rows per page (ring rows for states) and bytes from page to page.
    pub pages: Pages,
    /// Bytes to allocate.
    pub bytes: u64,
}

/// Formats or sizes that do not go together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// Page and ring sizes.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Rows of a fixed width for a model of another one.
    #[error("{what} format {format}: expected rows of {expected} channels, got a model with {got}")]
    Width {
        /// `KV` or `index K`.
        what: &'static str,
        /// The format.
        format: &'static str,
        /// Its width.
        expected: u32,
        /// The model's.
        got: u32,
    },
}

/// The one source of cache bytes: the plan counts with it, the runner allocates by it.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheGeometry {
    /// Tokens and rows.
    pub shape: CacheShape,
    /// Format of window and compressed rows.
    pub kv: KvFormat,
    /// Format of index keys.
    pub index_k: IndexKFormat,
    /// Kinds of the trunk's layers.
    pub layers: Vec<LayerKind>,
    /// Draft (MTP) layers with a window of their own, 0 or 1.
    pub draft_layers: u32,
    head_dim: u32,
    index_head_dim: u32,
}

impl CacheGeometry {
    /// The cache of a model. `draft_layers` is 0 where the model runs without its MTP layer.
    ///
    /// # Errors
    /// The shape does not work, or a format has rows of another width than the model.
    pub fn new(
        config: &ModelConfig,
        shape: CacheShape,
        kv: KvFormat,
        index_k: IndexKFormat,
        draft_layers: u32,
    ) -> Result<Self, GeometryError> {
        shape.check()?;
        let (head_dim, index_head_dim) = (config.head_dim, config.index_head_dim);
        let width = |what, format, expected: u32, got: u32| match expected == got {
            true => Ok(()),
            false => Err(GeometryError::Width { what, format, expected, got }),
        };
        width("KV", kv.name(), if let KvFormat::F32 { d } = kv { d } else { 512 }, head_dim)?;
        let index_width = if let IndexKFormat::F32 { d } = index_k { d } else { 128 };
        width("index K", index_k.name(), index_width, index_head_dim)?;
        Ok(Self { shape, kv, index_k, layers: config.layers.clone(), draft_layers, head_dim, index_head_dim })
    }

    /// The pool whose page ids address a buffer.
    pub const fn pool(&self, buffer: CacheBuffer) -> PoolName {
        match buffer {
            CacheBuffer::CsaKv | CacheBuffer::HcaKv | CacheBuffer::IndexK => PoolName::Compressed,
            CacheBuffer::HcaState if matches!(self.shape.hca_state, HcaState::PerRequest) => PoolName::Request,
            CacheBuffer::WindowKv | CacheBuffer::CsaState | CacheBuffer::IndexState | CacheBuffer::HcaState => {
                PoolName::Window
            }
        }
    }

    /// Rows of a page, and bytes of a row without padding.
    pub fn rows(&self, buffer: CacheBuffer) -> (u32, u64) {
        let CacheShape { window_page_tokens, csa_ring_rows, hca_ring_rows, .. } = self.shape;
        let (kv_row, index_row) = (layout::kv_row_bytes(self.kv), layout::index_k_row_bytes(self.index_k));
        // A state row holds u and g in f32; with overlapping windows both have two halves.
        let state_row = |channels: u32, halves: u64| 2 * halves * u64::from(channels) * size_of::<f32>() as u64;
        match buffer {
            CacheBuffer::WindowKv => (window_page_tokens, kv_row),
            CacheBuffer::CsaKv => (self.shape.csa_rows(), kv_row),
            CacheBuffer::HcaKv => (self.shape.hca_rows(), kv_row),
            CacheBuffer::IndexK => (self.shape.csa_rows(), index_row),
            CacheBuffer::CsaState => (csa_ring_rows, state_row(self.head_dim, 2)),
            CacheBuffer::IndexState => (csa_ring_rows, state_row(self.index_head_dim, 2)),
            CacheBuffer::HcaState => (hca_ring_rows, state_row(self.head_dim, 1)),
        }
    }

    /// Pages of one layer's buffer.
    pub fn pages(&self, buffer: CacheBuffer, num_pages: u32) -> Pages {
        let (page_size, row_bytes) = self.rows(buffer);
        match buffer {
            CacheBuffer::WindowKv | CacheBuffer::CsaKv | CacheBuffer::HcaKv => {
                layout::kv_pages(self.kv, num_pages, page_size)
            }
            CacheBuffer::IndexK => layout::index_k_pages(self.index_k, num_pages, page_size),
            CacheBuffer::CsaState | CacheBuffer::IndexState | CacheBuffer::HcaState => {
                Pages { num_pages, page_size, page_stride_bytes: u64::from(page_size) * row_bytes }
            }
        }
    }

    /// Layers that have a buffer, the draft layer's window included.
    pub fn num_layers(&self, buffer: CacheBuffer) -> u32 {
        let trunk = self.layers.iter().filter(|&&kind| buffer.in_layer(kind)).count() as u32;
        trunk + if buffer == CacheBuffer::WindowKv { self.draft_layers } else { 0 }
    }

    /// Every buffer of the cache, layer by layer.
    pub fn buffers(&self, sizes: PoolSizes) -> Vec<BufferSpec> {
        let draft = (0..self.draft_layers).map(|_| LayerKind::Swa);
        let layers = self.layers.iter().copied().chain(draft).zip(0..);
        let of_layer = |(kind, layer): (LayerKind, u32)| {
            CacheBuffer::ALL.into_iter().filter(move |buffer| buffer.in_layer(kind)).map(move |buffer| {
                let pool = self.pool(buffer);
                let pages = self.pages(buffer, sizes.of(pool));
                let bytes = u64::from(pages.num_pages) * pages.page_stride_bytes;
                BufferSpec { pool, layer, buffer, pages, bytes }
            })
        };
        layers.flat_map(of_layer).collect()
    }
}

impl PoolSizes {
    /// Pages of a pool.
    pub const fn of(&self, pool: PoolName) -> u32 {
        match pool {
            PoolName::Compressed => self.compressed_pages,
            PoolName::Window => self.window_pages,
            PoolName::Request => self.request_slots,
        }
    }
}
