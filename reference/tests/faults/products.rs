//! Faults of products with weights.

use reference::formats::{bf16_bytes, bf16s, f32_bytes, f32s, s32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};

use super::map_s32;

pub(crate) const FAULTS: [(&str, &[&str]); 2] = [
    (
        "linear",
        &[
            "scale of the next block",
            "scale byte one up",
            "nibbles swapped",
            "sign of a code lost",
            "nan code as 480",
            "rows packed",
            "gap written",
            "not accumulated",
            "accumulated always",
            "groups share the first weights",
            "last 32 inputs left out",
            "last token lost",
            "last output lost",
            "output rounded to bf16",
            "output 1% too large",
        ],
    ),
    (
        "moe_experts",
        &[
            "gate and up swapped",
            "first expert ignored",
            "experts elsewhere as the last one",
            "repeated picks once",
            "weights all one",
            "no clamp",
            "clamp of the gate below too",
            "tokens without an expert left alone",
            "picks of the next token",
            "output 2% too large",
        ],
    ),
];

fn changed(memory: &Bytes, change: impl Fn(u8) -> u8) -> Bytes {
    memory.iter().map(|&byte| change(byte)).collect()
}

pub(crate) fn linear(fault: &str, mut args: Linear<'_, Bytes>) -> Result<(), OpsError> {
    let format = args.weight.format;
    let (mut x, mut data, mut scale) = (args.x.clone(), args.weight.data.clone(), args.weight.scale.cloned());
    let before = args.out.clone();
    let blocks = matches!(format, WeightFormat::Fp8Block128 | WeightFormat::Fp4Block32);
    match fault {
        "scale of the next block" => scale.iter_mut().for_each(|bytes| bytes.rotate_left(1)),
        "scale byte one up" => scale = scale.map(|bytes| changed(&bytes, |b| b.saturating_add(1))),
        "nibbles swapped" if format == WeightFormat::Fp4Block32 => data = changed(&data, |b| b.rotate_left(4)),
        "sign of a code lost" if blocks => {
            data = changed(&data, |b| if format == WeightFormat::Fp8Block128 { b & 0x7f } else { b & 0x77 });
        }
        "nan code as 480" if format == WeightFormat::Fp8Block128 => {
            data = changed(&data, |b| if b & 0x7f == 0x7f { b - 1 } else { b });
        }
        "rows packed" => args.stride_x = u64::from(args.groups) * u64::from(args.k),
        "accumulated always" if args.out_dtype == Dtype::F32 => args.accumulate = true,
        "not accumulated" => args.accumulate = false,
        "groups share the first weights" => {
            let one = data.len() / args.groups as usize;
            data = data[..one].repeat(args.groups as usize);
        }
        "last 32 inputs left out" => {
            let (element, row) = (args.dtype.bytes(), args.stride_x);
            for token in 0..u64::from(args.t) {
                let end = token * row + u64::from(args.groups) * u64::from(args.k);
                x[((end - 32) * element) as usize..(end * element) as usize].fill(0);
            }
        }
        "last token lost" => args.t = args.t.saturating_sub(1),
        _ => {}
    }
    let Linear { dtype, out, out_dtype, accumulate, t, groups, n, k, stride_x, stride_out, .. } = args;
    ReferenceOps.linear(Linear {
        dtype,
        x: &x,
        weight: Weight { format, data: &data, scale: scale.as_ref() },
        out: &mut *out,
        out_dtype,
        accumulate,
        t,
        groups,
        n,
        k,
        stride_x,
        stride_out,
    })?;
    let (element, columns) = (out_dtype.bytes() as usize, (groups * n) as usize);
    match fault {
        "gap written" if t > 1 && stride_out > columns as u64 => out[columns * element] = 0,
        "last output lost" if t > 0 => {
            let at = (columns - 1) * element;
            out[at..at + element].copy_from_slice(&before[at..at + element]);
        }
        "output rounded to bf16" if out_dtype == Dtype::F32 => *out = f32_bytes(&bf16s(&bf16_bytes(&f32s(out)))),
        "output 1% too large" if out_dtype == Dtype::F32 => {
            *out = f32_bytes(&f32s(out).into_iter().map(|x| 1.01 * x).collect::<Vec<_>>());
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn moe_experts(fault: &str, mut args: MoeExperts<'_, Bytes>) -> Result<(), OpsError> {
    let (mut ids, mut weights, mut w13) = (args.expert_ids.clone(), args.expert_weights.clone(), args.w13.data.clone());
    let (before, given) = (args.out.clone(), s32s(args.expert_ids));
    let (first, count) = (args.first_expert as i32, args.num_experts as i32);
    let here = |id: i32| (first..first.saturating_add(count)).contains(&id);
    let half = w13.len() / (2 * args.num_experts as usize);
    match fault {
        "gate and up swapped" => w13.chunks_exact_mut(2 * half).for_each(|expert| expert.rotate_left(half)),
        "first expert ignored" => args.first_expert = 0,
        "experts elsewhere as the last one" => ids = map_s32(&ids, |id| if here(id) { id } else { first + count - 1 }),
        "repeated picks once" => {
            let topk = args.topk as usize;
            let mut kept = given.clone();
            for line in kept.chunks_exact_mut(topk) {
                for pick in 1..topk {
                    if line[..pick].contains(&line[pick]) {
                        line[pick] = -1;
                    }
                }
            }
            ids = kept.iter().flat_map(|id| id.to_le_bytes()).collect();
        }
        "weights all one" => weights = f32_bytes(&vec![1.0; given.len()]),
        "no clamp" => args.limit = f32::INFINITY,
        "clamp of the gate below too" => {
            return clamped_below(args);
        }
        "picks of the next token" => {
            let line = 4 * args.topk as usize % ids.len().max(1);
            ids.rotate_left(line);
        }
        _ => {}
    }
    let out = args.out;
    ReferenceOps.moe_experts(MoeExperts {
        dtype: args.dtype,
        x: args.x,
        expert_ids: &ids,
        expert_weights: &weights,
        w13: Weight { format: args.w13.format, data: &w13, scale: args.w13.scale },
        w2: args.w2,
        out: &mut *out,
        t: args.t,
        d: args.d,
        inter: args.inter,
        topk: args.topk,
        first_expert: args.first_expert,
        num_experts: args.num_experts,
        limit: args.limit,
    })?;
    let (t, d, topk) = (args.t as usize, args.d as usize, args.topk as usize);
    match fault {
        "tokens without an expert left alone" => {
            for token in (0..t).filter(|token| !given[token * topk..(token + 1) * topk].iter().any(|&id| here(id))) {
                out[4 * token * d..4 * (token + 1) * d].copy_from_slice(&before[4 * token * d..4 * (token + 1) * d]);
            }
        }
        "output 2% too large" => *out = f32_bytes(&f32s(out).into_iter().map(|x| 1.02 * x).collect::<Vec<_>>()),
        _ => {}
    }
    Ok(())
}

/// The experts by hand, with a gate that is bounded on both sides.
fn clamped_below(args: MoeExperts<'_, Bytes>) -> Result<(), OpsError> {
    let [t, d, inter, topk] = [args.t, args.d, args.inter, args.topk].map(|size| size as usize);
    let x = if args.dtype == Dtype::F32 { f32s(args.x) } else { bf16s(args.x) };
    let (ids, weights) = (s32s(args.expert_ids), f32s(args.expert_weights));
    let row = |weight: &Weight<'_, Bytes>, row, k| reference::plain::products::weight_row(weight, row, k);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let mut out = vec![0.0f32; t * d];
    for pick in 0..t * topk {
        let Some(expert) =
            ids[pick].checked_sub(args.first_expert as i32).filter(|e| (0..args.num_experts as i32).contains(e))
        else {
            continue;
        };
        let (expert, token) = (expert as usize, pick / topk);
        let x = &x[token * d..(token + 1) * d];
        let hidden: Vec<f32> = (0..inter)
            .map(|i| {
                let pre = |i: usize| dot(&row(&args.w13, expert * 2 * inter + i, d), x).clamp(-args.limit, args.limit);
                let (a, b) = (pre(i), pre(inter + i));
                a / (1.0 + (-a).exp()) * b
            })
            .collect();
        for channel in 0..d {
            out[token * d + channel] += weights[pick] * dot(&row(&args.w2, expert * d + channel, inter), &hidden);
        }
    }
    *args.out = f32_bytes(&out);
    Ok(())
}
