//! Faults of the index logits and of the choice of the best.

use reference::formats::{f32_bytes, f32s, s32_bytes, s32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};

use super::{map_f32, map_s32, restride};

pub(super) const FAULTS: [(&str, &[&str]); 3] = [
    (
        "index_logits_decode",
        &[
            "no cleaning",
            "always cleaning",
            "one key too many",
            "length of the first query",
            "page padding ignored",
            "table padding ignored",
            "invalid page as page 0",
            "weights without sign",
            "nan lost",
            "scale of the next row",
            "rounded to bf16",
            "fp4 scale of the next row",
            "fp4 scale of the next group",
            "fp4 query scale of the next group",
            "nibbles swapped",
        ],
    ),
    (
        "index_logits_prefill",
        &[
            "starts ignored",
            "no cleaning",
            "always cleaning",
            "one key too many",
            "ends of the next query",
            "first table line for all rows",
            "queries from token 0",
            "tokens behind",
            "negative ranges as all",
        ],
    ),
    (
        "topk_select",
        &[
            "ties to the higher position",
            "nan as infinity",
            "minus zero below zero",
            "minus infinity selected",
            "one value too many",
            "one pick too few",
            "short rows looked at",
            "first table line for all rows",
            "slots of page 1",
            "order by value",
        ],
    ),
];

pub(super) fn index_logits_decode(fault: &str, mut args: IndexLogitsDecode<'_, Bytes>) -> Result<(), OpsError> {
    let (mut lens, mut table) = (args.context_lens.clone(), args.block_table.clone());
    let (mut weights, mut keys) = (args.index_weights.clone(), args.index_k.buffer.clone());
    let (queries, num_pages) = (args.s_q as usize, args.index_k.pages.num_pages as i32);
    let mut query = args.index_q.clone();
    match fault {
        "no cleaning" => args.clean_logits = false,
        "always cleaning" => args.clean_logits = true,
        "one key too many" => lens = map_s32(&lens, |n| n.saturating_add(1)),
        "length of the first query" => {
            let given = s32s(&lens);
            let first: Vec<i32> = (0..given.len()).map(|row| given[row / queries * queries]).collect();
            lens = s32_bytes(&first);
        }
        "page padding ignored" => {
            let stride = args.format.page_stride_bytes(args.index_k.pages.page_size);
            keys = restride(&keys, &args.index_k.pages, stride);
            args.index_k.pages.page_stride_bytes = stride;
        }
        "table padding ignored" => args.stride_block_table = u64::from(args.max_pages),
        "invalid page as page 0" => {
            table = map_s32(&table, |p| if (0..num_pages).contains(&p) { p } else { 0 });
        }
        "weights without sign" => weights = map_f32(&weights, f32::abs),
        "scale of the next row" if args.format == IndexKFormat::Fp8 => {
            let (stride, rows) = (args.index_k.pages.page_stride_bytes as usize, args.index_k.pages.page_size as usize);
            for page in keys.chunks_mut(stride) {
                let end = (132 * rows).min(page.len());
                page[128 * rows..end].rotate_left(4);
            }
        }
        "fp4 scale of the next row" if args.format == IndexKFormat::Fp4 => {
            let (stride, rows) = (args.index_k.pages.page_stride_bytes as usize, args.index_k.pages.page_size as usize);
            for page in keys.chunks_mut(stride) {
                let end = (68 * rows).min(page.len());
                page[64 * rows..end].rotate_left(4);
            }
        }
        "fp4 scale of the next group" if args.format == IndexKFormat::Fp4 => {
            let (stride, rows) = (args.index_k.pages.page_stride_bytes as usize, args.index_k.pages.page_size as usize);
            for page in keys.chunks_mut(stride) {
                let end = (68 * rows).min(page.len());
                page[64 * rows..end].chunks_exact_mut(4).for_each(|scales| scales.rotate_left(1));
            }
        }
        "fp4 query scale of the next group" if args.format == IndexKFormat::Fp4 => {
            query.chunks_exact_mut(68).for_each(|head| head[64..].rotate_left(1));
        }
        "nibbles swapped" if args.format == IndexKFormat::Fp4 => {
            keys.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
        }
        _ => {}
    }
    let before = args.index_logits.clone();
    let out = &mut *args.index_logits;
    ReferenceOps.index_logits_decode(IndexLogitsDecode {
        index_q: &query,
        index_weights: &weights,
        index_k: Paged { buffer: &keys, pages: args.index_k.pages },
        block_table: &table,
        context_lens: &lens,
        index_logits: out,
        ..args
    })?;
    let after = match fault {
        "nan lost" => map_f32(out, |x| if x.is_nan() { 0.0 } else { x }),
        "rounded to bf16" => map_f32(out, |x| reference::formats::bf16::from_f32(x).to_f32()),
        _ => return Ok(()),
    };
    for (at, byte) in after.iter().enumerate() {
        if out[at] != before[at] {
            out[at] = *byte;
        }
    }
    Ok(())
}

pub(super) fn index_logits_prefill(fault: &str, mut args: IndexLogitsPrefill<'_, Bytes>) -> Result<(), OpsError> {
    let (mut queries, mut ends) = (s32s(args.cu_seqlens_q), args.ends.clone());
    let mut table = args.block_table.clone();
    match fault {
        "starts ignored" => args.starts = None,
        "no cleaning" => args.clean_logits = false,
        "always cleaning" => args.clean_logits = true,
        "one key too many" => ends = map_s32(&ends, |end| if end > 0 { end.saturating_add(1) } else { end }),
        "ends of the next query" if ends.len() > 4 => ends.rotate_left(4),
        "first table line for all rows" if args.b > 0 => {
            let line = 4 * args.stride_block_table as usize;
            let first: Vec<u8> = table.iter().copied().take(4 * args.max_pages as usize).collect();
            table.chunks_mut(line).for_each(|line| line[..first.len()].copy_from_slice(&first));
        }
        "queries from token 0" => {
            let first = queries[0];
            queries.iter_mut().for_each(|query| *query -= first);
        }
        "tokens behind" if args.b > 0 => queries[args.b as usize] = args.t as i32,
        "negative ranges as all" => ends = map_s32(&ends, |end| if end < -1 { i32::MAX } else { end }),
        _ => {}
    }
    let queries = s32_bytes(&queries);
    ReferenceOps.index_logits_prefill(IndexLogitsPrefill {
        cu_seqlens_q: &queries,
        ends: &ends,
        block_table: &table,
        ..args
    })
}

pub(super) fn topk_select(fault: &str, mut args: TopkSelect<'_, Bytes>) -> Result<(), OpsError> {
    let (mut logits, mut lens) = (args.index_logits.clone(), args.context_lens.clone());
    let stride = args.stride_logits as usize;
    let n = |row: usize| (s32s(args.context_lens)[row].max(0) as usize).min(stride);
    let topk = args.topk as usize;
    match fault {
        "nan as infinity" => logits = map_f32(&logits, |x| if x.is_nan() { f32::INFINITY } else { x }),
        "minus zero below zero" => {
            logits = map_f32(&logits, |x| if x == 0.0 && x.is_sign_negative() { -f32::from_bits(1) } else { x });
        }
        "minus infinity selected" => {
            logits = map_f32(&logits, |x| if x == f32::NEG_INFINITY || x.is_nan() { f32::MIN } else { x });
        }
        "one value too many" => lens = map_s32(&lens, |n| n.saturating_add(1)),
        "short rows looked at" => {
            // A row of topk values is treated like a longer one: what is -inf or NaN in it is dropped.
            let mut given = s32s(&lens);
            for (row, len) in given.iter_mut().enumerate() {
                let values = f32s(&logits[4 * row * stride..4 * (row * stride + n(row))]);
                if values.len() <= topk {
                    *len = values.iter().filter(|v| !v.is_nan()).count() as i32;
                }
            }
            lens = s32_bytes(&given);
        }
        "first table line for all rows" => args.stride_block_table = u64::from(args.max_pages),
        "ties to the higher position" => {
            // Reverse every row, and the positions that come out.
            let mut all = f32s(&logits);
            for (row, values) in all.chunks_mut(stride).enumerate() {
                values[..n(row)].reverse();
            }
            logits = f32_bytes(&all);
        }
        _ => {}
    }
    let counts: Vec<usize> = (0..args.rows as usize).map(n).collect();
    let mut positions = args.topk_positions.take();
    let mut slots = args.topk_slots.take();
    let table_line = (fault == "first table line for all rows").then(|| {
        let table = s32s(args.block_table.unwrap_or(&Vec::new()));
        s32_bytes(&table.iter().copied().cycle().take(args.max_pages as usize * counts.len()).collect::<Vec<_>>())
    });
    ReferenceOps.topk_select(TopkSelect {
        index_logits: &logits,
        context_lens: &lens,
        block_table: args.block_table.map(|table| table_line.as_ref().unwrap_or(table)),
        topk_positions: positions.as_deref_mut(),
        topk_slots: slots.as_deref_mut(),
        ..args
    })?;
    if let Some(positions) = positions {
        let mut lines = s32s(positions);
        for (row, line) in lines.chunks_mut(topk).enumerate() {
            let valid = line.iter().filter(|&&j| j >= 0).count();
            match fault {
                "ties to the higher position" if counts[row] > topk => {
                    line[..valid].iter_mut().for_each(|j| *j = counts[row] as i32 - 1 - *j);
                    line[..valid].reverse();
                }
                "one pick too few" => line[topk - 1] = -1,
                "order by value" if valid > 1 => line.swap(0, 1),
                _ => {}
            }
        }
        *positions = s32_bytes(&lines);
    }
    if let (Some(slots), "slots of page 1") = (slots, fault) {
        *slots = map_s32(slots, |s| if s < 0 { s } else { s % args.page_size as i32 + args.page_size as i32 });
    }
    Ok(())
}
