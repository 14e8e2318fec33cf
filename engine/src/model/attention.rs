//! Attention of one layer: project, write the new rows, score, select, attend, project back.

use reference::ops::{
    Compress, Dtype, Hadamard, IndexKWrite, IndexLogitsDecode, IndexLogitsPrefill, IndexQQuantise, KvWrite, Linear,
    Norm, NormRope, Ops, OpsError, Paged, Rope, SlotList, SparseMlaDecode, SparseMlaPrefill, TopkSelect,
};

use super::cache::{OpenLayer, Pool, State};
use super::forward::Step;
use super::probe::{Probe, Stage};
use super::weights::{Attention, Compressor, Indexer, Matrix};
use super::workspace::{Array, Workspace, decode_part, logits_stride};
use crate::batch::CompletedRows;

/// Above this many query tokens the kernels for prefill take over: they read a row of the cache once per token and do not
/// split a token over blocks, which only a small batch needs.
const DECODE_TOKENS: u32 = 64;

/// Compressed rows of a step: the batch's own record and its arrays on the device.
struct Rows<'a, B> {
    record: &'a CompletedRows,
    ratio: u32,
    num_rows: &'a Array<B>,
    slot_mapping: &'a Array<B>,
    row_tokens: &'a Array<B>,
    row_positions: &'a Array<B>,
}

impl<'a, O: Ops> Step<'a, O> {
    fn csa_rows(&self) -> Rows<'a, O::Buffer> {
        Rows {
            record: &self.batch.csa,
            ratio: 4,
            num_rows: &self.arrays.csa_num_rows,
            slot_mapping: &self.arrays.csa_slot_mapping,
            row_tokens: &self.arrays.csa_row_tokens,
            row_positions: &self.arrays.csa_row_positions,
        }
    }

    fn hca_rows(&self) -> Rows<'a, O::Buffer> {
        Rows {
            record: &self.batch.hca,
            ratio: 128,
            num_rows: &self.arrays.hca_num_rows,
            slot_mapping: &self.arrays.hca_slot_mapping,
            row_tokens: &self.arrays.hca_row_tokens,
            row_positions: &self.arrays.hca_row_positions,
        }
    }

    /// `out = x W^T` for `t` rows.
    fn product(
        &self,
        x: &O::Buffer,
        matrix: &Matrix<O::Buffer>,
        out: &mut O::Buffer,
        out_dtype: Dtype,
        [groups, n, k]: [u32; 3],
    ) -> Result<(), OpsError> {
        self.ops.linear(Linear {
            dtype: self.numerics.activations,
            x,
            weight: matrix.weight(),
            out,
            out_dtype,
            accumulate: false,
            t: self.batch.t,
            groups,
            n,
            k,
            stride_x: u64::from(groups * k),
            stride_out: u64::from(groups * n),
        })
    }

    /// Norm and rotation of `t` rows of `[h, d]`.
    #[allow(clippy::too_many_arguments)]
    fn turn(
        &self,
        x: &O::Buffer,
        norm: Norm<'_, O::Buffer>,
        rope: Option<Rope<'_, O::Buffer>>,
        out: &mut O::Buffer,
        t: u32,
        h: u32,
        d: u32,
    ) -> Result<(), OpsError> {
        self.ops.norm_rope(NormRope {
            dtype: self.numerics.activations,
            x,
            norm,
            rope,
            out,
            t,
            h,
            d,
            stride_x: u64::from(h * d),
            stride_out: u64::from(h * d),
            eps: self.config.rms_norm_eps,
        })
    }

    fn rope<'b>(&self, table: &'b O::Buffer, positions: &'b Array<O::Buffer>, inverse: bool) -> Rope<'b, O::Buffer> {
        Rope {
            table,
            max_positions: self.limits.context,
            positions: positions.get(),
            d_rope: self.config.rope_dim,
            inverse,
        }
    }
}

/// `work.x` -> `work.y`, caches written on the way.
pub(super) fn run<O: Ops>(
    step: &Step<'_, O>,
    index: usize,
    attn: &Attention<O::Buffer>,
    rope_table: &O::Buffer,
    cache: &mut OpenLayer<'_, O::Buffer>,
    work: &mut Workspace<O::Buffer>,
    probe: &mut dyn Probe<O>,
) -> Result<(), OpsError> {
    let Step { ops, config, numerics, shape, batch, arrays, .. } = *step;
    let (t, d, h) = (batch.t, config.head_dim, shape.heads);
    let (hidden, q_lora, a) = (config.hidden_size, config.q_lora_rank, numerics.activations);
    let turned = step.rope(rope_table, &arrays.positions, false);

    step.product(&work.x, &attn.wq_a, &mut work.qa, a, [1, q_lora, hidden])?;
    step.turn(&work.qa, Norm::Weighted(&attn.q_norm), None, &mut work.qr, t, 1, q_lora)?;
    step.product(&work.qr, &attn.wq_b, &mut work.wide, a, [1, h * d, q_lora])?;
    step.turn(&work.wide, Norm::Unweighted, Some(turned), &mut work.q, t, h, d)?;
    probe.at(ops, index, Stage::Q, &mut work.q, t)?;

    step.product(&work.x, &attn.wkv, &mut work.kv_raw, a, [1, d, hidden])?;
    step.turn(&work.kv_raw, Norm::Weighted(&attn.kv_norm), Some(turned), &mut work.kv, t, 1, d)?;
    probe.at(ops, index, Stage::Kv, &mut work.kv, t)?;
    write_kv(step, &work.kv, arrays.window_mapping.get(), cache.window, t)?;

    // Compressed rows are written before anything reads them: a token sees the row that it completes.
    let rows = if attn.indexer.is_some() { step.csa_rows() } else { step.hca_rows() };
    if let Some(compressor) = &attn.compressor {
        let (state, pool) = (cache.state.as_mut(), cache.compressed.as_mut());
        let (state, pool) = state.zip(pool).expect("a layer with a compressor has a cache for it");
        let overlap = attn.indexer.is_some();
        let n = compress(step, compressor, &rows, state, overlap, d, work)?;
        let turn = step.rope(rope_table, rows.row_positions, false);
        step.turn(&work.pooled, Norm::Weighted(&compressor.norm), Some(turn), &mut work.row, n, 1, d)?;
        probe.at(ops, index, Stage::Comp, &mut work.row, n)?;
        write_kv(step, &work.row, rows.slot_mapping.get(), pool, n)?;
    }
    if let Some(indexer) = &attn.indexer {
        select(step, index, indexer, &rows, rope_table, cache, work, probe)?;
    }
    attend(step, attn, &rows, cache, work)?;
    probe.at(ops, index, Stage::AttnCore, &mut work.wide, t)?;

    let back = step.rope(rope_table, &arrays.positions, true);
    step.turn(&work.wide, Norm::None, Some(back), &mut work.q, t, h, d)?;
    let groups = shape.groups;
    step.product(&work.q, &attn.wo_a, &mut work.o_low, a, [groups, config.o_lora_rank, h / groups * d])?;
    step.product(&work.o_low, &attn.wo_b, &mut work.y, Dtype::F32, [1, hidden, groups * config.o_lora_rank])
}

fn write_kv<O: Ops>(
    step: &Step<'_, O>,
    rows: &O::Buffer,
    slot_mapping: &O::Buffer,
    pool: &mut Pool<O::Buffer>,
    t: u32,
) -> Result<(), OpsError> {
    step.ops.kv_write(KvWrite {
        format: step.numerics.kv,
        dtype: step.numerics.activations,
        rows,
        slot_mapping,
        cache: &mut pool.buffer,
        pages: pool.pages,
        t,
        stride_rows: u64::from(step.config.head_dim),
    })
}

/// `work.x` -> rows that this batch completes in `work.pooled`, not yet normed; their number.
fn compress<O: Ops>(
    step: &Step<'_, O>,
    compressor: &Compressor<O::Buffer>,
    rows: &Rows<'_, O::Buffer>,
    state: &mut State<O::Buffer>,
    overlap: bool,
    d: u32,
    work: &mut Workspace<O::Buffer>,
) -> Result<u32, OpsError> {
    let Step { ops, config, numerics, batch, arrays, .. } = *step;
    let w = if overlap { 2 * d } else { d };
    step.product(&work.x, &compressor.kv_gate, &mut work.kv_gate, Dtype::F32, [1, 2 * w, config.hidden_size])?;
    let n = rows.record.row_tokens.len() as u32;
    let (table, columns) = if overlap {
        (&arrays.window_table, batch.window_columns)
    } else {
        (&arrays.hca_state_table, batch.hca_state_columns)
    };
    ops.compress(Compress {
        dtype: numerics.activations,
        kv_gate: &work.kv_gate,
        ape: &compressor.ape,
        state: &mut state.buffer,
        state_table: table.get(),
        positions: arrays.positions.get(),
        seq: arrays.seq.get(),
        cu_seqlens: arrays.cu_seqlens.get(),
        row_tokens: rows.row_tokens.get(),
        out: &mut work.pooled,
        t: batch.t,
        b: batch.b,
        n,
        ratio: rows.ratio,
        d,
        overlap,
        max_state_pages: columns,
        num_state_pages: state.num_pages,
        state_page_tokens: state.page_tokens,
        ring_rows: state.ring_rows,
        stride_kv_gate: u64::from(2 * w),
    })?;
    Ok(n)
}

/// Index keys written, queries scored, the best rows as slots in `work.topk_slots`.
#[allow(clippy::too_many_arguments)]
fn select<O: Ops>(
    step: &Step<'_, O>,
    index: usize,
    indexer: &Indexer<O::Buffer>,
    rows: &Rows<'_, O::Buffer>,
    rope_table: &O::Buffer,
    cache: &mut OpenLayer<'_, O::Buffer>,
    work: &mut Workspace<O::Buffer>,
    probe: &mut dyn Probe<O>,
) -> Result<(), OpsError> {
    let Step { ops, config, numerics, batch, arrays, .. } = *step;
    let (t, a) = (batch.t, numerics.activations);
    let (hi, di) = (config.index_heads, config.index_head_dim);
    let (state, keys) = cache.index_state.as_mut().zip(cache.index_k.as_mut()).expect("a CSA layer has an index cache");

    let n = compress(step, &indexer.compressor, rows, state, true, di, work)?;
    let turn = step.rope(rope_table, rows.row_positions, false);
    step.turn(&work.pooled, Norm::Weighted(&indexer.compressor.norm), Some(turn), &mut work.row, n, 1, di)?;
    probe.at(ops, index, Stage::IndexK, &mut work.row, n)?;
    if numerics.hadamard() {
        ops.hadamard(Hadamard { dtype: a, x: &work.row, out: &mut work.row_turned, rows: n, d: di })?;
    }
    ops.index_k_write(IndexKWrite {
        format: numerics.index_k,
        scale_rule: numerics.scale_rule,
        dtype: a,
        rows: if numerics.hadamard() { &work.row_turned } else { &work.row },
        slot_mapping: rows.slot_mapping.get(),
        cache: &mut keys.buffer,
        pages: keys.pages,
        t: n,
        stride_rows: u64::from(di),
    })?;

    // A query that sees no more rows than it may pick takes them all: nobody looks at its scores.
    let topk = config.index_topk;
    let stride_logits = logits_stride(u64::from(batch.max_pages) * u64::from(keys.pages.page_size));
    if batch.max_csa_rows > topk {
        step.product(&work.qr, &indexer.wq_b, &mut work.iq_raw, a, [1, hi * di, config.q_lora_rank])?;
        let turned = step.rope(rope_table, &arrays.positions, false);
        step.turn(&work.iq_raw, Norm::None, Some(turned), &mut work.iq, t, hi, di)?;
        probe.at(ops, index, Stage::IndexQ, &mut work.iq, t)?;
        if numerics.hadamard() {
            ops.hadamard(Hadamard { dtype: a, x: &work.iq, out: &mut work.iq_raw, rows: t * hi, d: di })?;
        }
        step.product(&work.x, &indexer.weights_proj, &mut work.iw, a, [1, hi, config.hidden_size])?;
        ops.index_q_quantise(IndexQQuantise {
            dtype: a,
            format: numerics.index_k,
            scale_rule: numerics.scale_rule,
            q: if numerics.hadamard() { &work.iq_raw } else { &work.iq },
            weights: &work.iw,
            index_q: &mut work.index_q,
            index_weights: &mut work.index_weights,
            t,
            h: hi,
            stride_weights: u64::from(hi),
            weight_scale: ((di as f32) * (hi as f32)).sqrt().recip(),
        })?;
        probe.at(ops, index, Stage::IndexQCodes, &mut work.index_q, t)?;
        probe.at(ops, index, Stage::IndexW, &mut work.index_weights, t)?;
        score(step, rows, keys, stride_logits, work)?;
        probe.at(ops, index, Stage::IndexLogits, &mut work.index_logits, t)?;
    }
    let pages = cache.compressed.as_ref().expect("a CSA layer has compressed rows").pages;
    ops.topk_select(TopkSelect {
        index_logits: &work.index_logits,
        context_lens: rows.num_rows.get(),
        block_table: Some(arrays.block_table.get()),
        sequence_of_row: Some(arrays.seq.get()),
        topk_positions: Some(&mut work.topk_positions),
        topk_slots: Some(&mut work.topk_slots),
        topk_lens: Some(&mut work.topk_lens),
        rows: t,
        rows_per_sequence: 1,
        num_sequences: batch.b,
        topk,
        page_size: pages.page_size,
        max_pages: batch.max_pages,
        stride_logits,
        stride_block_table: u64::from(batch.max_pages),
    })?;
    probe.at(ops, index, Stage::Topk, &mut work.topk_positions, t)
}

/// Index logits: decode tokens, which stand in front with equal numbers per sequence, then everything else.
fn score<O: Ops>(
    step: &Step<'_, O>,
    rows: &Rows<'_, O::Buffer>,
    keys: &Pool<O::Buffer>,
    stride_logits: u64,
    work: &mut Workspace<O::Buffer>,
) -> Result<(), OpsError> {
    let Step { ops, config, numerics, batch, arrays, .. } = *step;
    let index_k = Paged { buffer: &keys.buffer, pages: keys.pages };
    let (max_pages, stride_block_table) = (batch.max_pages, u64::from(batch.max_pages));
    if let Some((b, s_q)) = decode_part(batch) {
        ops.index_logits_decode(IndexLogitsDecode {
            format: numerics.index_k,
            index_q: &work.index_q,
            index_weights: &work.index_weights,
            index_k,
            block_table: arrays.block_table.get(),
            context_lens: rows.num_rows.get(),
            index_logits: &mut work.index_logits,
            b,
            s_q,
            index_heads: config.index_heads,
            max_pages,
            stride_block_table,
            stride_logits,
            clean_logits: false,
        })?;
        if b == batch.b {
            return Ok(());
        }
    }
    ops.index_logits_prefill(IndexLogitsPrefill {
        format: numerics.index_k,
        index_q: &work.index_q,
        index_weights: &work.index_weights,
        index_k,
        block_table: arrays.block_table.get(),
        cu_seqlens_q: arrays.cu_seqlens_q.get(),
        starts: None,
        ends: rows.num_rows.get(),
        index_logits: &mut work.index_logits,
        t: batch.t,
        b: batch.b,
        index_heads: config.index_heads,
        max_pages,
        stride_block_table,
        stride_logits,
        clean_logits: false,
    })
}

/// `work.q` and the caches -> `work.wide`.
fn attend<O: Ops>(
    step: &Step<'_, O>,
    attn: &Attention<O::Buffer>,
    rows: &Rows<'_, O::Buffer>,
    cache: &OpenLayer<'_, O::Buffer>,
    work: &mut Workspace<O::Buffer>,
) -> Result<(), OpsError> {
    let Step { ops, config, numerics, shape, batch, arrays, .. } = *step;
    let (t, d, h) = (batch.t, config.head_dim, shape.heads);
    let window = SlotList {
        cache: Paged { buffer: &cache.window.buffer, pages: cache.window.pages },
        slots: arrays.window_slots.get(),
        lens: None,
        width: config.window,
        stride_slots: u64::from(config.window),
    };
    let compressed = cache.compressed.as_ref().map(|pool| {
        let paged = Paged { buffer: &pool.buffer, pages: pool.pages };
        let (slots, lens, width) = if attn.indexer.is_some() {
            (&work.topk_slots, &work.topk_lens, config.index_topk)
        } else {
            (arrays.hca_slots.get(), rows.num_rows.get(), batch.hca_width)
        };
        SlotList { cache: paged, slots, lens: Some(lens), width, stride_slots: u64::from(width) }
    });
    let stride = [u64::from(h * d), u64::from(d)];
    let attention = SparseMlaDecode {
        format: numerics.kv,
        dtype: numerics.activations,
        q: &work.q,
        window,
        compressed: compressed.filter(|list| list.width > 0),
        attn_sink: Some(&attn.sink),
        out: &mut work.wide,
        lse: &mut work.lse,
        t,
        h,
        stride_q: stride,
        stride_out: stride,
        sm_scale: (d as f32).sqrt().recip(),
        num_splits: None,
    };
    if t <= DECODE_TOKENS {
        ops.sparse_mla_decode(attention)
    } else {
        ops.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: None })
    }
}
