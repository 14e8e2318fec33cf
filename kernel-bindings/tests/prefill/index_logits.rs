//! The kernel `index_logits_prefill` on the PTX machine.

use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use kernels::Variant;
use reference::cases::Size;
use reference::cases::index_logits_decode::Shape as Keys;
use reference::cases::index_logits_prefill::{Shape, cases, causal};
use reference::formats::{s32_bytes, s32s};
use reference::ops::{IndexKFormat, IndexLogitsPrefill, Ops, OpsError, Paged};
use reference::problem::{Fill, IndexLogitsPrefillProblem, IndexLogitsProblem, Memory, Problem};
use reference::suite::{self, Case, Outcome};
use std::ops::Range;

use super::{FORMATS, device, forms, under_schedules};

/// The cases of a size that there is a kernel for; the others must be refused by name.
fn all_cases(size: Size, variant: Variant, seeds: Range<u64>) {
    let (mut run, mut refused) = (0, 0);
    for case in cases().iter().filter(|case| case.size == size) {
        if ["/fp8/", "/bf16/", "/fp4/"].iter().any(|format| case.name.contains(format)) {
            under_schedules(case, variant, seeds.clone());
            run += 1;
        } else {
            let report = suite::run_case(&device(variant, 1, 0), case, 1, Fill::Leave);
            let Outcome::Skipped(why) = &report.outcome else { panic!("{report}") };
            let named =
                why.contains("f32 rows; fp8, bf16 and fp4 are offered") || why.contains(" heads; 64 are offered");
            assert!(named, "{}: {why}", case.name);
            refused += 1;
        }
    }
    // f32 rows and other numbers of heads stand among the quick cases
    assert!(run > 10 && (refused > 0) == (size == Size::Quick), "{run} cases run, {refused} refused");
}

#[test]
fn quick_cases_portable() {
    all_cases(Size::Quick, Variant::Sm89, 0..9);
}

#[test]
fn quick_cases_sm120a() {
    all_cases(Size::Quick, Variant::Sm120a, 0..9);
}

#[test]
fn full_cases_portable() {
    all_cases(Size::Full, Variant::Sm89, 2..4);
}

#[test]
fn full_cases_sm120a() {
    all_cases(Size::Full, Variant::Sm120a, 3..5);
}

fn judged(variant: Variant, num_sms: u32, seed: u64, shape: Shape) {
    let case = Case::new("index_logits_prefill", "here", Size::Quick, move |seed| {
        Problem::IndexLogitsPrefill(shape.build(seed))
    });
    let report = suite::run_case(&device(variant, num_sms, seed), &case, seed, Fill::Leave);
    assert!(report.passes(), "{variant}, {num_sms} SMs: {report}");
}

#[test]
fn every_number_of_queries_around_a_block() {
    // 0 to 17 queries per sequence, so that blocks begin and end everywhere in the batch
    let sequences: Vec<_> = (0..18).map(|queries| causal(queries, queries, 3)).collect();
    for variant in Variant::ALL {
        for in_front in [0, 1, 7] {
            judged(variant, 3, 0, Shape { sequences: sequences.clone(), in_front, behind: 3, ..Shape::default() });
        }
    }
}

#[test]
fn batches_of_many_sequences() {
    // more than 32, and more than 32 x 32: one, two and three steps of the search
    for (count, variant) in [(31, Variant::Sm120a), (33, Variant::Sm89), (100, Variant::Sm120a), (1100, Variant::Sm89)]
    {
        let sequences = (0..count).map(|i| causal(i % 5, i32::from(i % 3 == 0), 1)).collect();
        judged(variant, 188, 1, Shape { sequences, ..Shape::default() });
    }
}

/// A problem of both kinds: every query of the prefill call is a sequence of the decode call.
fn twin(prefill: &IndexLogitsPrefillProblem) -> IndexLogitsProblem {
    let first = s32s(&prefill.cu_seqlens_q.image());
    let table = prefill.block_table.image();
    let line = 4 * prefill.stride_block_table as usize;
    let lines: Vec<u8> = first
        .windows(2)
        .enumerate()
        .flat_map(|(s, queries)| table[s * line..(s + 1) * line].repeat((queries[1] - queries[0]) as usize))
        .collect();
    let given = |memory: &Memory| Memory { pieces: memory.pieces.clone(), ..*memory };
    IndexLogitsProblem {
        format: prefill.format,
        index_q: given(&prefill.index_q),
        index_weights: given(&prefill.index_weights),
        index_k: given(&prefill.index_k),
        pages: prefill.pages,
        block_table: Memory::full("block_table", lines),
        context_lens: Memory::full("context_lens", prefill.ends.image()),
        b: prefill.t,
        s_q: 1,
        index_heads: prefill.index_heads,
        max_pages: prefill.max_pages,
        stride_block_table: prefill.stride_block_table,
        stride_logits: prefill.stride_logits,
        clean_logits: prefill.clean_logits,
    }
}

#[test]
fn logits_are_those_of_the_decode_kernel_bit_for_bit() {
    for variant in Variant::ALL {
        for format in FORMATS {
            let keys = Keys { format, holes: true, page_size: 32, ..Keys::default() };
            let sequences = vec![causal(290, 11, 2), causal(0, 3, 1), vec![(0, 100)]];
            let prefill = Shape { keys, sequences, ..Shape::default() }.build(7);
            let decode = Problem::IndexLogitsDecode(twin(&prefill));
            let ops = device(variant, 5, 0);
            let want = decode.run(&ops, Fill::Leave).expect("accepted and without a finding");
            let got = Problem::IndexLogitsPrefill(prefill).run(&ops, Fill::Leave).expect("accepted, without a finding");
            assert!(got == want, "{variant} {format:?}");
        }
    }
}

/// The operands of a problem on a device, with a number of splits.
fn split(ops: &KernelOps<Emulated>, problem: &IndexLogitsPrefillProblem, splits: u32) -> Result<Vec<u8>, OpsError> {
    let load = |memory: &Memory| {
        let mut buffer = ops.alloc(memory.len, memory.label)?;
        for (offset, bytes) in &memory.pieces {
            ops.upload(&mut buffer, *offset, bytes)?;
        }
        Ok::<_, OpsError>(buffer)
    };
    let size = 4 * problem.stride_logits as usize * problem.t as usize;
    let mut logits = load(&Memory::full("index_logits", vec![0xa5; size]))?;
    let starts = problem.starts.as_ref().map(load).transpose()?;
    ops.index_logits_prefill_split(
        IndexLogitsPrefill {
            format: problem.format,
            index_q: &load(&problem.index_q)?,
            index_weights: &load(&problem.index_weights)?,
            index_k: Paged { buffer: &load(&problem.index_k)?, pages: problem.pages },
            block_table: &load(&problem.block_table)?,
            cu_seqlens_q: &load(&problem.cu_seqlens_q)?,
            starts: starts.as_ref(),
            ends: &load(&problem.ends)?,
            index_logits: &mut logits,
            t: problem.t,
            b: problem.b,
            index_heads: problem.index_heads,
            max_pages: problem.max_pages,
            stride_block_table: problem.stride_block_table,
            stride_logits: problem.stride_logits,
            clean_logits: problem.clean_logits,
        },
        splits,
    )?;
    let mut bytes = vec![0; size];
    ops.download(&logits, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn every_number_of_splits_gives_the_same_bytes() {
    for (format, variant) in forms() {
        for clean in [true, false] {
            let keys = Keys { format, clean, logits_pad: 1, ..Keys::default() };
            let sequences = vec![vec![(3, 700), (0, 0), (650, 660)], vec![(130, 150)]];
            let problem = Shape { keys, sequences, starts: true, ..Shape::default() }.build(3);
            let want = split(&device(variant, 4, 0), &problem, 1).expect("accepted and without a finding");
            for splits in [2, 3, 11, 40] {
                let got = split(&device(variant, 4, 1), &problem, splits).expect("accepted and without a finding");
                assert!(got == want, "{variant} {format:?}: {splits} splits");
            }
        }
    }
}

#[test]
fn entries_of_cu_seqlens_beyond_the_batch_are_cut_off() {
    // The first sequence begins before the batch, the last one ends behind it: the bytes are those of a batch without that.
    let sequences = || vec![causal(0, 9, 1), causal(20, 3, 1)];
    for (format, variant) in forms() {
        let shape = Shape { keys: Keys { format, ..Keys::default() }, sequences: sequences(), ..Shape::default() };
        let problem = shape.build(4);
        let want = split(&device(variant, 4, 0), &problem, 1).expect("accepted and without a finding");
        let cu_seqlens_q = Memory::full("cu_seqlens_q", s32_bytes(&[i32::MIN, 9, i32::MAX]));
        let beyond = IndexLogitsPrefillProblem { cu_seqlens_q, ..problem };
        let got = split(&device(variant, 4, 0), &beyond, 1).expect("accepted and without a finding");
        assert!(got == want, "{variant} {format:?}");
    }
}

#[test]
fn refusals_name_what_is_wrong() {
    let ops = device(Variant::Sm120a, 2, 0);
    let problem = Shape { sequences: vec![causal(0, 3, 1)], ..Shape::default() }.build(1);
    for splits in [0, 65_536] {
        let error = split(&ops, &problem, splits).expect_err("out of range").to_string();
        assert_eq!(error, format!("index_logits_prefill: splits: expected 1 to 65535, got {splits}"));
    }
    let keys = Keys { format: IndexKFormat::Bf16, index_heads: 32, ..Keys::default() };
    let problem = Shape { keys, sequences: vec![causal(0, 3, 1)], ..Shape::default() }.build(1);
    let error = split(&ops, &problem, 1).expect_err("heads").to_string();
    assert!(error.ends_with("32 heads; 64 are offered"), "{error}");
}

/// What a block of eight queries costs: every key comes once for all of them, and no product more than needed is made.
#[test]
fn keys_are_fetched_once_for_eight_queries() {
    let keys = 1_024;
    for (format, row_bytes, mma_per_key) in
        [(IndexKFormat::Fp8, 132, [2, 2]), (IndexKFormat::Bf16, 256, [4, 4]), (IndexKFormat::Fp4, 68, [4, 1])]
    {
        for (variant, mma_per_key) in Variant::ALL.into_iter().zip(mma_per_key) {
            let keys_of = Keys { format, clean: false, ..Keys::default() };
            let shape = Shape { keys: keys_of, sequences: vec![vec![(0, keys); 8]], ..Shape::default() };
            let ops = KernelOps::with_variant(Emulated::new(EmulatedConfig::fast()), variant).expect("runs both");
            split(&ops, &shape.build(1), 1).expect("accepted");
            let (totals, pairs) = (ops.device().totals(), 8 * keys as u64);
            let queries = 8 * 64 * (format.query_head_bytes() + 4);
            let (least, got) = (keys as u64 * row_bytes + queries, totals.global_load_bytes);
            println!(
                "{variant} {}: per query and key {:.2} instructions, {:.2} wavefronts, {:.2} conflicts, {:.1} B; least {:.1} B",
                format.name(),
                totals.warp_instructions as f64 / pairs as f64,
                totals.shared_wavefronts as f64 / pairs as f64,
                totals.bank_conflicts as f64 / pairs as f64,
                got as f64 / pairs as f64,
                least as f64 / pairs as f64,
            );
            assert_eq!(totals.mma, pairs * mma_per_key, "{variant} {}", format.name());
            // The four lanes of a quad load the same weights, and portable ones the same scales of an fp4 query; beside keys and
            // queries come ranges, page ids and the search.
            let shared_words = if (format, variant) == (IndexKFormat::Fp4, Variant::Sm89) { 2 } else { 1 };
            let most = least + 3 * 8 * 64 * 4 * shared_words + (16 << 10);
            assert!((least..most).contains(&got), "{variant} {}: {got} B, least {least}", format.name());
            assert_eq!(totals.bank_conflicts, 0, "{variant} {}", format.name());
        }
    }
}
