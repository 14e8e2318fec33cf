//! Faults of sparse attention and of the merge of its splits.

use std::collections::HashSet;

use reference::formats::{f32_bytes, f32s, s32_bytes, s32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};

use super::{map_f32, map_s32, restride, rounded};

pub(super) const FAULTS: [(&str, &[&str]); 3] = [
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
];

pub(super) fn sparse_mla_decode(fault: &str, mut args: SparseMlaDecode<'_, Bytes>) -> Result<(), OpsError> {
    let (mut cache, mut slots) = (args.window.cache.buffer.clone(), args.window.slots.clone());
    let pages = args.window.cache.pages;
    match fault {
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
    if let ("repeated slots once", Some(list)) = (fault, &args.compressed) {
        second = Some(once(list.slots, list.width, list.stride_slots));
    }
    let (h, stride_out, dtype) = (args.h as usize, args.stride_out, args.dtype);
    let sinks = args.attn_sink.map(|sink| f32s(sink));
    let compressed = args.compressed.zip(second.as_ref()).map(|(list, slots)| SlotList { slots, ..list });
    let window_cache = Paged { buffer: &cache, pages: args.window.cache.pages };
    let window = SlotList { cache: window_cache, slots: &slots, ..args.window };
    let (out, lse) = (args.out, args.lse);
    ReferenceOps.sparse_mla_decode(SparseMlaDecode { window, compressed, out, lse, ..args })?;
    if fault == "f32 output rounded to bf16" {
        *out = rounded(dtype, out);
    }
    spoil_attention(fault, out, lse, h, stride_out, sinks.as_deref());
    Ok(())
}

pub(super) fn sparse_mla_prefill(fault: &str, args: SparseMlaPrefill<'_, Bytes>) -> Result<(), OpsError> {
    let SparseMlaPrefill { mut attention, mut max_logits } = args;
    match fault {
        "no sink" => attention.attn_sink = None,
        "max logits missing" => max_logits = None,
        _ => {}
    }
    let Some(out) = max_logits else {
        return ReferenceOps.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: None });
    };
    if fault == "max over the window" {
        let compressed = attention.compressed.take();
        let most = reference::plain::max_logits(&attention);
        attention.compressed = compressed;
        *out = f32_bytes(&most.iter().map(|cell| cell.expect("all are written").value as f32).collect::<Vec<_>>());
        return ReferenceOps.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: None });
    }
    ReferenceOps.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: Some(&mut *out) })?;
    match fault {
        "max logits base 2" => *out = map_f32(out, |x| x * std::f32::consts::LOG2_E),
        "max logits of an empty row zero" => {
            *out = map_f32(out, |x| if x == f32::NEG_INFINITY { 0.0 } else { x });
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn split_combine(fault: &str, mut args: SplitCombine<'_, Bytes>) -> Result<(), OpsError> {
    let mut lse2 = args.lse2_partial.clone();
    match fault {
        "no sink" => args.attn_sink = None,
        "last split ignored" if args.num_splits > 1 => args.num_splits -= 1,
        "plain mean" => lse2 = map_f32(&lse2, |x| if x == f32::NEG_INFINITY { x } else { 0.0 }),
        _ => {}
    }
    let (h, stride_out) = (args.h as usize, args.stride_out);
    let sinks = args.attn_sink.map(|sink| f32s(sink));
    let (out, lse) = (args.out, args.lse);
    ReferenceOps.split_combine(SplitCombine { lse2_partial: &lse2, out, lse, ..args })?;
    spoil_attention(fault, out, lse, h, stride_out, sinks.as_deref());
    Ok(())
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
