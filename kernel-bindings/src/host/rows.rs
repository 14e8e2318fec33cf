//! Rows that are threads' work only when they are many.

use super::threads;

/// Channels that are loaded, worked on and stored at a time.
pub(super) const RUN: usize = 128;

/// Elements of work below which threads cost more than they give: about 5 us of either.
const ALONE_BELOW: usize = 1 << 13;

/// Whether work on so many elements is not worth a thread.
pub(super) fn alone(elements: usize) -> bool {
    elements < ALONE_BELOW
}

/// Rows that a thread takes at a time, of `count` rows with `work` elements each: all of them if that is not much, else some
/// for every thread to take more than once.
pub(super) fn piece(count: usize, work: usize) -> usize {
    if alone(count * work) {
        return count.max(1);
    }
    let least = ALONE_BELOW / 4 / work.max(1);
    count.div_ceil(4 * threads::count()).max(least).max(1)
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
    let together = piece(count, work);
    let some = |(first, out): (usize, &mut [u8])| {
        for (number, out) in out.chunks_mut(stride).enumerate() {
            row(first * together + number, out);
        }
    };
    let end = out.len().min(count * stride);
    let pieces = out[..end].chunks_mut(together * stride).enumerate();
    threads::share(pieces, some);
}
