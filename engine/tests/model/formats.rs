//! Cache formats. Local: every attention layer is fed the golden input, so that an error in one layer does not reach the next.
//! Free: the whole model runs with the format, the golden tokens fed in. A value next to a rounding threshold may fall either way
//! in two correct programs; the bars are those that the golden values come with.

use std::collections::HashMap;
use std::ops::Range;

use engine::geometry::CacheBuffer;
use engine::model::Numerics;
use engine::model::cache::Pool;
use engine::model::probe::{Probe, Stage};
use kernel_bindings::host::HostOps;
use reference::formats::{bf16s, e4m3_decode, ue8m0_decode};
use reference::golden::GoldenFile;
use reference::ops::{Dtype, IndexKFormat, KvFormat, Ops, OpsError, ScaleRule};
use transfer::ids::Unit;

use crate::rig::{Record, Rig, argmax, golden, prompt};

const T: usize = 303;

struct Format {
    file: &'static str,
    index_k: IndexKFormat,
    scale_rule: ScaleRule,
}

const FORMATS: [Format; 5] = [
    Format { file: "goldens-kvfp8", index_k: IndexKFormat::F32 { d: 128 }, scale_rule: ScaleRule::Exact },
    Format { file: "goldens-index-bf16", index_k: IndexKFormat::Bf16, scale_rule: ScaleRule::Exact },
    Format { file: "goldens-index-fp8", index_k: IndexKFormat::Fp8, scale_rule: ScaleRule::Exact },
    Format { file: "goldens-index-fp8pow2", index_k: IndexKFormat::Fp8, scale_rule: ScaleRule::PowerOfTwo },
    Format { file: "goldens-index-mxfp4", index_k: IndexKFormat::Fp4, scale_rule: ScaleRule::Exact },
];

impl Format {
    fn numerics(&self) -> Numerics {
        Numerics {
            kv: KvFormat::V4Fp8,
            index_k: self.index_k,
            scale_rule: self.scale_rule,
            ..Numerics::plain(512, 128)
        }
    }
}

/// Puts the golden input in front of every attention layer.
struct Feed {
    inputs: Vec<Vec<u8>>,
    record: Record,
}

impl<O: Ops> Probe<O> for Feed {
    fn at(&mut self, ops: &O, layer: usize, stage: Stage, buffer: &mut O::Buffer, rows: u32) -> Result<(), OpsError> {
        if stage == Stage::AttnIn {
            ops.upload(buffer, 0, &self.inputs[layer])?;
        }
        Probe::<O>::at(&mut self.record, ops, layer, stage, buffer, rows)
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Rows `0..n` of a sequence out of a pool: the planes of a page, `(offset, bytes per row)` each.
fn rows<O: Ops>(ops: &O, pool: &Pool<O::Buffer>, pages: &[u32], n: usize, planes: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let stride = pool.pages.page_stride_bytes as usize;
    let per_page = pool.pages.page_size as usize;
    let mut out = vec![Vec::new(); planes.len()];
    for row in 0..n {
        let mut page = vec![0; stride];
        ops.download(&pool.buffer, u64::from(pages[row / per_page]) * stride as u64, &mut page).expect("a page");
        for (plane, &(offset, width)) in out.iter_mut().zip(planes) {
            let at = offset + row % per_page * width;
            plane.extend_from_slice(&page[at..at + width]);
        }
    }
    out
}

/// Fewer than one code in 1,000 differs, and then by a neighbour. e4m3 and e2m1 codes count up in magnitude below their sign bit
/// (`sign`); zeros of either sign are equal.
#[track_caller]
fn codes(what: &str, got: &[u8], expected: &[u8], sign: u8) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let order = |code: u8| {
        let magnitude = i32::from(code & (sign - 1));
        if code & sign == 0 { magnitude } else { -magnitude }
    };
    let steps = got.iter().zip(expected).map(|(&g, &e)| (order(g) - order(e)).abs());
    let (mut other, mut far) = (0, 0);
    for step in steps {
        other += i32::from(step != 0);
        far = far.max(step);
    }
    assert!(
        other as usize * 1000 <= got.len() && far <= 1,
        "{what}: {other} of {} codes differ, by up to {far}",
        got.len()
    );
}

/// Nibbles of packed codes.
fn nibbles(packed: &[u8]) -> Vec<u8> {
    packed.iter().flat_map(|b| [b & 15, b >> 4]).collect()
}

fn local(format: &Format) {
    let plain = golden("goldens");
    let (file, stored) = (golden(format.file), golden("goldens-kvfp8"));
    let inputs = (0..4).map(|l| bytes(&plain.f32s(&format!("layers.{l}.attn_in"), &[T, 128]).expect("a tensor")));
    let widths = [
        (Stage::AttnOut, 4 * 128),
        (Stage::AttnCore, 4 * 8 * 512),
        (Stage::IndexLogits, 4 * 256),
        (Stage::Topk, 4 * 8),
        (Stage::IndexQCodes, 64 * format.numerics().index_q_bytes() as usize),
    ];
    let record = Record { wanted: widths.into_iter().collect(), ..Record::default() };
    let mut feed = Feed { inputs: inputs.collect(), record };
    let mut rig = Rig::new(HostOps, format.numerics());
    let entry = rig.entry(1, 0, &prompt());
    let window: Vec<u32> = entry.window_table.iter().flatten().map(|page| page.0).collect();
    let compressed: Vec<u32> = entry.compressed_table.iter().map(|page| page.0).collect();
    rig.run_with(vec![entry], 0, &mut feed).expect("runs");
    let record = feed.record;
    let probes = plain.positions("probe_positions", T).expect("positions");

    for (layer, kind) in "SCHC".chars().enumerate() {
        let name = |tail: &str| format!("layers.{layer}.{tail}");
        let caches = rig.model.caches();
        let readable = caches.gate().readable(Unit(layer as u32), &[]).expect("a layer");
        let pool = |buffer| caches.layers[layer].pool(buffer, &readable);
        // Rows are stored alike whatever the index format; the first file has their codes.
        let ratio = if kind == 'C' { 4 } else { 128 };
        let mut flips =
            kv_rows(&rig, &stored, &name("kv"), pool(CacheBuffer::WindowKv).expect("a window"), &window, T, |row| {
                row..row + 16
            });
        if let Some(pool) = pool(CacheBuffer::CsaKv) {
            let rows = if kind == 'C' { 75 } else { 2 };
            let seen = |row| (row + 1) * ratio - 1..T;
            flips.extend(kv_rows(&rig, &stored, &name("comp"), pool, &compressed, rows, seen));
        }
        if format.file == "goldens-kvfp8" {
            let core = record.f32s(layer, Stage::AttnCore);
            let expected = file.f32s(&name("attn_core"), &[16, 8, 512]).expect("a tensor");
            for (&p, expected) in probes.iter().zip(expected.chunks_exact(8 * 512)) {
                for (i, (&got, &expected)) in core[p * 4096..(p + 1) * 4096].iter().zip(expected).enumerate() {
                    // A code that fell the other way moves its channel of every output that sees the row by at most its step.
                    let steps = flips.iter().filter(|f| f.channel == i % 512 && f.seen.contains(&p));
                    let bar = 5e-3 + steps.map(|f| f.step).sum::<f32>();
                    let at = (p, i / 512, i % 512);
                    assert!((got - expected).abs() <= bar, "{} {at:?}: {got} is not {expected}", name("attn_core"));
                }
            }
        }
        let mut equal_picks = vec![true; T];
        if kind == 'C' && format.file != "goldens-kvfp8" {
            index_codes(&rig, format, &file, &record, layer, &compressed, &probes);
            index_logits(&file, &record, layer);
            let picks = file.s32s(&name("topk"), &[T, 8]).expect("a tensor");
            let margins = file.f32s(&name("topk_margin"), &[T]).expect("a tensor");
            let got = record.s32s(layer, Stage::Topk);
            for t in 0..T {
                equal_picks[t] = got[t * 8..(t + 1) * 8] == picks[t * 8..(t + 1) * 8];
                assert!(
                    equal_picks[t] || margins[t] <= 0.02,
                    "{}: other picks at {t}, margin {}",
                    name("topk"),
                    margins[t]
                );
            }
        }
        let expected = file.f32s(&name("attn_out"), &[T, 128]);
        // Layers without an indexer are in one file only.
        let Ok(expected) = expected else { continue };
        let got = record.f32s(layer, Stage::AttnOut);
        let row = |t: usize| t * 128..(t + 1) * 128;
        let worst: Vec<(usize, f32)> = (0..T)
            .filter(|&t| equal_picks[t])
            .map(|t| (t, crate::rig::worst(&got[row(t)], &expected[row(t)]).0))
            .collect();
        let near = worst.iter().filter(|(_, d)| *d <= 1e-4).count();
        // A row that sees such a code is off by what it weighs there, and counts among the tenth that may be.
        let unmoved = |t: usize| flips.iter().all(|flip| !flip.seen.contains(&t));
        let most = worst.iter().filter(|(t, _)| unmoved(*t)).map(|(_, d)| *d).fold(0.0, f32::max);
        assert!(
            most <= 2e-3 && near * 10 >= worst.len() * 9,
            "{}: {most}, {near} of {} within 1e-4",
            name("attn_out"),
            worst.len()
        );
    }
}

fn kv_rows(
    rig: &Rig<HostOps>,
    file: &GoldenFile,
    prefix: &str,
    pool: &Pool<<HostOps as Ops>::Buffer>,
    pages: &[u32],
    n: usize,
    seen: impl Fn(usize) -> Range<usize>,
) -> Vec<Flip> {
    let per_page = pool.pages.page_size as usize;
    let planes = rows(rig.model.ops(), pool, pages, n, &[(0, 576), (576 * per_page, 8)]);
    let part = |plane: &[u8], width: usize, range: Range<usize>| -> Vec<u8> {
        plane.chunks_exact(width).flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let of = |tail: &str, dtype: &str, width: usize| {
        file.bytes(&format!("{prefix}_{tail}"), dtype, &[n, width]).expect("a tensor")
    };
    let (got, expected_codes) = (part(&planes[0], 576, 0..448), of("codes", "U8", 448));
    codes(&format!("{prefix}_codes"), &got, &expected_codes, 0x80);
    // Scales are powers of two: a step is a factor of two, only where the largest value lies on a threshold.
    let scales = part(&planes[1], 8, 0..7);
    let expected = of("scale", "U8", 7);
    let other = scales.iter().zip(&expected).filter(|(g, e)| g != e).count();
    assert!(other * 1000 <= scales.len(), "{prefix}_scale: {other} of {} differ", scales.len());
    let rope = part(&planes[0], 576, 448..576);
    let expected = of("rope", "BF16", 64);
    let other = rope.chunks_exact(2).zip(expected.chunks_exact(2)).filter(|(g, e)| g != e).count();
    assert!(other * 1000 <= rope.len() / 2, "{prefix}_rope: {other} of {} differ", rope.len() / 2);
    let flipped = got.iter().zip(&expected_codes).enumerate().filter(|(_, (g, e))| g != e);
    let flip = |(i, (&g, &e)): (usize, (&u8, &u8))| {
        let (row, channel) = (i / 448, i % 448);
        let scale = ue8m0_decode(scales[row * 7 + channel / 64]);
        Flip { seen: seen(row), channel, step: (e4m3_decode(g) - e4m3_decode(e)).abs() * scale }
    };
    flipped.map(flip).collect()
}

/// A code that differs from the golden one, and by how much its value does.
struct Flip {
    /// Positions whose attention sees the row.
    seen: Range<usize>,
    channel: usize,
    step: f32,
}

fn index_codes(
    rig: &Rig<HostOps>,
    format: &Format,
    file: &GoldenFile,
    record: &Record,
    layer: usize,
    pages: &[u32],
    probes: &[usize],
) {
    let name = |tail: &str| format!("layers.{layer}.{tail}");
    let caches = rig.model.caches();
    let readable = caches.gate().readable(Unit(layer as u32), &[]).expect("a layer");
    let pool = caches.layers[layer].pool(CacheBuffer::IndexK, &readable).expect("a CSA layer");
    let per_page = pool.pages.page_size as usize;
    let width = format.numerics().index_q_bytes() as usize;
    let queries = &record.seen[&(layer, Stage::IndexQCodes)];
    let queries: Vec<u8> =
        probes.iter().flat_map(|&p| queries[p * 64 * width..(p + 1) * 64 * width].to_vec()).collect();
    let get = |tail: &str, dtype: &str, shape: &[usize]| file.bytes(&name(tail), dtype, shape).expect("a tensor");
    match format.index_k {
        IndexKFormat::Fp8 => {
            let planes = rows(rig.model.ops(), pool, pages, 75, &[(0, 128), (128 * per_page, 4)]);
            codes(&name("index_k_codes"), &planes[0], &get("index_k_codes", "U8", &[75, 128]), 0x80);
            let scales = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
            };
            for (g, e) in scales(&planes[1]).iter().zip(scales(&get("index_k_scale", "F32", &[75]))) {
                assert!((g - e).abs() <= 1e-5 * e, "{}: {g} is not {e}", name("index_k_scale"));
            }
            codes(&name("index_q_codes"), &queries, &get("index_q_codes", "U8", &[16, 64, 128]), 0x80);
        }
        IndexKFormat::Fp4 => {
            let planes = rows(rig.model.ops(), pool, pages, 75, &[(0, 64), (64 * per_page, 4)]);
            let expected = get("index_k_codes", "U8", &[75, 64]);
            codes(&name("index_k_codes"), &nibbles(&planes[0]), &nibbles(&expected), 8);
            let part = |range: Range<usize>| -> Vec<u8> {
                queries.chunks_exact(68).flat_map(|row| row[range.clone()].to_vec()).collect()
            };
            let expected = get("index_q_codes", "U8", &[16, 64, 64]);
            codes(&name("index_q_codes"), &nibbles(&part(0..64)), &nibbles(&expected), 8);
            let expected = get("index_q_scale", "U8", &[16, 64, 4]);
            let other = part(64..68).iter().zip(&expected).filter(|(g, e)| g != e).count();
            assert!(other * 1000 <= expected.len(), "{}: {other} differ", name("index_q_scale"));
        }
        _ => {
            let planes = rows(rig.model.ops(), pool, pages, 75, &[(0, 256)]);
            bf16_codes(&name("index_k_codes"), &planes[0], &get("index_k_codes", "BF16", &[75, 128]));
            bf16_codes(&name("index_q_codes"), &queries, &get("index_q_codes", "BF16", &[16, 64, 128]));
        }
    }
}

/// Fewer than one value in 1,000 differs, and then by one bf16 step, or, where the transform cancels, by what f32 sums of 128
/// terms of order 1 leave: 128^1/2 * 2^-24 each way, doubled.
fn bf16_codes(what: &str, got: &[u8], expected: &[u8]) {
    let (got, expected) = (bf16s(got), bf16s(expected));
    let differ = got.iter().zip(&expected).filter(|(g, e)| g != e);
    let noise = 2.0 * 128.0_f32.sqrt() * 2.0_f32.powi(-23);
    let far = differ.clone().find(|(g, e)| (*g - *e).abs() > (g.abs().max(e.abs()) / 128.0).max(noise));
    let count = differ.count();
    assert!(count * 1000 <= got.len() && far.is_none(), "{what}: {count} of {} differ, {far:?}", got.len());
}

fn index_logits(file: &GoldenFile, record: &Record, layer: usize) {
    let expected = file.f32s(&format!("layers.{layer}.index_logits"), &[T, 75]).expect("a tensor");
    let got = record.f32s(layer, Stage::IndexLogits);
    let (mut most, mut off, mut count) = (0.0_f32, 0, 0);
    for t in 0..T {
        for j in 0..(t + 1) / 4 {
            let difference = (got[t * 256 + j] - expected[t * 75 + j]).abs();
            assert!(difference.is_finite());
            most = most.max(difference);
            off += i32::from(difference > 1e-4);
            count += 1;
        }
    }
    assert!(
        most <= 0.05 && off * 20 <= count,
        "layer {layer}: index logits off by up to {most}, {off} of {count} above 1e-4"
    );
}

fn free(format: &Format) {
    let plain = golden("goldens");
    let file = golden(format.file);
    let probes = plain.positions("probe_positions", T).expect("positions");
    let record_widths: HashMap<Stage, usize> = [(Stage::Topk, 4 * 8)].into_iter().collect();
    let mut record = Record { wanted: record_widths, ..Record::default() };
    let mut rig = Rig::new(HostOps, format.numerics());
    let entry = rig.entry(1, 0, &prompt());
    let logits = rig.run_with(vec![entry], 0, &mut record).expect("runs");
    let expected = file.f32s("logits", &[16, 256]).expect("a tensor");
    let mut worst: Vec<f32> = probes
        .iter()
        .zip(expected.chunks_exact(256))
        .map(|(&p, expected)| crate::rig::worst(&logits[p], expected).0)
        .collect();
    worst.sort_by(f32::total_cmp);
    assert!(worst[worst.len() / 2] <= 2e-2, "{}: logits, median of the largest difference {}", format.file, worst[8]);
    let (mut other, mut all) = (0, 0);
    for layer in [1, 3] {
        let picks = file.s32s(&format!("layers.{layer}.free.topk"), &[T, 8]).expect("a tensor");
        let got = record.s32s(layer, Stage::Topk);
        other += got.chunks_exact(8).zip(picks.chunks_exact(8)).filter(|(g, e)| g != e).count();
        all += T;
    }
    assert!(other * 10 <= all, "{}: {other} of {all} rows with other picks", format.file);

    let text: Vec<i32> = file.s64s("gen.tokens").expect("a tensor").iter().map(|&id| id as i32).collect();
    let mut rows = vec![logits.last().expect("a row").clone()];
    for (i, &token) in text[..95].iter().enumerate() {
        rows.push(rig.decode(1, T + i, token));
    }
    let same = rows.iter().zip(&text).filter(|(row, token)| argmax(row) == **token).count();
    assert!(same * 10 >= 96 * 9, "{}: {same} of 96 tokens", format.file);
    assert_eq!(format.numerics().activations, Dtype::F32);
}

#[test]
fn every_format_layer_by_layer() {
    FORMATS.iter().for_each(local);
}

#[test]
fn every_format_in_the_whole_model() {
    FORMATS.iter().for_each(free);
}
