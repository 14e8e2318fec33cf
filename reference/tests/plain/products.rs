//! Products and experts by hand, and by the check values of the model's description.

use reference::formats::{bf16_bytes, f32_bytes, f32s, s32_bytes};
use reference::ops::{Dtype, MoeExperts, Ops, Weight, WeightFormat};
use reference::plain::products::weight_row;
use reference::plain::{Bytes, ReferenceOps};

/// Codes and scales whose values are read off the definitions of the formats.
#[test]
fn weights_decode_by_row_and_block() {
    let f32s = f32_bytes(&(0..64).map(|i| i as f32).collect::<Vec<_>>());
    let weight = |format, data, scale| Weight { format, data, scale };
    assert_eq!(weight_row(&weight(WeightFormat::F32, &f32s, None), 1, 32)[..3], [32.0, 33.0, 34.0]);
    let bf16s = bf16_bytes(&(0..64).map(|i| i as f32).collect::<Vec<_>>());
    assert_eq!(weight_row(&weight(WeightFormat::Bf16, &bf16s, None), 1, 32)[..3], [32.0, 33.0, 34.0]);
    // 0x38 is 1, 0xb8 is -1: four blocks of a 130 x 160 matrix have scales 1, 2, 4 and 8.
    let codes: Bytes = (0..130 * 160).map(|i| if i % 2 == 0 { 0x38 } else { 0xb8 }).collect();
    let scales: Bytes = vec![127, 128, 129, 130];
    let fp8 = weight(WeightFormat::Fp8Block128, &codes, Some(&scales));
    let row = |r| weight_row(&fp8, r, 160);
    assert_eq!([row(127)[0], row(127)[1], row(127)[128], row(128)[126], row(129)[159]], [1.0, -1.0, 2.0, 4.0, -8.0]);
    // 0x2 is 1, 0xd is -3; the low half of a byte is the even input.
    let (codes, scales): (Bytes, Bytes) = (vec![0xd2; 2 * 32], vec![127, 126, 254, 255]);
    let fp4 = weight(WeightFormat::Fp4Block32, &codes, Some(&scales));
    let row = |r| weight_row(&fp4, r, 64);
    assert_eq!([row(0)[0], row(0)[1], row(0)[32], row(0)[63]], [1.0, -3.0, 0.5, -1.5]);
    assert_eq!([row(1)[0], row(1)[1]], [2f32.powi(127), f32::NEG_INFINITY]);
    assert!(row(1)[32].is_nan());
}

/// The activation's check values: an expert whose first gate and up row pass one channel on, each.
#[test]
fn clamped_gate_of_the_description() {
    let (d, inter) = (32, 32);
    let mut w13 = vec![0.0; 2 * inter * d];
    w13[0] = 1.0;
    w13[inter * d + 1] = 1.0;
    let mut w2 = vec![0.0; d * inter];
    w2[5 * inter] = 1.0;
    for ([a, b], want) in [([12.0, 3.0], 29.998638), ([-12.0, 11.0], -7.37301e-4), ([1.0, -20.0], -7.310586)] {
        let mut x = vec![0.0; d];
        x[..2].copy_from_slice(&[a, b]);
        let mut out = vec![0; 4 * d];
        let weight = |data| Weight { format: WeightFormat::F32, data, scale: None };
        ReferenceOps
            .moe_experts(MoeExperts {
                dtype: Dtype::F32,
                x: &f32_bytes(&x),
                expert_ids: &s32_bytes(&[4, 5, 4]),
                expert_weights: &f32_bytes(&[0.5, 100.0, 0.25]),
                w13: weight(&f32_bytes(&w13)),
                w2: weight(&f32_bytes(&w2)),
                out: &mut out,
                t: 1,
                d: d as u32,
                inter: inter as u32,
                topk: 3,
                first_expert: 4,
                num_experts: 1,
                limit: 10.0,
            })
            .unwrap();
        // Twice the expert that is here, nothing of the other.
        let out = f32s(&out);
        approx::assert_relative_eq!(out[5], 0.75 * want, max_relative = 3e-7);
        assert!(out.iter().enumerate().all(|(channel, &x)| channel == 5 || x == 0.0));
    }
}
