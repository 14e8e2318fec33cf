//! Hadamard transform: a stage of sums and differences per bit of the channel number.

use reference::ops::{Dtype, Hadamard};

use super::HostBuffer;
use super::rows::{Bf16, Element, F32, for_rows};

/// Rows up to this length are transformed on the stack.
const ON_STACK: usize = 512;

pub(super) fn run(args: Hadamard<'_, HostBuffer>) {
    match args.dtype {
        Dtype::F32 => run_as::<F32>(args),
        Dtype::Bf16 => run_as::<Bf16>(args),
    }
}

fn transform(x: &mut [f32]) {
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
}

fn run_as<E: Element>(args: Hadamard<'_, HostBuffer>) {
    let d = args.d as usize;
    let (row, scale) = (d * E::BYTES, 1.0 / (d as f32).sqrt());
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
        x.iter_mut().zip(given.chunks_exact(E::BYTES)).for_each(|(x, bytes)| *x = E::get(bytes));
        transform(x);
        x.iter().zip(out.chunks_exact_mut(E::BYTES)).for_each(|(x, bytes)| E::put(x * scale, bytes));
    });
}
