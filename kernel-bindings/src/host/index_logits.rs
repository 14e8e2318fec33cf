//! Index logits: keys of a stretch of columns are widened once, channel-major, and every head runs over them.

use rayon::prelude::*;
use reference::ops::{IndexKFormat, Pages};
use std::ops::Range;

use super::numbers::{f32_at, load_f32, s32_at};
use super::{page_start, simd};

/// Keys that are handled at a time: 8 vector registers of sums on the smallest machines.
const KEYS: usize = 32;

/// Queries of one row, widened, and their head weights.
struct Query {
    q: Vec<f32>,
    weights: Vec<f32>,
}

/// What the rows of a call have in common.
pub(super) struct Call<'a> {
    pub format: IndexKFormat,
    pub heads: usize,
    pub index_q: &'a [u8],
    pub weights: &'a [u8],
    pub keys: &'a [u8],
    pub pages: Pages,
    pub table: &'a [u8],
    pub stride_table: usize,
    pub clean: bool,
}

impl Call<'_> {
    /// Scores the query of row `row` against the keys `range` of the sequence in line `line` of the block table, into its
    /// logits.
    pub(super) fn row(&self, row: usize, line: usize, range: Range<usize>, logits: &mut [u8]) {
        let (format, page_size) = (self.format, self.pages.page_size as usize);
        let query =
            if range.is_empty() { None } else { Some(load_query(format, self.heads, self.index_q, self.weights, row)) };
        logits.par_chunks_mut(4 * KEYS).enumerate().for_each(|(stretch, logits)| {
            let first = stretch * KEYS;
            let mut tile = vec![[0.0f32; KEYS]; format.d() as usize];
            let mut scales = [f32::NEG_INFINITY; KEYS];
            let mut present = [false; KEYS];
            for j in range.start.max(first)..range.end.min(first + KEYS) {
                let page = s32_at(self.table, line * self.stride_table + j / page_size);
                if (0..i64::from(self.pages.num_pages)).contains(&i64::from(page)) {
                    let page = page_start(&self.pages, page as usize);
                    let key = j - first;
                    scales[key] = load_key(format, &self.keys[page..], page_size, j % page_size, key, &mut tile);
                    present[key] = true;
                }
            }
            let scores = match &query {
                Some(query) if present.contains(&true) => score(query, &tile),
                _ => [0.0; KEYS],
            };
            for (key, logit) in logits.chunks_exact_mut(4).enumerate() {
                let value = if present[key] { scales[key] * scores[key] } else { f32::NEG_INFINITY };
                if range.contains(&(first + key)) || self.clean {
                    logit.copy_from_slice(&value.to_le_bytes());
                }
            }
        });
    }
}

fn load_query(format: IndexKFormat, heads: usize, index_q: &[u8], weights: &[u8], row: usize) -> Query {
    let d = format.d() as usize;
    let head_bytes = format.query_head_bytes() as usize;
    let mut q = vec![0.0; heads * d];
    let bytes = index_q[row * heads * head_bytes..].chunks_exact(head_bytes);
    for (bytes, q) in bytes.zip(q.chunks_exact_mut(d)) {
        match format {
            IndexKFormat::Fp8 => simd::e4m3_values(bytes, 1.0, q),
            IndexKFormat::Bf16 => simd::bf16_values(bytes, q),
            IndexKFormat::Fp4 => simd::fp4_values(&bytes[..d / 2], &bytes[d / 2..], q),
            IndexKFormat::F32 { .. } => load_f32(bytes, q),
        }
    }
    Query { q, weights: (0..heads).map(|head| f32_at(weights, row * heads + head)).collect() }
}

/// Puts row `row` of a page into column `key` of the tile; returns its scale.
fn load_key(
    format: IndexKFormat,
    page: &[u8],
    page_size: usize,
    row: usize,
    key: usize,
    tile: &mut [[f32; KEYS]],
) -> f32 {
    let d = tile.len();
    let mut values = vec![0.0; d];
    let mut scale = 1.0;
    match format {
        IndexKFormat::Fp8 => {
            simd::e4m3_values(&page[row * d..(row + 1) * d], 1.0, &mut values);
            // all scales stand behind all codes
            scale = f32_at(&page[page_size * d..], row);
        }
        IndexKFormat::Bf16 => simd::bf16_values(&page[2 * row * d..2 * (row + 1) * d], &mut values),
        IndexKFormat::Fp4 => {
            let (codes, scales) = page.split_at(page_size * d / 2);
            simd::fp4_values(&codes[row * d / 2..(row + 1) * d / 2], &scales[4 * row..4 * (row + 1)], &mut values);
        }
        IndexKFormat::F32 { .. } => load_f32(&page[4 * row * d..4 * (row + 1) * d], &mut values),
    }
    tile.iter_mut().zip(values).for_each(|(channel, x)| channel[key] = x);
    scale
}

fn score(query: &Query, tile: &[[f32; KEYS]]) -> [f32; KEYS] {
    let mut scores = [0.0f32; KEYS];
    for (head, &w) in query.q.chunks_exact(tile.len()).zip(&query.weights) {
        let mut dots = [0.0f32; KEYS];
        for (&q, channel) in head.iter().zip(tile) {
            for key in 0..KEYS {
                dots[key] += q * channel[key];
            }
        }
        for key in 0..KEYS {
            // not `max`: a NaN must come through
            let relu = if dots[key] < 0.0 { 0.0 } else { dots[key] };
            scores[key] += w * relu;
        }
    }
    scores
}
