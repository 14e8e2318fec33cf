//! Index logits of one to four queries per sequence.

use reference::ops::IndexLogitsDecode;

use super::HostBuffer;
use super::index_logits::Call;
use super::numbers::s32_at;
use super::rows::for_rows;

pub(super) fn run(args: IndexLogitsDecode<'_, HostBuffer>) {
    let (stride, s_q) = (args.stride_logits as usize, args.s_q as usize);
    let columns = args.max_pages as usize * args.index_k.pages.page_size as usize;
    let rows = args.b as usize * s_q;
    if rows == 0 || stride == 0 {
        return;
    }
    let call = Call {
        format: args.format,
        heads: args.index_heads as usize,
        index_q: &args.index_q.bytes,
        weights: &args.index_weights.bytes,
        keys: &args.index_k.buffer.bytes,
        pages: args.index_k.pages,
        table: &args.block_table.bytes,
        stride_table: args.stride_block_table as usize,
        clean: args.clean_logits,
    };
    let lens = &args.context_lens.bytes;
    for_rows(&mut args.index_logits.bytes, 4 * stride, rows, call.work(columns), |row, logits| {
        let n = (s32_at(lens, row).max(0) as usize).min(columns);
        call.row(row, row / s_q, 0..n, logits);
    });
}
