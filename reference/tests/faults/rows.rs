//! Faults of the operations on rows.

use reference::formats::{bf16_bytes, bf16s, f32_bytes, f32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};

use super::map_s32;

pub(crate) const FAULTS: [(&str, &[&str]); 4] = [
    (
        "norm_rope",
        &[
            "turned the other way",
            "positions outside as position 0",
            "next position",
            "no epsilon",
            "weight ignored",
            "norm skipped",
            "rows packed",
            "nan lost",
            "last token lost",
            "gap written",
            "output 1% too large",
        ],
    ),
    ("hadamard", &["not scaled", "bits reversed", "nan lost", "last row lost", "output 1% too large"]),
    (
        "index_q_quantise",
        &[
            "other scale rule",
            "scale not in the weight",
            "weight scale twice",
            "weights packed",
            "last token lost",
            "nan as zero",
        ],
    ),
    (
        "compress",
        &[
            "no ape",
            "ape of the next phase",
            "halves swapped",
            "state after its writing",
            "state not written",
            "last token not written",
            "raw gates in the state",
            "missing page as page 0",
            "padding written",
            "page of twice the tokens",
            "boundaries of sequences ignored",
            "plain mean",
            "rows of no token left alone",
            "stride ignored",
            "output 2% too large",
        ],
    ),
];

/// Applies `change` to every element.
fn map(dtype: Dtype, buffer: &mut Bytes, change: impl Fn(f32) -> f32) {
    *buffer = match dtype {
        Dtype::F32 => f32_bytes(&f32s(buffer).into_iter().map(change).collect::<Vec<_>>()),
        Dtype::Bf16 => bf16_bytes(&bf16s(buffer).into_iter().map(change).collect::<Vec<_>>()),
    };
}

fn no_nan(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x }
}

pub(crate) fn norm_rope(fault: &str, mut args: NormRope<'_, Bytes>) -> Result<(), OpsError> {
    let width = u64::from(args.h) * u64::from(args.d);
    let dtype = args.dtype;
    let positions = args.rope.map(|rope| {
        map_s32(rope.positions, |p| match fault {
            "positions outside as position 0" if !(0..rope.max_positions as i32).contains(&p) => 0,
            "next position" => p.saturating_add(1),
            _ => p,
        })
    });
    let rope = args.rope.zip(positions.as_ref()).map(|(rope, positions)| Rope {
        positions,
        inverse: rope.inverse != (fault == "turned the other way"),
        ..rope
    });
    match fault {
        "no epsilon" => args.eps = f32::MIN_POSITIVE,
        "weight ignored" if matches!(args.norm, Norm::Weighted(_)) => args.norm = Norm::Unweighted,
        "norm skipped" => args.norm = Norm::None,
        "rows packed" => args.stride_x = width,
        "last token lost" => args.t = args.t.saturating_sub(1),
        _ => {}
    }
    let (out, stride) = (args.out, args.stride_out);
    ReferenceOps.norm_rope(NormRope { rope, out, ..args })?;
    match fault {
        "nan lost" => map(dtype, out, no_nan),
        "output 1% too large" => map(dtype, out, |x| 1.01 * x),
        "gap written" if stride > width && args.t > 1 => out[(dtype.bytes() * width) as usize] = 0,
        _ => {}
    }
    Ok(())
}

pub(crate) fn hadamard(fault: &str, mut args: Hadamard<'_, Bytes>) -> Result<(), OpsError> {
    let (dtype, d) = (args.dtype, args.d as usize);
    if fault == "last row lost" {
        args.rows = args.rows.saturating_sub(1);
    }
    let out = args.out;
    ReferenceOps.hadamard(Hadamard { out, ..args })?;
    match fault {
        "not scaled" => map(dtype, out, |x| x * (d as f32).sqrt()),
        "nan lost" => map(dtype, out, no_nan),
        "output 1% too large" => map(dtype, out, |x| 1.01 * x),
        "bits reversed" if d > 1 => {
            let (size, given) = (dtype.bytes() as usize, out.clone());
            for (element, bytes) in out.chunks_exact_mut(size).enumerate() {
                let reversed = (element % d).reverse_bits() >> (usize::BITS - d.ilog2());
                let from = (element / d * d + reversed) * size;
                bytes.copy_from_slice(&given[from..from + size]);
            }
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn index_q_quantise(fault: &str, mut args: IndexQQuantise<'_, Bytes>) -> Result<(), OpsError> {
    let mut q = args.q.clone();
    match fault {
        "other scale rule" => {
            args.scale_rule = match args.scale_rule {
                ScaleRule::Exact => ScaleRule::PowerOfTwo,
                ScaleRule::PowerOfTwo => ScaleRule::Exact,
            };
        }
        "weight scale twice" => args.weight_scale *= args.weight_scale,
        "weights packed" => args.stride_weights = u64::from(args.h),
        "last token lost" => args.t = args.t.saturating_sub(1),
        "nan as zero" => map(args.dtype, &mut q, no_nan),
        _ => {}
    }
    let values = args.t as usize * args.h as usize * args.format.d() as usize;
    let (index_q, index_weights) = (args.index_q, args.index_weights);
    if fault == "scale not in the weight" {
        let mut values = vec![0; 2 * values];
        let format = IndexKFormat::Bf16;
        let (mut no_weights, given) = (index_weights.clone(), args.weights);
        ReferenceOps.index_q_quantise(IndexQQuantise {
            q: &q,
            index_q,
            index_weights: &mut no_weights,
            weights: given,
            ..args
        })?;
        return ReferenceOps.index_q_quantise(IndexQQuantise {
            format,
            q: &q,
            index_q: &mut values,
            index_weights,
            weights: given,
            ..args
        });
    }
    ReferenceOps.index_q_quantise(IndexQQuantise { q: &q, index_q, index_weights, ..args })
}

pub(crate) fn compress(fault: &str, mut args: Compress<'_, Bytes>) -> Result<(), OpsError> {
    let (mut kv_gate, mut ape) = (args.kv_gate.clone(), args.ape.clone());
    let (mut table, mut seq, mut cu) = (args.state_table.clone(), args.seq.clone(), args.cu_seqlens.clone());
    let (dtype, w, d) = (args.dtype, args.width() as usize, args.d as usize);
    let (num_pages, b) = (args.num_state_pages as i32, args.b as i32);
    let row = 4 * args.stride_kv_gate as usize;
    match fault {
        "no ape" => ape.fill(0),
        "ape of the next phase" => ape.rotate_left(4 * w),
        "halves swapped" if args.overlap => {
            kv_gate.chunks_mut(row).for_each(|row| row[..4 * w].rotate_left(4 * d));
        }
        "plain mean" => {
            ape.fill(0);
            kv_gate.chunks_mut(row).for_each(|row| row[4 * w..8 * w].fill(0));
        }
        "missing page as page 0" => {
            table = map_s32(&table, |page| if (0..num_pages).contains(&page) { page } else { 0 });
        }
        "padding written" => seq = map_s32(&seq, |s| s.clamp(0, (b - 1).max(0))),
        "page of twice the tokens" => args.state_page_tokens = args.state_page_tokens.saturating_mul(2).min(1 << 30),
        "boundaries of sequences ignored" => cu = map_s32(&cu, |_| 0),
        "stride ignored" => args.stride_kv_gate = 2 * w as u64,
        _ => {}
    }
    let (state, out) = (args.state, args.out);
    let (state_before, out_before) = (state.clone(), out.clone());
    let last_lost = fault == "last token not written";
    let run = |state: &mut Bytes, out: &mut Bytes, ape: &Bytes, t: u32| {
        ReferenceOps.compress(Compress {
            kv_gate: &kv_gate,
            ape,
            state,
            state_table: &table,
            seq: &seq,
            cu_seqlens: &cu,
            out,
            t,
            positions: args.positions,
            row_tokens: args.row_tokens,
            ..args
        })
    };
    run(state, out, &ape, args.t)?;
    let mut spare = out.clone();
    match fault {
        "state not written" => *state = state_before,
        "state after its writing" => run(&mut state.clone(), out, &ape, args.t)?,
        "raw gates in the state" => {
            *state = state_before;
            run(state, &mut spare, &vec![0; ape.len()], args.t)?;
        }
        _ if last_lost && args.t > 0 => {
            *state = state_before;
            run(state, &mut spare, &ape, args.t - 1)?;
        }
        "rows of no token left alone" => {
            let size = dtype.bytes() as usize * d;
            for (n, token) in reference::formats::s32s(args.row_tokens).into_iter().enumerate() {
                if !(0..args.t as i32).contains(&token) {
                    out[n * size..(n + 1) * size].copy_from_slice(&out_before[n * size..(n + 1) * size]);
                }
            }
        }
        "output 2% too large" => map(dtype, out, |x| 1.02 * x),
        _ => {}
    }
    Ok(())
}
