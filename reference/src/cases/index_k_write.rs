//! Cases of `index_k_write`: every format and scale rule at its thresholds, ties, NaN and infinities, skipped tokens.

use super::Size;
use super::write::{Rows, Shape};
use crate::cases::Draw;
use crate::ops::{Dtype, IndexKFormat, ScaleRule};
use crate::problem::{Problem, RowFormat};
use crate::suite::Case;

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let variants = [
        ("fp8", Dtype::Bf16, IndexKFormat::Fp8, ScaleRule::Exact),
        ("fp8_power_of_two", Dtype::Bf16, IndexKFormat::Fp8, ScaleRule::PowerOfTwo),
        ("bf16", Dtype::Bf16, IndexKFormat::Bf16, ScaleRule::Exact),
        ("fp4", Dtype::Bf16, IndexKFormat::Fp4, ScaleRule::Exact),
        ("f32_64", Dtype::Bf16, IndexKFormat::F32 { d: 64 }, ScaleRule::Exact),
        ("f32_to_fp8", Dtype::F32, IndexKFormat::Fp8, ScaleRule::Exact),
        ("f32_to_fp8_power_of_two", Dtype::F32, IndexKFormat::Fp8, ScaleRule::PowerOfTwo),
        ("f32_to_bf16", Dtype::F32, IndexKFormat::Bf16, ScaleRule::Exact),
        ("f32_to_fp4", Dtype::F32, IndexKFormat::Fp4, ScaleRule::Exact),
        ("f32_to_f32_128", Dtype::F32, IndexKFormat::F32 { d: 128 }, ScaleRule::Exact),
    ];
    for (name, dtype, format, scale_rule) in variants {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let shape = Shape { dtype, scale_rule, ..shape };
            let virtual_pool = shape.first_page > 0;
            let case = Case::new("index_k_write", format!("{name}/{what}"), size, move |seed| {
                Problem::Write(shape.build(seed))
            });
            cases.push(if virtual_pool { case.in_virtual_pool() } else { case });
        };
        let of = |t, rows| Shape::of(RowFormat::IndexK(format), t, rows);
        let random = Rows::Random(Draw::Normal);
        use Size::{Full, Quick};
        add(Quick, "random_17_tokens", of(17, random));
        add(Quick, "one_token", Shape { skipped: 0.0, ..of(1, random) });
        add(Quick, "empty_batch", of(0, random));
        add(Quick, "all_skipped", Shape { skipped: 1.0, ..of(9, random) });
        add(Quick, "thresholds", of(40, Rows::Thresholds));
        add(Quick, "small_rows", of(10, Rows::Small));
        add(Quick, "ties", of(12, Rows::Ties));
        add(Quick, "not_finite", of(14, Rows::NotFinite));
        add(Quick, "extremes", of(9, Rows::Extremes));
        add(Quick, "heavy_tails", of(12, Rows::Random(Draw::Heavy)));
        add(Quick, "padded_strides", Shape { page_pad: 48, stride_pad: 40, ..of(9, random) });
        if dtype == Dtype::F32 {
            add(Quick, "odd_stride", Shape { stride_pad: 3, ..of(5, random) });
        }
        for page_size in [2, 61, 256] {
            add(Quick, &format!("page_of_{page_size}_rows"), Shape { page_size, ..of(7, random) });
        }
        add(Full, "2000_tokens", of(2000, Rows::Thresholds));
        add(Full, "2000_tokens_heavy_tails", Shape { page_size: 256, ..of(2000, Rows::Random(Draw::Heavy)) });
        let first_page = ((1u64 << 32) / format.page_stride_bytes(64)) as u32;
        add(Full, "pages_past_4_gib", Shape { first_page, ..of(40, random) });
    }
    cases
}
