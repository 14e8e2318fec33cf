//! Operations on rows by definition: norm and rotation, Hadamard transform, index queries, compressor.

use ndarray::{Array2, Array3};

use super::{Bytes, Cells, Exact, bytes_at};
use crate::formats::{bf16, bf16s, f32s, quantise_fp4_row, quantise_index_row, s32s};
use crate::ops::{Compress, Dtype, Hadamard, IndexKFormat, IndexQQuantise, Norm, NormRope, Rope};

/// `count` elements from element `start` on.
fn elements(dtype: Dtype, memory: &[u8], start: u64, count: u32) -> Vec<f64> {
    let bytes = bytes_at(memory, start * dtype.bytes(), count as usize * dtype.bytes() as usize);
    let values = match dtype {
        Dtype::F32 => f32s(bytes),
        Dtype::Bf16 => bf16s(bytes),
    };
    values.into_iter().map(f64::from).collect()
}

/// An intermediate value that is stored in the type of the activations.
fn stored(dtype: Dtype, value: f64) -> f64 {
    match dtype {
        Dtype::F32 => value,
        Dtype::Bf16 => bf16::from_f32(value as f32).to_f64(),
    }
}

// ------------------------------------------------------------------------------------------------ norm and rotation

/// Cosine and sine of every pair for a token; `None` if its position lies outside the table.
fn angles(rope: &Rope<'_, Bytes>, token: usize) -> Option<Vec<(f64, f64)>> {
    let position = u32::try_from(s32s(rope.positions)[token]).ok().filter(|&p| p < rope.max_positions)?;
    let row = elements(Dtype::F32, rope.table, u64::from(position) * u64::from(rope.d_rope), rope.d_rope);
    let turn = if rope.inverse { -1.0 } else { 1.0 };
    Some(row.chunks_exact(2).map(|pair| (pair[0], turn * pair[1])).collect())
}

/// Normed and rotated rows, `[t, h, d]`.
///
/// The magnitude of a rotated channel is that of its two terms, each of which was stored. Half the size of an unrotated
/// one, so that the bound for stored terms is not the one that counts.
pub fn norm_rope(args: &NormRope<'_, Bytes>) -> Cells {
    let (t, h, d) = (args.t as usize, args.h as usize, args.d as usize);
    let weight = match args.norm {
        Norm::Weighted(weight) => elements(Dtype::F32, weight, 0, args.d),
        Norm::Unweighted | Norm::None => vec![1.0; d],
    };
    let mut cells = Array3::from_elem((t, h, d), None);
    for token in 0..t {
        let angles = args.rope.as_ref().and_then(|rope| angles(rope, token)).unwrap_or_default();
        let first = d - 2 * angles.len();
        for head in 0..h {
            let start = token as u64 * args.stride_x + (head * d) as u64;
            let x = elements(args.dtype, args.x, start, args.d);
            let size = (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + f64::from(args.eps)).sqrt();
            let normed: Vec<f64> = match args.norm {
                Norm::None => x,
                _ => x.iter().zip(&weight).map(|(x, w)| x / size * w).collect(),
            };
            for (c, &value) in normed[..first].iter().enumerate() {
                cells[[token, head, c]] = Some(Exact { value, magnitude: value.abs() / 2.0 });
            }
            for (i, &(cos, sin)) in angles.iter().enumerate() {
                let (a, b) = (stored(args.dtype, normed[first + 2 * i]), stored(args.dtype, normed[first + 2 * i + 1]));
                let sum = |x: f64, y: f64| Some(Exact { value: x + y, magnitude: x.abs() + y.abs() });
                cells[[token, head, first + 2 * i]] = sum(a * cos, -b * sin);
                cells[[token, head, first + 2 * i + 1]] = sum(b * cos, a * sin);
            }
        }
    }
    cells.into_dyn()
}

// ------------------------------------------------------------------------------------------------ Hadamard transform

/// Transformed rows, `[rows, d]`, element by element from the definition of the matrix.
pub fn hadamard(args: &Hadamard<'_, Bytes>) -> Cells {
    let d = args.d as usize;
    let mut cells = Array2::from_elem((args.rows as usize, d), None);
    for row in 0..args.rows as usize {
        let x = elements(args.dtype, args.x, (row * d) as u64, args.d);
        let magnitude = x.iter().map(|x| x.abs()).sum::<f64>() / (d as f64).sqrt();
        for i in 0..d {
            let signed = x.iter().enumerate().map(|(j, x)| if (i & j).count_ones() % 2 == 0 { *x } else { -x });
            cells[[row, i]] = Some(Exact { value: signed.sum::<f64>() / (d as f64).sqrt(), magnitude });
        }
    }
    cells.into_dyn()
}

// ------------------------------------------------------------------------------------------------ index queries

/// Queries in the form of an index-K format.
#[derive(Debug, Clone, PartialEq)]
pub enum Queries {
    /// `[t, h, d]` values, exactly these.
    Values(Dtype, Cells),
    /// Codes, and scales if they stand with them, head after head.
    Codes(Bytes),
}

fn exactly(value: f32) -> Option<Exact> {
    Some(Exact { value: f64::from(value), magnitude: 0.0 })
}

/// Quantised queries, and their weights `[t, h]`.
pub fn index_q_quantise(args: &IndexQQuantise<'_, Bytes>) -> (Queries, Cells) {
    let (t, h, d) = (args.t as usize, args.h as usize, args.format.d());
    let mut codes = Bytes::new();
    let mut values = Array3::from_elem((t, h, d as usize), None);
    let mut weights = Array2::from_elem((t, h), None);
    for (token, head) in (0..t).flat_map(|token| (0..h).map(move |head| (token, head))) {
        let start = (token * h + head) as u64 * u64::from(d);
        let q: Vec<f32> = elements(args.dtype, args.q, start, d).into_iter().map(|x| x as f32).collect();
        let mut query_scale = 1.0;
        match args.format {
            IndexKFormat::Bf16 => {
                for (c, x) in q.iter().enumerate() {
                    values[[token, head, c]] = exactly(bf16::from_f32(*x).to_f32());
                }
            }
            IndexKFormat::F32 { .. } => {
                for (c, &x) in q.iter().enumerate() {
                    values[[token, head, c]] = exactly(x);
                }
            }
            IndexKFormat::Fp4 => {
                let (row, scales) = quantise_fp4_row(&std::array::from_fn(|c| q[c]));
                codes.extend(row);
                codes.extend(scales);
            }
            IndexKFormat::Fp8 => {
                let (scale, row) = quantise_index_row(&std::array::from_fn(|c| q[c]), args.scale_rule);
                query_scale = scale;
                codes.extend(row);
            }
        }
        let given = elements(args.dtype, args.weights, token as u64 * args.stride_weights + head as u64, 1)[0];
        let value = given * f64::from(args.weight_scale) * f64::from(query_scale);
        weights[[token, head]] = Some(Exact { value, magnitude: value.abs() });
    }
    let queries = match args.format {
        IndexKFormat::Bf16 => Queries::Values(Dtype::Bf16, values.into_dyn()),
        IndexKFormat::F32 { .. } => Queries::Values(Dtype::F32, values.into_dyn()),
        IndexKFormat::Fp8 | IndexKFormat::Fp4 => Queries::Codes(codes),
    };
    (queries, weights.into_dyn())
}

// ------------------------------------------------------------------------------------------------ compressor

/// What a token brings to its window and the next: `w` values and `w` gates.
type Brought = (Vec<f32>, Vec<f32>);

fn split(row: Vec<f32>) -> Brought {
    let w = row.len() / 2;
    (row[..w].to_vec(), row[w..].to_vec())
}

/// Sequence and position of a token; `None` for padding.
fn token_place(args: &Compress<'_, Bytes>, token: usize) -> Option<(usize, i64)> {
    let sequence = usize::try_from(s32s(args.seq)[token]).ok().filter(|&s| s < args.b as usize)?;
    let position = i64::from(s32s(args.positions)[token]);
    (position >= 0).then_some((sequence, position))
}

fn from_batch(args: &Compress<'_, Bytes>, token: usize, position: i64) -> Brought {
    let row = bytes_at(args.kv_gate, 4 * token as u64 * args.stride_kv_gate, 8 * args.width() as usize);
    let (u, mut g) = split(f32s(row));
    let phase = (position % i64::from(args.ratio)) as u64;
    let ape = f32s(bytes_at(args.ape, 4 * phase * args.width(), 4 * args.width() as usize));
    g.iter_mut().zip(ape).for_each(|(g, a)| *g += a);
    (u, g)
}

/// Row of the state that belongs to a position; `None` if its page does not exist.
fn state_slot(args: &Compress<'_, Bytes>, sequence: usize, position: i64) -> Option<u64> {
    let column = position as u64 / u64::from(args.state_page_tokens);
    if column >= u64::from(args.max_state_pages) {
        return None;
    }
    let page = s32s(args.state_table)[sequence * args.max_state_pages as usize + column as usize];
    let page = u32::try_from(page).ok().filter(|&page| page < args.num_state_pages)?;
    Some(u64::from(page) * u64::from(args.ring_rows) + position as u64 % u64::from(args.ring_rows))
}

fn state_row_bytes(args: &Compress<'_, Bytes>) -> u64 {
    8 * args.width()
}

/// What the token at `position` brought: out of the batch from token `first` on, or out of the state.
fn brought(
    args: &Compress<'_, Bytes>,
    (token, place): (usize, i64),
    sequence: usize,
    position: i64,
) -> Option<Brought> {
    let first = i64::from(s32s(args.cu_seqlens)[sequence]).max(0);
    let in_batch = token as i64 - (place - position);
    if in_batch >= first {
        return Some(from_batch(args, in_batch as usize, position));
    }
    let bytes = state_row_bytes(args);
    let slot = state_slot(args, sequence, position)?;
    Some(split(f32s(bytes_at(args.state, slot * bytes, bytes as usize))))
}

/// `sum softmax(g) u` of one channel. The magnitude grows with the distance of a gate from the largest: what an
/// exponential loses is in proportion to its argument.
fn pooled(items: &[(f32, f32)]) -> Exact {
    if items.is_empty() {
        return Exact { value: 0.0, magnitude: 0.0 };
    }
    let most = items.iter().map(|&(_, g)| f64::from(g)).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = items.iter().map(|&(_, g)| (f64::from(g) - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let (mut value, mut magnitude) = (0.0, 0.0);
    for (&(u, g), weight) in items.iter().zip(weights) {
        let term = weight / sum * f64::from(u);
        value += term;
        // A gate of -inf has a weight of exactly 0.
        let far = if weight > 0.0 { most - f64::from(g) } else { 0.0 };
        magnitude += term.abs() * (1.0 + far / 8.0);
    }
    Exact { value, magnitude }
}

/// Pooled rows, `[n, d]`.
pub fn compress(args: &Compress<'_, Bytes>) -> Cells {
    let (n, d, ratio) = (args.n as usize, args.d as usize, i64::from(args.ratio));
    let mut cells = Array2::from_elem((n, d), Some(Exact { value: 0.0, magnitude: 0.0 }));
    for (row, &token) in s32s(args.row_tokens).iter().enumerate().take(n) {
        let Some(token) = usize::try_from(token).ok().filter(|&i| i < args.t as usize) else { continue };
        let Some((sequence, place)) = token_place(args, token) else { continue };
        let get = |position: i64| brought(args, (token, place), sequence, position);
        let window = |from: i64| (from.max(0)..from + ratio).filter_map(get).collect::<Vec<Brought>>();
        let own = window(place - ratio + 1);
        let before = if args.overlap { window(place - 2 * ratio + 1) } else { Vec::new() };
        let own_channel = if args.overlap { d } else { 0 };
        for c in 0..d {
            let items = before.iter().map(|(u, g)| (u[c], g[c]));
            let items = items.chain(own.iter().map(|(u, g)| (u[own_channel + c], g[own_channel + c])));
            cells[[row, c]] = Some(pooled(&items.collect::<Vec<_>>()));
        }
    }
    cells.into_dyn()
}

/// Rows of the state that the batch writes, in order: offset in bytes, and `u` then `g`.
pub fn compress_writes(args: &Compress<'_, Bytes>) -> Vec<(u64, Vec<f32>)> {
    let mut writes = Vec::new();
    for token in 0..args.t as usize {
        let Some((sequence, position)) = token_place(args, token) else { continue };
        let Some(slot) = state_slot(args, sequence, position) else { continue };
        let (mut row, g) = from_batch(args, token, position);
        row.extend(g);
        writes.push((slot * state_row_bytes(args), row));
    }
    writes
}
