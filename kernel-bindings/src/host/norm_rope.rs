//! Norm and rotation: two passes over a row, the second of which reads it out of the cache.

use reference::ops::{Dtype, Norm, NormRope, Rope};

use super::HostBuffer;
use super::numbers::s32_at;
use super::rows::{Bf16, Element, F32, for_rows};

pub(super) fn run(args: NormRope<'_, HostBuffer>) {
    match args.dtype {
        Dtype::F32 => run_as::<F32>(args),
        Dtype::Bf16 => run_as::<Bf16>(args),
    }
}

/// Squares of a row in 16 partial sums, so that it is vector arithmetic and its order is fixed.
fn sum_of_squares<E: Element>(row: &[u8]) -> f32 {
    let mut sums = [0.0f32; 16];
    let mut blocks = row.chunks_exact(16 * E::BYTES);
    for block in &mut blocks {
        for (sum, x) in sums.iter_mut().zip(block.chunks_exact(E::BYTES)) {
            let x = E::get(x);
            *sum += x * x;
        }
    }
    for (sum, x) in sums.iter_mut().zip(blocks.remainder().chunks_exact(E::BYTES)) {
        let x = E::get(x);
        *sum += x * x;
    }
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0]
}

/// Cosines and sines of a token; none if its position lies outside the table.
fn angles<'a>(rope: &Rope<'a, HostBuffer>, token: usize) -> &'a [u8] {
    let row = 4 * rope.d_rope as usize;
    match u32::try_from(s32_at(&rope.positions.bytes, token)) {
        Ok(position) if position < rope.max_positions => {
            &rope.table.bytes[position as usize * row..(position as usize + 1) * row]
        }
        _ => &[],
    }
}

/// `out = x * factor`, times the weights if there are any.
fn scale<E: Element>(x: &[u8], factor: f32, weight: Option<&[u8]>, out: &mut [u8]) {
    let pairs = x.chunks_exact(E::BYTES).zip(out.chunks_exact_mut(E::BYTES));
    match weight {
        None => pairs.for_each(|(x, out)| E::put(E::get(x) * factor, out)),
        Some(weight) => {
            pairs.zip(weight.chunks_exact(4)).for_each(|((x, out), w)| E::put(E::get(x) * factor * F32::get(w), out))
        }
    }
}

/// Turns pairs of channels where they stand.
fn turn<E: Element>(channels: &mut [u8], angles: &[u8], sign: f32) {
    for (pair, angle) in channels.chunks_exact_mut(2 * E::BYTES).zip(angles.chunks_exact(8)) {
        let (a, b) = (E::get(pair), E::get(&pair[E::BYTES..]));
        let (cos, sin) = (F32::get(angle), sign * F32::get(&angle[4..]));
        E::put(a * cos - b * sin, pair);
        E::put(b * cos + a * sin, &mut pair[E::BYTES..]);
    }
}

fn run_as<E: Element>(args: NormRope<'_, HostBuffer>) {
    let (h, d) = (args.h as usize, args.d as usize);
    let [stride_x, stride_out] = [args.stride_x, args.stride_out].map(|s| s as usize * E::BYTES);
    let head_bytes = d * E::BYTES;
    let weight = match args.norm {
        Norm::Weighted(weight) => Some(&weight.bytes[..4 * d]),
        Norm::Unweighted | Norm::None => None,
    };
    let normed = !matches!(args.norm, Norm::None);
    let sign = if args.rope.is_some_and(|rope| rope.inverse) { -1.0 } else { 1.0 };
    for_rows(&mut args.out.bytes, stride_out, args.t as usize, h * d, |token, out| {
        let angles = args.rope.as_ref().map_or(&[][..], |rope| angles(rope, token));
        let x = &args.x.bytes[token * stride_x..token * stride_x + h * head_bytes];
        for (x, out) in x.chunks_exact(head_bytes).zip(out.chunks_exact_mut(head_bytes)) {
            let factor = if normed { 1.0 / (sum_of_squares::<E>(x) / d as f32 + args.eps).sqrt() } else { 1.0 };
            scale::<E>(x, factor, weight, out);
            // Two floats per pair: as many as channels.
            turn::<E>(&mut out[(d - angles.len() / 4) * E::BYTES..], angles, sign);
        }
    });
}
