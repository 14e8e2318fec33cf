//! Rows that are threads' work only when they are many.

use rayon::prelude::*;

/// Channels that are loaded, worked on and stored at a time.
pub(super) const RUN: usize = 128;

/// Elements of work below which threads cost more than they give: about 10 us of either.
const ALONE_BELOW: usize = 1 << 14;

/// Whether work on so many elements is not worth a thread.
pub(super) fn alone(elements: usize) -> bool {
    elements < ALONE_BELOW
}

/// Runs `row(number, bytes)` for each of `count` rows of `out`, `stride` bytes apart; `work` elements each. The last row
/// may be shorter than the stride.
pub(super) fn for_rows(
    out: &mut [u8],
    stride: usize,
    count: usize,
    work: usize,
    row: impl Fn(usize, &mut [u8]) + Send + Sync,
) {
    if alone(count * work) {
        out.chunks_mut(stride).take(count).enumerate().for_each(|(number, out)| row(number, out));
    } else {
        let least = (ALONE_BELOW / work.max(1)).max(1);
        let rows = out.par_chunks_mut(stride).take(count).with_min_len(least);
        rows.enumerate().for_each(|(number, out)| row(number, out));
    }
}
