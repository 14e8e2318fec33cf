//! Operations on rows: norm and rotation, Hadamard transform, index queries, compressor.

use super::{addressed, buffer, channels, narrow, product, refuse, size, stride_least};
use crate::ops::{Compress, Hadamard, IndexQQuantise, Norm, NormRope, OpsError};

/// Rows `[t]` of `width` elements, `stride` apart.
fn rows(t: u32, width: u64, stride: u64) -> u128 {
    addressed(&[(u64::from(t), stride)], width)
}

impl<B> NormRope<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "norm_rope";
        size(OP, "t", self.t, 0)?;
        size(OP, "h", self.h, 1)?;
        size(OP, "d", self.d, 1)?;
        product(OP, "h * d", &[self.h, self.d])?;
        product(OP, "t * h", &[self.t, self.h])?;
        let eps_fits = self.eps.is_finite() && self.eps > 0.0;
        if !(eps_fits || matches!(self.norm, Norm::None)) {
            return refuse(OP, "eps", "a finite number above 0", self.eps);
        }
        if let Some(rope) = &self.rope {
            size(OP, "max_positions", rope.max_positions, 0)?;
            if !rope.d_rope.is_multiple_of(2) || rope.d_rope > self.d {
                return refuse(OP, "d_rope", format!("an even number up to d ({})", self.d), rope.d_rope);
            }
        }

        let width = u64::from(self.h) * u64::from(self.d);
        stride_least(OP, "stride_x", self.stride_x, width)?;
        stride_least(OP, "stride_out", self.stride_out, width)?;

        let bytes = self.dtype.bytes();
        buffer(OP, "x", rows(self.t, width, self.stride_x), bytes, len_bytes(self.x))?;
        if let Norm::Weighted(weight) = self.norm {
            buffer(OP, "norm weight", u128::from(self.d), 4, len_bytes(weight))?;
        }
        if let Some(rope) = &self.rope {
            let table = u128::from(rope.max_positions) * u128::from(rope.d_rope);
            buffer(OP, "rope table", table, 4, len_bytes(rope.table))?;
            buffer(OP, "positions", u128::from(self.t), 4, len_bytes(rope.positions))?;
        }
        buffer(OP, "out", rows(self.t, width, self.stride_out), bytes, len_bytes(self.out))
    }
}

impl<B> Hadamard<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "hadamard";
        size(OP, "rows", self.rows, 0)?;
        if !self.d.is_power_of_two() {
            return refuse(OP, "d", "a power of two", self.d);
        }
        let elements = u128::from(self.rows) * u128::from(self.d);
        buffer(OP, "x", elements, self.dtype.bytes(), len_bytes(self.x))?;
        buffer(OP, "out", elements, self.dtype.bytes(), len_bytes(self.out))
    }
}

impl<B> IndexQQuantise<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "index_q_quantise";
        size(OP, "t", self.t, 0)?;
        size(OP, "h", self.h, 1)?;
        channels(OP, self.format.d())?;
        product(OP, "t * h", &[self.t, self.h])?;
        product(OP, "h * d", &[self.h, self.format.d()])?;
        if !self.weight_scale.is_finite() {
            return refuse(OP, "weight_scale", "a finite number", self.weight_scale);
        }
        stride_least(OP, "stride_weights", self.stride_weights, u64::from(self.h))?;

        let heads = u128::from(self.t) * u128::from(self.h);
        buffer(OP, "q", heads * u128::from(self.format.d()), self.dtype.bytes(), len_bytes(self.q))?;
        let weights = rows(self.t, u64::from(self.h), self.stride_weights);
        buffer(OP, "weights", weights, self.dtype.bytes(), len_bytes(self.weights))?;
        buffer(OP, "index_q", heads, self.format.query_head_bytes(), len_bytes(self.index_q))?;
        buffer(OP, "index_weights", heads, 4, len_bytes(self.index_weights))
    }
}

impl<B> Compress<'_, B> {
    /// Channels that a token brings: `d`, or `2 d` with overlap.
    pub fn width(&self) -> u64 {
        u64::from(self.d) * if self.overlap { 2 } else { 1 }
    }

    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "compress";
        for (name, value, least) in [
            ("t", self.t, 0),
            ("b", self.b, 0),
            ("n", self.n, 0),
            ("ratio", self.ratio, 1),
            ("d", self.d, 1),
            ("max_state_pages", self.max_state_pages, 0),
            ("num_state_pages", self.num_state_pages, 0),
            ("state_page_tokens", self.state_page_tokens, 1),
        ] {
            size(OP, name, value, least)?;
        }
        let held = u64::from(self.ratio) * if self.overlap { 2 } else { 1 };
        narrow(OP, if self.overlap { "2 * ratio" } else { "ratio" }, held)?;
        size(OP, "ring_rows", self.ring_rows, held as u32)?;
        narrow(OP, "2 * w", 2 * self.width())?;
        product(OP, "num_state_pages * ring_rows", &[self.num_state_pages, self.ring_rows])?;
        stride_least(OP, "stride_kv_gate", self.stride_kv_gate, 2 * self.width())?;

        let (w, t) = (u128::from(self.width()), u128::from(self.t));
        let tokens = rows(self.t, 2 * self.width(), self.stride_kv_gate);
        buffer(OP, "kv_gate", tokens, 4, len_bytes(self.kv_gate))?;
        buffer(OP, "ape", u128::from(self.ratio) * w, 4, len_bytes(self.ape))?;
        let slots = u128::from(self.num_state_pages) * u128::from(self.ring_rows);
        buffer(OP, "state", slots * 2 * w, 4, len_bytes(self.state))?;
        let table = u128::from(self.b) * u128::from(self.max_state_pages);
        buffer(OP, "state_table", table, 4, len_bytes(self.state_table))?;
        buffer(OP, "positions", t, 4, len_bytes(self.positions))?;
        buffer(OP, "seq", t, 4, len_bytes(self.seq))?;
        buffer(OP, "cu_seqlens", u128::from(self.b) + 1, 4, len_bytes(self.cu_seqlens))?;
        buffer(OP, "row_tokens", u128::from(self.n), 4, len_bytes(self.row_tokens))?;
        let out = u128::from(self.n) * u128::from(self.d);
        buffer(OP, "out", out, self.dtype.bytes(), len_bytes(self.out))
    }
}
