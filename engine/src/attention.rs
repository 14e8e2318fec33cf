//! One decode attention step of one layer, composed of operations: write the new rows, score, select, attend.
//!
//! The step works on a batch of sequences that each bring `s_q` query tokens. Everything it reads and writes is a buffer
//! of the implementation that runs it; the only host-side work is the list of window slots, a pure function of positions
//! and block tables.

use reference::layout::INDEX_HEADS;
use reference::ops::{
    Dtype, IndexKFormat, IndexKWrite, IndexLogitsDecode, KvFormat, KvWrite, Ops, OpsError, Paged, Pages, ScaleRule,
    SlotList, SparseMlaDecode, TopkSelect,
};

/// Slots of the window of a query at `position`: positions `max(0, position - window + 1) ..= position` in order, then
/// -1 up to `window` entries. `block_table` lists the pages of the sequence's window cache; a position whose page is
/// missing gets -1.
pub fn window_slots(position: u32, window: u32, block_table: &[i32], page_size: u32) -> Vec<i32> {
    let first = (position + 1).saturating_sub(window);
    let mut slots: Vec<i32> = (first..=position)
        .map(|p| match block_table.get((p / page_size) as usize) {
            Some(&page) if page >= 0 => page * page_size as i32 + (p % page_size) as i32,
            _ => -1,
        })
        .collect();
    slots.resize(window as usize, -1);
    slots
}

/// New rows of a cache: `[t, width]` bf16 and where they go.
#[derive(Debug)]
pub struct NewRows<'a, B> {
    /// `[t, 512]` (KV) or `[t, 128]` (index K) bf16, contiguous.
    pub rows: &'a B,
    /// `[t]` s32; -1 where this token completes no row.
    pub slot_mapping: &'a B,
    /// Tokens.
    pub t: u32,
}

/// The compressed side of a CSA or HCA layer.
#[derive(Debug)]
pub struct Compressed<'a, B> {
    /// Pool of compressed rows.
    pub cache: &'a mut B,
    /// Geometry of the pool.
    pub pages: Pages,
    /// Rows that the compressor completed in this step, if any.
    pub new_rows: Option<NewRows<'a, B>>,
    /// `[b, max_pages]` s32, shared by the compressed rows and the index keys.
    pub block_table: &'a B,
    /// Columns of the block table.
    pub max_pages: u32,
    /// `[b, s_q]` s32: compressed rows that each query sees.
    pub num_rows: &'a B,
}

/// The indexer of a CSA layer.
#[derive(Debug)]
pub struct Indexer<'a, B> {
    /// Format of queries and keys.
    pub format: IndexKFormat,
    /// Scale rule of fp8 keys.
    pub scale_rule: ScaleRule,
    /// `[b, s_q, 64, 128]` e4m3 or bf16.
    pub index_q: &'a B,
    /// `[b, s_q, 64]` f32.
    pub index_weights: &'a B,
    /// Pool of index keys.
    pub index_k: &'a mut B,
    /// Geometry; same rows per page as the compressed pool.
    pub pages: Pages,
    /// Keys completed in this step, if any.
    pub new_rows: Option<NewRows<'a, B>>,
    /// Scratch `[b * s_q, stride_logits]` f32.
    pub index_logits: &'a mut B,
    /// Row stride of the scratch.
    pub stride_logits: u64,
    /// Rows to pick.
    pub topk: u32,
    /// Out `[b * s_q, topk]` s32.
    pub topk_slots: &'a mut B,
    /// Out `[b * s_q]` s32.
    pub topk_lens: &'a mut B,
}

/// Which compressed rows a layer attends to.
#[derive(Debug)]
pub enum Selection<'a, B> {
    /// Window only.
    None,
    /// The rows that the indexer picks (CSA).
    Indexed(Compressed<'a, B>, Indexer<'a, B>),
    /// A given list of slots `[b * s_q, width]` (HCA: all rows of the sequence).
    Listed {
        /// The compressed rows.
        compressed: Compressed<'a, B>,
        /// `[b * s_q, width]` s32.
        slots: &'a B,
        /// Columns.
        width: u32,
    },
}

/// Operands of [`decode_attention`].
#[derive(Debug)]
pub struct AttentionStep<'a, B> {
    /// Row format of window and compressed rows.
    pub format: KvFormat,
    /// Sequences.
    pub b: u32,
    /// Query tokens per sequence.
    pub s_q: u32,
    /// Query heads.
    pub heads: u32,
    /// `[b * s_q, heads, 512]` bf16.
    pub q: &'a B,
    /// Window pool.
    pub window_kv: &'a mut B,
    /// Geometry of the window pool.
    pub window_pages: Pages,
    /// The tokens' own KV rows.
    pub new_window_rows: NewRows<'a, B>,
    /// `[b * s_q, window]` s32.
    pub window_slots: &'a B,
    /// Window in tokens.
    pub window: u32,
    /// Compressed side.
    pub selection: Selection<'a, B>,
    /// `[heads]` f32.
    pub attn_sink: &'a B,
    /// Out `[b * s_q, heads, 512]` bf16.
    pub out: &'a mut B,
    /// Out `[b * s_q, heads]` f32.
    pub lse: &'a mut B,
}

/// Runs one attention step. Rows are written before they are read, so that a token sees its own row and the compressed
/// row that it completes.
pub fn decode_attention<O: Ops>(ops: &O, step: AttentionStep<'_, O::Buffer>) -> Result<(), OpsError> {
    let AttentionStep { format, b, s_q, heads, q, window_kv, window_pages, window, .. } = step;
    let t = b * s_q;
    write_kv(ops, format, &step.new_window_rows, window_kv, window_pages)?;

    let d = 512_u64;
    let stride = [u64::from(heads) * d, d];
    let window_list = SlotList {
        cache: Paged { buffer: &*window_kv, pages: window_pages },
        slots: step.window_slots,
        lens: None,
        width: window,
        stride_slots: u64::from(window),
    };
    let attend = |compressed: Option<SlotList<'_, O::Buffer>>, out: &mut O::Buffer, lse: &mut O::Buffer| {
        ops.sparse_mla_decode(SparseMlaDecode {
            dtype: Dtype::Bf16,
            format,
            q,
            window: window_list,
            compressed,
            attn_sink: Some(step.attn_sink),
            out,
            lse,
            t,
            h: heads,
            stride_q: stride,
            stride_out: stride,
            sm_scale: (d as f32).sqrt().recip(),
            num_splits: None,
        })
    };
    match step.selection {
        Selection::None => attend(None, step.out, step.lse),
        Selection::Listed { compressed, slots, width } => {
            if let Some(rows) = &compressed.new_rows {
                write_kv(ops, format, rows, compressed.cache, compressed.pages)?;
            }
            let list = SlotList {
                cache: Paged { buffer: &*compressed.cache, pages: compressed.pages },
                slots,
                lens: Some(compressed.num_rows),
                width,
                stride_slots: u64::from(width),
            };
            attend(Some(list), step.out, step.lse)
        }
        Selection::Indexed(compressed, mut indexer) => {
            if let Some(rows) = &compressed.new_rows {
                write_kv(ops, format, rows, compressed.cache, compressed.pages)?;
            }
            pick_rows(ops, b, s_q, &compressed, &mut indexer)?;
            let list = SlotList {
                cache: Paged { buffer: &*compressed.cache, pages: compressed.pages },
                slots: &*indexer.topk_slots,
                lens: Some(&*indexer.topk_lens),
                width: indexer.topk,
                stride_slots: u64::from(indexer.topk),
            };
            attend(Some(list), step.out, step.lse)
        }
    }
}

fn write_kv<O: Ops>(
    ops: &O,
    format: KvFormat,
    new: &NewRows<'_, O::Buffer>,
    cache: &mut O::Buffer,
    pages: Pages,
) -> Result<(), OpsError> {
    let NewRows { rows, slot_mapping, t } = *new;
    let stride_rows = u64::from(format.d());
    ops.kv_write(KvWrite { dtype: Dtype::Bf16, format, rows, slot_mapping, cache, pages, t, stride_rows })
}

/// Index keys written, scored and the best rows picked as slots of the compressed pool.
fn pick_rows<O: Ops>(
    ops: &O,
    b: u32,
    s_q: u32,
    compressed: &Compressed<'_, O::Buffer>,
    indexer: &mut Indexer<'_, O::Buffer>,
) -> Result<(), OpsError> {
    if let Some(NewRows { rows, slot_mapping, t }) = indexer.new_rows {
        ops.index_k_write(IndexKWrite {
            dtype: Dtype::Bf16,
            format: indexer.format,
            scale_rule: indexer.scale_rule,
            rows,
            slot_mapping,
            cache: indexer.index_k,
            pages: indexer.pages,
            t,
            stride_rows: 128,
        })?;
    }
    ops.index_logits_decode(IndexLogitsDecode {
        format: indexer.format,
        index_q: indexer.index_q,
        index_weights: indexer.index_weights,
        index_k: Paged { buffer: &*indexer.index_k, pages: indexer.pages },
        block_table: compressed.block_table,
        context_lens: compressed.num_rows,
        index_logits: indexer.index_logits,
        b,
        s_q,
        index_heads: INDEX_HEADS as u32,
        max_pages: compressed.max_pages,
        stride_block_table: u64::from(compressed.max_pages),
        stride_logits: indexer.stride_logits,
        clean_logits: false,
    })?;
    ops.topk_select(TopkSelect {
        index_logits: &*indexer.index_logits,
        context_lens: compressed.num_rows,
        block_table: Some(compressed.block_table),
        sequence_of_row: None,
        topk_positions: None,
        topk_slots: Some(indexer.topk_slots),
        topk_lens: Some(indexer.topk_lens),
        rows: b * s_q,
        rows_per_sequence: s_q,
        num_sequences: b,
        topk: indexer.topk,
        page_size: compressed.pages.page_size,
        max_pages: compressed.max_pages,
        stride_logits: indexer.stride_logits,
        stride_block_table: u64::from(compressed.max_pages),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_slots_follow_the_block_table() {
        // page 7 holds positions 0..4, page 3 positions 4..8
        assert_eq!(window_slots(5, 4, &[7, 3], 4), [30, 31, 12, 13]);
        assert_eq!(window_slots(1, 4, &[7, 3], 4), [28, 29, -1, -1], "short context: padded at the tail");
        assert_eq!(window_slots(5, 4, &[7], 4), [30, 31, -1, -1], "a page that is not there");
        assert_eq!(window_slots(5, 4, &[-1, 3], 4), [-1, -1, 12, 13]);
    }
}
