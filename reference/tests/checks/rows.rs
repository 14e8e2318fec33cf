//! What the operations on rows refuse.

use reference::ops::*;

use super::{expect, len};

#[derive(Clone)]
struct Rows {
    sizes: [u64; 5],
    weighted: bool,
    t: u32,
    h: u32,
    d: u32,
    max_positions: u32,
    d_rope: u32,
    stride_x: u64,
    stride_out: u64,
    eps: f32,
}

fn check_norm_rope(a: &Rows) -> Result<(), OpsError> {
    let mut out = a.sizes[4];
    NormRope {
        dtype: Dtype::Bf16,
        x: &a.sizes[0],
        norm: if a.weighted { Norm::Weighted(&a.sizes[1]) } else { Norm::None },
        rope: Some(Rope {
            table: &a.sizes[2],
            max_positions: a.max_positions,
            positions: &a.sizes[3],
            d_rope: a.d_rope,
            inverse: false,
        }),
        out: &mut out,
        t: a.t,
        h: a.h,
        d: a.d,
        stride_x: a.stride_x,
        stride_out: a.stride_out,
        eps: a.eps,
    }
    .check(len)
}

#[test]
fn norm_rope() {
    let valid = Rows {
        sizes: [2 * (2 * 40 + 32), 4 * 16, 4 * 70, 12, 2 * 96],
        weighted: true,
        t: 3,
        h: 2,
        d: 16,
        max_positions: 7,
        d_rope: 10,
        stride_x: 40,
        stride_out: 32,
        eps: 1e-6,
    };
    expect(
        &valid,
        check_norm_rope,
        &[
            (|a| a.t = 1 << 31, "norm_rope: t: expected at most 2147483647, got 2147483648"),
            (|a| a.h = 0, "norm_rope: h: expected at least 1, got 0"),
            (|a| a.d = 0, "norm_rope: d: expected at least 1, got 0"),
            (|a| a.h = 1 << 28, "norm_rope: h * d: expected at most 2147483647, got 4294967296"),
            (|a| a.t = 1 << 30, "norm_rope: t * h: expected at most 2147483647, got 2147483648"),
            (|a| a.eps = 0.0, "norm_rope: eps: expected a finite number above 0, got 0"),
            (|a| a.eps = f32::NAN, "norm_rope: eps: expected a finite number above 0, got NaN"),
            (|a| a.d_rope = 9, "norm_rope: d_rope: expected an even number up to d (16), got 9"),
            (|a| a.d_rope = 18, "norm_rope: d_rope: expected an even number up to d (16), got 18"),
            (|a| a.stride_x = 31, "norm_rope: stride_x: expected at least 32 elements, got 31"),
            (|a| a.stride_out = 31, "norm_rope: stride_out: expected at least 32 elements, got 31"),
            (|a| a.sizes[0] -= 1, "norm_rope: x: expected at least 224 bytes, got 223 bytes"),
            (|a| a.sizes[1] -= 1, "norm_rope: norm weight: expected at least 64 bytes, got 63 bytes"),
            (|a| a.sizes[2] -= 1, "norm_rope: rope table: expected at least 280 bytes, got 279 bytes"),
            (|a| a.sizes[3] -= 1, "norm_rope: positions: expected at least 12 bytes, got 11 bytes"),
            (|a| a.sizes[4] -= 1, "norm_rope: out: expected at least 192 bytes, got 191 bytes"),
        ],
    );
    // Without a norm nobody looks at epsilon.
    check_norm_rope(&Rows { weighted: false, eps: 0.0, ..valid }).unwrap();
}

#[test]
fn hadamard() {
    let check = |&(x, mut out, rows, d): &(u64, u64, u32, u32)| {
        Hadamard { dtype: Dtype::F32, x: &x, out: &mut out, rows, d }.check(len)
    };
    expect(
        &(96, 96, 3, 8),
        check,
        &[
            (|a| a.2 = 1 << 31, "hadamard: rows: expected at most 2147483647, got 2147483648"),
            (|a| a.3 = 12, "hadamard: d: expected a power of two, got 12"),
            (|a| a.3 = 0, "hadamard: d: expected a power of two, got 0"),
            (|a| a.0 -= 1, "hadamard: x: expected at least 96 bytes, got 95 bytes"),
            (|a| a.1 -= 1, "hadamard: out: expected at least 96 bytes, got 95 bytes"),
        ],
    );
}

#[derive(Clone)]
struct Queries {
    format: IndexKFormat,
    sizes: [u64; 4],
    t: u32,
    h: u32,
    stride_weights: u64,
    weight_scale: f32,
}

#[test]
fn index_q_quantise() {
    let valid = Queries {
        format: IndexKFormat::Fp8,
        sizes: [2 * 6 * 128, 2 * (5 + 3), 6 * 128, 24],
        t: 2,
        h: 3,
        stride_weights: 5,
        weight_scale: 0.1,
    };
    let check = |a: &Queries| {
        let [q, weights, mut index_q, mut index_weights] = a.sizes;
        IndexQQuantise {
            dtype: Dtype::Bf16,
            format: a.format,
            scale_rule: ScaleRule::Exact,
            q: &q,
            weights: &weights,
            index_q: &mut index_q,
            index_weights: &mut index_weights,
            t: a.t,
            h: a.h,
            stride_weights: a.stride_weights,
            weight_scale: a.weight_scale,
        }
        .check(len)
    };
    expect(
        &valid,
        check,
        &[
            (|a| a.t = 1 << 31, "index_q_quantise: t: expected at most 2147483647, got 2147483648"),
            (|a| a.h = 0, "index_q_quantise: h: expected at least 1, got 0"),
            (|a| a.t = 1 << 30, "index_q_quantise: t * h: expected at most 2147483647, got 3221225472"),
            (|a| a.weight_scale = f32::INFINITY, "index_q_quantise: weight_scale: expected a finite number, got inf"),
            (|a| a.stride_weights = 2, "index_q_quantise: stride_weights: expected at least 3 elements, got 2"),
            (|a| a.sizes[0] -= 1, "index_q_quantise: q: expected at least 1536 bytes, got 1535 bytes"),
            (|a| a.sizes[1] -= 1, "index_q_quantise: weights: expected at least 16 bytes, got 15 bytes"),
            (|a| a.sizes[2] -= 1, "index_q_quantise: index_q: expected at least 768 bytes, got 767 bytes"),
            (|a| a.sizes[3] -= 1, "index_q_quantise: index_weights: expected at least 24 bytes, got 23 bytes"),
            (
                |a| a.format = IndexKFormat::Bf16,
                "index_q_quantise: index_q: expected at least 1536 bytes, got 768 bytes",
            ),
        ],
    );
}

#[derive(Clone)]
struct Step {
    /// kv_gate, ape, state, state_table, positions, seq, cu_seqlens, row_tokens, out
    sizes: [u64; 9],
    ratio: u32,
    d: u32,
    overlap: bool,
    counts: [u32; 3],
    state: [u32; 4],
    stride: u64,
}

fn check_compress(a: &Step) -> Result<(), OpsError> {
    let [kv_gate, ape, mut state, state_table, positions, seq, cu_seqlens, row_tokens, mut out] = a.sizes;
    Compress {
        dtype: Dtype::Bf16,
        kv_gate: &kv_gate,
        ape: &ape,
        state: &mut state,
        state_table: &state_table,
        positions: &positions,
        seq: &seq,
        cu_seqlens: &cu_seqlens,
        row_tokens: &row_tokens,
        out: &mut out,
        t: a.counts[0],
        b: a.counts[1],
        n: a.counts[2],
        ratio: a.ratio,
        d: a.d,
        overlap: a.overlap,
        max_state_pages: a.state[0],
        num_state_pages: a.state[1],
        state_page_tokens: a.state[2],
        ring_rows: a.state[3],
        stride_kv_gate: a.stride,
    }
    .check(len)
}

#[test]
fn compress() {
    // w = 16; 5 tokens of 2 sequences, 3 rows; 4 columns, 6 pages of 8 rows
    let sizes = [4 * (4 * 40 + 32), 4 * 64, 4 * 48 * 32, 32, 20, 20, 12, 12, 2 * 24];
    let valid = Step { sizes, ratio: 4, d: 8, overlap: true, counts: [5, 2, 3], state: [4, 6, 128, 8], stride: 40 };
    expect(
        &valid,
        check_compress,
        &[
            (|a| a.counts[0] = 1 << 31, "compress: t: expected at most 2147483647, got 2147483648"),
            (|a| a.counts[1] = 1 << 31, "compress: b: expected at most 2147483647, got 2147483648"),
            (|a| a.counts[2] = 1 << 31, "compress: n: expected at most 2147483647, got 2147483648"),
            (|a| a.ratio = 0, "compress: ratio: expected at least 1, got 0"),
            (|a| a.d = 0, "compress: d: expected at least 1, got 0"),
            (|a| a.state[2] = 0, "compress: state_page_tokens: expected at least 1, got 0"),
            (|a| a.ratio = 1 << 30, "compress: 2 * ratio: expected at most 2147483647, got 2147483648"),
            (|a| a.state[3] = 7, "compress: ring_rows: expected at least 8, got 7"),
            (|a| a.d = 1 << 29, "compress: 2 * w: expected at most 2147483647, got 2147483648"),
            (
                |a| a.state[1] = 1 << 28,
                "compress: num_state_pages * ring_rows: expected at most 2147483647, got 2147483648",
            ),
            (|a| a.stride = 31, "compress: stride_kv_gate: expected at least 32 elements, got 31"),
            (|a| a.sizes[0] -= 1, "compress: kv_gate: expected at least 768 bytes, got 767 bytes"),
            (|a| a.sizes[1] -= 1, "compress: ape: expected at least 256 bytes, got 255 bytes"),
            (|a| a.sizes[2] -= 1, "compress: state: expected at least 6144 bytes, got 6143 bytes"),
            (|a| a.sizes[3] -= 1, "compress: state_table: expected at least 32 bytes, got 31 bytes"),
            (|a| a.sizes[4] -= 1, "compress: positions: expected at least 20 bytes, got 19 bytes"),
            (|a| a.sizes[5] -= 1, "compress: seq: expected at least 20 bytes, got 19 bytes"),
            (|a| a.sizes[6] -= 1, "compress: cu_seqlens: expected at least 12 bytes, got 11 bytes"),
            (|a| a.sizes[7] -= 1, "compress: row_tokens: expected at least 12 bytes, got 11 bytes"),
            (|a| a.sizes[8] -= 1, "compress: out: expected at least 48 bytes, got 47 bytes"),
        ],
    );
    // Without overlap half the channels and half the ring do.
    check_compress(&Step { overlap: false, state: [4, 6, 128, 4], stride: 16, ..valid }).unwrap();
}
