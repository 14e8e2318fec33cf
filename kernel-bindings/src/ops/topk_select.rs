//! `topk_select` on a device: one block per row, more for long rows when the batch leaves SMs idle.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120TopkSelectParams;
use reference::ops::{OpsError, TopkSelect};

/// Entries that a block holds in registers: rows up to here have one block.
const TILE: u64 = 32_768;
/// Entries of a slice of a longer row, at least about.
const SLICE: u64 = TILE / 2;
/// Arrival counters of the blocks of a row: zeros between launches, every launch leaves them so.
const ARRIVALS: &str = "split_arrivals";
/// Blocks per row that the kernel accepts.
const MAX_SPLITS: u32 = 64;

// SAFETY: 128 bytes of fields in 128 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120TopkSelectParams {}

/// Blocks per row: slices of [`SLICE`] entries as far as there are SMs for them. Lengths stand in device memory, so the
/// longest possible row decides; a block that its row does not need ends at once.
fn splits(num_sms: u32, rows: u32, stride_logits: u64) -> u32 {
    if stride_logits <= TILE {
        return 1;
    }
    let slices = u32::try_from(stride_logits.div_ceil(SLICE)).unwrap_or(u32::MAX);
    (num_sms / rows.max(1)).min(slices).clamp(1, MAX_SPLITS)
}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: TopkSelect<'_, D::Buffer>) -> Result<(), OpsError> {
    let num_splits = splits(ops.properties().num_sms, args.rows, args.stride_logits);
    launch_split(ops, args, num_splits)
}

impl<D: Device> KernelOps<D> {
    /// Top-k with `num_splits` blocks per row (1 to 64). Rows of up to 32,768 entries have one all the same. The result
    /// does not depend on it.
    ///
    /// # Errors
    /// As [`reference::ops::Ops::topk_select`], and when `num_splits` is out of range or the scratch cannot be allocated.
    pub fn topk_select_split(&self, args: TopkSelect<'_, D::Buffer>, num_splits: u32) -> Result<(), OpsError> {
        args.check(|buffer| self.device().len_bytes(buffer))?;
        if !(1..=MAX_SPLITS).contains(&num_splits) {
            return Err(OpsError::Operand {
                op: Operation::TopkSelect.name(),
                tensor: "num_splits",
                expected: format!("1 to {MAX_SPLITS}"),
                got: num_splits.to_string(),
            });
        }
        launch_split(self, args, num_splits)
    }
}

fn launch_split<D: Device>(
    ops: &KernelOps<D>,
    args: TopkSelect<'_, D::Buffer>,
    num_splits: u32,
) -> Result<(), OpsError> {
    let device = ops.device();
    let grid = [args.rows, num_splits, 1];
    if args.rows == 0 {
        return Ok(());
    }

    let address = |buffer: Option<&D::Buffer>| buffer.map_or(0, |buffer| device.address(buffer));
    let mut params = Sm120TopkSelectParams {
        index_logits: device.address(args.index_logits) as *const _,
        context_lens: device.address(args.context_lens) as *const _,
        block_table: address(args.block_table) as *const _,
        sequence_of_row: address(args.sequence_of_row) as *const _,
        topk_positions: address(args.topk_positions.as_deref()) as *mut _,
        topk_slots: address(args.topk_slots.as_deref()) as *mut _,
        topk_lens: address(args.topk_lens.as_deref()) as *mut _,
        split_values: std::ptr::null_mut(),
        split_positions: std::ptr::null_mut(),
        split_arrivals: std::ptr::null_mut(),
        stride_logits: args.stride_logits as i64,
        stride_block_table: args.stride_block_table as i64,
        rows: args.rows as i32,
        rows_per_sequence: args.rows_per_sequence.max(1) as i32,
        num_sequences: match args.sequence_of_row {
            Some(_) => args.num_sequences as i32,
            None => (args.rows / args.rows_per_sequence) as i32,
        },
        num_splits: num_splits as i32,
        topk: args.topk as i32,
        page_size: args.page_size as i32,
        max_pages: args.max_pages as i32,
        reserved: 0,
    };
    if num_splits == 1 {
        return ops.run(Operation::TopkSelect, "", grid, &params);
    }

    let per_row = u64::from(num_splits * args.topk).next_multiple_of(4);
    let scratch = |label| ops.scratch(label, 4 * u64::from(args.rows) * per_row);
    let (values, positions) = (scratch("split_values")?, scratch("split_positions")?);
    let arrivals = ops.zeros(ARRIVALS, 4 * u64::from(args.rows))?;
    params.split_values = device.address(&values) as *mut _;
    params.split_positions = device.address(&positions) as *mut _;
    params.split_arrivals = device.address(&arrivals) as *mut _;
    // A launch that failed may leave counts behind.
    ops.run(Operation::TopkSelect, "", grid, &params).inspect_err(|_| ops.drop_scratch(ARRIVALS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_split_when_sms_are_idle_and_rows_long() {
        assert_eq!(splits(188, 32, 32_768), 1);
        assert_eq!(splits(188, 32, 33_024), 3);
        assert_eq!(splits(188, 32, 1 << 20), 5);
        assert_eq!(splits(188, 1, 1 << 20), 64);
        assert_eq!(splits(188, 200, 1 << 20), 1);
        assert_eq!(splits(188, 0, 1 << 20), 64);
    }
}
