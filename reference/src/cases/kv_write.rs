//! Cases of `kv_write`: scales at their thresholds, ties, NaN and infinities, skipped tokens, padded strides.

use super::Size;
use super::write::{Rows, Shape};
use crate::cases::Draw;
use crate::ops::{Dtype, KvFormat};
use crate::problem::{Problem, RowFormat};
use crate::suite::Case;

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let variants = [
        ("v4_fp8", Dtype::Bf16, KvFormat::V4Fp8),
        ("bf16", Dtype::Bf16, KvFormat::Bf16),
        ("f32_80", Dtype::Bf16, KvFormat::F32 { d: 80 }),
        ("f32_to_v4_fp8", Dtype::F32, KvFormat::V4Fp8),
        ("f32_to_bf16", Dtype::F32, KvFormat::Bf16),
        ("f32_to_f32_512", Dtype::F32, KvFormat::F32 { d: 512 }),
        ("f32_to_f32_80", Dtype::F32, KvFormat::F32 { d: 80 }),
    ];
    for (name, dtype, format) in variants {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let shape = Shape { dtype, ..shape };
            let virtual_pool = shape.first_page > 0;
            let case =
                Case::new("kv_write", format!("{name}/{what}"), size, move |seed| Problem::Write(shape.build(seed)));
            cases.push(if virtual_pool { case.in_virtual_pool() } else { case });
        };
        let of = |t, rows| Shape::of(RowFormat::Kv(format), t, rows);
        let random = Rows::Random(Draw::Normal);
        use Size::{Full, Quick};
        add(Quick, "random_17_tokens", of(17, random));
        add(Quick, "one_token", Shape { skipped: 0.0, ..of(1, random) });
        add(Quick, "empty_batch", of(0, random));
        add(Quick, "all_skipped", Shape { skipped: 1.0, ..of(9, random) });
        add(Quick, "thresholds", of(24, Rows::Thresholds));
        add(Quick, "small_rows", of(10, Rows::Small));
        add(Quick, "ties", of(12, Rows::Ties));
        add(Quick, "not_finite", of(14, Rows::NotFinite));
        add(Quick, "extremes", of(9, Rows::Extremes));
        add(Quick, "heavy_tails", of(12, Rows::Random(Draw::Heavy)));
        add(Quick, "padded_strides", Shape { page_pad: 576, stride_pad: 40, ..of(9, random) });
        if dtype == Dtype::F32 {
            add(Quick, "odd_stride", Shape { stride_pad: 3, ..of(5, random) });
        }
        for page_size in [2, 61, 69, 256, 576] {
            add(Quick, &format!("page_of_{page_size}_rows"), Shape { page_size, ..of(7, random) });
        }
        add(Full, "700_tokens", of(700, Rows::Thresholds));
        add(Full, "700_tokens_heavy_tails", Shape { page_size: 256, ..of(700, Rows::Random(Draw::Heavy)) });
        let first_page = ((1u64 << 32) / format.page_stride_bytes(64)) as u32;
        add(Full, "pages_past_4_gib", Shape { first_page, ..of(40, random) });
    }
    cases
}
