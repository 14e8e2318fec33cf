//! Checks of the operations on streams and rows, of the choice of experts and of tokens.

use super::{buffer, narrow, refuse, size, within};
use crate::ops::{Embed, GatherRows, HcMix, HcPost, OpsError, Router, Routing, Sample, Swiglu};

/// Streams of hyper-connections.
const STREAMS: u32 = 4;
/// Experts that a router takes.
const MAX_EXPERTS: u32 = 512;
/// Picks per token.
const MAX_PICKS: u32 = 16;

/// A contiguous tensor with elements of `element_bytes`.
fn dense(
    op: &'static str,
    tensor: &'static str,
    extents: &[u32],
    element_bytes: u64,
    len_bytes: u64,
) -> Result<(), OpsError> {
    let elements = extents.iter().map(|&extent| u128::from(extent)).product();
    buffer(op, tensor, elements, element_bytes, len_bytes)
}

fn streams(op: &'static str, hc: u32) -> Result<(), OpsError> {
    if hc != STREAMS {
        return refuse(op, "hc", STREAMS.to_string(), hc);
    }
    Ok(())
}

fn epsilon(op: &'static str, tensor: &'static str, value: f32) -> Result<(), OpsError> {
    if !(value.is_finite() && value >= 0.0) {
        return refuse(op, tensor, "a finite number, not negative", value);
    }
    Ok(())
}

impl<B> Embed<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "embed";
        size(OP, "t", self.t, 0)?;
        size(OP, "vocab", self.vocab, 0)?;
        size(OP, "d", self.d, 1)?;
        size(OP, "copies", self.copies, 1)?;
        let bytes = self.dtype.bytes();
        dense(OP, "table", &[self.vocab, self.d], bytes, len_bytes(self.table))?;
        dense(OP, "ids", &[self.t], 4, len_bytes(self.ids))?;
        dense(OP, "out", &[self.t, self.copies, self.d], bytes, len_bytes(self.out))
    }
}

impl<B> GatherRows<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "gather_rows";
        size(OP, "n", self.n, 0)?;
        size(OP, "num_rows", self.num_rows, 0)?;
        narrow(OP, "row_bytes", self.row_bytes)?;
        if self.row_bytes == 0 || !self.row_bytes.is_multiple_of(4) {
            return refuse(OP, "row_bytes", "a multiple of 4, at least 4", self.row_bytes);
        }
        dense(OP, "src", &[self.num_rows], self.row_bytes, len_bytes(self.src))?;
        dense(OP, "rows", &[self.n], 4, len_bytes(self.rows))?;
        dense(OP, "out", &[self.n], self.row_bytes, len_bytes(self.out))
    }
}

impl<B> HcMix<'_, B> {
    /// Rows of the weight: `pre`, and with mixing `post` and `comb`.
    pub fn mixing_rows(&self) -> u32 {
        if self.mixing.is_some() { 2 * STREAMS + STREAMS * STREAMS } else { STREAMS }
    }

    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "hc_mix";
        size(OP, "t", self.t, 0)?;
        streams(OP, self.hc)?;
        size(OP, "d", self.d, 1)?;
        epsilon(OP, "norm_eps", self.norm_eps)?;
        epsilon(OP, "hc_eps", self.hc_eps)?;
        if let Some(mixing) = &self.mixing {
            size(OP, "sinkhorn_iters", mixing.sinkhorn_iters, 1)?;
        }
        let (bytes, rows) = (self.dtype.bytes(), self.mixing_rows());
        dense(OP, "streams", &[self.t, self.hc, self.d], bytes, len_bytes(self.streams))?;
        dense(OP, "weight", &[rows, self.hc, self.d], 4, len_bytes(self.weight))?;
        dense(OP, "base", &[rows], 4, len_bytes(self.base))?;
        let scales = if self.mixing.is_some() { 3 } else { 1 };
        dense(OP, "scale", &[scales], 4, len_bytes(self.scale))?;
        dense(OP, "norm_weight", &[self.d], 4, len_bytes(self.norm_weight))?;
        dense(OP, "out", &[self.t, self.d], bytes, len_bytes(self.out))?;
        if let Some(mixing) = &self.mixing {
            dense(OP, "post", &[self.t, self.hc], 4, len_bytes(mixing.post))?;
            dense(OP, "comb", &[self.t, self.hc, self.hc], 4, len_bytes(mixing.comb))?;
        }
        Ok(())
    }
}

impl<B> HcPost<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "hc_post";
        size(OP, "t", self.t, 0)?;
        streams(OP, self.hc)?;
        size(OP, "d", self.d, 1)?;
        dense(OP, "streams", &[self.t, self.hc, self.d], self.dtype.bytes(), len_bytes(self.streams))?;
        dense(OP, "y", &[self.t, self.d], 4, len_bytes(self.y))?;
        dense(OP, "post", &[self.t, self.hc], 4, len_bytes(self.post))?;
        dense(OP, "comb", &[self.t, self.hc, self.hc], 4, len_bytes(self.comb))
    }
}

impl<B> Swiglu<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "swiglu";
        size(OP, "t", self.t, 0)?;
        size(OP, "inter", self.inter, 1)?;
        if self.limit.is_nan() || self.limit <= 0.0 {
            return refuse(OP, "limit", "a number above 0", self.limit);
        }
        dense(OP, "gate_up", &[self.t, 2, self.inter], self.dtype.bytes(), len_bytes(self.gate_up))?;
        dense(OP, "out", &[self.t, self.inter], self.dtype.bytes(), len_bytes(self.out))
    }
}

impl<B> Router<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "router";
        size(OP, "t", self.t, 0)?;
        within(OP, "experts", self.experts, 1, MAX_EXPERTS)?;
        within(OP, "topk", self.topk, 1, MAX_PICKS.min(self.experts))?;
        if !self.routed_scaling.is_finite() {
            return refuse(OP, "routed_scaling", "a finite number", self.routed_scaling);
        }
        if let Routing::Hash { vocab, .. } = self.routing {
            size(OP, "vocab", vocab, 1)?;
        }
        dense(OP, "scores", &[self.t, self.experts], 4, len_bytes(self.scores))?;
        match self.routing {
            Routing::Bias(bias) => dense(OP, "bias", &[self.experts], 4, len_bytes(bias))?,
            Routing::Hash { tid2eid, ids, vocab } => {
                dense(OP, "tid2eid", &[vocab, self.topk], 4, len_bytes(tid2eid))?;
                dense(OP, "ids", &[self.t], 4, len_bytes(ids))?;
            }
        }
        dense(OP, "expert_ids", &[self.t, self.topk], 4, len_bytes(self.expert_ids))?;
        dense(OP, "expert_weights", &[self.t, self.topk], 4, len_bytes(self.expert_weights))
    }
}

impl<B> Sample<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "sample";
        size(OP, "n", self.n, 0)?;
        size(OP, "vocab", self.vocab, 1)?;
        dense(OP, "logits", &[self.n, self.vocab], 4, len_bytes(self.logits))?;
        dense(OP, "temperature", &[self.n], 4, len_bytes(self.temperature))?;
        dense(OP, "seeds", &[self.n, 2], 4, len_bytes(self.seeds))?;
        dense(OP, "out", &[self.n], 4, len_bytes(self.out))
    }
}
