//! Hadamard transform: a stage of sums and differences per bit of the channel number.

use reference::ops::{Dtype, Hadamard};

use super::HostBuffer;
use super::numbers::{load, store};
use super::rows::for_rows;
use super::simd::{Simd, WithSimd, widest};

/// Rows up to this length are transformed on the stack.
const ON_STACK: usize = 512;

#[inline(always)]
fn transform(x: &mut [f32], scale: f32) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    for x in x {
        *x *= scale;
    }
}

/// A row with the memory to transform it in.
struct Row<'a> {
    dtype: Dtype,
    given: &'a [u8],
    x: &'a mut [f32],
    scale: f32,
    out: &'a mut [u8],
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        load(self.dtype, self.given, self.x);
        transform(self.x, self.scale);
        store(self.dtype, self.x, self.out);
    }
}

pub(super) fn run(args: Hadamard<'_, HostBuffer>) {
    let (dtype, d) = (args.dtype, args.d as usize);
    let (row, scale) = (d * dtype.bytes() as usize, 1.0 / (d as f32).sqrt());
    for_rows(&mut args.out.bytes, row, args.rows as usize, d, |number, out| {
        let mut stack = [0.0f32; ON_STACK];
        let mut heap = Vec::new();
        let x = if d <= ON_STACK {
            &mut stack[..d]
        } else {
            heap.resize(d, 0.0);
            &mut heap[..]
        };
        let given = &args.x.bytes[number * row..(number + 1) * row];
        widest(Row { dtype, given, x, scale, out });
    });
}
