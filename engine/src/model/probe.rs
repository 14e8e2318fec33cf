//! A look inside a forward.

use reference::ops::{Ops, OpsError};

/// Values of a layer that a [`Probe`] is shown, under the names of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Stage {
    /// `[t, D]` activations.
    AttnIn,
    /// `[t, h, d]` activations.
    Q,
    /// `[t, d]` activations.
    Kv,
    /// `[rows, d]` activations: compressed rows that this batch completed.
    Comp,
    /// `[rows, di]` activations, before the transform.
    IndexK,
    /// `[t, hi, di]` activations, before the transform.
    IndexQ,
    /// `[t, hi]` codes.
    IndexQCodes,
    /// `[t, hi]` f32.
    IndexW,
    /// `[t, stride]` f32; not there when no query has to choose.
    IndexLogits,
    /// `[t, K]` s32 positions.
    Topk,
    /// `[t, h, d]` activations.
    AttnCore,
    /// `[t, D]` f32, this rank's part.
    AttnOut,
    /// `[t, hc]` f32.
    HcAttnPost,
    /// `[t, hc, hc]` f32.
    HcAttnComb,
    /// `[t, hc, D]` activations.
    StreamsMid,
    /// `[t, D]` activations.
    FfnIn,
    HcFfnPost,
    HcFfnComb,
    /// `[t, k]` s32.
    ExpertIds,
    /// `[t, k]` f32.
    ExpertWeights,
    /// `[t, D]` f32, this rank's part.
    MoeOut,
    /// `[t, hc, D]` activations.
    StreamsOut,
    /// `[n, vocab]` f32.
    Logits,
}

/// Sees, and may replace, the values between operations.
pub trait Probe<O: Ops> {
    /// Called when `buffer` holds `stage` of `layer` for `rows` rows.
    fn at(&mut self, ops: &O, layer: usize, stage: Stage, buffer: &mut O::Buffer, rows: u32) -> Result<(), OpsError>;
}

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl<O: Ops> Probe<O> for NoProbe {
    fn at(&mut self, _: &O, _: usize, _: Stage, _: &mut O::Buffer, _: u32) -> Result<(), OpsError> {
        Ok(())
    }
}
