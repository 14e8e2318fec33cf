//! Matrix product with a weight: panels of eight weight rows, threads along the rows.

use reference::ops::{Dtype, Linear};

use super::HostBuffer;
use super::numbers::{f32_at, narrow_bf16};
use super::products::{Matrix, Rows, Shared, in_pieces, multiply, parallel};

use std::cell::Cell;

thread_local! {
    /// Widened activations.
    static ROWS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

pub(super) fn run(args: Linear<'_, HostBuffer>) {
    let [t, groups, n, k] = [args.t, args.groups, args.n, args.k].map(|size| size as usize);
    if t == 0 {
        return;
    }
    let mut scratch = ROWS.take();
    let x = Rows::new(args.dtype, &args.x.bytes, [t, groups * k, args.stride_x as usize], &mut scratch);
    let matrix = Matrix::new(&args.weight, args.k);
    let (out_dtype, accumulate) = (args.out_dtype, args.accumulate);
    let element = out_dtype.bytes() as usize;
    let stride = args.stride_out as usize;
    let out = Shared::new(&mut args.out.bytes);
    in_pieces(groups * n, parallel(t, groups * n * k), |mut rows| {
        // A piece may touch several groups, each with inputs of its own.
        while !rows.is_empty() {
            let group = rows.start / n;
            let end = rows.end.min((group + 1) * n);
            let inputs = |token| x.row(token, group * k, k);
            multiply(matrix, rows.start..end, t, inputs, |token, row, values| {
                // SAFETY: `args.out` is borrowed until the end of this function; columns row.. of a token belong to one
                // piece, and pieces do not overlap.
                let bytes = unsafe { out.piece(element * (token * stride + row), element * values.len()) };
                put(out_dtype, accumulate, values, bytes);
            });
            rows.start = end;
        }
    });
    ROWS.set(scratch);
}

fn put(dtype: Dtype, accumulate: bool, values: &[f32], bytes: &mut [u8]) {
    match dtype {
        Dtype::Bf16 => narrow_bf16(values, bytes),
        Dtype::F32 => {
            for (place, value) in bytes.chunks_exact_mut(4).zip(values) {
                let before = if accumulate { f32_at(place, 0) } else { 0.0 };
                place.copy_from_slice(&(if accumulate { before + value } else { *value }).to_le_bytes());
            }
        }
    }
}
