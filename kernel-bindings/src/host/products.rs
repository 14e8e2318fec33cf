//! Weight rows times tokens: what `linear` and `moe_experts` of the host have in common.
//!
//! A panel of eight rows is taken as it stands (f32, and bf16 for few tokens) or decoded to f32 once for all tokens. Every
//! output has one order of summation ([`super::dots`]): its bytes do not depend on the other tokens of the batch, on the
//! number of threads, or on whether the panel was decoded.

use std::cell::Cell;
use std::ops::Range;

use pulp::bytemuck::cast_slice;
use reference::ops::{Dtype, Weight, WeightFormat};

use super::HostBuffer;
use super::dots::{Level, ROWS, Storage, VECTORS, dots};
use super::numbers::{e2m1, e4m3, from_ue8m0, load_f32, widen_bf16};
use super::simd::widest;
use super::threads;

/// A weight matrix in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    format: WeightFormat,
    data: &'a [u8],
    scale: &'a [u8],
    k: usize,
}

impl<'a> Matrix<'a> {
    pub(super) fn new(weight: &Weight<'a, HostBuffer>, k: u32) -> Self {
        let scale = weight.scale.map_or(&[][..], |scale| &scale.bytes);
        Matrix { format: weight.format, data: &weight.data.bytes, scale, k: k as usize }
    }

    /// Bytes of `rows` rows from `first` on, with `bits` bits per element.
    fn rows(&self, first: usize, rows: usize, bits: usize) -> &'a [u8] {
        let row = self.k * bits / 8;
        &self.data[first * row..(first + rows) * row]
    }

    /// Rows in f32.
    fn decode(&self, first: usize, rows: usize, out: &mut [f32]) {
        match self.format {
            WeightFormat::F32 => load_f32(self.rows(first, rows, 32), out),
            WeightFormat::Bf16 => widest(|| widen_bf16(self.rows(first, rows, 16), out)),
            WeightFormat::Fp8Block128 => {
                let codes = self.rows(first, rows, 8).chunks_exact(self.k);
                for ((row, codes), out) in (first..).zip(codes).zip(out.chunks_exact_mut(self.k)) {
                    let scales = &self.scale[row / 128 * self.k.div_ceil(128)..];
                    for ((codes, out), &scale) in codes.chunks(128).zip(out.chunks_mut(128)).zip(scales) {
                        let scale = from_ue8m0(scale);
                        widest(|| out.iter_mut().zip(codes).for_each(|(x, &code)| *x = e4m3(code) * scale));
                    }
                }
            }
            WeightFormat::Fp4Block32 => {
                let scales = &self.scale[first * (self.k / 32)..];
                let codes = self.rows(first, rows, 4).chunks_exact(16);
                for ((codes, out), &scale) in codes.zip(out.chunks_exact_mut(32)).zip(scales) {
                    let scale = from_ue8m0(scale);
                    for (&pair, out) in codes.iter().zip(out.chunks_exact_mut(2)) {
                        let [low, high] = E2M1_PAIRS[usize::from(pair)];
                        out[0] = low * scale;
                        out[1] = high * scale;
                    }
                }
            }
        }
    }
}

/// Values of every byte of two e2m1 codes, the one in the low bits first: four times as fast as making them.
static E2M1_PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [e2m1(byte as u8 & 0xf), e2m1(byte as u8 >> 4)];
        byte += 1;
    }
    pairs
};

thread_local! {
    /// Memory for a decoded panel. Taken for the time of a use: a thread that starts other work in between finds none and
    /// makes some.
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Room for so many f32 values, whatever stands there.
pub(super) fn room(memory: &mut Vec<f32>, values: usize) -> &mut [f32] {
    if memory.len() < values {
        memory.resize(values, 0.0);
    }
    &mut memory[..values]
}

/// Tokens up to which bf16 rows are widened as they are read; above, they are decoded once.
const WIDEN_IN_PLACE: usize = VECTORS;

/// Tokens that go through all rows together: outputs of a row lie a power of two apart, and more lines than this fall out of
/// the cache between the first eight rows and the next (4,096 outputs, 256 tokens: 31 GFLOP/s without, 75 with).
const TOGETHER: usize = 16 * VECTORS;

/// Products of the rows `rows` of `matrix` with the vectors `x(0)..x(t)` (f32 bytes, k of them). `store` gets a token, the
/// first of up to eight rows and their values; every row and token once.
pub(super) fn multiply<'a>(
    matrix: Matrix<'_>,
    rows: Range<usize>,
    t: usize,
    x: impl Fn(usize) -> &'a [u8],
    store: impl Fn(usize, usize, &[f32]),
) {
    let mut panel = PANEL.take();
    for first in (0..t).step_by(TOGETHER) {
        multiply_some(matrix, rows.clone(), first..t.min(first + TOGETHER), &x, &store, &mut panel);
    }
    PANEL.set(panel);
}

fn multiply_some<'a>(
    matrix: Matrix<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    x: &impl Fn(usize) -> &'a [u8],
    store: &impl Fn(usize, usize, &[f32]),
    panel: &mut Vec<f32>,
) {
    let level = Level::detect();
    for first in rows.clone().step_by(ROWS) {
        let count = ROWS.min(rows.end - first);
        let (storage, weights) = match matrix.format {
            WeightFormat::F32 => (Storage::F32, matrix.rows(first, count, 32)),
            WeightFormat::Bf16 if tokens.len() <= WIDEN_IN_PLACE => (Storage::Bf16, matrix.rows(first, count, 16)),
            _ => {
                let decoded = room(panel, count * matrix.k);
                matrix.decode(first, count, decoded);
                (Storage::F32, cast_slice(decoded))
            }
        };
        let k = matrix.k;
        for token in tokens.clone().step_by(VECTORS) {
            match tokens.end - token {
                1 => {
                    let [a] = dots(level, storage, weights, count, k, [x(token)]);
                    store(token, first, &a[..count]);
                }
                2 => {
                    let [a, b] = dots(level, storage, weights, count, k, [x(token), x(token + 1)]);
                    store(token, first, &a[..count]);
                    store(token + 1, first, &b[..count]);
                }
                _ => {
                    let vectors = [x(token), x(token + 1), x(token + 2)];
                    let out = dots(level, storage, weights, count, k, vectors);
                    for (place, values) in out.iter().enumerate() {
                        store(token + place, first, &values[..count]);
                    }
                }
            }
        }
    }
}

/// Multiplications below which a product stays on its thread: some 20 us of work, where waking another costs 5.
const PARALLEL_FROM: usize = 1 << 20;

/// Whether `tokens` times `weights` elements are worth more than one thread. Few tokens wait for memory, not arithmetic.
pub(super) fn parallel(tokens: usize, weights: usize) -> bool {
    tokens.max(4) * weights >= PARALLEL_FROM && threads::count() > 1
}

/// Calls `work` for each range of a cut of `0..rows` into pieces of a multiple of eight rows, on all threads if `parallel`.
pub(super) fn in_pieces(rows: usize, parallel: bool, work: impl Fn(Range<usize>) + Sync) {
    if !parallel {
        return work(0..rows);
    }
    let pieces = (4 * threads::count()).min(rows.div_ceil(ROWS)).max(1);
    let piece = rows.div_ceil(pieces).next_multiple_of(ROWS);
    threads::share(0..rows.div_ceil(piece), |i| work(i * piece..((i + 1) * piece).min(rows)));
}

/// Rows of activations as f32 bytes: as they stand, or widened into `scratch`.
pub(super) struct Rows<'a> {
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Rows<'a> {
    /// `t` rows of `columns` values, `stride` elements apart.
    pub(super) fn new(
        dtype: Dtype,
        bytes: &'a [u8],
        [t, columns, stride]: [usize; 3],
        scratch: &'a mut Vec<f32>,
    ) -> Rows<'a> {
        match dtype {
            Dtype::F32 => Rows { bytes, stride: 4 * stride },
            Dtype::Bf16 => {
                let wide = room(scratch, t * columns);
                for (row, wide) in wide.chunks_exact_mut(columns).enumerate() {
                    widest(|| widen_bf16(&bytes[2 * row * stride..][..2 * columns], wide));
                }
                Rows { bytes: cast_slice(wide), stride: 4 * columns }
            }
        }
    }

    /// `count` values of row `row` from `first` on.
    pub(super) fn row(&self, row: usize, first: usize, count: usize) -> &'a [u8] {
        &self.bytes[row * self.stride + 4 * first..][..4 * count]
    }
}

/// Memory that threads write to in disjoint pieces.
pub(super) struct Shared {
    start: *mut u8,
    len: usize,
}

// SAFETY: all access goes through the unsafe methods of `Shared`, whose callers keep the pieces of threads apart.
unsafe impl Sync for Shared {}

impl Shared {
    /// The borrow of `bytes` must last as long as the value is used, which the callers' scopes see to.
    pub(super) fn new(bytes: &mut [u8]) -> Shared {
        Shared { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// # Safety
    /// The memory is still borrowed, and no other thread uses bytes `at..at + len` while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn piece(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at, "a piece of {len} bytes at {at} leaves {} bytes", self.len);
        // SAFETY: inside the allocation (asserted), borrowed mutably by the creator, and not aliased (contract).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}
