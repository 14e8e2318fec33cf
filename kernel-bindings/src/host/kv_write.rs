//! Writer of KV rows: one row at a time, since slots may lie anywhere.

use reference::ops::{Dtype, KvFormat, KvWrite};

use super::numbers::{clamped_amax, convert, from_ue8m0, load, power_of_two_above, s32_at, to_e4m3};
use super::simd::widest;
use super::{HostBuffer, page_start, place};

const NOPE: usize = 448;
const TILE: usize = 64;

pub(super) fn run(args: KvWrite<'_, HostBuffer>) {
    let page_size = args.pages.page_size as usize;
    let (d, size) = (args.format.d() as usize, args.dtype.bytes() as usize);
    for token in 0..args.t as usize {
        let Some((page, row)) = place(&args.pages, s32_at(&args.slot_mapping.bytes, token)) else { continue };
        let from = size * token * args.stride_rows as usize;
        let given = &args.rows.bytes[from..from + size * d];
        let page = &mut args.cache.bytes[page_start(&args.pages, page)..];
        match args.format {
            KvFormat::Bf16 => convert(args.dtype, Dtype::Bf16, given, &mut page[2 * d * row..2 * d * (row + 1)]),
            KvFormat::F32 { .. } => convert(args.dtype, Dtype::F32, given, &mut page[4 * d * row..4 * d * (row + 1)]),
            KvFormat::V4Fp8 => {
                let (data, footers) = page.split_at_mut(576 * page_size);
                let data = &mut data[576 * row..576 * (row + 1)];
                let footer = &mut footers[8 * row..8 * (row + 1)];
                let mut values = [0.0; NOPE];
                load(args.dtype, &given[..size * NOPE], &mut values);
                for (tile, values) in values.chunks_exact(TILE).enumerate() {
                    footer[tile] = power_of_two_above(clamped_amax(values) / 448.0);
                    let scale = from_ue8m0(footer[tile]);
                    let codes = &mut data[tile * TILE..(tile + 1) * TILE];
                    widest(|| {
                        for (code, x) in codes.iter_mut().zip(values) {
                            *code = to_e4m3(x / scale);
                        }
                    });
                }
                footer[7] = 0;
                convert(args.dtype, Dtype::Bf16, &given[size * NOPE..], &mut data[NOPE..]);
            }
        }
    }
}
