//! Writer of index-K rows.

use reference::ops::{IndexKFormat, IndexKWrite, ScaleRule};

use super::numbers::{clamped_amax, from_ue8m0, power_of_two_above, s32_at, to_e4m3, widen_bf16};
use super::{HostBuffer, page_start, place};

const CHANNELS: usize = 128;

pub(super) fn run(args: IndexKWrite<'_, HostBuffer>) {
    let page_size = args.pages.page_size as usize;
    for token in 0..args.t as usize {
        let Some((page, row)) = place(&args.pages, s32_at(&args.slot_mapping.bytes, token)) else { continue };
        let from = 2 * token * args.stride_rows as usize;
        let given = &args.rows.bytes[from..from + 2 * CHANNELS];
        let page = &mut args.cache.bytes[page_start(&args.pages, page)..];
        match args.format {
            IndexKFormat::Bf16 => page[2 * CHANNELS * row..2 * CHANNELS * (row + 1)].copy_from_slice(given),
            IndexKFormat::Fp8 => {
                let mut values = [0.0; CHANNELS];
                widen_bf16(given, &mut values);
                let exact = clamped_amax(&values) / 448.0;
                let scale = match args.scale_rule {
                    ScaleRule::Exact => exact,
                    ScaleRule::PowerOfTwo => from_ue8m0(power_of_two_above(exact)),
                };
                let (codes, scales) = page.split_at_mut(CHANNELS * page_size);
                let codes = &mut codes[CHANNELS * row..CHANNELS * (row + 1)];
                codes.iter_mut().zip(values).for_each(|(code, x)| *code = to_e4m3(x / scale));
                scales[4 * row..4 * (row + 1)].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
}
