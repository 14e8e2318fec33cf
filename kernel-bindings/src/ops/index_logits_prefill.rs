//! `index_logits_prefill` on a device: blocks of eight queries of a sequence, and, where these are too few for the SMs, of a
//! share of their keys. Queries and ranges stand in device memory, so the grid is an upper bound; a block without work leaves.

use super::index_logits_decode::{cache, form};
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120IndexLogitsPrefillParams;
use reference::ops::{IndexLogitsPrefill, OpsError};

/// Queries of a block.
const QUERIES: u32 = 8;
/// Blocks per SM that are aimed at, so that uneven ranges even out.
const BLOCKS_PER_SM: u32 = 4;
/// Keys that a split has at least: 1,024 take some 60,000 cycles, the start of a block some 3,000.
const SPLIT_KEYS: u32 = 1_024;
/// What a launch can have in its second dimension.
const MAX_SPLITS: u32 = 65_535;

// SAFETY: 112 bytes of fields in 112 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120IndexLogitsPrefillParams {}

/// Blocks that `t` queries of `b` sequences need at most.
fn query_blocks(t: u32, b: u32) -> u32 {
    t / QUERIES + b
}

/// Shares that the keys of every block of queries are cut into: as many as give the SMs something to do. `columns` is the
/// longest that a range can be.
fn splits(num_sms: u32, query_blocks: u32, columns: u32) -> u32 {
    let wanted = (BLOCKS_PER_SM * num_sms).div_ceil(query_blocks.max(1));
    wanted.clamp(1, columns.div_ceil(SPLIT_KEYS).clamp(1, MAX_SPLITS))
}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: IndexLogitsPrefill<'_, D::Buffer>) -> Result<(), OpsError> {
    let columns = args.max_pages * args.index_k.pages.page_size;
    let splits = splits(ops.properties().num_sms, query_blocks(args.t, args.b), columns);
    launch_split(ops, &args, splits)
}

impl<D: Device> KernelOps<D> {
    /// Index logits of ragged queries with the keys of every block of queries cut into `splits` shares (1 to 65,535). The
    /// result does not depend on it.
    ///
    /// # Errors
    /// As [`reference::ops::Ops::index_logits_prefill`], and when `splits` is out of range.
    pub fn index_logits_prefill_split(
        &self,
        args: IndexLogitsPrefill<'_, D::Buffer>,
        splits: u32,
    ) -> Result<(), OpsError> {
        args.check(|buffer| self.device().len_bytes(buffer))?;
        if !(1..=MAX_SPLITS).contains(&splits) {
            return Err(OpsError::Operand {
                op: Operation::IndexLogitsPrefill.name(),
                tensor: "splits",
                expected: format!("1 to {MAX_SPLITS}"),
                got: splits.to_string(),
            });
        }
        launch_split(self, &args, splits)
    }
}

fn launch_split<D: Device>(
    ops: &KernelOps<D>,
    args: &IndexLogitsPrefill<'_, D::Buffer>,
    splits: u32,
) -> Result<(), OpsError> {
    let device = ops.device();
    let form = form(ops, Operation::IndexLogitsPrefill, args.format, args.index_heads)?;
    if args.t == 0 || args.b == 0 {
        return Ok(());
    }
    let params = Sm120IndexLogitsPrefillParams {
        index_q: device.address(args.index_q) as *const _,
        index_weights: device.address(args.index_weights) as *const _,
        index_k: cache(device, &args.index_k),
        block_table: device.address(args.block_table) as *const _,
        cu_seqlens_q: device.address(args.cu_seqlens_q) as *const _,
        starts: args.starts.map_or(std::ptr::null(), |starts| device.address(starts) as *const _),
        ends: device.address(args.ends) as *const _,
        index_logits: device.address(args.index_logits) as *mut _,
        stride_block_table: args.stride_block_table as i64,
        stride_logits: args.stride_logits as i64,
        t: args.t as i32,
        b: args.b as i32,
        max_pages: args.max_pages as i32,
        clean_logits: i32::from(args.clean_logits),
    };
    ops.run(Operation::IndexLogitsPrefill, form, [query_blocks(args.t, args.b), splits, 1], &params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_split_when_queries_are_few() {
        // 4,096 queries: 513 blocks of them, 752 wanted
        assert_eq!(splits(188, query_blocks(4_096, 1), 32_768), 2);
        assert_eq!(splits(188, query_blocks(8_192, 1), 32_768), 1);
        // 512 queries: 65 blocks
        assert_eq!(splits(188, query_blocks(512, 1), 32_768), 12);
        assert_eq!(splits(188, query_blocks(512, 1), 4_096), 4);
        assert_eq!(splits(188, query_blocks(1, 1), 1 << 30), 752);
        assert_eq!(splits(188, query_blocks(0, 0), 0), 1);
        assert_eq!(splits(100_000, query_blocks(1, 1), u32::MAX), MAX_SPLITS);
    }

    /// What the kernel counts on: sequence `s` has the blocks from `first / 8 + s` on, one more than whole eights of queries
    /// end in it.
    #[test]
    fn every_query_has_a_block() {
        for lens in [&[0u32, 1, 7, 8, 9, 0, 64, 130][..], &[1; 9], &[0; 5], &[8, 8, 8], &[15]] {
            for front in 0..9 {
                let mut first = front;
                for (s, &len) in (0..).zip(lens) {
                    let blocks = (first + len) / QUERIES + s + 1 - (first / QUERIES + s);
                    assert!(blocks * QUERIES >= len, "{lens:?}, {front} in front, sequence {s}");
                    first += len;
                }
                let (b, t) = (lens.len() as u32, first);
                assert!(t / QUERIES + b - front / QUERIES <= query_blocks(t, b));
            }
        }
    }
}
