//! Index logits of ragged queries.

use reference::ops::IndexLogitsPrefill;

use super::HostBuffer;
use super::index_logits::Call;
use super::numbers::s32_at;
use super::rows::for_rows;

pub(super) fn run(args: IndexLogitsPrefill<'_, HostBuffer>) {
    let (t, stride) = (args.t as usize, args.stride_logits as usize);
    let columns = args.max_pages as usize * args.index_k.pages.page_size as usize;
    if t == 0 || stride == 0 {
        return;
    }
    let clamp = |x: i32, most: usize| (x.max(0) as usize).min(most);
    let mut sequence_of_row = vec![None; t];
    for sequence in 0..args.b as usize {
        let first = |sequence| clamp(s32_at(&args.cu_seqlens_q.bytes, sequence), t);
        let rows = first(sequence)..first(sequence + 1);
        sequence_of_row[rows.start..rows.end.max(rows.start)].fill(Some(sequence));
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
    let (starts, ends) = (args.starts.map(|s| &s.bytes), &args.ends.bytes);
    for_rows(&mut args.index_logits.bytes, 4 * stride, t, call.work(columns), |row, logits| {
        let Some(sequence) = sequence_of_row[row] else { return };
        let start = starts.map_or(0, |starts| clamp(s32_at(starts, row), columns));
        call.row(row, sequence, start..clamp(s32_at(ends, row), columns), logits);
    });
}
