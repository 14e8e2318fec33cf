//! The suite can fail: an implementation with one fault is caught by a quick case, for every fault that others have
//! shipped and that can be put in front of, or behind, a correct implementation.

#[path = "faults/products.rs"]
mod products;
#[path = "faults/rows.rs"]
mod rows;
#[path = "faults/streams.rs"]
mod streams;

use std::collections::HashSet;

use reference::cases::{self, Size};
use reference::formats::{f32_bytes, f32s, s32_bytes, s32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};
use reference::problem::Fill;
use reference::suite;

/// The reference with one fault, chosen by name.
struct Faulty(&'static str);

/// Rows of f32 rounded to bf16, which no format may do but bf16.
fn rounded(dtype: Dtype, rows: &Bytes) -> Bytes {
    let round = |x| reference::formats::bf16::from_f32(x).to_f32();
    if dtype == Dtype::F32 { map_f32(rows, round) } else { rows.clone() }
}

const FAULTS: [(&str, &[&str]); 8] = [
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
    (
        "sparse_mla_decode",
        &[
            "no sink",
            "sink in lse",
            "lse base 2",
            "lengths ignored",
            "second list ignored",
            "invalid slots as slot 0",
            "repeated slots once",
            "page padding ignored",
            "scale of the next tile",
            "output 2% too large",
            "lse of an empty row zero",
            "gap written",
            "f32 output rounded to bf16",
        ],
    ),
    (
        "sparse_mla_prefill",
        &[
            "no sink",
            "max logits base 2",
            "max logits of an empty row zero",
            "max logits missing",
            "max over the window",
        ],
    ),
    ("split_combine", &["no sink", "sink in lse", "lse base 2", "last split ignored", "plain mean", "gap written"]),
    (
        "kv_write",
        &[
            "pad byte 1",
            "rope as zero",
            "slots wrap around",
            "rows packed",
            "page padding ignored",
            "tiny rows lost",
            "scale one up",
            "f32 rows rounded to bf16",
        ],
    ),
    (
        "index_k_write",
        &[
            "other scale rule",
            "slots wrap around",
            "rows packed",
            "page padding ignored",
            "last token lost",
            "f32 rows rounded to bf16",
            "nibbles swapped",
            "negative zeros lost",
        ],
    ),
];

fn map_s32(buffer: &Bytes, change: impl Fn(i32) -> i32) -> Bytes {
    s32_bytes(&s32s(buffer).into_iter().map(change).collect::<Vec<_>>())
}

fn map_f32(buffer: &Bytes, change: impl Fn(f32) -> f32) -> Bytes {
    f32_bytes(&f32s(buffer).into_iter().map(change).collect::<Vec<_>>())
}

/// Copies pages from one stride to another.
fn restride(cache: &Bytes, pages: &Pages, stride: u64) -> Bytes {
    let mut moved = vec![0xff; (u64::from(pages.num_pages) * stride.max(pages.page_stride_bytes)) as usize];
    moved[..cache.len()].copy_from_slice(cache);
    moved
}

impl Ops for Faulty {
    type Buffer = Bytes;

    fn name(&self) -> String {
        format!("reference with fault: {}", self.0)
    }
    fn alloc(&self, bytes: u64, label: &str) -> Result<Bytes, OpsError> {
        ReferenceOps.alloc(bytes, label)
    }
    fn upload(&self, dst: &mut Bytes, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        ReferenceOps.upload(dst, offset, bytes)
    }
    fn download(&self, src: &Bytes, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        ReferenceOps.download(src, offset, bytes)
    }
    fn len_bytes(&self, buffer: &Bytes) -> u64 {
        ReferenceOps.len_bytes(buffer)
    }

    fn index_logits_decode(&self, mut args: IndexLogitsDecode<'_, Bytes>) -> Result<(), OpsError> {
        let (mut lens, mut table) = (args.context_lens.clone(), args.block_table.clone());
        let (mut weights, mut keys) = (args.index_weights.clone(), args.index_k.buffer.clone());
        let (queries, num_pages) = (args.s_q as usize, args.index_k.pages.num_pages as i32);
        match self.0 {
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
                let (stride, rows) =
                    (args.index_k.pages.page_stride_bytes as usize, args.index_k.pages.page_size as usize);
                for page in keys.chunks_mut(stride) {
                    let end = (132 * rows).min(page.len());
                    page[128 * rows..end].rotate_left(4);
                }
            }
            "fp4 scale of the next row" if args.format == IndexKFormat::Fp4 => {
                let (stride, rows) =
                    (args.index_k.pages.page_stride_bytes as usize, args.index_k.pages.page_size as usize);
                for page in keys.chunks_mut(stride) {
                    let end = (68 * rows).min(page.len());
                    page[64 * rows..end].rotate_left(4);
                }
            }
            "nibbles swapped" if args.format == IndexKFormat::Fp4 => {
                keys.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
            }
            _ => {}
        }
        let before = args.index_logits.clone();
        let out = &mut *args.index_logits;
        ReferenceOps.index_logits_decode(IndexLogitsDecode {
            index_weights: &weights,
            index_k: Paged { buffer: &keys, pages: args.index_k.pages },
            block_table: &table,
            context_lens: &lens,
            index_logits: out,
            ..args
        })?;
        let after = match self.0 {
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

    fn topk_select(&self, mut args: TopkSelect<'_, Bytes>) -> Result<(), OpsError> {
        let (mut logits, mut lens) = (args.index_logits.clone(), args.context_lens.clone());
        let stride = args.stride_logits as usize;
        let n = |row: usize| (s32s(args.context_lens)[row].max(0) as usize).min(stride);
        let topk = args.topk as usize;
        match self.0 {
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
        let table_line = (self.0 == "first table line for all rows").then(|| {
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
                match self.0 {
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
        if let (Some(slots), "slots of page 1") = (slots, self.0) {
            *slots = map_s32(slots, |s| if s < 0 { s } else { s % args.page_size as i32 + args.page_size as i32 });
        }
        Ok(())
    }

    fn sparse_mla_decode(&self, mut args: SparseMlaDecode<'_, Bytes>) -> Result<(), OpsError> {
        let (mut cache, mut slots) = (args.window.cache.buffer.clone(), args.window.slots.clone());
        let pages = args.window.cache.pages;
        match self.0 {
            "no sink" => args.attn_sink = None,
            "lengths ignored" => {
                args.window.lens = None;
                args.compressed.iter_mut().for_each(|list| list.lens = None);
            }
            "second list ignored" => args.compressed = None,
            "invalid slots as slot 0" => {
                let all = pages.num_slots() as i32;
                slots = map_s32(&slots, |s| if (0..all).contains(&s) { s } else { 0 });
            }
            "page padding ignored" => {
                let stride = args.format.page_stride_bytes(pages.page_size);
                cache = restride(&cache, &pages, stride);
                args.window.cache.pages.page_stride_bytes = stride;
            }
            "scale of the next tile" if args.format == KvFormat::V4Fp8 => {
                let rows = pages.page_size as usize;
                for page in cache.chunks_mut(pages.page_stride_bytes as usize) {
                    let end = (584 * rows).min(page.len());
                    page[576 * rows..end].chunks_mut(8).for_each(|footer| footer[..7].rotate_left(1));
                }
            }
            _ => {}
        }
        let mut second = args.compressed.as_ref().map(|list| list.slots.clone());
        let once = |slots: &Bytes, width: u32, stride: u64| {
            let mut all = s32s(slots);
            for line in all.chunks_mut(stride.max(1) as usize) {
                let mut seen = HashSet::new();
                line.iter_mut().take(width as usize).for_each(|s| *s = if seen.insert(*s) { *s } else { -1 });
            }
            s32_bytes(&all)
        };
        if let ("repeated slots once", Some(list)) = (self.0, &args.compressed) {
            second = Some(once(list.slots, list.width, list.stride_slots));
        }
        let (h, stride_out, dtype) = (args.h as usize, args.stride_out, args.dtype);
        let sinks = args.attn_sink.map(|sink| f32s(sink));
        let compressed = args.compressed.zip(second.as_ref()).map(|(list, slots)| SlotList { slots, ..list });
        let window_cache = Paged { buffer: &cache, pages: args.window.cache.pages };
        let window = SlotList { cache: window_cache, slots: &slots, ..args.window };
        let (out, lse) = (args.out, args.lse);
        ReferenceOps.sparse_mla_decode(SparseMlaDecode { window, compressed, out, lse, ..args })?;
        if self.0 == "f32 output rounded to bf16" {
            *out = rounded(dtype, out);
        }
        spoil_attention(self.0, out, lse, h, stride_out, sinks.as_deref());
        Ok(())
    }

    fn index_logits_prefill(&self, mut args: IndexLogitsPrefill<'_, Bytes>) -> Result<(), OpsError> {
        let (mut queries, mut ends) = (s32s(args.cu_seqlens_q), args.ends.clone());
        let mut table = args.block_table.clone();
        match self.0 {
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

    fn sparse_mla_prefill(&self, args: SparseMlaPrefill<'_, Bytes>) -> Result<(), OpsError> {
        let SparseMlaPrefill { mut attention, mut max_logits } = args;
        match self.0 {
            "no sink" => attention.attn_sink = None,
            "max logits missing" => max_logits = None,
            _ => {}
        }
        let Some(out) = max_logits else {
            return ReferenceOps.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: None });
        };
        if self.0 == "max over the window" {
            let compressed = attention.compressed.take();
            let most = reference::plain::max_logits(&attention);
            attention.compressed = compressed;
            *out = f32_bytes(&most.iter().map(|cell| cell.expect("all are written").value as f32).collect::<Vec<_>>());
            return ReferenceOps.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: None });
        }
        ReferenceOps.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: Some(&mut *out) })?;
        match self.0 {
            "max logits base 2" => *out = map_f32(out, |x| x * std::f32::consts::LOG2_E),
            "max logits of an empty row zero" => {
                *out = map_f32(out, |x| if x == f32::NEG_INFINITY { 0.0 } else { x });
            }
            _ => {}
        }
        Ok(())
    }

    fn split_combine(&self, mut args: SplitCombine<'_, Bytes>) -> Result<(), OpsError> {
        let mut lse2 = args.lse2_partial.clone();
        match self.0 {
            "no sink" => args.attn_sink = None,
            "last split ignored" if args.num_splits > 1 => args.num_splits -= 1,
            "plain mean" => lse2 = map_f32(&lse2, |x| if x == f32::NEG_INFINITY { x } else { 0.0 }),
            _ => {}
        }
        let (h, stride_out) = (args.h as usize, args.stride_out);
        let sinks = args.attn_sink.map(|sink| f32s(sink));
        let (out, lse) = (args.out, args.lse);
        ReferenceOps.split_combine(SplitCombine { lse2_partial: &lse2, out, lse, ..args })?;
        spoil_attention(self.0, out, lse, h, stride_out, sinks.as_deref());
        Ok(())
    }

    fn kv_write(&self, mut args: KvWrite<'_, Bytes>) -> Result<(), OpsError> {
        let (mut slots, mut rows) = (args.slot_mapping.clone(), args.rows.clone());
        let all = args.pages.num_slots() as i32;
        match self.0 {
            "slots wrap around" => slots = map_s32(&slots, |s| if s >= all { s % all } else { s }),
            "rows packed" => args.stride_rows = u64::from(args.format.d()),
            "page padding ignored" => {
                args.pages.page_stride_bytes = args.format.page_stride_bytes(args.pages.page_size);
            }
            "f32 rows rounded to bf16" => rows = rounded(args.dtype, &rows),
            "rope as zero" if args.dtype == Dtype::Bf16 && args.format == KvFormat::V4Fp8 => {
                rows.chunks_mut(2 * args.stride_rows as usize).for_each(|r| r[896..1024].fill(0))
            }
            "tiny rows lost" if args.dtype == Dtype::Bf16 => {
                for x in rows.chunks_mut(2) {
                    let value = reference::formats::bf16::from_le_bytes([x[0], x[1]]).to_f32();
                    if value.abs() < 1e-4 {
                        x.fill(0);
                    }
                }
            }
            _ => {}
        }
        let (format, pages) = (args.format, args.pages);
        let cache = args.cache;
        ReferenceOps.kv_write(KvWrite { slot_mapping: &slots, rows: &rows, cache, ..args })?;
        if format == KvFormat::V4Fp8 {
            for (page, row) in s32s(&slots).into_iter().filter_map(|slot| pages.locate(slot)) {
                let footer = reference::layout::v4_fp8_footer(&pages, page, row) as usize;
                match self.0 {
                    "pad byte 1" => cache[footer + 7] = 1,
                    "scale one up" => cache[footer + 3] += 1,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn index_k_write(&self, mut args: IndexKWrite<'_, Bytes>) -> Result<(), OpsError> {
        let (mut slots, mut rows) = (args.slot_mapping.clone(), args.rows.clone());
        let all = args.pages.num_slots() as i32;
        match self.0 {
            "slots wrap around" => slots = map_s32(&slots, |s| if s >= all { s % all } else { s }),
            "rows packed" => args.stride_rows = u64::from(args.format.d()),
            "page padding ignored" => {
                args.pages.page_stride_bytes = args.format.page_stride_bytes(args.pages.page_size);
            }
            "other scale rule" => {
                args.scale_rule = match args.scale_rule {
                    ScaleRule::Exact => ScaleRule::PowerOfTwo,
                    ScaleRule::PowerOfTwo => ScaleRule::Exact,
                };
            }
            "last token lost" => args.t = args.t.saturating_sub(1),
            "f32 rows rounded to bf16" => rows = rounded(args.dtype, &rows),
            _ => {}
        }
        let (format, pages, cache) = (args.format, args.pages, args.cache);
        ReferenceOps.index_k_write(IndexKWrite { slot_mapping: &slots, rows: &rows, cache, ..args })?;
        if format == IndexKFormat::Fp4 {
            for (page, row) in s32s(&slots).into_iter().filter_map(|slot| pages.locate(slot)) {
                let data = reference::layout::index_k_fp4_data(&pages, page, row) as usize;
                let codes = &mut cache[data..data + 64];
                let zero = |code: u8| if code == 8 { 0 } else { code };
                match self.0 {
                    "nibbles swapped" => codes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4)),
                    "negative zeros lost" => {
                        codes.iter_mut().for_each(|byte| *byte = zero(*byte & 15) | zero(*byte >> 4) << 4);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn embed(&self, args: Embed<'_, Bytes>) -> Result<(), OpsError> {
        streams::embed(self.0, args)
    }

    fn gather_rows(&self, args: GatherRows<'_, Bytes>) -> Result<(), OpsError> {
        streams::gather_rows(self.0, args)
    }

    fn hc_mix(&self, args: HcMix<'_, Bytes>) -> Result<(), OpsError> {
        streams::hc_mix(self.0, args)
    }

    fn hc_post(&self, args: HcPost<'_, Bytes>) -> Result<(), OpsError> {
        streams::hc_post(self.0, args)
    }

    fn swiglu(&self, args: Swiglu<'_, Bytes>) -> Result<(), OpsError> {
        streams::swiglu(self.0, args)
    }

    fn router(&self, args: Router<'_, Bytes>) -> Result<(), OpsError> {
        streams::router(self.0, args)
    }

    fn sample(&self, args: Sample<'_, Bytes>) -> Result<(), OpsError> {
        streams::sample(self.0, args)
    }

    fn norm_rope(&self, args: NormRope<'_, Bytes>) -> Result<(), OpsError> {
        rows::norm_rope(self.0, args)
    }

    fn hadamard(&self, args: Hadamard<'_, Bytes>) -> Result<(), OpsError> {
        rows::hadamard(self.0, args)
    }

    fn index_q_quantise(&self, args: IndexQQuantise<'_, Bytes>) -> Result<(), OpsError> {
        rows::index_q_quantise(self.0, args)
    }

    fn compress(&self, args: Compress<'_, Bytes>) -> Result<(), OpsError> {
        rows::compress(self.0, args)
    }

    fn linear(&self, args: Linear<'_, Bytes>) -> Result<(), OpsError> {
        products::linear(self.0, args)
    }

    fn moe_experts(&self, args: MoeExperts<'_, Bytes>) -> Result<(), OpsError> {
        products::moe_experts(self.0, args)
    }
}

/// Faults in what attention and merge give back.
fn spoil_attention(
    fault: &str,
    out: &mut Bytes,
    lse: &mut Bytes,
    h: usize,
    stride_out: [u64; 2],
    sinks: Option<&[f32]>,
) {
    match fault {
        "lse base 2" => *lse = map_f32(lse, |x| x * std::f32::consts::LOG2_E),
        "lse of an empty row zero" => *lse = map_f32(lse, |x| if x == f32::NEG_INFINITY { 0.0 } else { x }),
        "sink in lse" => {
            if let Some(sinks) = sinks {
                let values = f32s(lse);
                let with = values.iter().enumerate().map(|(i, x)| (x.exp() + sinks[i % h].exp()).ln());
                *lse = f32_bytes(&with.collect::<Vec<_>>());
            }
        }
        "output 2% too large" => {
            for x in out.chunks_mut(2) {
                let value = reference::formats::bf16::from_le_bytes([x[0], x[1]]).to_f32();
                x.copy_from_slice(&reference::formats::bf16::from_f32(1.02 * value).to_le_bytes());
            }
        }
        "gap written" if stride_out[1] > 512 => out[1024] = 0,
        _ => {}
    }
}

#[test]
fn every_fault_is_caught_by_a_quick_case() {
    let cases = cases::all(Size::Quick);
    let prepared: Vec<_> = cases.iter().map(|case| case.prepare(1)).collect();
    let mut missed = Vec::new();
    for (op, faults) in FAULTS.into_iter().chain(streams::FAULTS).chain(rows::FAULTS).chain(products::FAULTS) {
        for fault in faults {
            let mut caught = prepared.iter().filter(|p| p.case.op == op);
            if !caught.any(|p| suite::run_prepared(&Faulty(fault), p, Fill::Poison).fails()) {
                missed.push(format!("{op}: {fault}"));
            }
        }
    }
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
fn without_a_fault_the_wrapper_passes() {
    for case in cases::all(Size::Quick).iter().filter(|case| FAULTS.iter().any(|(op, _)| *op == case.op)) {
        let report = suite::run_case(&Faulty("none"), case, 1, Fill::Poison);
        assert!(report.passes(), "{report}");
    }
}
