//! The cache buffers of one rank, layer by layer. Which bytes belong to which page is the geometry's business.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use reference::ops::{Ops, OpsError, Pages};
use transfer::fault::Faults;
use transfer::gate::{PageGate, ReadablePages};

use crate::geometry::{BufferSpec, CacheBuffer, CacheGeometry};
use crate::handover;
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

/// What a layer remembers. It is read through a proof of the gate alone, so that nobody sees rows that have not landed.
#[derive(Debug)]
pub struct LayerCache<B> {
    window: Pool<B>,
    compressed: Option<Pool<B>>,
    state: Option<State<B>>,
    index_k: Option<Pool<B>>,
    index_state: Option<State<B>>,
}

/// A layer's cache while it runs.
#[derive(Debug)]
pub struct OpenLayer<'a, B> {
    /// KV rows of the window.
    pub window: &'a mut Pool<B>,
    /// Compressed KV rows of CSA and HCA layers.
    pub compressed: Option<&'a mut Pool<B>>,
    /// Compressor state of these.
    pub state: Option<&'a mut State<B>>,
    /// Index keys of CSA layers.
    pub index_k: Option<&'a mut Pool<B>>,
    /// State of the indexer's compressor.
    pub index_state: Option<&'a mut State<B>>,
}

impl<B> LayerCache<B> {
    /// The layer to read and write; the pages of `readable` are those whose rows were there before.
    pub fn open(&mut self, _: &ReadablePages<'_>) -> OpenLayer<'_, B> {
        OpenLayer {
            window: &mut self.window,
            compressed: self.compressed.as_mut(),
            state: self.state.as_mut(),
            index_k: self.index_k.as_mut(),
            index_state: self.index_state.as_mut(),
        }
    }

    /// A paged buffer to look at.
    pub fn pool(&self, buffer: CacheBuffer, _: &ReadablePages<'_>) -> Option<&Pool<B>> {
        match buffer {
            CacheBuffer::WindowKv => Some(&self.window),
            CacheBuffer::CsaKv | CacheBuffer::HcaKv => self.compressed.as_ref(),
            CacheBuffer::IndexK => self.index_k.as_ref(),
            CacheBuffer::CsaState | CacheBuffer::HcaState | CacheBuffer::IndexState => None,
        }
    }

    /// A buffer by what it holds.
    pub fn buffer(&self, buffer: CacheBuffer, _: &ReadablePages<'_>) -> Option<&B> {
        match buffer {
            CacheBuffer::WindowKv => Some(&self.window.buffer),
            CacheBuffer::CsaKv | CacheBuffer::HcaKv => self.compressed.as_ref().map(|pool| &pool.buffer),
            CacheBuffer::IndexK => self.index_k.as_ref().map(|pool| &pool.buffer),
            CacheBuffer::CsaState | CacheBuffer::HcaState => self.state.as_ref().map(|state| &state.buffer),
            CacheBuffer::IndexState => self.index_state.as_ref().map(|state| &state.buffer),
        }
    }

    /// [`LayerCache::buffer`] to write.
    pub fn buffer_mut(&mut self, buffer: CacheBuffer) -> Option<&mut B> {
        match buffer {
            CacheBuffer::WindowKv => Some(&mut self.window.buffer),
            CacheBuffer::CsaKv | CacheBuffer::HcaKv => self.compressed.as_mut().map(|pool| &mut pool.buffer),
            CacheBuffer::IndexK => self.index_k.as_mut().map(|pool| &mut pool.buffer),
            CacheBuffer::CsaState | CacheBuffer::HcaState => self.state.as_mut().map(|state| &mut state.buffer),
            CacheBuffer::IndexState => self.index_state.as_mut().map(|state| &mut state.buffer),
        }
    }
}

/// All layers, the draft layer last.
#[derive(Debug)]
pub struct Caches<B> {
    /// Layers.
    pub layers: Vec<LayerCache<B>>,
    gate: Arc<PageGate>,
}

/// A refusal of the gate, or of somebody else who is no device, as the device's.
pub(crate) fn refused<O: Ops, E: Display>(ops: &O) -> impl Fn(E) -> OpsError + '_ {
    |error| OpsError::Device { device: ops.name(), message: error.to_string() }
}

impl<B> Caches<B> {
    /// Allocates every buffer of the geometry. Contents are undefined: no plan reads a slot that has not been written.
    pub fn new<O: Ops<Buffer = B>>(ops: &O, geometry: &CacheGeometry, sizes: PoolSizes) -> Result<Self, OpsError> {
        let mut pools: HashMap<(u32, CacheBuffer), Pool<B>> = HashMap::new();
        for BufferSpec { layer, buffer, pages, bytes, .. } in geometry.buffers(sizes) {
            let memory = ops.alloc(bytes, &format!("layer {layer} {}", buffer.name()))?;
            pools.insert((layer, buffer), Pool { buffer: memory, pages });
        }
        let shape = &geometry.shape;
        let layers = (0..geometry.layers.len() as u32 + geometry.draft_layers).map(|layer| {
            let mut take = |buffer| pools.remove(&(layer, buffer));
            let rings = |pool: Pool<B>, page_tokens| {
                let Pages { num_pages, page_size: ring_rows, .. } = pool.pages;
                State { buffer: pool.buffer, num_pages, ring_rows, page_tokens }
            };
            let window = take(CacheBuffer::WindowKv).expect("every layer has a window");
            let csa_state = take(CacheBuffer::CsaState).map(|pool| rings(pool, shape.window_page_tokens));
            let hca_state = take(CacheBuffer::HcaState).map(|pool| rings(pool, shape.hca_state_page_tokens()));
            let index_state = take(CacheBuffer::IndexState).map(|pool| rings(pool, shape.window_page_tokens));
            LayerCache {
                window,
                compressed: take(CacheBuffer::CsaKv).or_else(|| take(CacheBuffer::HcaKv)),
                state: csa_state.or(hca_state),
                index_k: take(CacheBuffer::IndexK),
                index_state,
            }
        });
        let layers: Vec<_> = layers.collect();
        let gate = PageGate::new(&handover::classes(sizes), layers.len() as u32, Arc::new(Faults::none()));
        Ok(Self { layers, gate: Arc::new(gate) })
    }

    /// The same buffers behind a gate of free pages with these faults, for tests and experiments.
    #[must_use]
    pub fn with_faults(self, sizes: PoolSizes, faults: Arc<Faults>) -> Self {
        let gate = PageGate::new(&handover::classes(sizes), self.layers.len() as u32, faults);
        Self { gate: Arc::new(gate), ..self }
    }

    /// Whose the pages are, and which layers of them may be read.
    pub fn gate(&self) -> &Arc<PageGate> {
        &self.gate
    }

    /// Gate and layers at once.
    pub(crate) fn split(&mut self) -> (&PageGate, &mut [LayerCache<B>]) {
        (&self.gate, &mut self.layers)
    }

    /// A layer, the draft layer behind the last of the trunk.
    pub fn layer(&self, layer: u32) -> Option<&LayerCache<B>> {
        self.layers.get(layer as usize)
    }

    /// [`Caches::layer`] to write.
    pub fn layer_mut(&mut self, layer: u32) -> Option<&mut LayerCache<B>> {
        self.layers.get_mut(layer as usize)
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
