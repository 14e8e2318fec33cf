//! Norm and rotation: two passes over a row, the second of which reads it out of the cache.

use reference::ops::{Dtype, Norm, NormRope, Rope};

use super::HostBuffer;
use super::numbers::{load, load_f32, s32_at, store};
use super::rows::{RUN, for_rows};
use super::simd::{Simd, WithSimd, widest};

/// Squares of a row in 16 partial sums, so that it is vector arithmetic and its order is fixed.
#[inline(always)]
fn sum_of_squares(dtype: Dtype, row: &[u8]) -> f32 {
    let size = dtype.bytes() as usize;
    let mut sums = [0.0f32; 16];
    for run in row.chunks(RUN * size) {
        // Channels beyond the row are zeros and add nothing.
        let (mut x, count) = ([0.0; RUN], run.len() / size);
        load(dtype, run, &mut x[..count]);
        for x in x[..count.next_multiple_of(16)].as_chunks::<16>().0 {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += x * x;
            }
        }
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
#[inline(always)]
fn scale(dtype: Dtype, x: &[u8], factor: f32, weight: Option<&[u8]>, out: &mut [u8]) {
    let size = dtype.bytes() as usize;
    let (mut values, mut weights) = ([0.0; RUN], [0.0; RUN]);
    for (number, (x, out)) in x.chunks(RUN * size).zip(out.chunks_mut(RUN * size)).enumerate() {
        let count = x.len() / size;
        load(dtype, x, &mut values[..count]);
        if let Some(weight) = weight {
            load_f32(&weight[4 * RUN * number..], &mut weights[..count]);
            for (x, w) in values[..count].iter_mut().zip(&weights[..count]) {
                *x = *x * factor * w;
            }
        } else {
            values[..count].iter_mut().for_each(|x| *x *= factor);
        }
        store(dtype, &values[..count], out);
    }
}

/// Turns pairs of channels where they stand. As many floats as channels: cosine and sine per pair.
#[inline(always)]
fn turn(dtype: Dtype, channels: &mut [u8], angles: &[u8], sign: f32) {
    let size = dtype.bytes() as usize;
    let (mut values, mut turns) = ([0.0; RUN], [0.0; RUN]);
    for (channels, angles) in channels.chunks_mut(RUN * size).zip(angles.chunks(RUN * 4)) {
        let count = angles.len() / 4;
        load(dtype, channels, &mut values[..count]);
        load_f32(angles, &mut turns[..count]);
        // Eight pairs at a time, those behind the last whatever they are.
        let some = ..count.next_multiple_of(16);
        for (values, turns) in values[some].as_chunks_mut::<16>().0.iter_mut().zip(turns[some].as_chunks::<16>().0) {
            for ([a, b], [cos, sin]) in values.as_chunks_mut::<2>().0.iter_mut().zip(turns.as_chunks::<2>().0) {
                let sin = sign * sin;
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        store(dtype, &values[..count], channels);
    }
}

/// The heads of a token, from norm to rotation.
struct Heads<'a> {
    dtype: Dtype,
    /// Bytes of a head.
    head: usize,
    x: &'a [u8],
    /// Epsilon, if there is a norm.
    norm: Option<f32>,
    weight: Option<&'a [u8]>,
    angles: &'a [u8],
    sign: f32,
    out: &'a mut [u8],
}

impl WithSimd for Heads<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Heads { dtype, head, x, norm, weight, angles, sign, out } = self;
        let size = dtype.bytes() as usize;
        let d = head / size;
        for (x, out) in x.chunks_exact(head).zip(out.chunks_exact_mut(head)) {
            if norm.is_none() && weight.is_none() {
                out.copy_from_slice(x);
            } else {
                let factor = norm.map_or(1.0, |eps| 1.0 / (sum_of_squares(dtype, x) / d as f32 + eps).sqrt());
                scale(dtype, x, factor, weight, out);
            }
            turn(dtype, &mut out[(d - angles.len() / 4) * size..], angles, sign);
        }
    }
}

pub(super) fn run(args: NormRope<'_, HostBuffer>) {
    let (dtype, h, d) = (args.dtype, args.h as usize, args.d as usize);
    let size = dtype.bytes() as usize;
    let [stride_x, stride_out] = [args.stride_x, args.stride_out].map(|s| s as usize * size);
    let head = d * size;
    let weight = match args.norm {
        Norm::Weighted(weight) => Some(&weight.bytes[..4 * d]),
        Norm::Unweighted | Norm::None => None,
    };
    let norm = (!matches!(args.norm, Norm::None)).then_some(args.eps);
    let sign = if args.rope.is_some_and(|rope| rope.inverse) { -1.0 } else { 1.0 };
    for_rows(&mut args.out.bytes, stride_out, args.t as usize, h * d, |token, out| {
        let angles = args.rope.as_ref().map_or(&[][..], |rope| angles(rope, token));
        let x = &args.x.bytes[token * stride_x..token * stride_x + h * head];
        widest(Heads { dtype, head, x, norm, weight, angles, sign, out });
    });
}
