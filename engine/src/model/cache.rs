//! The cache buffers of one rank, layer by layer. Which bytes belong to which page is the geometry's business.

use kernel_bindings::layout;
use reference::ops::{Dtype, Ops, OpsError, Pages};

use super::numerics::Numerics;
use crate::config::{LayerKind, ModelConfig};
use crate::geometry::{CacheShape, HcaState};
use crate::pools::PoolSizes;

/// A paged cache of one layer.
#[derive(Debug)]
pub struct Pool<B> {
    /// Memory.
    pub buffer: B,
    /// Geometry.
    pub pages: Pages,
}

/// Compressor rings of one layer: `[num_pages * ring_rows, 2 w]` f32.
#[derive(Debug)]
pub struct State<B> {
    /// Memory.
    pub buffer: B,
    /// Rings.
    pub num_pages: u32,
    /// Rows of a ring.
    pub ring_rows: u32,
    /// Tokens that share a ring.
    pub page_tokens: u32,
}

/// What a layer remembers.
#[derive(Debug)]
pub struct LayerCache<B> {
    /// KV rows of the window.
    pub window: Pool<B>,
    /// Compressed KV rows of CSA and HCA layers.
    pub compressed: Option<Pool<B>>,
    /// Compressor state of these.
    pub state: Option<State<B>>,
    /// Index keys of CSA layers.
    pub index_k: Option<Pool<B>>,
    /// State of the indexer's compressor.
    pub index_state: Option<State<B>>,
}

/// All layers, the draft layer last.
#[derive(Debug)]
pub struct Caches<B> {
    /// Layers.
    pub layers: Vec<LayerCache<B>>,
}

impl<B> Caches<B> {
    /// Allocates the caches of every layer, the draft layer's behind the trunk's. Contents are undefined: no plan reads a slot
    /// that has not been written.
    pub fn new<O: Ops<Buffer = B>>(
        ops: &O,
        config: &ModelConfig,
        numerics: &Numerics,
        shape: &CacheShape,
        sizes: &PoolSizes,
        with_mtp: bool,
    ) -> Result<Self, OpsError> {
        let drafts = if with_mtp { config.mtp_layers } else { 0 };
        let kinds = config.layers.iter().copied().chain((0..drafts).map(|_| LayerKind::Swa));
        let layers = kinds.enumerate().map(|(index, kind)| {
            let label = |what: &str| format!("layer {index} {what}");
            let kv =
                |pages: u32, rows: u32, what: &str| pool(ops, layout::kv_pages(numerics.kv, pages, rows), &label(what));
            let rings = |num_pages: u32, ring_rows: u32, page_tokens: u32, row: u32, what: &str| {
                let bytes = u64::from(num_pages) * u64::from(ring_rows) * u64::from(row) * Dtype::F32.bytes();
                Ok::<_, OpsError>(State { buffer: ops.alloc(bytes, &label(what))?, num_pages, ring_rows, page_tokens })
            };
            let csa = |row, what| rings(sizes.window_pages, shape.csa_ring_rows, shape.window_page_tokens, row, what);
            let hca_pages = match shape.hca_state {
                HcaState::PerWindowPage => sizes.window_pages,
                HcaState::PerRequest => sizes.request_slots,
            };
            // A row of state is (u, g), twice that where windows overlap.
            let (d, di) = (config.head_dim, config.index_head_dim);
            Ok(LayerCache {
                window: kv(sizes.window_pages, shape.window_page_tokens, "window_kv")?,
                compressed: match kind {
                    LayerKind::Swa => None,
                    LayerKind::Csa => Some(kv(sizes.compressed_pages, shape.csa_rows(), "compressed_kv")?),
                    LayerKind::Hca => Some(kv(sizes.compressed_pages, shape.hca_rows(), "compressed_kv")?),
                },
                state: match kind {
                    LayerKind::Swa => None,
                    LayerKind::Csa => Some(csa(4 * d, "state")?),
                    LayerKind::Hca => {
                        Some(rings(hca_pages, shape.hca_ring_rows, shape.hca_state_page_tokens(), 2 * d, "state")?)
                    }
                },
                index_k: match kind {
                    LayerKind::Csa => {
                        let pages = layout::index_k_pages(numerics.index_k, sizes.compressed_pages, shape.csa_rows());
                        Some(pool(ops, pages, &label("index_k"))?)
                    }
                    _ => None,
                },
                index_state: match kind {
                    LayerKind::Csa => Some(csa(4 * di, "index_state")?),
                    _ => None,
                },
            })
        });
        Ok(Self { layers: layers.collect::<Result<_, OpsError>>()? })
    }

    /// Bytes of every buffer.
    pub fn bytes<O: Ops<Buffer = B>>(&self, ops: &O) -> u64 {
        let pool = |pool: &Option<Pool<B>>| pool.as_ref().map_or(0, |p| ops.len_bytes(&p.buffer));
        let state = |state: &Option<State<B>>| state.as_ref().map_or(0, |s| ops.len_bytes(&s.buffer));
        let layer = |layer: &LayerCache<B>| {
            ops.len_bytes(&layer.window.buffer)
                + pool(&layer.compressed)
                + pool(&layer.index_k)
                + state(&layer.state)
                + state(&layer.index_state)
        };
        self.layers.iter().map(layer).sum()
    }
}

fn pool<O: Ops>(ops: &O, pages: Pages, label: &str) -> Result<Pool<O::Buffer>, OpsError> {
    let bytes = u64::from(pages.num_pages) * pages.page_stride_bytes;
    Ok(Pool { buffer: ops.alloc(bytes, label)?, pages })
}
