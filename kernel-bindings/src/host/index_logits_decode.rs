//! Index logits: keys of a stretch of columns are widened once, channel-major, and every head runs over them.

use rayon::prelude::*;
use reference::ops::{IndexKFormat, IndexLogitsDecode};

use super::numbers::{f32_at, load_f32, s32_at};
use super::{HostBuffer, page_start, simd};

/// Keys that are handled at a time: 8 vector registers of sums on the smallest machines.
const KEYS: usize = 32;

/// Queries of one row, widened, and their head weights.
struct Query {
    q: Vec<f32>,
    weights: Vec<f32>,
}

pub(super) fn run(args: IndexLogitsDecode<'_, HostBuffer>) {
    let stride = args.stride_logits as usize;
    let (s_q, page_size) = (args.s_q as usize, args.index_k.pages.page_size as usize);
    let columns = args.max_pages as usize * page_size;
    let rows = args.b as usize * s_q;
    if rows == 0 || stride == 0 {
        return;
    }
    let (format, heads, d) = (args.format, args.index_heads as usize, args.format.d() as usize);
    let (index_q, weights) = (&args.index_q.bytes, &args.index_weights.bytes);
    let (lens, table) = (&args.context_lens.bytes, &args.block_table.bytes);
    let (keys, pages) = (&args.index_k.buffer.bytes, args.index_k.pages);
    let clean = args.clean_logits;
    let stride_table = args.stride_block_table as usize;
    args.index_logits.bytes.par_chunks_mut(4 * stride).take(rows).enumerate().for_each(|(row, logits)| {
        let n = (s32_at(lens, row).max(0) as usize).min(columns);
        let query = load_query(format, heads, index_q, weights, row);
        logits.par_chunks_mut(4 * KEYS).enumerate().for_each(|(stretch, logits)| {
            let first = stretch * KEYS;
            let mut tile = vec![[0.0f32; KEYS]; d];
            let mut scales = [f32::NEG_INFINITY; KEYS];
            let mut present = [false; KEYS];
            for key in 0..KEYS.min(n.saturating_sub(first)) {
                let j = first + key;
                let page = s32_at(table, row / s_q * stride_table + j / page_size);
                if (0..pages.num_pages as i64).contains(&i64::from(page)) {
                    let page = page_start(&pages, page as usize);
                    scales[key] = load_key(format, &keys[page..], page_size, j % page_size, key, &mut tile);
                    present[key] = true;
                }
            }
            let scores = if present.contains(&true) { score(&query, &tile) } else { [0.0; KEYS] };
            for (key, logit) in logits.chunks_exact_mut(4).enumerate() {
                let value = if present[key] { scales[key] * scores[key] } else { f32::NEG_INFINITY };
                if first + key < n || clean {
                    logit.copy_from_slice(&value.to_le_bytes());
                }
            }
        });
    });
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
