//! Writer of index-K rows.

use reference::ops::{Dtype, IndexKFormat, IndexKWrite, ScaleRule};

use super::numbers::{clamped_amax, convert, fp4_row, from_ue8m0, load, power_of_two_above, s32_at, to_e4m3};
use super::simd::widest;
use super::{HostBuffer, page_start, place};

const CHANNELS: usize = 128;

pub(super) fn run(args: IndexKWrite<'_, HostBuffer>) {
    let page_size = args.pages.page_size as usize;
    let (d, size) = (args.format.d() as usize, args.dtype.bytes() as usize);
    for token in 0..args.t as usize {
        let Some((page, row)) = place(&args.pages, s32_at(&args.slot_mapping.bytes, token)) else { continue };
        let from = size * token * args.stride_rows as usize;
        let given = &args.rows.bytes[from..from + size * d];
        let page = &mut args.cache.bytes[page_start(&args.pages, page)..];
        match args.format {
            IndexKFormat::Bf16 => convert(args.dtype, Dtype::Bf16, given, &mut page[2 * d * row..2 * d * (row + 1)]),
            IndexKFormat::F32 { .. } => {
                convert(args.dtype, Dtype::F32, given, &mut page[4 * d * row..4 * d * (row + 1)]);
            }
            IndexKFormat::Fp8 => {
                let mut values = [0.0; CHANNELS];
                load(args.dtype, given, &mut values);
                let exact = clamped_amax(&values) / 448.0;
                let scale = match args.scale_rule {
                    ScaleRule::Exact => exact,
                    ScaleRule::PowerOfTwo => from_ue8m0(power_of_two_above(exact)),
                };
                // all scales of a page stand behind all its codes
                let (codes, scales) = page.split_at_mut(CHANNELS * page_size);
                let codes = &mut codes[CHANNELS * row..CHANNELS * (row + 1)];
                widest(|| {
                    for (code, x) in codes.iter_mut().zip(values) {
                        *code = to_e4m3(x / scale);
                    }
                });
                scales[4 * row..4 * (row + 1)].copy_from_slice(&scale.to_le_bytes());
            }
            IndexKFormat::Fp4 => {
                let mut values = [0.0; CHANNELS];
                load(args.dtype, given, &mut values);
                let (codes, scales) = page.split_at_mut(CHANNELS / 2 * page_size);
                let codes = &mut codes[CHANNELS / 2 * row..CHANNELS / 2 * (row + 1)];
                fp4_row(&values, codes, &mut scales[4 * row..4 * (row + 1)]);
            }
        }
    }
}
