//! Sparse attention: the rows of a token are widened once, then every head makes scores, one softmax and one sum.

use rayon::prelude::*;
use reference::ops::{KvFormat, Pages, SlotList, SparseMlaDecode};

use super::numbers::{f32_at, from_ue8m0, load, load_f32, s32_at, store};
use super::{HostBuffer, page_start, place, simd};

const NOPE: usize = 448;
const TILE: usize = 64;

/// `max_logits`: where the largest score of every token and head goes, if it is wanted.
pub(super) fn run(args: SparseMlaDecode<'_, HostBuffer>, max_logits: Option<&mut HostBuffer>) {
    let (t, h) = (args.t as usize, args.h as usize);
    let [q_t, q_h] = args.stride_q.map(|s| s as usize);
    let [out_t, out_h] = args.stride_out.map(|s| s as usize);
    let (q, sink) = (&args.q.bytes, args.attn_sink.map(|s| &s.bytes));
    let (dtype, format, sm_scale) = (args.dtype, args.format, args.sm_scale);
    let (d, size) = (format.d() as usize, dtype.bytes() as usize);
    let (window, compressed) = (&args.window, &args.compressed);
    let mut unwanted = Vec::new();
    let most = match max_logits {
        Some(buffer) => &mut buffer.bytes,
        None => {
            unwanted.resize(4 * t * h, 0);
            &mut unwanted
        }
    };
    let rows = args.lse.bytes.par_chunks_mut(4 * h).zip(most.par_chunks_mut(4 * h));
    let tokens = args.out.bytes.par_chunks_mut(size * out_t).zip(rows).take(t);
    tokens.enumerate().for_each(|(token, (out, (lse, most)))| {
        let mut rows = Vec::new();
        for list in std::iter::once(window).chain(compressed) {
            gather(format, list, token, &mut rows);
        }
        let rows_of_head = lse.par_chunks_mut(4).zip(most.par_chunks_mut(4));
        let heads = out.par_chunks_mut(size * out_h).zip(rows_of_head).take(h);
        heads.enumerate().for_each(|(head, (out, (lse, most)))| {
            let mut query = vec![0.0; d];
            let from = token * q_t + head * q_h;
            load(dtype, &q[size * from..size * (from + d)], &mut query);
            let sink = sink.map_or(f32::NEG_INFINITY, |sink| f32_at(sink, head));
            let attended = attend(&query, &rows, sm_scale, sink);
            store(dtype, &attended.out, &mut out[..size * d]);
            lse.copy_from_slice(&attended.lse.to_le_bytes());
            most.copy_from_slice(&attended.max.to_le_bytes());
        });
    });
}

/// Appends the valid rows of a list, widened.
fn gather(format: KvFormat, list: &SlotList<'_, HostBuffer>, token: usize, rows: &mut Vec<f32>) {
    let width = list.width as usize;
    let len = list.lens.map_or(width, |lens| (s32_at(&lens.bytes, token).max(0) as usize).min(width));
    let first = token * list.stride_slots as usize;
    for entry in first..first + len {
        let Some((page, row)) = place(&list.cache.pages, s32_at(&list.slots.bytes, entry)) else { continue };
        let start = rows.len();
        rows.resize(start + format.d() as usize, 0.0);
        widen_row(format, &list.cache.pages, &list.cache.buffer.bytes, page, row, &mut rows[start..]);
    }
}

fn widen_row(format: KvFormat, pages: &Pages, memory: &[u8], page: usize, row: usize, out: &mut [f32]) {
    let page = &memory[page_start(pages, page)..];
    match format {
        KvFormat::Bf16 => simd::bf16_values(&page[1024 * row..1024 * (row + 1)], out),
        KvFormat::F32 { d } => load_f32(&page[4 * d as usize * row..4 * d as usize * (row + 1)], out),
        KvFormat::V4Fp8 => {
            let data = &page[576 * row..576 * (row + 1)];
            let scales = &page[576 * pages.page_size as usize + 8 * row..];
            for (tile, codes) in data[..NOPE].chunks_exact(TILE).enumerate() {
                let scale = from_ue8m0(scales[tile]);
                let out = &mut out[tile * TILE..(tile + 1) * TILE];
                simd::e4m3_values(codes, scale, out);
            }
            simd::bf16_values(&data[NOPE..], &mut out[NOPE..]);
        }
    }
}

/// One head over widened rows.
struct Attended {
    out: Vec<f32>,
    /// Natural log-sum-exp without the sink.
    lse: f32,
    /// Largest score.
    max: f32,
}

fn attend(query: &[f32], rows: &[f32], sm_scale: f32, sink: f32) -> Attended {
    let d = query.len();
    let mut out = vec![0.0f32; d];
    if rows.is_empty() {
        return Attended { out, lse: f32::NEG_INFINITY, max: f32::NEG_INFINITY };
    }
    let mut scores: Vec<f32> = rows.chunks_exact(d).map(|row| sm_scale * simd::dot(query, row)).collect();
    let mut max = f32::NEG_INFINITY;
    for &score in &scores {
        if score > max || score.is_nan() {
            max = score;
        }
    }
    simd::exp(&mut scores, max);
    let sum: f32 = scores.iter().sum();
    for (p, row) in scores.iter().zip(rows.chunks_exact(d)) {
        simd::axpy(*p, row, &mut out);
    }
    // exp(-inf) = 0: no sink; exp(inf) = inf: all weight on the sink
    let denominator = sum + (sink - max).exp();
    out.iter_mut().for_each(|o| *o /= denominator);
    Attended { out, lse: max + sum.ln(), max }
}
