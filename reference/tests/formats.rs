//! Number formats over all bit patterns, against definitions written a second time: magnitudes by table or by formula,
//! encoding by search for the nearest value.

use proptest::prelude::*;
use reference::formats::*;
use reference::layout::{D_INDEX, NOPE_TILE};
use reference::ops::ScaleRule;

/// Nearest of `values` (ascending, index = code) to `x >= 0`, ties to the even code.
fn nearest(values: &[f64], x: f64) -> usize {
    let mut best = 0;
    for (code, &v) in values.iter().enumerate() {
        if x > v {
            best = code; // saturates at the last one
            continue;
        }
        let (here, so_far) = ((v - x).abs(), (values[best] - x).abs());
        if here < so_far || (here == so_far && code % 2 == 0) {
            best = code;
        }
    }
    best
}

/// Finite magnitudes of a format, ascending, built by counting up: each binade has `2^mantissa` equal steps.
fn magnitudes(mantissa: u32, least_exponent: i32, count: usize) -> Vec<f64> {
    let mut values = Vec::new();
    let mut value = 0.0;
    let mut step = 2f64.powi(least_exponent - mantissa as i32);
    for code in 0..count {
        values.push(value);
        value += step;
        let next = code + 1;
        if next >= (2 << mantissa) && next % (1 << mantissa) == 0 {
            step *= 2.0;
        }
    }
    values
}

fn check_small(name: &str, values: &[f64], sign: u8, decode: fn(u8) -> f32, encode: fn(f32) -> u8) {
    for (code, &v) in values.iter().enumerate() {
        assert_eq!(f64::from(decode(code as u8)), v, "{name} decode {code:#x}");
        assert_eq!(f64::from(decode(code as u8 | sign)), -v, "{name} decode {:#x}", code as u8 | sign);
        assert_eq!(encode(decode(code as u8)), code as u8, "{name} round trip");
        assert_eq!(encode(decode(code as u8 | sign)), code as u8 | sign, "{name} round trip, negative");
    }
    let check = |x: f32| {
        let want = nearest(values, f64::from(x.abs())) as u8 | if x.is_sign_negative() { sign } else { 0 };
        assert_eq!(encode(x), want, "{name} encode {x:e} ({:#010x})", x.to_bits());
    };
    for bits in 0..=u16::MAX {
        let x = bf16::from_bits(bits).to_f32();
        if !x.is_nan() {
            check(x);
        }
    }
    // around every threshold between two neighbours
    for pair in values.windows(2) {
        let middle = ((pair[0] + pair[1]) / 2.0) as f32;
        for x in [middle, f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1)] {
            check(x);
            check(-x);
        }
    }
    for x in [f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), 0.0, -0.0] {
        check(x);
    }
}

#[test]
fn e4m3_all_codes_all_bf16_all_thresholds() {
    let values = magnitudes(3, -6, 0x7f);
    assert_eq!(values[0x7e], 448.0);
    check_small("e4m3", &values, 0x80, e4m3_decode, e4m3_encode);
    assert!(e4m3_decode(0x7f).is_nan() && e4m3_decode(0xff).is_nan());
    assert_eq!(
        (e4m3_encode(f32::NAN) & 0x7f, e4m3_encode(f32::INFINITY), e4m3_encode(f32::NEG_INFINITY)),
        (0x7f, 0x7e, 0xfe)
    );
    for (code, value) in [(0x38, 1.0), (0x01, 0.001953125), (0x08, 0.015625), (0xc1, -2.25), (0x7e, 448.0)] {
        assert_eq!(e4m3_decode(code), value);
    }
}

#[test]
fn e5m2_all_codes_all_bf16_all_thresholds() {
    let values = magnitudes(2, -14, 0x7c);
    assert_eq!(values[0x7b], 57344.0);
    check_small("e5m2", &values, 0x80, e5m2_decode, e5m2_encode);
    assert_eq!((e5m2_decode(0x7c), e5m2_decode(0xfc)), (f32::INFINITY, f32::NEG_INFINITY));
    assert!((0x7d..=0x7f).all(|c| e5m2_decode(c).is_nan() && e5m2_decode(c | 0x80).is_nan()));
    assert_eq!((e5m2_encode(f32::NAN) & 0x7f, e5m2_encode(f32::INFINITY)), (0x7f, 0x7b));
}

#[test]
fn e2m1_all_codes_all_bf16_all_thresholds() {
    check_small("e2m1", &[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], 0x8, e2m1_decode, e2m1_encode);
    let given = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0];
    let want = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0];
    assert_eq!(given.map(|x| e2m1_decode(e2m1_encode(x))), want);
}

#[test]
fn ue8m0_all_bytes() {
    for byte in 0..=254u8 {
        assert_eq!(f64::from(ue8m0_decode(byte)), 2f64.powi(i32::from(byte) - 127), "byte {byte}");
        if byte > 0 {
            let value = ue8m0_decode(byte);
            assert_eq!(ue8m0_ceil(value), byte);
            assert_eq!(ue8m0_ceil(f32::from_bits(value.to_bits() + 1)), (byte + 1).min(254));
            if byte > 1 {
                assert_eq!(ue8m0_ceil(f32::from_bits(value.to_bits() - 1)), byte);
            }
        }
    }
    assert!(ue8m0_decode(255).is_nan());
    assert_eq!(ue8m0_ceil(f32::INFINITY), 254);
}

/// Sixteen-bit formats by definition.
fn half_value(bits: u16, exponent_bits: u32) -> f64 {
    let mantissa_bits = 15 - exponent_bits;
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let field = i32::from((bits & 0x7fff) >> mantissa_bits);
    let steps = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let magnitude = match field {
        0 => steps * 2f64.powi(1 - bias),
        f if f == (1 << exponent_bits) - 1 => {
            if steps == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        f => (1.0 + steps) * 2f64.powi(f - bias),
    };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

fn check_half(name: &str, exponent_bits: u32, decode: fn(u16) -> f32, encode: fn(f32) -> u16) {
    let infinity = ((1u16 << exponent_bits) - 1) << (15 - exponent_bits);
    for bits in 0..=u16::MAX {
        let (got, want) = (decode(bits), half_value(bits, exponent_bits));
        assert!(got.is_nan() == want.is_nan() && (want.is_nan() || f64::from(got) == want), "{name} {bits:#06x}");
        if !want.is_nan() {
            assert_eq!(encode(got), bits, "{name} round trip {bits:#06x}");
        }
        if bits & 0x7fff >= infinity {
            continue;
        }
        // around the threshold to the next larger magnitude; beyond the largest finite value that is infinity
        let next = match bits + 1 {
            n if n & 0x7fff == infinity => 2.0 * want - half_value(bits - 1, exponent_bits),
            n => half_value(n, exponent_bits),
        };
        let middle = ((want + next) / 2.0) as f32;
        if f64::from(middle) != (want + next) / 2.0 {
            continue; // the middle of two f32 subnormals is no f32
        }
        let up = bits + 1;
        assert_eq!(encode(middle), if bits % 2 == 0 { bits } else { up }, "{name} tie above {bits:#06x}");
        if middle.to_bits() & 0x7fff_ffff != 0 {
            assert_eq!(encode(f32::from_bits(middle.to_bits() - 1)), bits, "{name} below the tie above {bits:#06x}");
        }
        assert_eq!(encode(f32::from_bits(middle.to_bits() + 1)), up, "{name} above the tie above {bits:#06x}");
    }
    assert!(decode(encode(f32::NAN)).is_nan());
}

#[test]
fn bf16_all_patterns_and_thresholds() {
    check_half("bf16", 8, |b| bf16::from_bits(b).to_f32(), |x| bf16::from_f32(x).to_bits());
}

#[test]
fn f16_all_patterns_and_thresholds() {
    check_half("f16", 5, |b| f16::from_bits(b).to_f32(), |x| f16::from_f32(x).to_bits());
}

#[test]
fn nope_tile_check_value() {
    // 64 samples of a sine, amax 2.9813704: the scale is 2^-7.
    let tile: [f32; NOPE_TILE] = std::array::from_fn(|i| (3.0 * (0.7 * i as f64 + 0.3).sin()) as f32);
    let (scale, codes) = quantise_nope_tile(&tile);
    assert_eq!(scale, 120);
    let values: Vec<f32> = codes[..6].iter().map(|&c| e4m3_decode(c) * ue8m0_decode(scale)).collect();
    assert_eq!(values, [0.875, 2.5, 3.0, 2.0, 0.125, -1.875]);
}

#[test]
fn nope_scale_for_every_bf16_amax() {
    for bits in 0..0x7f80u16 {
        let a = bf16::from_bits(bits).to_f32();
        let mut tile = [0.0f32; NOPE_TILE];
        tile[17] = -a;
        let (scale, codes) = quantise_nope_tile(&tile);
        // The smallest power of two s with a / s <= 448, found by trying.
        let floored = f64::from(a.max(1e-4));
        let want = (0..=254).find(|&e| floored <= 448.0 * 2f64.powi(e - 127)).unwrap() as u8;
        assert_eq!(scale, want, "amax {a:e}");
        assert!(codes.iter().enumerate().all(|(i, &c)| i == 17 || c == 0));
        let back = f64::from(e4m3_decode(codes[17])) * 2f64.powi(i32::from(scale) - 127);
        let unit = (f64::from(a) / 16.0).max(f64::from(ue8m0_decode(scale)) / 1024.0);
        assert!((back + f64::from(a)).abs() <= unit * 1.000_001, "amax {a:e} came back as {back:e}");
    }
}

#[test]
fn nope_tile_oddities() {
    let mut tile = [0.0f32; NOPE_TILE];
    assert_eq!(quantise_nope_tile(&tile), (ue8m0_ceil(1e-4 / 448.0), [0; NOPE_TILE]));
    tile[0] = -0.0;
    tile[1] = f32::NAN;
    tile[2] = 448.0;
    let (scale, codes) = quantise_nope_tile(&tile);
    assert_eq!((scale, codes[0], codes[1] & 0x7f, codes[2]), (127, 0x80, 0x7f, 0x7e));
    tile[2] = f32::NEG_INFINITY;
    let (scale, codes) = quantise_nope_tile(&tile);
    assert_eq!((scale, codes[2]), (247, 0xfe), "an infinity counts as the largest finite number");
}

#[test]
fn index_row_scales() {
    let row: [f32; D_INDEX] = std::array::from_fn(|i| (i as f32 - 60.0) / 8.0); // amax 67 / 8
    let (exact, codes) = quantise_index_row(&row, ScaleRule::Exact);
    assert_eq!(exact, 8.375 / 448.0);
    assert_eq!(e4m3_decode(codes[127]), 448.0);
    let (pow2, codes) = quantise_index_row(&row, ScaleRule::PowerOfTwo);
    assert_eq!(pow2, 2f32.powi(-5));
    assert_eq!(e4m3_decode(codes[127]), 256.0, "268 lies between 256 and 288");
    let (scale, codes) = quantise_index_row(&[0.0; D_INDEX], ScaleRule::Exact);
    assert_eq!((scale, codes), (1e-4 / 448.0, [0; D_INDEX]));
}

#[test]
fn mxfp4_check_value() {
    let mut tile = [0.0f32; MXFP4_TILE];
    tile[..10].copy_from_slice(&[0.24, 0.26, -0.74, -0.76, 1.3, 2.4, 2.6, 3.6, 5.1, 7.0]);
    let (scale, codes) = quantise_mxfp4_tile(&tile);
    assert_eq!(scale, 128);
    let values: Vec<f32> = codes[..10].iter().map(|&c| e2m1_decode(c) * 2.0).collect();
    assert_eq!(values, [0.0, 0.0, -1.0, -1.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]);
    let (scale, _) = quantise_mxfp4_tile(&[0.0; MXFP4_TILE]);
    assert_eq!(scale, 1, "the floor 6 * 2^-126");
}

#[test]
#[allow(clippy::excessive_precision)] // digits as published
fn hadamard_check_value() {
    let out = hadamard(&std::array::from_fn(|i| i as f32));
    for (i, want) in [(0, 718.42053), (1, -5.6568542), (2, -11.313708), (3, 0.0), (4, -22.627417), (64, -362.03867)] {
        approx::assert_relative_eq!(out[i], want, max_relative = 1e-7);
    }
}

#[test]
fn hadamard_by_definition() {
    let mut rng = reference::rng::Rng::new(3);
    let row: [f32; D_INDEX] = std::array::from_fn(|_| rng.normal() as f32);
    for (i, got) in hadamard(&row).into_iter().enumerate() {
        let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let want = (0..D_INDEX).map(|j| sign(j) * f64::from(row[j])).sum::<f64>() / 128f64.sqrt();
        approx::assert_abs_diff_eq!(f64::from(got), want, epsilon = 1e-6);
    }
}

proptest! {
    #[test]
    fn small_floats_keep_order(a in any::<f32>(), b in any::<f32>()) {
        prop_assume!(!a.is_nan() && !b.is_nan());
        let (low, high) = if a <= b { (a, b) } else { (b, a) };
        prop_assert!(e4m3_decode(e4m3_encode(low)) <= e4m3_decode(e4m3_encode(high)));
        prop_assert!(e5m2_decode(e5m2_encode(low)) <= e5m2_decode(e5m2_encode(high)));
        prop_assert!(e2m1_decode(e2m1_encode(low)) <= e2m1_decode(e2m1_encode(high)));
    }

    #[test]
    fn quantised_rows_are_near(row in prop::array::uniform32(-1e4f32..1e4)) {
        let tile: [f32; NOPE_TILE] = std::array::from_fn(|i| row[i % 32]);
        let (scale, codes) = quantise_nope_tile(&tile);
        let s = ue8m0_decode(scale);
        for (x, c) in tile.iter().zip(codes) {
            // half a step of 3 mantissa bits, or of the subnormals
            let bound = (x.abs() / 16.0).max(s / 1024.0);
            prop_assert!((e4m3_decode(c) * s - x).abs() <= bound * 1.000_001);
        }
        let twice = quantise_nope_tile(&codes.map(|c| e4m3_decode(c) * s));
        prop_assert!(twice.1.iter().zip(codes).all(|(a, b)|
            e4m3_decode(*a) * ue8m0_decode(twice.0) == e4m3_decode(b) * s), "quantising twice changes nothing");
    }

    #[test]
    fn hadamard_is_its_own_inverse(seed in any::<u64>()) {
        let mut rng = reference::rng::Rng::new(seed);
        let row: [f32; D_INDEX] = std::array::from_fn(|_| rng.normal() as f32);
        let back = hadamard(&hadamard(&row));
        for (a, b) in row.iter().zip(back) {
            prop_assert!((a - b).abs() < 4e-6, "{a} came back as {b}");
        }
    }
}
