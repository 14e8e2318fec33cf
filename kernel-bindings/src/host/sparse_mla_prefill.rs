//! Sparse attention of many query tokens: that of a few, and the largest score of every head.

use reference::ops::SparseMlaPrefill;

use super::HostBuffer;
use super::sparse_mla_decode::attend;

pub(super) fn run(args: SparseMlaPrefill<'_, HostBuffer>) {
    attend(args.attention, args.max_logits);
}
