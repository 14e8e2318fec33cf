//! Faults of the writers of cache rows.

use reference::formats::s32s;
use reference::ops::*;
use reference::plain::{Bytes, ReferenceOps};

use super::{map_s32, rounded};

pub(super) const FAULTS: [(&str, &[&str]); 2] = [
    (
        "kv_write",
        &[
            "pad byte 1",
            "rope as zero",
            "slots wrap around",
            "rows packed",
            "page padding ignored",
            "tiny rows lost",
            "scale one up",
            "f32 rows rounded to bf16",
        ],
    ),
    (
        "index_k_write",
        &[
            "other scale rule",
            "slots wrap around",
            "rows packed",
            "page padding ignored",
            "last token lost",
            "f32 rows rounded to bf16",
            "nibbles swapped",
            "negative zeros lost",
        ],
    ),
];

pub(super) fn kv_write(fault: &str, mut args: KvWrite<'_, Bytes>) -> Result<(), OpsError> {
    let (mut slots, mut rows) = (args.slot_mapping.clone(), args.rows.clone());
    let all = args.pages.num_slots() as i32;
    match fault {
        "slots wrap around" => slots = map_s32(&slots, |s| if s >= all { s % all } else { s }),
        "rows packed" => args.stride_rows = u64::from(args.format.d()),
        "page padding ignored" => {
            args.pages.page_stride_bytes = args.format.page_stride_bytes(args.pages.page_size);
        }
        "f32 rows rounded to bf16" => rows = rounded(args.dtype, &rows),
        "rope as zero" if args.dtype == Dtype::Bf16 && args.format == KvFormat::V4Fp8 => {
            rows.chunks_mut(2 * args.stride_rows as usize).for_each(|r| r[896..1024].fill(0))
        }
        "tiny rows lost" if args.dtype == Dtype::Bf16 => {
            for x in rows.chunks_mut(2) {
                let value = reference::formats::bf16::from_le_bytes([x[0], x[1]]).to_f32();
                if value.abs() < 1e-4 {
                    x.fill(0);
                }
            }
        }
        _ => {}
    }
    let (format, pages) = (args.format, args.pages);
    let cache = args.cache;
    ReferenceOps.kv_write(KvWrite { slot_mapping: &slots, rows: &rows, cache, ..args })?;
    if format == KvFormat::V4Fp8 {
        for (page, row) in s32s(&slots).into_iter().filter_map(|slot| pages.locate(slot)) {
            let footer = reference::layout::v4_fp8_footer(&pages, page, row) as usize;
            match fault {
                "pad byte 1" => cache[footer + 7] = 1,
                "scale one up" => cache[footer + 3] += 1,
                _ => {}
            }
        }
    }
    Ok(())
}

pub(super) fn index_k_write(fault: &str, mut args: IndexKWrite<'_, Bytes>) -> Result<(), OpsError> {
    let (mut slots, mut rows) = (args.slot_mapping.clone(), args.rows.clone());
    let all = args.pages.num_slots() as i32;
    match fault {
        "slots wrap around" => slots = map_s32(&slots, |s| if s >= all { s % all } else { s }),
        "rows packed" => args.stride_rows = u64::from(args.format.d()),
        "page padding ignored" => {
            args.pages.page_stride_bytes = args.format.page_stride_bytes(args.pages.page_size);
        }
        "other scale rule" => {
            args.scale_rule = match args.scale_rule {
                ScaleRule::Exact => ScaleRule::PowerOfTwo,
                ScaleRule::PowerOfTwo => ScaleRule::Exact,
            };
        }
        "last token lost" => args.t = args.t.saturating_sub(1),
        "f32 rows rounded to bf16" => rows = rounded(args.dtype, &rows),
        _ => {}
    }
    let (format, pages, cache) = (args.format, args.pages, args.cache);
    ReferenceOps.index_k_write(IndexKWrite { slot_mapping: &slots, rows: &rows, cache, ..args })?;
    if format == IndexKFormat::Fp4 {
        for (page, row) in s32s(&slots).into_iter().filter_map(|slot| pages.locate(slot)) {
            let data = reference::layout::index_k_fp4_data(&pages, page, row) as usize;
            let codes = &mut cache[data..data + 64];
            let zero = |code: u8| if code == 8 { 0 } else { code };
            match fault {
                "nibbles swapped" => codes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4)),
                "negative zeros lost" => {
                    codes.iter_mut().for_each(|byte| *byte = zero(*byte & 15) | zero(*byte >> 4) << 4);
                }
                _ => {}
            }
        }
    }
    Ok(())
}
