//! Cases made of golden files: the operations at the geometry of the real model, and the activations of a small model with
//! random weights (8 heads of 512 channels, window 16, index 64 x 128, 8 picks), as a batch of its probe positions.
//!
//! Every output is judged twice: against the plain operations on the same operands, tightly, and against the outside
//! values, with the bars of [`crate::tolerance`]. The seed has no effect: the data is given.

use std::sync::Arc;

use ndarray::ArrayD;

use super::Size;
use super::sparse_mla_decode::SM_SCALE;
use crate::compare::{Bound, Float};
use crate::formats::{bf16_bytes, e4m3_decode, f32_bytes, quantise_index_row, s32_bytes};
use crate::golden::{GoldenDir, GoldenError, GoldenFile};
use crate::layout::{
    D_INDEX, D_KV, D_NOPE, D_ROPE, INDEX_HEADS, LOGITS_STRIDE_MULTIPLE, NOPE_TILES, bf16_kv, f32_row, index_k_bf16,
    index_k_fp4_data, index_k_fp4_scale, index_k_fp8_data, index_k_fp8_scale, v4_fp8_data, v4_fp8_footer, v4_fp8_rope,
};
use crate::ops::{Dtype, IndexKFormat, KvFormat, Pages, ScaleRule, WeightFormat};
use crate::plain::{Cells, Exact, kv_row};
use crate::problem::{
    Expected, ExpectedOutput, IndexLogitsProblem, LinearProblem, ListProblem, Memory, Problem, ProductsProblem,
    RowFormat, SparseMlaProblem, TopkProblem, WeightMemory, WriteProblem,
};
use crate::suite::{Case, Task};
use crate::tolerance::products::OUTSIDE_PRODUCT;
use crate::tolerance::{OUTSIDE_ATTENTION, OUTSIDE_LOGITS, OUTSIDE_LSE};

/// Index formats of the golden files that the operations know.
const FORMATS: [(&str, IndexKFormat); 4] = [
    ("bf16", IndexKFormat::Bf16),
    ("fp8", IndexKFormat::Fp8),
    ("fp8pow2", IndexKFormat::Fp8),
    ("mxfp4", IndexKFormat::Fp4),
];

/// Every case of a golden folder.
pub fn cases(dir: &GoldenDir) -> Result<Vec<Case>, GoldenError> {
    let mut cases = operators(dir)?;
    cases.extend(activations(dir)?);
    Ok(cases)
}

fn case(op: &'static str, what: String, task: Task) -> Case {
    let task = Arc::new(task);
    Case::new(op, format!("golden/{what}"), Size::Full, move |_| Task::clone(&task))
}

fn cells(shape: Vec<usize>, values: &[f32], magnitude: f64) -> Cells {
    let cells = values.iter().map(|&value| Some(Exact { value: f64::from(value), magnitude })).collect();
    ArrayD::from_shape_vec(shape, cells).expect("the golden tensor was read with this shape")
}

fn outside(name: &'static str, cells: Cells, float: Float, strides: Vec<u64>, bound: Bound) -> ExpectedOutput {
    ExpectedOutput { name, expected: Expected::Floats { cells, float, strides, bound } }
}

fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |m, v| f64::from(v.abs()).max(m))
}

/// Index logits `[rows, columns]` of an outside implementation in rows of `stride`: -inf behind them.
fn outside_logits(values: &[f32], columns: usize, stride: u64) -> ExpectedOutput {
    let rows = values.len() / columns;
    let padded: Vec<f32> = values
        .chunks(columns)
        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(f32::NEG_INFINITY, stride as usize - columns)))
        .collect();
    let cells = cells(vec![rows, stride as usize], &padded, 1.0);
    outside("index_logits", cells, Float::F32, vec![stride, 1], OUTSIDE_LOGITS)
}

/// Picks `[rows, topk]` of an outside implementation, from its own logits `[rows, columns]`.
fn picks(logits: &[f32], columns: usize, lens: &[i32], topk: u32, picks: &[i32]) -> Task {
    let stride = (columns as u64).next_multiple_of(LOGITS_STRIDE_MULTIPLE);
    let mut index_logits = Memory::undefined("index_logits", 4 * stride * lens.len() as u64);
    for (row, values) in logits.chunks(columns).enumerate() {
        index_logits.put(4 * stride * row as u64, &f32_bytes(values));
    }
    let problem = Problem::TopkSelect(TopkProblem {
        index_logits,
        context_lens: Memory::full("context_lens", s32_bytes(lens)),
        block_table: None,
        sequence_of_row: None,
        want_positions: true,
        want_lens: true,
        rows: lens.len() as u32,
        rows_per_sequence: 1,
        num_sequences: 0,
        topk,
        page_size: 1,
        max_pages: 0,
        stride_logits: stride,
        stride_block_table: 0,
    });
    let expected = Expected::Integers { columns: topk as usize, values: picks.to_vec() };
    Task { problem, outside: vec![ExpectedOutput { name: "topk_positions", expected }] }
}

/// Attention over given lists, with outside values.
struct Attention {
    format: KvFormat,
    /// `[t, h, 512]`
    q: Vec<f32>,
    window: ListProblem,
    compressed: Option<ListProblem>,
    sink: Vec<f32>,
    /// `[t, h, 512]`
    out: Vec<f32>,
    /// `[t, h]`
    lse: Option<Vec<f32>>,
}

impl Attention {
    fn task(self) -> Task {
        let h = self.sink.len();
        let t = self.q.len() / h / D_KV;
        let strides = [(h * D_KV) as u64, D_KV as u64];
        let out = cells(vec![t, h, D_KV], &self.out, largest(&self.out));
        let mut values = vec![outside("out", out, Float::Bf16, vec![strides[0], strides[1], 1], OUTSIDE_ATTENTION)];
        if let Some(lse) = self.lse {
            values.push(outside("lse", cells(vec![t, h], &lse, 1.0), Float::F32, vec![h as u64, 1], OUTSIDE_LSE));
        }
        let problem = Problem::SparseMlaDecode(Box::new(SparseMlaProblem {
            dtype: Dtype::Bf16,
            format: self.format,
            q: Memory::full("q", bf16_bytes(&self.q)),
            window: self.window,
            compressed: self.compressed,
            attn_sink: Some(Memory::full("attn_sink", f32_bytes(&self.sink))),
            t: t as u32,
            h: h as u32,
            stride_q: strides,
            stride_out: strides,
            sm_scale: SM_SCALE,
            num_splits: None,
        }));
        Task { problem, outside: values }
    }
}

/// A list of slots, one line per token, padded with -1.
fn list(cache: Memory, pages: Pages, labels: &'static str, lines: &[Vec<i32>]) -> ListProblem {
    let width = lines.iter().map(Vec::len).max().unwrap_or(0);
    let padded: Vec<i32> =
        lines.iter().flat_map(|line| line.iter().copied().chain(std::iter::repeat_n(-1, width - line.len()))).collect();
    ListProblem {
        cache,
        pages,
        slots: Memory::full(labels, s32_bytes(&padded)),
        lens: None,
        width: width as u32,
        stride_slots: width as u64,
    }
}

/// The same rows in a bf16 cache: decoded values of a `v4_fp8` row are exact in bf16.
fn as_bf16(list: &ListProblem) -> ListProblem {
    let old = list.pages;
    let pages = Pages::kv(KvFormat::Bf16, old.num_pages, old.page_size);
    let image = list.cache.image();
    let mut cache = Memory::undefined(list.cache.label, u64::from(pages.num_pages) * pages.page_stride_bytes);
    for page in 0..pages.num_pages {
        for row in 0..pages.page_size {
            let values: Vec<f32> = kv_row(KvFormat::V4Fp8, &image, &old, page, row).iter().map(|&v| v as f32).collect();
            // A row that is not defined has NaN in it; it stays undefined.
            if !values.iter().any(|v| v.is_nan()) {
                cache.put(bf16_kv(&pages, page, row), &bf16_bytes(&values));
            }
        }
    }
    ListProblem { cache, pages, ..list.clone() }
}

// ------------------------------------------------------------------------------------------------ operators

/// Sequences of the operator file.
const SEQUENCES: usize = 5;
/// Pages of its compressed cache, and their rows.
const POOL: (u32, u32) = (13, 64);
/// Columns of its page table.
const COLUMNS: usize = 11;
/// Picks.
const PICKS: usize = 512;
/// Window, also the page size of the ring.
const WINDOW: u32 = 128;

/// Cases of `kernels.safetensors`: 64 heads, window 128, 512 picks, five sequences in shuffled pages of 64 rows.
pub fn operators(dir: &GoldenDir) -> Result<Vec<Case>, GoldenError> {
    let file = dir.file("kernels")?;
    let rows = file.s32s_in("n_rows", &[SEQUENCES], 0..(COLUMNS as i32 * POOL.1 as i32 + 1))?;
    let table = file.s32s_in("page_table", &[SEQUENCES, COLUMNS], -1..POOL.0 as i32)?;
    let mut cases = vec![
        case("kv_write", "page".into(), kv_page(&file)?),
        case("index_k_write", "page_fp8pow2".into(), index_page(&file)?),
    ];
    for (name, format) in FORMATS {
        let columns = COLUMNS * POOL.1 as usize;
        let logits = file.f32s(&format!("index.{name}.logits"), &[SEQUENCES, columns])?;
        let topk = file.s32s_in(&format!("index.{name}.topk"), &[SEQUENCES, PICKS], -1..columns as i32)?;
        let scored = operator_logits(&file, name, format, &rows, &table, &logits)?;
        cases.push(case("index_logits_decode", format!("kernels_{name}"), scored));
        let picked = picks(&logits, columns, &rows, PICKS as u32, &topk);
        cases.push(case("topk_select", format!("kernels_{name}"), picked));
    }
    for kind in ["csa", "hca"] {
        for format in [KvFormat::V4Fp8, KvFormat::Bf16] {
            let attention = operator_attention(&file, kind, format, &rows, &table)?;
            cases.push(case("sparse_mla_decode", format!("kernels_{kind}_{}", format.name()), attention.task()));
        }
    }
    for (name, format, n) in [("8", WeightFormat::Fp8Block128, 256), ("4", WeightFormat::Fp4Block32, 64)] {
        cases.push(case("linear", format!("kernels_{}", format.name()), product(&file, name, format, n)?));
    }
    Ok(cases)
}

/// A product whose activations are quantised per row and 128 channels first: e4m3 codes times a power of two, bf16 numbers.
fn product(file: &GoldenFile, name: &str, format: WeightFormat, n: usize) -> Result<Task, GoldenError> {
    const T: usize = 3;
    const K: usize = 256;
    let given = file.bf16s("linear.x", &[T, K])?;
    let quantised: Vec<f32> = given
        .as_chunks::<D_INDEX>()
        .0
        .iter()
        .flat_map(|tile| {
            let (scale, codes) = quantise_index_row(tile, ScaleRule::PowerOfTwo);
            codes.map(|code| e4m3_decode(code) * scale)
        })
        .collect();
    let data = file.bytes(&format!("linear.w{name}"), "U8", &[n, format.data_bytes(1, K as u64) as usize])?;
    let scales = match format {
        WeightFormat::Fp8Block128 => [n / 128, K / 128],
        _ => [n, K / 32],
    };
    let scale = file.bytes(&format!("linear.w{name}_scale"), "U8", &scales)?;
    let want = file.f32s(&format!("linear.y{name}"), &[T, n])?;
    let cells = want.chunks_exact(n).flat_map(|row| {
        let magnitude = largest(row);
        row.iter().map(move |&value| Some(Exact { value: f64::from(value), magnitude }))
    });
    let cells = ArrayD::from_shape_vec(vec![T, n], cells.collect()).expect("as many values");
    let problem = ProductsProblem::Linear(LinearProblem {
        dtype: Dtype::Bf16,
        x: Memory::full("x", bf16_bytes(&quantised)),
        weight: WeightMemory {
            format,
            data: Memory::full("weight.data", data),
            scale: Some(Memory::full("weight.scale", scale)),
        },
        out_dtype: Dtype::F32,
        accumulate: None,
        t: T as u32,
        groups: 1,
        n: n as u32,
        k: K as u32,
        stride_x: K as u64,
        stride_out: n as u64,
    });
    let outside = outside("out", cells, Float::F32, vec![n as u64, 1], OUTSIDE_PRODUCT);
    Ok(Task { problem: Problem::Products(Box::new(problem)), outside: vec![outside] })
}

/// Page 4 of the pool is written from bf16 rows.
const WRITTEN_PAGE: u32 = 4;

fn write_task(format: RowFormat, rows: Vec<u8>, page: &[u8], pages: Pages, width: u64, row_bytes: u64) -> Task {
    let before = vec![0x5a; (u64::from(pages.num_pages) * pages.page_stride_bytes) as usize];
    let start = pages.page_start(WRITTEN_PAGE) as usize;
    let mut after = before.clone();
    // Padding of the page is not the writer's.
    let rows_end = (row_bytes * u64::from(pages.page_size)) as usize;
    after[start..start + rows_end].copy_from_slice(&page[..rows_end]);
    let slots: Vec<i32> =
        (0..pages.page_size as i32).map(|row| (WRITTEN_PAGE * pages.page_size) as i32 + row).collect();
    let everything = 0..before.len() as u64;
    let problem = Problem::Write(WriteProblem {
        dtype: Dtype::Bf16,
        format,
        scale_rule: ScaleRule::PowerOfTwo,
        rows: Memory::full("rows", rows),
        slot_mapping: Memory::full("slot_mapping", s32_bytes(&slots)),
        cache: Memory::full("cache", before),
        watched: std::iter::once(everything.clone()).collect(),
        pages,
        t: pages.page_size,
        stride_rows: width,
    });
    let regions = std::iter::once(everything).collect();
    let expected = Expected::Pages { bytes: after, regions, pages, format };
    Task { problem, outside: vec![ExpectedOutput { name: "cache", expected }] }
}

fn kv_pool() -> Pages {
    Pages::kv(KvFormat::V4Fp8, POOL.0, POOL.1)
}

fn kv_page(file: &GoldenFile) -> Result<Task, GoldenError> {
    let pages = kv_pool();
    let stride = pages.page_stride_bytes as usize;
    let pool = file.bytes("kv.pages", "U8", &[POOL.0 as usize, stride])?;
    let rows = file.bytes("kv.rows_in", "BF16", &[POOL.1 as usize, D_KV])?;
    let start = WRITTEN_PAGE as usize * stride;
    let format = RowFormat::Kv(KvFormat::V4Fp8);
    Ok(write_task(format, rows, &pool[start..start + stride], pages, D_KV as u64, KvFormat::V4Fp8.row_bytes()))
}

fn index_page(file: &GoldenFile) -> Result<Task, GoldenError> {
    let pages = Pages::index_k(IndexKFormat::Fp8, POOL.0, POOL.1);
    let stride = pages.page_stride_bytes as usize;
    let pool = file.bytes("index.fp8pow2.pages", "U8", &[POOL.0 as usize, stride])?;
    let rows = file.bytes("index.k_in", "BF16", &[POOL.1 as usize, D_INDEX])?;
    let start = WRITTEN_PAGE as usize * stride;
    let format = RowFormat::IndexK(IndexKFormat::Fp8);
    Ok(write_task(format, rows, &pool[start..start + stride], pages, D_INDEX as u64, IndexKFormat::Fp8.row_bytes()))
}

/// Query bytes `[rows, 64, 128]` and head weights with the query scale folded in.
fn index_query(
    file: &GoldenFile,
    names: [&str; 2],
    format: IndexKFormat,
    weights: Vec<f32>,
) -> Result<(Vec<u8>, Vec<f32>), GoldenError> {
    let rows = weights.len() / INDEX_HEADS;
    let shape = [rows, INDEX_HEADS, D_INDEX];
    match format {
        IndexKFormat::Bf16 => Ok((file.bytes(names[0], "BF16", &shape)?, weights)),
        IndexKFormat::Fp8 => {
            let scales = file.f32s(names[1], &shape[..2])?;
            let folded = weights.iter().zip(scales).map(|(w, s)| w * s).collect();
            Ok((file.bytes(names[0], "U8", &shape)?, folded))
        }
        IndexKFormat::Fp4 => {
            let codes = file.bytes(names[0], "U8", &[rows, INDEX_HEADS, D_INDEX / 2])?;
            let scales = file.bytes(names[1], "U8", &[rows, INDEX_HEADS, 4])?;
            let head = |(codes, scales): (&[u8], &[u8])| [codes, scales].concat();
            Ok((codes.chunks(D_INDEX / 2).zip(scales.chunks(4)).flat_map(head).collect(), weights))
        }
        IndexKFormat::F32 { .. } => Ok((f32_bytes(&file.f32s(names[0], &shape)?), weights)),
    }
}

fn operator_logits(
    file: &GoldenFile,
    name: &str,
    format: IndexKFormat,
    rows: &[i32],
    table: &[i32],
    logits: &[f32],
) -> Result<Task, GoldenError> {
    let pages = Pages::index_k(format, POOL.0, POOL.1);
    let pool =
        file.bytes(&format!("index.{name}.pages"), "U8", &[POOL.0 as usize, pages.page_stride_bytes as usize])?;
    let weights = file.f32s("index.w", &[SEQUENCES, INDEX_HEADS])?;
    let names = [format!("index.{name}.q_codes"), format!("index.{name}.q_scale")];
    let (q, weights) = index_query(file, [&names[0], &names[1]], format, weights)?;
    let columns = COLUMNS * POOL.1 as usize;
    let stride_logits = (columns as u64).next_multiple_of(LOGITS_STRIDE_MULTIPLE);
    let problem = Problem::IndexLogitsDecode(IndexLogitsProblem {
        format,
        index_q: Memory::full("index_q", q),
        index_weights: Memory::full("index_weights", f32_bytes(&weights)),
        index_k: Memory::full("index_k", pool),
        pages,
        block_table: Memory::full("block_table", s32_bytes(table)),
        context_lens: Memory::full("context_lens", s32_bytes(rows)),
        b: SEQUENCES as u32,
        s_q: 1,
        index_heads: INDEX_HEADS as u32,
        max_pages: COLUMNS as u32,
        stride_block_table: COLUMNS as u64,
        stride_logits,
        clean_logits: true,
    });
    Ok(Task { problem, outside: vec![outside_logits(logits, columns, stride_logits)] })
}

fn operator_attention(
    file: &GoldenFile,
    kind: &str,
    format: KvFormat,
    rows: &[i32],
    table: &[i32],
) -> Result<Attention, GoldenError> {
    const H: usize = 64;
    let pages = kv_pool();
    let slot = |sequence: usize, j: i32| {
        table[sequence * COLUMNS + (j / POOL.1 as i32) as usize] * POOL.1 as i32 + j % POOL.1 as i32
    };
    let lines: Vec<Vec<i32>> = if kind == "csa" {
        let picks = file.s32s_in("index.fp8.topk", &[SEQUENCES, PICKS], -1..(COLUMNS as i32 * POOL.1 as i32))?;
        let line = |(s, picks): (usize, &[i32])| picks.iter().filter(|&&j| j >= 0).map(|&j| slot(s, j)).collect();
        picks.chunks(PICKS).enumerate().map(line).collect()
    } else {
        rows.iter().enumerate().map(|(s, &n)| (0..n).map(|j| slot(s, j)).collect()).collect()
    };
    let pool = file.bytes("kv.pages", "U8", &[POOL.0 as usize, pages.page_stride_bytes as usize])?;
    let compressed = list(Memory::full("compressed_kv", pool), pages, "topk_slots", &lines);

    let ring_pages = Pages::kv(KvFormat::V4Fp8, SEQUENCES as u32, WINDOW);
    let ring = file.bytes("kv.ring", "U8", &[SEQUENCES, ring_pages.page_stride_bytes as usize])?;
    // As many tokens as the pages have rows, four tokens each, and the tail of a row.
    let tokens = file.s32s_in("seq_len", &[SEQUENCES], 0..4 * (COLUMNS as i32 * POOL.1 as i32 + 1))?;
    let window = WINDOW as i32;
    let lines: Vec<Vec<i32>> = tokens
        .iter()
        .enumerate()
        .map(|(s, &n)| ((n - window).max(0)..n).map(|position| s as i32 * window + position % window).collect())
        .collect();
    let window = list(Memory::full("window_kv", ring), ring_pages, "window_slots", &lines);

    let in_format = |list: ListProblem| if format == KvFormat::Bf16 { as_bf16(&list) } else { list };
    Ok(Attention {
        format,
        q: file.bf16s("attn.q", &[SEQUENCES, H, D_KV])?,
        window: in_format(window),
        compressed: Some(in_format(compressed)),
        sink: file.f32s("attn.sink", &[H])?,
        out: file.f32s(&format!("attn.{kind}_out"), &[SEQUENCES, H, D_KV])?,
        lse: Some(file.f32s(&format!("attn.{kind}_lse"), &[SEQUENCES, H])?),
    })
}

// ------------------------------------------------------------------------------------------------ activations

/// Where a row of a sequence lies: pages of 64 rows in reverse order, one page at the start of the pool unused.
fn shuffled(pages: &Pages, j: usize) -> (u32, u32) {
    let (column, row) = (j as u32 / pages.page_size, j as u32 % pages.page_size);
    (pages.num_pages - 1 - column, row)
}

fn slot(pages: &Pages, j: usize) -> i32 {
    let (page, row) = shuffled(pages, j);
    (page * pages.page_size + row) as i32
}

fn pool_for(rows: usize, page_size: u32) -> u32 {
    rows.div_ceil(page_size as usize) as u32 + 1
}

/// Cases of the golden checkpoint: index logits and picks of its ratio-4 layers in four formats, attention of every
/// layer in both row formats.
pub fn activations(dir: &GoldenDir) -> Result<Vec<Case>, GoldenError> {
    let plain = dir.file("goldens")?;
    let rows = dir.file("goldens-kvfp8")?;
    let tokens = rows.tensor("layers.0.kv_codes", "U8")?.shape.first().copied().unwrap_or(0);
    let probes = plain.positions("probe_positions", tokens)?;
    let mut cases = Vec::new();
    for (layer, &ratio) in dir.config.compress_ratios.iter().enumerate() {
        let sink = dir.attn_sink(layer)?;
        let model = Activations { dir, plain: &plain, rows: &rows, probes: &probes, tokens, layer, ratio };
        for format in [KvFormat::V4Fp8, KvFormat::Bf16] {
            let attention = model.attention(format, sink.clone())?;
            cases.push(case("sparse_mla_decode", format!("layer_{layer}_{}", format.name()), attention.task()));
        }
        if ratio == 4 {
            for (name, format) in FORMATS {
                let file = dir.file(&format!("goldens-index-{name}"))?;
                let (scored, picked) = model.index(&file, format)?;
                cases.push(case("index_logits_decode", format!("layer_{layer}_{name}"), scored));
                cases.push(case("topk_select", format!("layer_{layer}_{name}"), picked));
            }
        }
    }
    Ok(cases)
}

/// One layer of the model at its probe positions.
struct Activations<'a> {
    dir: &'a GoldenDir,
    plain: &'a GoldenFile,
    rows: &'a GoldenFile,
    probes: &'a [usize],
    tokens: usize,
    layer: usize,
    ratio: usize,
}

impl Activations<'_> {
    fn name(&self, what: &str) -> String {
        format!("layers.{}.{what}", self.layer)
    }

    /// Rows of a kind (`kv` or `comp`) in a `v4_fp8` pool.
    fn cache(&self, kind: &str, count: usize, page_size: u32) -> Result<(Memory, Pages), GoldenError> {
        let codes = self.rows.bytes(&self.name(&format!("{kind}_codes")), "U8", &[count, D_NOPE])?;
        let scales = self.rows.bytes(&self.name(&format!("{kind}_scale")), "U8", &[count, NOPE_TILES])?;
        let rope = self.rows.bytes(&self.name(&format!("{kind}_rope")), "BF16", &[count, D_ROPE])?;
        let pages = Pages::kv(KvFormat::V4Fp8, pool_for(count, page_size), page_size);
        let label = if kind == "kv" { "window_kv" } else { "compressed_kv" };
        let mut cache = Memory::undefined(label, u64::from(pages.num_pages) * pages.page_stride_bytes);
        for j in 0..count {
            let (page, row) = shuffled(&pages, j);
            cache.put(v4_fp8_data(&pages, page, row), &codes[j * D_NOPE..(j + 1) * D_NOPE]);
            cache.put(v4_fp8_rope(&pages, page, row), &rope[2 * j * D_ROPE..2 * (j + 1) * D_ROPE]);
        }
        for j in 0..count {
            let (page, row) = shuffled(&pages, j);
            cache.put(v4_fp8_footer(&pages, page, row), &scales[j * NOPE_TILES..(j + 1) * NOPE_TILES]);
            cache.put(v4_fp8_footer(&pages, page, row) + NOPE_TILES as u64, &[0]);
        }
        Ok((cache, pages))
    }

    fn attention(&self, format: KvFormat, sink: Vec<f32>) -> Result<Attention, GoldenError> {
        let (cache, pages) = self.cache("kv", self.tokens, 64)?;
        let reach = self.dir.config.sliding_window - 1;
        let lines: Vec<Vec<i32>> = self
            .probes
            .iter()
            .map(|&t| (t.saturating_sub(reach)..=t).map(|position| slot(&pages, position)).collect())
            .collect();
        let window = list(cache, pages, "window_slots", &lines);
        let compressed = match self.tokens.checked_div(self.ratio) {
            None => None,
            Some(count) => {
                // 256 tokens to a page, as a server would have it
                let (cache, pages) = self.cache("comp", count, (256 / self.ratio) as u32)?;
                let picks = if self.ratio == 4 { Some(self.picks()?) } else { None };
                let visible = |t: usize| (t + 1) / self.ratio;
                let line = |&t: &usize| match &picks {
                    None => (0..visible(t)).map(|j| slot(&pages, j)).collect(),
                    Some(picks) => picks[t].iter().filter(|&&j| j >= 0).map(|&j| slot(&pages, j as usize)).collect(),
                };
                let lines: Vec<Vec<i32>> = self.probes.iter().map(line).collect();
                Some(list(cache, pages, "topk_slots", &lines))
            }
        };
        let in_format = |list: ListProblem| if format == KvFormat::Bf16 { as_bf16(&list) } else { list };
        let shape = [self.probes.len(), sink.len(), D_KV];
        Ok(Attention {
            format,
            q: self.plain.f32s(&self.name("q"), &shape)?,
            window: in_format(window),
            compressed: compressed.map(in_format),
            out: self.rows.f32s(&self.name("attn_core"), &shape)?,
            lse: None,
            sink,
        })
    }

    /// Picks of every position, from the run without quantisation of the index.
    fn picks(&self) -> Result<Vec<Vec<i32>>, GoldenError> {
        let topk = self.dir.index.index_topk as usize;
        let count = (self.tokens / self.ratio.max(1)) as i32;
        let picks = self.plain.s32s_in(&self.name("topk"), &[self.tokens, topk], -1..count)?;
        Ok(picks.chunks(topk).map(<[i32]>::to_vec).collect())
    }

    /// Index logits of the probe positions, and picks of all positions.
    fn index(&self, file: &GoldenFile, format: IndexKFormat) -> Result<(Task, Task), GoldenError> {
        let count = self.tokens / self.ratio;
        let pages = Pages::index_k(format, pool_for(count, 64), 64);
        let mut index_k = Memory::undefined("index_k", u64::from(pages.num_pages) * pages.page_stride_bytes);
        let codes = self.name("index_k_codes");
        match format {
            IndexKFormat::Bf16 => {
                let codes = file.bytes(&codes, "BF16", &[count, D_INDEX])?;
                for (j, row_bytes) in codes.chunks(2 * D_INDEX).enumerate() {
                    let (page, row) = shuffled(&pages, j);
                    index_k.put(index_k_bf16(&pages, page, row), row_bytes);
                }
            }
            IndexKFormat::Fp8 => {
                let codes = file.bytes(&codes, "U8", &[count, D_INDEX])?;
                for (j, row_bytes) in codes.chunks(D_INDEX).enumerate() {
                    let (page, row) = shuffled(&pages, j);
                    index_k.put(index_k_fp8_data(&pages, page, row), row_bytes);
                }
                for (j, scale) in file.f32s(&self.name("index_k_scale"), &[count])?.into_iter().enumerate() {
                    let (page, row) = shuffled(&pages, j);
                    index_k.put(index_k_fp8_scale(&pages, page, row), &scale.to_le_bytes());
                }
            }
            IndexKFormat::Fp4 => {
                let codes = file.bytes(&codes, "U8", &[count, D_INDEX / 2])?;
                let scales = file.bytes(&self.name("index_k_scale"), "U8", &[count, 4])?;
                for (j, (codes, scales)) in codes.chunks(D_INDEX / 2).zip(scales.chunks(4)).enumerate() {
                    let (page, row) = shuffled(&pages, j);
                    index_k.put(index_k_fp4_data(&pages, page, row), codes);
                    index_k.put(index_k_fp4_scale(&pages, page, row), scales);
                }
            }
            IndexKFormat::F32 { d } => {
                for (j, row) in file.f32s(&codes, &[count, d as usize])?.chunks(d as usize).enumerate() {
                    let (page, at) = shuffled(&pages, j);
                    index_k.put(f32_row(&pages, page, at, d), &f32_bytes(row));
                }
            }
        }
        let all_weights = self.plain.f32s(&self.name("index_w"), &[self.tokens, INDEX_HEADS])?;
        let probe_weights =
            self.probes.iter().flat_map(|&t| &all_weights[t * INDEX_HEADS..(t + 1) * INDEX_HEADS]).copied();
        let names = [self.name("index_q_codes"), self.name("index_q_scale")];
        let (q, weights) = index_query(file, [&names[0], &names[1]], format, probe_weights.collect())?;
        let b = self.probes.len();
        let columns = pages.num_pages as usize - 1;
        let line: Vec<i32> = (0..columns).map(|column| (pages.num_pages as usize - 1 - column) as i32).collect();
        let lens = |positions: &mut dyn Iterator<Item = usize>| -> Vec<i32> {
            positions.map(|t| ((t + 1) / self.ratio) as i32).collect()
        };
        let stride_logits = (columns as u64 * 64).next_multiple_of(LOGITS_STRIDE_MULTIPLE);
        let problem = Problem::IndexLogitsDecode(IndexLogitsProblem {
            format,
            index_q: Memory::full("index_q", q),
            index_weights: Memory::full("index_weights", f32_bytes(&weights)),
            index_k,
            pages,
            block_table: Memory::full("block_table", s32_bytes(&line.repeat(b))),
            context_lens: Memory::full("context_lens", s32_bytes(&lens(&mut self.probes.iter().copied()))),
            b: b as u32,
            s_q: 1,
            index_heads: INDEX_HEADS as u32,
            max_pages: columns as u32,
            stride_block_table: columns as u64,
            stride_logits,
            clean_logits: true,
        });
        let logits = file.f32s(&self.name("index_logits"), &[self.tokens, count])?;
        let probed: Vec<f32> = self.probes.iter().flat_map(|&t| &logits[t * count..(t + 1) * count]).copied().collect();
        let scored = Task { problem, outside: vec![outside_logits(&probed, count, stride_logits)] };
        let topk = self.dir.index.index_topk;
        let chosen = file.s32s_in(&self.name("topk"), &[self.tokens, topk as usize], -1..count as i32)?;
        let picked = picks(&logits, count, &lens(&mut (0..self.tokens)), topk, &chosen);
        Ok((scored, picked))
    }
}
