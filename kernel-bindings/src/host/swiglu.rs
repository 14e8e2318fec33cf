//! Gated activation: a run of channels at a time.

use reference::ops::Swiglu;

use super::HostBuffer;
use super::elements::{load, size, store};
use super::rows::for_rows;

/// Channels at a time.
const RUN: usize = 128;

pub(super) fn run(args: Swiglu<'_, HostBuffer>) {
    let (inter, dtype, limit) = (args.inter as usize, args.dtype, args.limit);
    let bytes = size(dtype);
    let gate_up = &args.gate_up.bytes;
    for_rows(&mut args.out.bytes, inter * bytes, args.t as usize, 4 * inter, |token, out| {
        let row = &gate_up[2 * inter * bytes * token..2 * inter * bytes * (token + 1)];
        let (gate, up) = row.split_at(inter * bytes);
        let (mut a, mut b) = ([0.0; RUN], [0.0; RUN]);
        let runs = gate.chunks(RUN * bytes).zip(up.chunks(RUN * bytes)).zip(out.chunks_mut(RUN * bytes));
        for ((gate, up), out) in runs {
            let n = gate.len() / bytes;
            load(dtype, gate, &mut a[..n]);
            load(dtype, up, &mut b[..n]);
            for (a, b) in a[..n].iter_mut().zip(&b[..n]) {
                *a = gated(*a, *b, limit);
            }
            store(dtype, &a[..n], out);
        }
    });
}

/// `silu(min(a, limit)) * clamp(b, -limit, limit)`, NaN kept: `f32::min` would drop it, comparisons do not.
pub(super) fn gated(a: f32, b: f32, limit: f32) -> f32 {
    let a = if a > limit { limit } else { a };
    a / (1.0 + (-a).exp()) * b.clamp(-limit, limit)
}
