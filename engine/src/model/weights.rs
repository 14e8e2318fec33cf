//! The tensors of one rank in the memory of an implementation.

use reference::ops::{Weight, WeightFormat};

use crate::config::LayerKind;

/// A weight matrix `[rows, k]`, row-major.
#[derive(Debug)]
pub struct Matrix<B> {
    /// Storage.
    pub format: WeightFormat,
    /// Values or codes.
    pub data: B,
    /// Scales of block formats.
    pub scale: Option<B>,
}

impl<B> Matrix<B> {
    /// As an operand.
    pub fn weight(&self) -> Weight<'_, B> {
        Weight { format: self.format, data: &self.data, scale: self.scale.as_ref() }
    }
}

/// Hyper-connections of a sub-layer (24 outputs) or of a head (4).
#[derive(Debug)]
pub struct HyperConnection<B> {
    /// `[m, hc * D]` f32.
    pub weight: B,
    /// `[m]` f32.
    pub base: B,
    /// `[3]` or `[1]` f32.
    pub scale: B,
    /// `[D]` f32: the norm behind the mix.
    pub norm: B,
}

/// A compressor; `w` = channels, doubled where windows overlap.
#[derive(Debug)]
pub struct Compressor<B> {
    /// `[2 w, D]` f32: wkv, then wgate.
    pub kv_gate: Matrix<B>,
    /// `[ratio, w]` f32.
    pub ape: B,
    /// `[d]` f32.
    pub norm: B,
}

/// The indexer of a CSA layer.
#[derive(Debug)]
pub struct Indexer<B> {
    /// `[heads * d, q_lora]`.
    pub wq_b: Matrix<B>,
    /// `[heads, D]`.
    pub weights_proj: Matrix<B>,
    /// Its compressor.
    pub compressor: Compressor<B>,
}

/// Attention of a layer; heads and output groups of this rank only.
#[derive(Debug)]
pub struct Attention<B> {
    /// `[q_lora, D]`.
    pub wq_a: Matrix<B>,
    /// `[q_lora]` f32.
    pub q_norm: B,
    /// `[h * d, q_lora]`.
    pub wq_b: Matrix<B>,
    /// `[d, D]`.
    pub wkv: Matrix<B>,
    /// `[d]` f32.
    pub kv_norm: B,
    /// `[groups * o_lora, (h / groups) * d]`.
    pub wo_a: Matrix<B>,
    /// `[D, groups * o_lora]`.
    pub wo_b: Matrix<B>,
    /// `[h]` f32.
    pub sink: B,
    /// Compressor of CSA and HCA layers.
    pub compressor: Option<Compressor<B>>,
    /// Indexer of CSA layers.
    pub indexer: Option<Indexer<B>>,
}

/// How a layer routes.
#[derive(Debug)]
pub enum RoutingWeights<B> {
    /// `[experts]` f32.
    Bias(B),
    /// `[vocab, k]` s32.
    Hash(B),
}

/// Experts of a layer.
#[derive(Debug)]
pub struct Moe<B> {
    /// `[experts, D]` f32.
    pub gate: Matrix<B>,
    /// Bias or table.
    pub routing: RoutingWeights<B>,
    /// `[experts here * 2 * inter, D]`.
    pub w13: Matrix<B>,
    /// `[experts here * D, inter]`.
    pub w2: Matrix<B>,
    /// `[2 * shared, D]`.
    pub shared_w13: Matrix<B>,
    /// `[D, shared]`.
    pub shared_w2: Matrix<B>,
}

/// One layer.
#[derive(Debug)]
pub struct Layer<B> {
    /// Kind of its attention.
    pub kind: LayerKind,
    /// Mix before attention.
    pub attn_hc: HyperConnection<B>,
    /// Attention.
    pub attn: Attention<B>,
    /// Mix before the experts.
    pub ffn_hc: HyperConnection<B>,
    /// Experts.
    pub moe: Moe<B>,
}

/// The draft layer.
#[derive(Debug)]
pub struct Mtp<B> {
    /// `[D]` f32: norm of the next token's embedding.
    pub enorm: B,
    /// `[D]` f32: norm of every stream.
    pub hnorm: B,
    /// `[D, D]`.
    pub e_proj: Matrix<B>,
    /// `[D, D]`.
    pub h_proj: Matrix<B>,
    /// Its block (window attention, bias routing).
    pub layer: Layer<B>,
    /// Its own head mixer and norm.
    pub head: HyperConnection<B>,
}

/// Everything.
#[derive(Debug)]
pub struct Weights<B> {
    /// `[vocab, D]` in the type of the activations.
    pub embed: B,
    /// The trunk.
    pub layers: Vec<Layer<B>>,
    /// Head mixer and final norm.
    pub head: HyperConnection<B>,
    /// `[vocab, D]` f32 (host) or bf16.
    pub lm_head: Matrix<B>,
    /// Draft layer, if the checkpoint has one and it is wanted.
    pub mtp: Option<Mtp<B>>,
    /// `[context, 32, 2]` f32: rotation of window-only layers.
    pub rope_window: B,
    /// The same for layers with a compressor.
    pub rope_compress: B,
}
