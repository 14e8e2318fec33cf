//! Faults of the operations on streams and rows, of the choice of experts and of tokens.

use super::{map_f32, map_s32};
use reference::formats::{f32_bytes, f32s, s32_bytes, s32s};
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};

pub(super) const FAULTS: [(&str, &[&str]); 7] = [
    ("embed", &["ids wrap around", "id outside as the last one", "first copy only", "last channel lost"]),
    ("gather_rows", &["ids wrap around", "id outside as the last one", "last channel lost"]),
    (
        "hc_mix",
        &[
            "transposed comb",
            "one normalisation less",
            "post without its factor",
            "epsilons swapped",
            "norm weight ignored",
            "first scale for all",
            "base ignored",
            "second stream twice",
            "output 1% too large",
        ],
    ),
    ("hc_post", &["transposed comb", "y of the first token", "second stream twice", "post ignored", "y not rounded"]),
    ("swiglu", &["no clamp", "gate clamped below as well", "up clamped above only", "halves swapped", "nan lost"]),
    (
        "router",
        &[
            "ties to the higher expert",
            "bias in the weights",
            "bias ignored",
            "scaling ignored",
            "not normalised",
            "id outside as the last one",
            "order by expert",
            "table ignored",
        ],
    ),
    (
        "sample",
        &[
            "temperature ignored",
            "noise without temperature",
            "seed of the first row",
            "seed words swapped",
            "ties to the higher id",
            "nan as infinity",
            "last id lost",
        ],
    ),
];

fn outside(fault: &str, ids: &Bytes, count: u32) -> Bytes {
    let count = count as i32;
    match fault {
        "ids wrap around" if count > 0 => map_s32(ids, |id| id.rem_euclid(count)),
        "id outside as the last one" if count > 0 => {
            map_s32(ids, |id| if (0..count).contains(&id) { id } else { count - 1 })
        }
        _ => ids.clone(),
    }
}

pub(super) fn embed(fault: &str, args: Embed<'_, Bytes>) -> Result<(), OpsError> {
    let ids = outside(fault, args.ids, args.vocab);
    let (row, copies, out) = (args.d as usize * args.dtype.bytes() as usize, args.copies as usize, args.out);
    ReferenceOps.embed(Embed { ids: &ids, out, ..args })?;
    for token in out.chunks_mut(row * copies) {
        match fault {
            "first copy only" => token[row..].fill(0),
            "last channel lost" => token[row - args.dtype.bytes() as usize..row].fill(0),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn gather_rows(fault: &str, args: GatherRows<'_, Bytes>) -> Result<(), OpsError> {
    let rows = outside(fault, args.rows, args.num_rows);
    let (row, out) = (args.row_bytes as usize, args.out);
    ReferenceOps.gather_rows(GatherRows { rows: &rows, out, ..args })?;
    if fault == "last channel lost" {
        out.chunks_mut(row).for_each(|row| row.last_mut().expect("a row has bytes").clone_from(&0));
    }
    Ok(())
}

fn second_stream_twice(fault: &str, streams: &Bytes, t: u32, d: u32, dtype: Dtype) -> Bytes {
    let mut streams = streams.clone();
    let row = d as usize * dtype.bytes() as usize;
    if fault == "second stream twice" && t > 0 {
        streams.chunks_mut(4 * row).for_each(|token| token.copy_within(row..2 * row, 2 * row));
    }
    streams
}

fn transposed(comb: &Bytes) -> Bytes {
    let m = f32s(comb);
    f32_bytes(&(0..m.len()).map(|i| m[i / 16 * 16 + 4 * (i % 4) + i % 16 / 4]).collect::<Vec<_>>())
}

fn scaled(dtype: Dtype, values: &mut [u8], factor: f32) {
    match dtype {
        Dtype::F32 => values.copy_from_slice(&f32_bytes(&f32s(values).iter().map(|x| factor * x).collect::<Vec<_>>())),
        Dtype::Bf16 => {
            let more: Vec<f32> = reference::formats::bf16s(values).iter().map(|x| factor * x).collect();
            values.copy_from_slice(&reference::formats::bf16_bytes(&more));
        }
    }
}

pub(super) fn hc_mix(fault: &str, mut args: HcMix<'_, Bytes>) -> Result<(), OpsError> {
    let streams = second_stream_twice(fault, args.streams, args.t, args.d, args.dtype);
    let (mut base, mut scale, mut norm) = (args.base.clone(), args.scale.clone(), args.norm_weight.clone());
    match fault {
        "epsilons swapped" => (args.norm_eps, args.hc_eps) = (args.hc_eps, args.norm_eps),
        "norm weight ignored" => norm = map_f32(&norm, |_| 1.0),
        "first scale for all" => scale = f32_bytes(&vec![f32s(&scale)[0]; scale.len() / 4]),
        "base ignored" => base = map_f32(&base, |_| 0.0),
        "one normalisation less" => {
            if let Some(mixing) = &mut args.mixing {
                mixing.sinkhorn_iters = (mixing.sinkhorn_iters - 1).max(1);
            }
        }
        _ => {}
    }
    let (dtype, out) = (args.dtype, args.out);
    let (mut post, mut comb) = (Bytes::new(), Bytes::new());
    let mut given = args.mixing;
    if let Some(mixing) = &given {
        (post, comb) = (mixing.post.clone(), mixing.comb.clone());
    }
    let mixing = given.as_ref().map(|mixing| mixing.sinkhorn_iters);
    let mixing = mixing.map(|sinkhorn_iters| HcMixing { post: &mut post, comb: &mut comb, sinkhorn_iters });
    let (streams, base, scale, norm_weight) = (&streams, &base, &scale, &norm);
    ReferenceOps.hc_mix(HcMix { streams, base, scale, norm_weight, mixing, out, ..args })?;
    if let Some(mixing) = &mut given {
        *mixing.comb = if fault == "transposed comb" { transposed(&comb) } else { comb };
        *mixing.post = if fault == "post without its factor" { map_f32(&post, |p| 0.5 * p) } else { post };
    }
    if fault == "output 1% too large" {
        scaled(dtype, out, 1.01);
    }
    Ok(())
}

pub(super) fn hc_post(fault: &str, args: HcPost<'_, Bytes>) -> Result<(), OpsError> {
    *args.streams = second_stream_twice(fault, args.streams, args.t, args.d, args.dtype);
    let (mut y, mut post, mut comb) = (args.y.clone(), args.post.clone(), args.comb.clone());
    match fault {
        "transposed comb" => comb = transposed(&comb),
        "y of the first token" if args.t > 0 => {
            let first = y[..4 * args.d as usize].to_vec();
            y = first.repeat(args.t as usize);
        }
        "post ignored" => post = map_f32(&post, |_| 1.0),
        // In f32, then rounded once.
        "y not rounded" if args.dtype == Dtype::Bf16 => {
            let mut wide = f32_bytes(&reference::formats::bf16s(args.streams));
            let (y, post, comb) = (&y, &post, &comb);
            ReferenceOps.hc_post(HcPost { dtype: Dtype::F32, streams: &mut wide, y, post, comb, ..args })?;
            *args.streams = reference::formats::bf16_bytes(&f32s(&wide));
            return Ok(());
        }
        _ => {}
    }
    ReferenceOps.hc_post(HcPost { y: &y, post: &post, comb: &comb, ..args })
}

pub(super) fn swiglu(fault: &str, mut args: Swiglu<'_, Bytes>) -> Result<(), OpsError> {
    let mut gate_up = args.gate_up.clone();
    let half = args.inter as usize * args.dtype.bytes() as usize;
    let limit = args.limit;
    let change = |part: &mut [u8], change: &dyn Fn(f32) -> f32| {
        let values: Vec<f32> = match args.dtype {
            Dtype::F32 => f32s(part),
            Dtype::Bf16 => reference::formats::bf16s(part),
        };
        let values: Vec<f32> = values.into_iter().map(change).collect();
        part.copy_from_slice(&match args.dtype {
            Dtype::F32 => f32_bytes(&values),
            Dtype::Bf16 => reference::formats::bf16_bytes(&values),
        });
    };
    for row in gate_up.chunks_mut(2 * half).filter(|_| args.t > 0) {
        let (gate, up) = row.split_at_mut(half);
        match fault {
            "no clamp" => args.limit = f32::INFINITY,
            "gate clamped below as well" => change(gate, &|a| if a < -limit { -limit } else { a }),
            "up clamped above only" => {
                change(up, &|b| if b < -limit { b } else { b.min(limit) });
                args.limit = f32::INFINITY;
                change(gate, &|a| if a > limit { limit } else { a });
            }
            "halves swapped" => gate.swap_with_slice(up),
            "nan lost" => change(gate, &|a| a.min(limit)),
            _ => {}
        }
    }
    let out = args.out;
    ReferenceOps.swiglu(Swiglu { gate_up: &gate_up, out, ..args })
}

pub(super) fn router(fault: &str, mut args: Router<'_, Bytes>) -> Result<(), OpsError> {
    let (experts, topk, t) = (args.experts as usize, args.topk as usize, args.t as usize);
    let mut changed = match args.routing {
        Routing::Bias(bias) => bias.clone(),
        Routing::Hash { ids, .. } => ids.clone(),
    };
    let mut scores = args.scores.clone();
    let zeros = f32_bytes(&vec![0.0; experts]);
    match (fault, args.routing) {
        ("bias ignored", Routing::Bias(_)) => changed = zeros.clone(),
        ("id outside as the last one", Routing::Hash { vocab, .. }) => changed = outside(fault, &changed, vocab),
        ("scaling ignored", _) => args.routed_scaling = 1.0,
        ("ties to the higher expert", Routing::Bias(_)) => {
            // Experts in reverse order, and back below.
            let turned = f32s(&scores).chunks(experts).flat_map(|row| row.iter().rev().copied()).collect::<Vec<_>>();
            scores = f32_bytes(&turned);
            changed = f32_bytes(&f32s(&changed).into_iter().rev().collect::<Vec<_>>());
        }
        _ => {}
    }
    let routing = match args.routing {
        Routing::Hash { .. } if fault == "table ignored" => Routing::Bias(&zeros),
        Routing::Hash { tid2eid, vocab, .. } => Routing::Hash { tid2eid, ids: &changed, vocab },
        Routing::Bias(_) => Routing::Bias(&changed),
    };
    let by_bias = matches!(args.routing, Routing::Bias(_));
    let (ids, weights, scaling) = (args.expert_ids, args.expert_weights, args.routed_scaling);
    ReferenceOps.router(Router { scores: &scores, routing, expert_ids: ids, expert_weights: weights, ..args })?;
    match fault {
        "ties to the higher expert" if by_bias => *ids = map_s32(ids, |e| experts as i32 - 1 - e),
        "bias in the weights" if by_bias => {
            let (bias, picks) = (f32s(&changed), s32s(ids));
            let more = f32s(weights).iter().zip(&picks).map(|(w, &e)| w + 0.1 * bias[e as usize]).collect::<Vec<_>>();
            *weights = f32_bytes(&more);
        }
        "not normalised" => {
            let (picks, z) = (s32s(ids), f32s(&scores));
            let raw = (0..t * topk).map(|i| {
                let e = usize::try_from(picks[i]).ok().filter(|&e| e < experts);
                e.map_or(0.0, |e| scaling * reference::plain::streams::affinity(z[i / topk * experts + e]) as f32)
            });
            *weights = f32_bytes(&raw.collect::<Vec<_>>());
        }
        "order by expert" => {
            let mut picks = s32s(ids);
            picks.chunks_mut(topk).for_each(<[i32]>::sort_unstable);
            *ids = s32_bytes(&picks);
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn sample(fault: &str, args: Sample<'_, Bytes>) -> Result<(), OpsError> {
    let (mut logits, mut temperature) = (args.logits.clone(), args.temperature.clone());
    let mut seeds = args.seeds.clone();
    let (n, vocab) = (args.n as usize, args.vocab as usize);
    match fault {
        "temperature ignored" => temperature = map_f32(&temperature, |t| if t > 0.0 { 1.0 } else { t }),
        "noise without temperature" => temperature = map_f32(&temperature, |t| if t > 1e-5 { t } else { 1.0 }),
        "seed of the first row" if n > 0 => seeds = seeds[..8].repeat(n),
        "seed words swapped" => seeds.chunks_mut(8).for_each(|seed| seed.rotate_left(4)),
        "nan as infinity" => logits = map_f32(&logits, |x| if x.is_nan() { f32::INFINITY } else { x }),
        "last id lost" => logits.chunks_mut(4 * vocab).for_each(|row| row[4 * vocab - 4..].fill(0xff)),
        _ => {}
    }
    let out = args.out;
    let given = logits.clone();
    let (logits, temperature, seeds) = (&logits, &temperature, &seeds);
    ReferenceOps.sample(Sample { logits, temperature, seeds, out, ..args })?;
    if fault == "ties to the higher id" {
        let rows = f32s(&given);
        let cold = |row: usize| f32s(temperature)[row] <= 1e-5 || f32s(temperature)[row].is_nan();
        let last = |(row, &chosen): (usize, &i32)| {
            let line = &rows[row * vocab..(row + 1) * vocab];
            let most = line[chosen as usize];
            line.iter().rposition(|&x| cold(row) && x == most).map_or(chosen, |v| v as i32)
        };
        *out = s32_bytes(&s32s(out).iter().enumerate().map(last).collect::<Vec<_>>());
    }
    Ok(())
}
