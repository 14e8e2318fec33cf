//! `index_logits_decode` on a device.
//!
//! The kernel is persistent: one block per SM, each with an equal share of the 64-key tiles of the batch. It derives the
//! shares from the lengths in device memory, so nothing is copied to the host and a captured launch replays with other
//! lengths. A [`SplitPlan`] made on the host overrides the shares.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::{Sm120IndexLogitsDecodeParams, Sm120PagedCache};
use reference::layout::INDEX_HEADS;
use reference::ops::{IndexKFormat, IndexLogitsDecode, OpsError, Paged};

/// Keys of a work tile: consecutive keys of one sequence, for all its queries.
const TILE_KEYS: u32 = 64;

// SAFETY: 104 bytes of fields in 104 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120IndexLogitsDecodeParams {}

/// Which tiles every block works on. Tiles are numbered over the batch: those of sequence 0 first, `ceil(n / 64)` for each
/// with `n` the largest length among its queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitPlan {
    first_tiles: Vec<i32>,
}

impl SplitPlan {
    /// Equal shares: the plan that the kernel makes for itself. `context_lens` is `[b, s_q]` and `max_rows` what a block
    /// table line can hold, `max_pages * page_size`; lengths are clamped to `0..=max_rows`.
    ///
    /// # Panics
    /// When `s_q` or `blocks` is 0.
    pub fn even(context_lens: &[i32], s_q: u32, max_rows: u32, blocks: u32) -> Self {
        assert!(s_q > 0 && blocks > 0, "s_q and blocks: expected at least 1, got {s_q} and {blocks}");
        let tiles: u64 = context_lens
            .chunks(s_q as usize)
            .map(|lens| lens.iter().map(|&len| len.max(0).unsigned_abs().min(max_rows)).max().unwrap_or(0))
            .map(|rows| u64::from(rows.div_ceil(TILE_KEYS)))
            .sum();
        let (each, more) = (tiles / u64::from(blocks), tiles % u64::from(blocks));
        let first = |block: u32| (each * u64::from(block) + more.min(u64::from(block))) as i32;
        Self { first_tiles: (0..=blocks).map(first).collect() }
    }

    /// The plan with these first tiles, one per block and the total at the end. Tiles outside the plan are not computed;
    /// the kernel cuts off what the batch does not have.
    pub fn from_first_tiles(first_tiles: Vec<i32>) -> Self {
        Self { first_tiles }
    }

    /// First tile of every block, then the total: `[blocks + 1]`.
    pub fn first_tiles(&self) -> &[i32] {
        &self.first_tiles
    }

    /// Blocks of the grid that the plan is for.
    pub fn blocks(&self) -> u32 {
        self.first_tiles.len().saturating_sub(1) as u32
    }
}

/// Grid of a launch that plans for itself: all SMs, or fewer when not even the longest lengths would occupy them.
fn blocks(num_sms: u32, b: u32, max_rows: u32) -> u32 {
    let tiles = u64::from(b) * u64::from(max_rows.div_ceil(TILE_KEYS));
    num_sms.clamp(1, u32::try_from(tiles.max(1)).unwrap_or(u32::MAX))
}

fn params<D: Device>(device: &D, args: &IndexLogitsDecode<'_, D::Buffer>) -> Sm120IndexLogitsDecodeParams {
    Sm120IndexLogitsDecodeParams {
        index_q: device.address(args.index_q) as *const _,
        index_weights: device.address(args.index_weights) as *const _,
        index_k: cache(device, &args.index_k),
        block_table: device.address(args.block_table) as *const _,
        context_lens: device.address(args.context_lens) as *const _,
        index_logits: device.address(args.index_logits) as *mut _,
        split_plan: std::ptr::null(),
        stride_block_table: args.stride_block_table as i64,
        stride_logits: args.stride_logits as i64,
        b: args.b as i32,
        s_q: args.s_q as i32,
        max_pages: args.max_pages as i32,
        clean_logits: i32::from(args.clean_logits),
    }
}

/// The form of a kernel of `operation` for these keys, if there is one.
pub(super) fn form<D: Device>(
    ops: &KernelOps<D>,
    operation: Operation,
    format: IndexKFormat,
    index_heads: u32,
) -> Result<&'static str, OpsError> {
    if index_heads as usize != INDEX_HEADS {
        return Err(ops.unsupported(operation, format!("{index_heads} heads; {INDEX_HEADS} are offered")));
    }
    match format {
        IndexKFormat::Fp8 => Ok("fp8"),
        IndexKFormat::Bf16 => Ok("bf16"),
        IndexKFormat::Fp4 => Ok("fp4"),
        IndexKFormat::F32 { .. } => Err(ops.unsupported(operation, "f32 rows; fp8, bf16 and fp4 are offered".into())),
    }
}

/// The pages of index keys as a kernel takes them.
pub(super) fn cache<D: Device>(device: &D, index_k: &Paged<'_, D::Buffer>) -> Sm120PagedCache {
    Sm120PagedCache {
        data: device.address(index_k.buffer) as *const _,
        page_stride_bytes: index_k.pages.page_stride_bytes as i64,
        num_pages: index_k.pages.num_pages as i32,
        page_size: index_k.pages.page_size as i32,
    }
}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: IndexLogitsDecode<'_, D::Buffer>) -> Result<(), OpsError> {
    let form = form(ops, Operation::IndexLogitsDecode, args.format, args.index_heads)?;
    if args.b == 0 {
        return Ok(());
    }
    let max_rows = args.max_pages * args.index_k.pages.page_size;
    let grid = [blocks(ops.properties().num_sms, args.b, max_rows), 1, 1];
    ops.run(Operation::IndexLogitsDecode, form, grid, &params(ops.device(), &args))
}

impl<D: Device> KernelOps<D> {
    /// Index logits with the shares of `plan`, whose first tiles lie in `split_plan` (`[plan.blocks() + 1]` s32) on the
    /// device. The result is the same for every plan that covers the batch.
    ///
    /// # Errors
    /// As [`reference::ops::Ops::index_logits_decode`], and when `split_plan` is too small.
    pub fn index_logits_decode_planned(
        &self,
        args: IndexLogitsDecode<'_, D::Buffer>,
        plan: &SplitPlan,
        split_plan: &D::Buffer,
    ) -> Result<(), OpsError> {
        args.check(|buffer| self.device().len_bytes(buffer))?;
        let form = form(self, Operation::IndexLogitsDecode, args.format, args.index_heads)?;
        let (expected, got) = (4 * plan.first_tiles.len() as u64, self.device().len_bytes(split_plan));
        if plan.blocks() == 0 || got < expected {
            return Err(OpsError::Operand {
                op: Operation::IndexLogitsDecode.name(),
                tensor: "split_plan",
                expected: format!("at least one block and {expected} bytes"),
                got: format!("{} blocks and {got} bytes", plan.blocks()),
            });
        }
        let mut params = params(self.device(), &args);
        params.split_plan = self.device().address(split_plan) as *const _;
        self.run(Operation::IndexLogitsDecode, form, [plan.blocks(), 1, 1], &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_a_known_batch() {
        // 2 + 0 + 1 + 4 tiles: lens 65..128 make two, 0 none, 1..64 one, 193..256 four.
        let plan = SplitPlan::even(&[65, 0, 64, 256], 1, 1 << 20, 3);
        assert_eq!(plan.first_tiles(), [0, 3, 5, 7]);
        assert_eq!(plan.blocks(), 3);
    }

    #[test]
    fn a_sequence_is_as_long_as_its_longest_query() {
        assert_eq!(SplitPlan::even(&[1, 129, 64, 0, 0, 0], 3, 1 << 20, 1).first_tiles(), [0, 3]);
    }

    #[test]
    fn lengths_are_clamped() {
        assert_eq!(SplitPlan::even(&[-5, i32::MIN, i32::MAX], 1, 640, 2).first_tiles(), [0, 5, 10]);
    }

    #[test]
    fn grid_follows_the_sms_and_the_longest_batch() {
        assert_eq!(blocks(188, 32, 32_768), 188);
        assert_eq!(blocks(188, 1, 640), 10);
        assert_eq!(blocks(188, 187, 64), 187);
        assert_eq!(blocks(188, 188, 64), 188);
        assert_eq!(blocks(188, 189, 64), 188);
        assert_eq!(blocks(188, 3, 0), 1);
    }

    proptest! {
        #[test]
        fn even_shares_differ_by_one_tile_at_most(
            lens in prop::collection::vec(-10..5000i32, 1..40), blocks in 1..300u32
        ) {
            let plan = SplitPlan::even(&lens, 1, 4096, blocks);
            let tiles: i32 = lens.iter().map(|&len| (len.clamp(0, 4096) + 63) / 64).sum();
            let shares: Vec<i32> = plan.first_tiles().windows(2).map(|w| w[1] - w[0]).collect();
            prop_assert_eq!(plan.first_tiles()[0], 0);
            prop_assert_eq!(shares.iter().sum::<i32>(), tiles);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            prop_assert!(shares.is_sorted_by(|a, b| a >= b));
        }
    }
}
