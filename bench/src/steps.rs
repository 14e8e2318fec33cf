//! One decode attention step of a ratio-4 layer at C = 1 and C = 32: the engine's composition of operations (write the new
//! rows, score, select, attend) on synthetic activations, timed and compared across implementations.

use crate::report::StepRow;
use engine::attention::{AttentionStep, Compressed, Indexer, NewRows, Selection, decode_attention, window_slots};
use kernel_bindings::host::HostOps;
use kernel_bindings::layout;
use reference::ops::{Dtype, IndexKFormat, IndexKWrite, KvFormat, KvWrite, Ops, OpsError, ScaleRule};
use reference::rng::Rng;
use std::time::{Duration, Instant};

const HEADS: u32 = 64;
const WINDOW: u32 = 128;
const TOPK: u32 = 512;
const PAGE: u32 = 64;

/// A batch of sequences of equal length, about to decode the token at position `context - 1`, which completes a
/// compressed row.
#[derive(Debug, Clone)]
pub struct Batch {
    b: u32,
    rows: u32,
    format: KvFormat,
    index_format: IndexKFormat,
    window_rows: Vec<u8>,
    compressed_rows: Vec<u8>,
    index_rows: Vec<u8>,
    q: Vec<u8>,
    index_q: Vec<u8>,
    index_weights: Vec<u8>,
    sink: Vec<u8>,
    position: u32,
}

/// What a step gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// `[b, 64, 512]` bf16.
    pub out: Vec<u8>,
    /// `[b, 64]` f32.
    pub lse: Vec<u8>,
    /// `[b, 512]` s32.
    pub topk_slots: Vec<u8>,
    /// Time of the step, caches in place.
    pub time: Duration,
}

fn bf16s(rng: &mut Rng, len: usize) -> Vec<u8> {
    // Truncation to bf16 is as good as rounding for made-up activations.
    (0..len).flat_map(|_| ((rng.normal() as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect()
}

fn s32s(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn f32s(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    values.into_iter().flat_map(|v| (v as f32).to_le_bytes()).collect()
}

impl Batch {
    /// `b` sequences of `context` tokens, a multiple of 4 and at least 128.
    pub fn new(b: u32, context: u32, seed: u64) -> Self {
        let mut rng = Rng::named(seed, "attention step");
        let rows = context / 4;
        let queries = (b * 64 * 128) as usize;
        Self {
            b,
            rows,
            format: KvFormat::V4Fp8,
            index_format: IndexKFormat::Bf16,
            window_rows: bf16s(&mut rng, (b * WINDOW * 512) as usize),
            compressed_rows: bf16s(&mut rng, (b * rows * 512) as usize),
            index_rows: bf16s(&mut rng, (b * rows * 128) as usize),
            q: bf16s(&mut rng, (b * HEADS * 512) as usize),
            index_q: bf16s(&mut rng, queries),
            index_weights: f32s((0..b * 64).map(|_| 0.011 * (0.5 + rng.normal()))),
            sink: f32s((0..HEADS).map(|_| rng.normal())),
            position: context - 1,
        }
    }

    /// Fills the caches, all but the rows that the step itself writes, and runs the step.
    pub fn run<O: Ops>(&self, ops: &O) -> Result<Output, OpsError> {
        let (b, rows) = (self.b, self.rows);
        let upload = |label: &str, bytes: &[u8]| {
            let mut buffer = ops.alloc(bytes.len() as u64, label)?;
            ops.upload(&mut buffer, 0, bytes)?;
            Ok::<_, OpsError>(buffer)
        };
        let zeros = |label: &str, len: u64| upload(label, &vec![0; len as usize]);
        // The window cache holds the last 128 positions of every sequence in two pages of its own.
        let first = self.position + 1 - WINDOW;
        let window_pages = layout::kv_pages(self.format, b * (WINDOW / PAGE), PAGE);
        let pages_each = rows.div_ceil(PAGE);
        let pages = layout::kv_pages(self.format, b * pages_each, PAGE);
        let index_pages = layout::index_k_pages(self.index_format, b * pages_each, PAGE);
        let pool = |p: &reference::ops::Pages| u64::from(p.num_pages) * p.page_stride_bytes;
        let mut window_kv = zeros("window_kv", pool(&window_pages))?;
        let mut compressed_kv = zeros("compressed_kv", pool(&pages))?;
        let mut index_k = zeros("index_k", pool(&index_pages))?;

        // Pages of a sequence are dealt out round robin over the batch.
        let table: Vec<i32> = (0..b).flat_map(|s| (0..pages_each).map(move |c| (c * b + s) as i32)).collect();
        let slot = |s: u32, row: u32| table[(s * pages_each + row / PAGE) as usize] * PAGE as i32 + (row % PAGE) as i32;
        let window_slot = |s: u32, position: u32| (s * WINDOW + position % WINDOW) as i32;
        let mapping = |new_only: bool| {
            s32s(
                (0..b)
                    .flat_map(|s| (0..rows).map(move |r| (s, r)))
                    .map(|(s, r)| if (r == rows - 1) == new_only { slot(s, r) } else { -1 }),
            )
        };
        let window_mapping = |new_only: bool| {
            s32s((0..b).flat_map(|s| (0..WINDOW).map(move |i| (s, i))).map(|(s, i)| {
                let new = i == WINDOW - 1;
                if new == new_only { window_slot(s, first + i) } else { -1 }
            }))
        };
        let (t_rows, t_window) = (b * rows, b * WINDOW);
        let compressed_rows = upload("compressed rows", &self.compressed_rows)?;
        let index_rows = upload("index rows", &self.index_rows)?;
        let window_rows = upload("window rows", &self.window_rows)?;
        let past = upload("slot_mapping", &mapping(false))?;
        let past_window = upload("slot_mapping", &window_mapping(false))?;
        let kv = |rows, slot_mapping, cache, pages, t| KvWrite {
            dtype: Dtype::Bf16,
            format: self.format,
            rows,
            slot_mapping,
            cache,
            pages,
            t,
            stride_rows: 512,
        };
        ops.kv_write(kv(&compressed_rows, &past, &mut compressed_kv, pages, t_rows))?;
        ops.kv_write(kv(&window_rows, &past_window, &mut window_kv, window_pages, t_window))?;
        ops.index_k_write(IndexKWrite {
            dtype: Dtype::Bf16,
            format: self.index_format,
            scale_rule: ScaleRule::Exact,
            rows: &index_rows,
            slot_mapping: &past,
            cache: &mut index_k,
            pages: index_pages,
            t: t_rows,
            stride_rows: 128,
        })?;

        let stride_logits = u64::from(pages_each * PAGE).next_multiple_of(256);
        let new = upload("new rows", &mapping(true))?;
        let new_window = upload("new window rows", &window_mapping(true))?;
        let block_table = upload("block_table", &s32s(table.iter().copied()))?;
        let num_rows = upload("context_lens", &s32s((0..b).map(|_| rows as i32)))?;
        let slots = (0..b).flat_map(|s| {
            // A window page table whose entry for every page of positions is one of the sequence's two pages.
            let table: Vec<i32> =
                (0..=self.position / PAGE).map(|page| (s * (WINDOW / PAGE) + page % (WINDOW / PAGE)) as i32).collect();
            window_slots(self.position, WINDOW, &table, PAGE)
        });
        let window_list = upload("window_slots", &s32s(slots))?;
        let q = upload("q", &self.q)?;
        let index_q = upload("index_q", &self.index_q)?;
        let index_weights = upload("index_weights", &self.index_weights)?;
        let attn_sink = upload("attn_sink", &self.sink)?;
        let mut index_logits = zeros("index_logits", 4 * u64::from(b) * stride_logits)?;
        let mut topk_slots = zeros("topk_slots", 4 * u64::from(b * TOPK))?;
        let mut topk_lens = zeros("topk_lens", 4 * u64::from(b))?;
        let mut out = zeros("out", self.q.len() as u64)?;
        let mut lse = zeros("lse", 4 * u64::from(b * HEADS))?;
        let start = Instant::now();
        let compressed = Compressed {
            cache: &mut compressed_kv,
            pages,
            new_rows: Some(NewRows { rows: &compressed_rows, slot_mapping: &new, t: t_rows }),
            block_table: &block_table,
            max_pages: pages_each,
            num_rows: &num_rows,
        };
        let indexer = Indexer {
            format: self.index_format,
            scale_rule: ScaleRule::Exact,
            index_q: &index_q,
            index_weights: &index_weights,
            index_k: &mut index_k,
            pages: index_pages,
            new_rows: Some(NewRows { rows: &index_rows, slot_mapping: &new, t: t_rows }),
            index_logits: &mut index_logits,
            stride_logits,
            topk: TOPK,
            topk_slots: &mut topk_slots,
            topk_lens: &mut topk_lens,
        };
        decode_attention(
            ops,
            AttentionStep {
                format: self.format,
                b,
                s_q: 1,
                heads: HEADS,
                q: &q,
                window_kv: &mut window_kv,
                window_pages,
                new_window_rows: NewRows { rows: &window_rows, slot_mapping: &new_window, t: t_window },
                window_slots: &window_list,
                window: WINDOW,
                selection: Selection::Indexed(compressed, indexer),
                attn_sink: &attn_sink,
                out: &mut out,
                lse: &mut lse,
            },
        )?;
        let time = start.elapsed();
        let fetch = |buffer: &O::Buffer| {
            let mut bytes = vec![0; ops.len_bytes(buffer) as usize];
            ops.download(buffer, 0, &mut bytes)?;
            Ok::<_, OpsError>(bytes)
        };
        Ok(Output { out: fetch(&out)?, lse: fetch(&lse)?, topk_slots: fetch(&topk_slots)?, time })
    }
}

/// Steps at C = 1 and C = 32 over 8,192 tokens of context on the host; median of five.
pub fn host() -> Result<Vec<StepRow>, OpsError> {
    let context = 8_192;
    let mut rows = Vec::new();
    for concurrency in [1, 32] {
        let batch = Batch::new(concurrency, context, 0);
        let mut times = (0..5).map(|_| batch.run(&HostOps).map(|o| o.time)).collect::<Result<Vec<_>, _>>()?;
        times.sort_unstable();
        let step = times[times.len() / 2].as_secs_f64();
        rows.push(StepRow {
            device: "host".into(),
            concurrency,
            context,
            step_ms: 1e3 * step,
            tokens_per_s: f64::from(concurrency) / step,
        });
    }
    Ok(rows)
}
