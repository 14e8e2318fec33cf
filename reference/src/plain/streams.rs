//! Plain forms of the operations on streams and rows, of the choice of experts and of tokens.

use ndarray::{Array2, Array3};

use super::{Bytes, Cells, Exact};
use crate::formats::{bf16, bf16s, f32s, s32s};
use crate::ops::{Dtype, Embed, GatherRows, HcMix, HcPost, Router, Routing, Sample, Swiglu};
use crate::tolerance::streams as tolerance;

/// Streams of hyper-connections.
const HC: usize = 4;

fn elements(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let values = match dtype {
        Dtype::F32 => f32s(bytes),
        Dtype::Bf16 => bf16s(bytes),
    };
    values.into_iter().map(f64::from).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    elements(Dtype::F32, bytes)
}

/// Through f32: `bf16::from_f64` does not look at the lower 32 bits and takes numbers just above a tie for one.
fn to_bf16(x: f64) -> bf16 {
    bf16::from_f32(x as f32)
}

/// Rounds to bf16; f32 is left as it is, whose rounding the bounds allow.
fn stored(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F32 => x,
        Dtype::Bf16 => f64::from(to_bf16(x).to_f32()),
    }
}

// ------------------------------------------------------------------------------------------------ rows

/// Row `row` of `rows` rows, or zeros.
fn row_or_zeros(memory: &[u8], rows: u32, row_bytes: u64, row: i32) -> Bytes {
    match u32::try_from(row) {
        Ok(row) if row < rows => memory[(u64::from(row) * row_bytes) as usize..][..row_bytes as usize].to_vec(),
        _ => vec![0; row_bytes as usize],
    }
}

/// Bytes of `[t, copies, d]`.
pub fn embed(args: &Embed<'_, Bytes>) -> Bytes {
    let row_bytes = u64::from(args.d) * args.dtype.bytes();
    let of = |&id: &i32| row_or_zeros(args.table, args.vocab, row_bytes, id).repeat(args.copies as usize);
    s32s(args.ids).iter().take(args.t as usize).flat_map(of).collect()
}

/// Bytes of `[n, row_bytes]`.
pub fn gather_rows(args: &GatherRows<'_, Bytes>) -> Bytes {
    let of = |&row: &i32| row_or_zeros(args.src, args.num_rows, args.row_bytes, row);
    s32s(args.rows).iter().take(args.n as usize).flat_map(of).collect()
}

// ------------------------------------------------------------------------------------------------ hyper-connections

/// `1 / (1 + e^-x)`
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The Sinkhorn matrix of `logits`, row-major `[j][k]`.
pub fn sinkhorn(logits: [f64; HC * HC], eps: f64, iters: u32) -> [f64; HC * HC] {
    let mut m = logits;
    for row in m.chunks_mut(HC) {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|x| *x = (*x - most).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + eps);
    }
    let columns = |m: &mut [f64; HC * HC]| {
        for k in 0..HC {
            let sum: f64 = (0..HC).map(|j| m[HC * j + k]).sum();
            (0..HC).for_each(|j| m[HC * j + k] /= sum + eps);
        }
    };
    columns(&mut m);
    for _ in 1..iters {
        for row in m.chunks_mut(HC) {
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum + eps);
        }
        columns(&mut m);
    }
    m
}

/// A value and what an f32 implementation may be off by, in the unit of [`tolerance::HC_MIXING`].
#[derive(Clone, Copy, Default)]
struct Uncertain {
    value: f64,
    error: f64,
}

impl Uncertain {
    /// `m scale + base` for a dot product over `rms`.
    fn argument(dot: f64, terms: f64, rms: f64, scale: f64, base: f64) -> Uncertain {
        let value = dot / rms * scale + base;
        Uncertain { value, error: (scale * terms / rms).abs() + base.abs() }
    }

    /// The derivative of the sigmoid carries the error on; computing it adds one of its own size, and a result below the
    /// normal numbers may be flushed to 0 before it is used.
    fn sigmoid(self) -> Uncertain {
        let (s, not_s) = (sigmoid(self.value), sigmoid(-self.value));
        Uncertain {
            value: s,
            error: s * not_s * self.error + s + f64::from(f32::MIN_POSITIVE) / tolerance::HC_MIXING.abs,
        }
    }

    fn times(self, factor: f64) -> Uncertain {
        Uncertain { value: self.value * factor, error: self.error * factor.abs() }
    }

    fn plus(self, term: f64) -> Uncertain {
        Uncertain { value: self.value + term, error: self.error + term.abs() }
    }

    fn exact(self) -> Option<Exact> {
        Some(Exact { value: self.value, magnitude: self.error })
    }
}

/// [`sinkhorn`] of uncertain logits: errors go through its derivatives, and each entry is rounded on the way, four times
/// per iteration (of 32 that the unit holds).
fn sinkhorn_of(logits: [Uncertain; HC * HC], eps: f64, iters: u32) -> [Uncertain; HC * HC] {
    let values = logits.map(|l| l.value);
    let m = sinkhorn(values, eps, iters);
    let mut result = m.map(|value| Uncertain { value, error: value * (1.0 + f64::from(iters) / 8.0) });
    for (i, logit) in logits.iter().enumerate() {
        let mut moved = values;
        // Seen beside the value, however large that is.
        moved[i] += 1e-6 * moved[i].abs().max(1.0);
        for (entry, (there, here)) in result.iter_mut().zip(sinkhorn(moved, eps, iters).iter().zip(m)) {
            entry.error += ((there - here) / (moved[i] - values[i])).abs() * (logit.error + 1.0);
        }
    }
    result
}

/// Outputs of [`hc_mix`].
#[derive(Debug, Clone)]
pub struct HcMixed {
    /// `[t, d]`
    pub out: Cells,
    /// `[t, hc]`; empty without mixing.
    pub post: Cells,
    /// `[t, hc, hc]`; empty without mixing.
    pub comb: Cells,
}

/// Mixes the streams of every token.
pub fn hc_mix(args: &HcMix<'_, Bytes>) -> HcMixed {
    let (t, d) = (args.t as usize, args.d as usize);
    let streams = elements(args.dtype, args.streams);
    let (weight, base, scale) = (numbers(args.weight), numbers(args.base), numbers(args.scale));
    let norm_weight = numbers(args.norm_weight);
    let mixed = if args.mixing.is_some() { t } else { 0 };
    let mut out = Array2::from_elem((t, d), None);
    let mut post = Array2::from_elem((mixed, HC), None);
    let mut comb = Array3::from_elem((mixed, HC, HC), None);
    for token in 0..t {
        let f = &streams[token * HC * d..(token + 1) * HC * d];
        let rms = (f.iter().map(|x| x * x).sum::<f64>() / (HC * d) as f64 + f64::from(args.norm_eps)).sqrt();
        let argument = |i: usize, scale: f64| {
            let products = || weight[i * HC * d..(i + 1) * HC * d].iter().zip(f).map(|(w, x)| w * x);
            Uncertain::argument(products().sum(), products().map(f64::abs).sum(), rms, scale, base[i])
        };
        let eps = f64::from(args.hc_eps);
        let pre: Vec<Uncertain> = (0..HC).map(|j| argument(j, scale[0]).sigmoid().plus(eps)).collect();
        if let Some(mixing) = &args.mixing {
            for j in 0..HC {
                post[[token, j]] = argument(HC + j, scale[1]).sigmoid().times(2.0).exact();
            }
            let logits = std::array::from_fn(|i| argument(2 * HC + i, scale[2]));
            for (i, entry) in sinkhorn_of(logits, eps, mixing.sinkhorn_iters).into_iter().enumerate() {
                comb[[token, i / HC, i % HC]] = entry.exact();
            }
        }
        let h: Vec<Uncertain> = (0..d)
            .map(|c| {
                let terms = pre.iter().enumerate().map(|(j, p)| p.times(f[j * d + c]));
                let sum = terms.fold(Uncertain::default(), |all, term| Uncertain {
                    value: all.value + term.value,
                    error: all.error + term.error + term.value.abs(),
                });
                rounded(args.dtype, sum)
            })
            .collect();
        for (c, exact) in normed(args.dtype, &h, &norm_weight, f64::from(args.norm_eps)).into_iter().enumerate() {
            out[[token, c]] = Some(exact);
        }
    }
    HcMixed { out: out.into_dyn(), post: post.into_dyn(), comb: comb.into_dyn() }
}

/// A sum as it is stored, with its error as a plain number: where a rounding boundary lies within reach of the error, the
/// neighbours on both sides are allowed.
fn rounded(dtype: Dtype, sum: Uncertain) -> Uncertain {
    let error = sum.error * tolerance::HC_MIXING.abs;
    let value = stored(dtype, sum.value);
    let reach = match dtype {
        Dtype::F32 => error,
        Dtype::Bf16 => (stored(dtype, sum.value + error) - value).max(value - stored(dtype, sum.value - error)),
    };
    Uncertain { value, error: reach }
}

fn normed(dtype: Dtype, h: &[Uncertain], weight: &[f64], eps: f64) -> Vec<Exact> {
    let squares: f64 = h.iter().map(|h| h.value * h.value).sum();
    let rms = (squares / h.len() as f64 + eps).sqrt();
    // Share by which the norm is off when the elements are off by their errors.
    let off = if squares > 0.0 { h.iter().map(|h| h.value.abs() * h.error).sum::<f64>() / squares } else { 0.0 };
    let unit = tolerance::hc_out(dtype).abs;
    let of = |(h, w): (&Uncertain, &f64)| {
        let value = w * h.value / rms;
        Exact { value, magnitude: value.abs() + ((w / rms * h.error).abs() + (value * off).abs()) / unit }
    };
    h.iter().zip(weight).map(of).collect()
}

/// Streams after a sub-layer, `[t, hc, d]`.
pub fn hc_post(args: &HcPost<'_, Bytes>) -> Cells {
    let (t, d) = (args.t as usize, args.d as usize);
    let streams = elements(args.dtype, args.streams);
    let (y, post, comb) = (numbers(args.y), numbers(args.post), numbers(args.comb));
    Array3::from_shape_fn((t, HC, d), |(token, k, c)| {
        let first = post[token * HC + k] * stored(args.dtype, y[token * d + c]);
        let terms = (0..HC).map(|j| comb[(token * HC + j) * HC + k] * streams[(token * HC + j) * d + c]);
        let all: Vec<f64> = std::iter::once(first).chain(terms).collect();
        Some(Exact { value: all.iter().sum(), magnitude: all.iter().map(|x| x.abs()).sum() })
    })
    .into_dyn()
}

// ------------------------------------------------------------------------------------------------ experts

/// `silu(min(a, limit)) * clamp(b, -limit, limit)`; NaN passes through.
pub fn gated(a: f64, b: f64, limit: f64) -> f64 {
    // Comparisons with NaN are false, so that it stays.
    let a = if a > limit { limit } else { a };
    let b = if b > limit { limit } else { b };
    let b = if b < -limit { -limit } else { b };
    a / (1.0 + (-a).exp()) * b
}

/// `[t, inter]`
pub fn swiglu(args: &Swiglu<'_, Bytes>) -> Cells {
    let (t, inter) = (args.t as usize, args.inter as usize);
    let (values, limit) = (elements(args.dtype, args.gate_up), f64::from(args.limit));
    let unit = tolerance::swiglu(args.dtype).abs;
    Array2::from_shape_fn((t, inter), |(token, c)| {
        let (a, b) = (values[2 * token * inter + c], values[(2 * token + 1) * inter + c]);
        let value = gated(a, b, limit);
        // e^a below the normal numbers may count as 0.
        let lost = (a * b.clamp(-limit, limit)).abs() * f64::from(f32::MIN_POSITIVE) / unit;
        Some(Exact { value, magnitude: value.abs() + if a < 0.0 && lost.is_finite() { lost } else { 0.0 } })
    })
    .into_dyn()
}

/// `sqrt(softplus(z))`
pub fn affinity(z: f32) -> f64 {
    let z = f64::from(z);
    if z > 20.0 { z.sqrt() } else { z.exp().ln_1p().sqrt() }
}

/// The `topk` experts with the largest `keys`, best first; ties to the lower expert, NaN as -inf.
pub fn pick(keys: &[f64], topk: usize) -> Vec<usize> {
    let key = |e: usize| if keys[e].is_nan() { f64::NEG_INFINITY } else { keys[e] };
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).expect("no NaN left"));
    order.truncate(topk);
    order
}

/// Experts `[t, topk]` and their weights.
pub fn router(args: &Router<'_, Bytes>) -> (Vec<i32>, Cells) {
    let (t, experts, topk) = (args.t as usize, args.experts as usize, args.topk as usize);
    let scores = f32s(args.scores);
    let (mut picks, mut weights) = (Vec::new(), Array2::from_elem((t, topk), None));
    for token in 0..t {
        let s: Vec<f64> = scores[token * experts..(token + 1) * experts].iter().map(|&z| affinity(z)).collect();
        let chosen: Vec<i32> = match args.routing {
            Routing::Bias(bias) => {
                let keys: Vec<f64> = s.iter().zip(numbers(bias)).map(|(s, b)| s + b).collect();
                pick(&keys, topk).into_iter().map(|e| e as i32).collect()
            }
            Routing::Hash { tid2eid, ids, vocab } => {
                let id = u32::try_from(s32s(ids)[token]).ok().filter(|&id| id < vocab).unwrap_or(0);
                s32s(&tid2eid[4 * id as usize * topk..4 * (id as usize + 1) * topk])
            }
        };
        let of = |&e: &i32| usize::try_from(e).ok().and_then(|e| s.get(e)).copied();
        let sum: f64 = chosen.iter().filter_map(of).sum();
        for (i, e) in chosen.iter().enumerate() {
            let value = of(e).map_or(0.0, |s| f64::from(args.routed_scaling) * s / sum);
            weights[[token, i]] = Some(Exact { value, magnitude: value.abs() });
        }
        picks.extend(chosen);
    }
    (picks, weights.into_dyn())
}

// ------------------------------------------------------------------------------------------------ tokens

/// Philox4x32-10: four random words of a key and a counter.
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let ([mut k0, mut k1], mut c) = (key, counter);
    for _ in 0..10 {
        let (a, b) = (0xd251_1f53 * u64::from(c[0]), 0xcd9e_8d57 * u64::from(c[2]));
        let high = |product: u64| (product >> 32) as u32;
        c = [high(b) ^ c[1] ^ k0, b as u32, high(a) ^ c[3] ^ k1, a as u32];
        (k0, k1) = (k0.wrapping_add(0x9e37_79b9), k1.wrapping_add(0xbb67_ae85));
    }
    c
}

/// Gumbel noise of a random word.
pub fn gumbel(word: u32) -> f64 {
    let u = f64::from(2 * (word >> 8) + 1) / f64::from(1 << 25);
    -(-u.ln()).ln()
}

/// What [`sample`] takes the largest of.
pub fn sample_keys(logits: &[f32], temperature: f32, seed: [u32; 2]) -> Vec<f64> {
    let noisy = temperature > 1e-5;
    let key = |(v, &logit): (usize, &f32)| {
        if !noisy {
            return f64::from(logit);
        }
        let words = philox(seed, [v as u32 / 4, 0, 0, 0]);
        f64::from(logit / temperature) + gumbel(words[v % 4])
    };
    logits.iter().enumerate().map(key).collect()
}

/// The first of the largest; 0 if there is none above -inf.
pub fn largest(keys: &[f64]) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (v, &key) in keys.iter().enumerate() {
        if key > best.1 {
            best = (v, key);
        }
    }
    best.0
}

/// `[n]`
pub fn sample(args: &Sample<'_, Bytes>) -> Vec<i32> {
    let (logits, temperature) = (f32s(args.logits), f32s(args.temperature));
    let seeds: Vec<u32> = s32s(args.seeds).into_iter().map(|word| word as u32).collect();
    let row = |i: usize| &logits[i * args.vocab as usize..(i + 1) * args.vocab as usize];
    let of = |i: usize| largest(&sample_keys(row(i), temperature[i], [seeds[2 * i], seeds[2 * i + 1]])) as i32;
    (0..args.n as usize).map(of).collect()
}
