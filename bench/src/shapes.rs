//! Real shapes: the work of one decode step at batch 32, run on the emulator and judged by the reference.

use crate::report::ShapeRow;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::layout;
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use ptx_emulator::CounterMode;
use reference::cases::Size;
use reference::cases::sparse_mla_decode::{self, List};
use reference::ops::{IndexKFormat, KvFormat, Pages};
use reference::problem::{Fill, IndexLogitsProblem, Memory, Problem};
use reference::rng::Rng;
use reference::suite::{self, Case, Prepared};
use std::time::Duration;

/// A batch of sequences of equal length for `index_logits_decode`, in shuffled pages of 64 rows. Keys and queries are
/// random bytes turned into finite codes: the work does not depend on the values, and 138 MB of normal draws would take
/// longer than the kernel.
pub fn index_logits(format: IndexKFormat, b: u32, rows: u32, seed: u64) -> IndexLogitsProblem {
    const PAGE: u32 = 64;
    let mut rng = Rng::named(seed, "real shapes");
    let pages_each = rows.div_ceil(PAGE);
    let pages = layout::index_k_pages(format, b * pages_each, PAGE);
    let mut ids: Vec<u32> = (0..pages.num_pages).collect();
    rng.shuffle(&mut ids);
    let table: Vec<u8> = ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect();
    let queries = (b * 64 * 128) as usize;
    let (index_q, index_k) = match format {
        IndexKFormat::Fp8 => (finite_e4m3(&mut rng, queries), fp8_pages(&mut rng, &pages)),
        IndexKFormat::Bf16 => {
            (small_bf16(&mut rng, queries), small_bf16(&mut rng, (pages.num_pages * PAGE * 128) as usize))
        }
        other => unreachable!("{} is not measured", other.name()),
    };
    let weights: Vec<u8> = (0..b * 64).flat_map(|_| ((rng.normal() * 0.011) as f32).to_le_bytes()).collect();
    let lens: Vec<u8> = (0..b).flat_map(|_| (rows as i32).to_le_bytes()).collect();
    let stride_logits = u64::from(rows).next_multiple_of(256);
    IndexLogitsProblem {
        format,
        index_q: Memory::full("index_q", index_q),
        index_weights: Memory::full("index_weights", weights),
        index_k: Memory::full("index_k", index_k),
        pages,
        block_table: Memory::full("block_table", table),
        context_lens: Memory::full("context_lens", lens),
        b,
        s_q: 1,
        index_heads: 64,
        max_pages: pages_each,
        stride_block_table: u64::from(pages_each),
        stride_logits,
        clean_logits: false,
    }
}

/// Random e4m3 codes without the two NaN codes (0x7f, 0xff) and below 32 in magnitude.
fn finite_e4m3(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.bits().to_le_bytes()).collect();
    bytes.truncate(len);
    for byte in &mut bytes {
        // exponent field at most 11 (2^4): clear the top exponent bit when the next one is set
        if *byte & 0x60 == 0x60 {
            *byte &= !0x20;
        }
    }
    bytes
}

/// Random bf16 of magnitude 0.5 to 1 and both signs.
fn small_bf16(rng: &mut Rng, len: usize) -> Vec<u8> {
    let word = |bits: u64| [bits as u8, ((bits >> 8) as u8 & 0x80) | 0x3f];
    let mut bytes: Vec<u8> = (0..len.div_ceil(4))
        .map(|_| rng.bits())
        .flat_map(|b| [b, b >> 16, b >> 32, b >> 48].map(word))
        .flatten()
        .collect();
    bytes.truncate(2 * len);
    bytes
}

/// Block-planar pages: codes, then one scale per row between 2^-6 and 2^-3.
fn fp8_pages(rng: &mut Rng, pages: &Pages) -> Vec<u8> {
    let codes = pages.page_size as usize * 128;
    let mut pool = Vec::with_capacity((u64::from(pages.num_pages) * pages.page_stride_bytes) as usize);
    for _ in 0..pages.num_pages {
        pool.extend(finite_e4m3(rng, codes));
        pool.extend((0..pages.page_size).flat_map(|_| ((0.0156 + 0.1 * rng.uniform()) as f32).to_le_bytes()));
    }
    pool
}

/// The attention of one ratio-4 layer: 128 window rows and 512 picked rows per token, 64 heads, `v4_fp8`.
pub fn sparse_mla(t: u32, heads: u32) -> sparse_mla_decode::Shape {
    sparse_mla_decode::Shape {
        format: KvFormat::V4Fp8,
        t,
        h: heads,
        window: List::of(128),
        compressed: Some(List::of(512)),
        ..sparse_mla_decode::Shape::default()
    }
}

/// One sequence of a batch as a problem of its own: what the reference judges in the time that there is.
fn one_sequence(problem: &IndexLogitsProblem, sequence: u32) -> IndexLogitsProblem {
    let part = |memory: &Memory, bytes: usize| {
        let at = sequence as usize * bytes;
        Memory::full(memory.label, memory.pieces[0].1[at..at + bytes].to_vec())
    };
    let per_query = problem.index_q.len as usize / problem.b as usize;
    IndexLogitsProblem {
        index_q: part(&problem.index_q, per_query),
        index_weights: part(&problem.index_weights, 256),
        block_table: part(&problem.block_table, 4 * problem.max_pages as usize),
        context_lens: part(&problem.context_lens, 4),
        index_k: problem.index_k.clone(),
        b: 1,
        ..*problem
    }
}

/// What one run is: the problem, its shape in words, and the part of the outputs that the reference judges.
struct Work {
    problem: Problem,
    shape: String,
    judged: Prepared,
    /// The sequence whose logits are judged, of how many; `None` where all outputs are.
    sampled: Option<(usize, usize)>,
}

/// Sequence whose logits are judged.
const SAMPLED: u32 = 1;

fn index_logits_work(b: u32, keys: u32) -> Work {
    let problem = index_logits(IndexKFormat::Fp8, b, keys, 0);
    let one = Problem::IndexLogitsDecode(one_sequence(&problem, SAMPLED));
    let judged = Case::new("index_logits_decode", "real shape", Size::Full, move |_| one.clone()).prepare(0);
    let sampled = Some((SAMPLED as usize, b as usize));
    Work { problem: Problem::IndexLogitsDecode(problem), shape: format!("{b} x {keys} keys, fp8"), judged, sampled }
}

fn sparse_mla_work(t: u32) -> Work {
    let shape = sparse_mla(t, 64);
    let build = move |seed| Problem::SparseMlaDecode(Box::new(shape.build(seed)));
    let judged = Case::new("sparse_mla_decode", "real shape", Size::Full, build).prepare(0);
    let problem = judged.problem.clone();
    let shape = format!("{t} x (128 + 512) rows x 64 heads, v4_fp8");
    Work { problem, shape, judged, sampled: None }
}

/// Runs the real shapes on the emulator with checks off, and smaller ones with checks off and on, every variant that
/// there is. `Err` names the first whose result is wrong.
pub fn emulated() -> Result<Vec<ShapeRow>, String> {
    let (off, both) = (&["off"][..], &["off", "full"][..]);
    let plan = [
        (index_logits_work(32, 32_768), off),
        (sparse_mla_work(32), off),
        (index_logits_work(2, 8_192), both),
        (sparse_mla_work(2), both),
    ];
    let mut rows = Vec::new();
    for (work, modes) in &plan {
        let operation = Operation::from_name(work.problem.op()).ok_or("an operation without a name")?;
        for variant in variants(operation) {
            for &checks in *modes {
                let mut config = if checks == "full" { EmulatedConfig::checked(0) } else { EmulatedConfig::fast() };
                config.machine.counters = CounterMode::Total;
                rows.push(run(variant, work, checks, config)?);
            }
        }
    }
    Ok(rows)
}

fn variants(operation: Operation) -> impl Iterator<Item = Variant> {
    Variant::ALL.into_iter().filter(move |&variant| kernels::ptx(operation, variant).is_some())
}

/// One run, judged.
fn run(variant: Variant, work: &Work, checks: &str, config: EmulatedConfig) -> Result<ShapeRow, String> {
    let ops = KernelOps::with_variant(Emulated::new(config), variant).map_err(|e| e.to_string())?;
    let mut outputs = work.problem.run(&ops, Fill::Leave).map_err(|e| e.to_string())?;
    if let Some((at, of)) = work.sampled {
        let line = outputs[0].len() / of;
        outputs = vec![outputs[0][at * line..][..line].to_vec()];
    }
    let report = suite::judge(variant.to_string(), &work.judged, &outputs, Duration::ZERO);
    if !report.passes() {
        return Err(format!("{}: {report}", work.shape));
    }
    let totals = ops.device().totals();
    Ok(ShapeRow {
        operation: work.problem.op().to_owned(),
        variant: variant.to_string(),
        shape: work.shape.clone(),
        checks: checks.to_owned(),
        seconds: totals.seconds,
        warp_instructions: totals.warp_instructions,
        mma: totals.mma,
        global_bytes: totals.global_load_bytes + totals.global_store_bytes,
        bank_conflicts: totals.bank_conflicts,
        shared_wavefronts: totals.shared_wavefronts,
        error_over_bound: report.verdicts.iter().map(|v| v.max_share).fold(0.0, f64::max),
    })
}
