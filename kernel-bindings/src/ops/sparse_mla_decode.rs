//! `sparse_mla_decode` on a device: one launch, or one launch per split of the rows and a merge.

use super::{KernelOps, ParamStruct, split_combine};
use crate::device::Device;
use kernels::params::{Sm120PagedCache, Sm120SparseMlaDecodeParams};
use kernels::{Operation, Variant};
use reference::layout::D_KV;
use reference::ops::{KvFormat, OpsError, Pages, SlotList, SparseMlaDecode, SplitCombine};

// SAFETY: 200 bytes of fields in 200 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120SparseMlaDecodeParams {}

/// How the work of a call is laid out over blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseMlaPlan {
    /// Heads of a block: 16, 32 or 64. Eight heads run in a block of 16.
    pub head_tile: u32,
    /// Runs that the rows of a token are cut into; above 1 a merge follows.
    pub num_splits: u32,
}

/// Cycles that 64 heads need for a row on one SM: the matrix unit's 128 (64 heads x 1,024 multiply-adds at 512 per cycle).
const ROW_CYCLES: u64 = 128;
/// Cycles of a block besides its rows: slots, first rows and query from memory, the sums back.
const BLOCK_CYCLES: u64 = 3_000;
/// Cycles of the merge besides its bytes: launch and two dependent loads.
const MERGE_CYCLES: u64 = 4_000;
/// Bytes of partial sums that an SM writes or reads per cycle, out of L2.
const PARTIAL_BYTES_PER_CYCLE: u64 = 32;

impl SparseMlaPlan {
    /// The plan for `t` tokens of `h` heads with `rows` listed rows each (both lists together), in tiles of `tile_rows`, on
    /// `num_sms` SMs: the split count with the smallest estimate, the smaller one of equals. It depends on shapes only, so
    /// that a captured launch stays right for other lengths.
    pub fn new(num_sms: u32, t: u32, h: u32, rows: u32, tile_rows: u32) -> Self {
        let head_tile = head_tile(h);
        let tiles = rows.div_ceil(tile_rows).max(1);
        let blocks = u64::from(t) * u64::from(h.div_ceil(head_tile));
        let sms = u64::from(num_sms.max(1));
        let tile_cycles = u64::from(tile_rows) * ROW_CYCLES * u64::from(head_tile) / 64;
        let estimate = |splits: u32| {
            let waves = (blocks * u64::from(splits)).div_ceil(sms);
            let block = u64::from(tiles.div_ceil(splits)) * tile_cycles + BLOCK_CYCLES;
            let partial = u64::from(splits) * u64::from(t) * u64::from(h) * D_KV as u64 * 4;
            let merge = if splits > 1 { MERGE_CYCLES + 2 * partial / (sms * PARTIAL_BYTES_PER_CYCLE) } else { 0 };
            waves * block + merge
        };
        // More splits than fill the SMs once only add waves.
        let most = (sms / blocks.max(1)).clamp(1, u64::from(tiles)) as u32;
        let num_splits = (1..=most).min_by_key(|&splits| estimate(splits)).unwrap_or(1);
        Self { head_tile, num_splits }
    }
}

/// Rows of a tile, as in the kernel of the variant.
fn tile_rows(variant: Variant, format: KvFormat) -> u32 {
    match (variant, format) {
        (Variant::Sm120a, KvFormat::V4Fp8) => 32,
        _ => 16,
    }
}

fn cache(address: u64, pages: &Pages) -> Sm120PagedCache {
    Sm120PagedCache {
        data: address as *const _,
        page_stride_bytes: pages.page_stride_bytes as i64,
        num_pages: pages.num_pages as i32,
        page_size: pages.page_size as i32,
    }
}

impl<D: Device> KernelOps<D> {
    /// The plan that [`reference::ops::Ops::sparse_mla_decode`] follows for these operands.
    ///
    /// # Errors
    /// When the device has no PTX of the operation.
    pub fn sparse_mla_plan(&self, args: &SparseMlaDecode<'_, D::Buffer>) -> Result<SparseMlaPlan, OpsError> {
        let variant = self.choose(Operation::SparseMlaDecode)?.variant;
        let rows = args.window.width + args.compressed.as_ref().map_or(0, |list| list.width);
        let num_sms = self.properties().num_sms;
        let mut plan = SparseMlaPlan::new(num_sms, args.t, args.h, rows, tile_rows(variant, args.format));
        if let Some(splits) = args.num_splits {
            plan.num_splits = splits;
        }
        Ok(plan)
    }
}

/// The form of a kernel of `operation` for these operands, if there is one: rows and heads of a block.
pub(super) fn form<D: Device>(
    ops: &KernelOps<D>,
    operation: Operation,
    args: &SparseMlaDecode<'_, D::Buffer>,
) -> Result<String, OpsError> {
    ops.only_bf16(operation, args.dtype)?;
    ops.attention_heads(operation, args.h)?;
    match args.format {
        KvFormat::V4Fp8 | KvFormat::Bf16 => Ok(format!("{}_h{}", args.format.name(), head_tile(args.h))),
        KvFormat::F32 { .. } => Err(ops.unsupported(operation, "f32 rows; v4_fp8 and bf16 are offered".into())),
    }
}

/// Heads of a block for `h` heads.
pub(super) fn head_tile(h: u32) -> u32 {
    h.clamp(16, 64)
}

/// The operands as a kernel takes them, unsplit.
pub(super) fn params<D: Device>(device: &D, args: &SparseMlaDecode<'_, D::Buffer>) -> Sm120SparseMlaDecodeParams {
    let slots = |list: &SlotList<'_, D::Buffer>| device.address(list.slots) as *const i32;
    let lens = |list: &SlotList<'_, D::Buffer>| list.lens.map_or(std::ptr::null(), |l| device.address(l) as *const i32);
    let second = args.compressed.as_ref();
    let no_pages = Pages { num_pages: 0, page_size: 1, page_stride_bytes: 0 };
    Sm120SparseMlaDecodeParams {
        q: device.address(args.q) as *const _,
        window_kv: cache(device.address(args.window.cache.buffer), &args.window.cache.pages),
        compressed_kv: second
            .map_or_else(|| cache(0, &no_pages), |list| cache(device.address(list.cache.buffer), &list.cache.pages)),
        window_slots: slots(&args.window),
        topk_slots: second.map_or(std::ptr::null(), slots),
        window_lens: lens(&args.window),
        topk_lens: second.map_or(std::ptr::null(), lens),
        attn_sink: args.attn_sink.map_or(std::ptr::null(), |sink| device.address(sink) as *const _),
        out: device.address(args.out) as *mut _,
        lse: device.address(args.lse) as *mut _,
        o_partial: std::ptr::null_mut(),
        lse2_partial: std::ptr::null_mut(),
        stride_q_t: args.stride_q[0] as i64,
        stride_q_h: args.stride_q[1] as i64,
        stride_out_t: args.stride_out[0] as i64,
        stride_out_h: args.stride_out[1] as i64,
        stride_window_slots: args.window.stride_slots as i64,
        stride_topk_slots: second.map_or(0, |list| list.stride_slots as i64),
        t: args.t as i32,
        h: args.h as i32,
        window_topk: args.window.width as i32,
        topk: second.map_or(0, |list| list.width as i32),
        num_splits: 1,
        sm_scale: args.sm_scale,
    }
}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: SparseMlaDecode<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    let form = form(ops, Operation::SparseMlaDecode, &args)?;
    if args.t == 0 {
        return Ok(());
    }
    let plan = ops.sparse_mla_plan(&args)?;
    let partial_rows = u64::from(plan.num_splits) * u64::from(args.t) * u64::from(args.h);
    if plan.num_splits > 1 && partial_rows > i32::MAX as u64 {
        return Err(OpsError::Operand {
            op: Operation::SparseMlaDecode.name(),
            tensor: "num_splits * t * h",
            expected: format!("at most {}", i32::MAX),
            got: partial_rows.to_string(),
        });
    }
    let scratch = |rows: u64, label| ops.scratch(label, if plan.num_splits > 1 { 4 * rows } else { 0 });
    let o_partial = scratch(partial_rows * D_KV as u64, "o_partial")?;
    let lse2_partial = scratch(partial_rows, "lse2_partial")?;
    let params = Sm120SparseMlaDecodeParams {
        o_partial: device.address(&o_partial) as *mut _,
        lse2_partial: device.address(&lse2_partial) as *mut _,
        num_splits: plan.num_splits as i32,
        ..params(device, &args)
    };
    let grid = [args.t * plan.num_splits, args.h.div_ceil(plan.head_tile), 1];
    ops.run(Operation::SparseMlaDecode, &form, grid, &params)?;
    if plan.num_splits == 1 {
        return Ok(());
    }
    let merge = SplitCombine {
        o_partial: &*o_partial,
        lse2_partial: &*lse2_partial,
        attn_sink: args.attn_sink,
        out: args.out,
        lse: args.lse,
        t: args.t,
        h: args.h,
        num_splits: plan.num_splits,
        stride_out: args.stride_out,
    };
    split_combine::launch(ops, merge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::formats::{e4m3_decode, e4m3_encode};

    fn plan(t: u32, h: u32, rows: u32) -> SparseMlaPlan {
        SparseMlaPlan::new(188, t, h, rows, 32)
    }

    #[test]
    fn heads_of_a_block() {
        let tiles: Vec<u32> = [8, 16, 32, 64, 128].map(|h| plan(1, h, 640).head_tile).into();
        assert_eq!(tiles, [16, 16, 32, 64, 64]);
    }

    #[test]
    fn a_single_token_is_cut_to_single_tiles() {
        assert_eq!(plan(1, 64, 640).num_splits, 20);
    }

    #[test]
    fn splits_fill_the_sms_once_at_most() {
        for t in 1..400 {
            for rows in [0, 1, 31, 32, 128, 640, 1_152, 8_320] {
                let splits = plan(t, 64, rows).num_splits;
                assert!(splits == 1 || t * splits <= 188, "t {t}, rows {rows}: {splits} splits");
                assert!(splits <= rows.div_ceil(32).max(1), "t {t}, rows {rows}: {splits} splits");
            }
        }
        assert_eq!(plan(32, 64, 640).num_splits, 5);
        assert_eq!(plan(188, 64, 640).num_splits, 1);
    }

    /// The numerics of `q . k` in the SM120 variant: what two e4m3 make of every bf16 that its block scale lets through.
    #[test]
    fn two_e4m3_hold_every_bf16_of_a_scaled_block() {
        for bits in 0..=u16::MAX {
            let x = f32::from_bits(u32::from(bits) << 16);
            if x.is_nan() || x.abs() > 448.0 {
                continue;
            }
            let hi = e4m3_decode(e4m3_encode(x));
            let lo = e4m3_decode(e4m3_encode(16.0 * (x - hi)));
            let error = (hi + lo / 16.0 - x).abs();
            let bound = if x.abs() >= 2f32.powi(-6) { 0.0 } else { 2f32.powi(-14) };
            assert!(error <= bound, "{x:e}: hi {hi:e}, lo {lo:e}, error {error:e}, bound {bound:e}");
        }
    }
}
