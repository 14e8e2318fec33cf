//! Streams after a sub-layer, in place: a run of channels of all four streams at a time.

use reference::ops::HcPost;

use super::HostBuffer;
use super::elements::{load, load_f32, size, store};
use super::rows::for_rows;

const HC: usize = 4;
/// Channels at a time.
const RUN: usize = 128;

pub(super) fn run(args: HcPost<'_, HostBuffer>) {
    let (d, dtype) = (args.d as usize, args.dtype);
    let bytes = size(dtype);
    let (y, post, comb) = (&args.y.bytes, &args.post.bytes, &args.comb.bytes);
    for_rows(&mut args.streams.bytes, HC * d * bytes, args.t as usize, HC * d, |token, streams| {
        let (mut p, mut m) = ([0.0; HC], [0.0; HC * HC]);
        load_f32(&post[4 * HC * token..], &mut p);
        load_f32(&comb[4 * HC * HC * token..], &mut m);
        let y = &y[4 * d * token..4 * d * (token + 1)];
        for from in (0..d).step_by(RUN) {
            let n = RUN.min(d - from);
            let (mut x, mut added, mut rounded) = ([[0.0; RUN]; HC], [0.0; RUN], [0; 4 * RUN]);
            for (j, x) in x.iter_mut().enumerate() {
                load(dtype, &streams[(j * d + from) * bytes..(j * d + from + n) * bytes], &mut x[..n]);
            }
            // The sub-layer's output as it would have been stored.
            load_f32(&y[4 * from..4 * (from + n)], &mut added[..n]);
            store(dtype, &added[..n], &mut rounded[..n * bytes]);
            load(dtype, &rounded[..n * bytes], &mut added[..n]);
            for k in 0..HC {
                let mut sum = [0.0; RUN];
                for c in 0..RUN {
                    let mixed =
                        m[k] * x[0][c] + m[HC + k] * x[1][c] + (m[2 * HC + k] * x[2][c] + m[3 * HC + k] * x[3][c]);
                    sum[c] = p[k] * added[c] + mixed;
                }
                store(dtype, &sum[..n], &mut streams[(k * d + from) * bytes..(k * d + from + n) * bytes]);
            }
        }
    });
}
