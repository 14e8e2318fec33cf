//! Number formats and arithmetic against definitions: every bit pattern of the small formats, brackets for directed
//! rounding, tables of the PTX ISA for the special cases.

use proptest::prelude::*;
use ptx_emulator::ir::{Binary, Cmp, FloatClass, FloatMods, Rounding, Ternary, Type, Unary};
use ptx_emulator::num::{self, formats, soft};

const RN: Rounding = Rounding::Rn;

fn mods() -> FloatMods {
    FloatMods::default()
}

fn rounded(rounding: Rounding) -> FloatMods {
    FloatMods { rounding: Some(rounding), ..mods() }
}

/// The value of a pattern by the definition of binary floating point: `None` for what `specials` excludes.
fn by_definition(bits: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let sign = if bits >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let exponent = (bits >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let fraction = (bits & ((1 << mantissa_bits) - 1)) as f64 / (1u64 << mantissa_bits) as f64;
    sign * if exponent == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(exponent - bias) }
}

struct Small {
    ty: Type,
    packed: Type,
    bits: u32,
    exponent: u32,
    mantissa: u32,
    max: f64,
    nan: Option<u32>,
}

const SMALL: [Small; 5] = [
    Small { ty: Type::E4M3, packed: Type::E4M3x2, bits: 8, exponent: 4, mantissa: 3, max: 448.0, nan: Some(0x7f) },
    Small { ty: Type::E5M2, packed: Type::E5M2x2, bits: 8, exponent: 5, mantissa: 2, max: 57344.0, nan: Some(0x7f) },
    Small { ty: Type::E3M2, packed: Type::E3M2x2, bits: 6, exponent: 3, mantissa: 2, max: 28.0, nan: None },
    Small { ty: Type::E2M3, packed: Type::E2M3x2, bits: 6, exponent: 2, mantissa: 3, max: 7.5, nan: None },
    Small { ty: Type::E2M1, packed: Type::E2M1x2, bits: 4, exponent: 2, mantissa: 1, max: 6.0, nan: None },
];

/// All finite values of a small format with their patterns, positive ones, ascending.
fn positives(f: &Small) -> Vec<(f64, u32)> {
    (0..1u32 << (f.bits - 1))
        .map(|bits| (by_definition(bits, f.exponent, f.mantissa), bits))
        .filter(|x| x.0 <= f.max)
        .collect()
}

/// Nearest value, ties to the even pattern, saturated: by search.
fn nearest(f: &Small, x: f64) -> u32 {
    if x.is_nan() {
        return f.nan.unwrap_or((1 << (f.bits - 1)) - 1);
    }
    let sign = if x.is_sign_negative() { 1 << (f.bits - 1) } else { 0 };
    let magnitude = x.abs().min(f.max);
    let mut best = (f64::INFINITY, 0);
    for (value, bits) in positives(f) {
        let distance = (value - magnitude).abs();
        if distance < best.0 || (distance == best.0 && bits % 2 == 0) {
            best = (distance, bits);
        }
    }
    sign | best.1
}

#[test]
fn every_pattern_of_the_small_formats_decodes_by_definition() {
    for f in &SMALL {
        for bits in 0..1u32 << f.bits {
            let got = formats::decode(bits as u16, f.ty);
            let magnitude = bits & ((1 << (f.bits - 1)) - 1);
            let want = match f.ty {
                Type::E4M3 if magnitude == 0x7f => f64::NAN,
                Type::E5M2 if magnitude > 0x7c => f64::NAN,
                Type::E5M2 if bits == 0x7c => f64::INFINITY,
                Type::E5M2 if bits == 0xfc => f64::NEG_INFINITY,
                _ => by_definition(bits, f.exponent, f.mantissa),
            };
            let same = (got as f64).to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            assert!(same, "{:?} {bits:#x}: got {got}, expected {want}", f.ty);
        }
    }
    for bits in 0..=u16::MAX {
        let (got, want) = (formats::f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "f16 {bits:#x}: {got} {want}");
        let (got, want) = (formats::bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "bf16 {bits:#x}: {got} {want}");
    }
    for bits in 0..255u8 {
        assert_eq!(formats::ue8m0_to_f32(bits) as f64, 2f64.powi(bits as i32 - 127));
        assert_eq!(formats::ue8m0_to_f64(bits), 2f64.powi(bits as i32 - 127));
    }
    assert!(formats::ue8m0_to_f32(255).is_nan() && formats::ue8m0_to_f64(255).is_nan());
}

/// f32 values around everything that matters to a small format: its values, the middles, and their neighbours.
fn interesting(f: &Small) -> Vec<f32> {
    let values: Vec<f64> = positives(f).iter().map(|x| x.0).collect();
    let mut out =
        vec![f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-40, f.max as f32 * 1.03, f.max as f32 * 2.0];
    for pair in values.windows(2) {
        for x in [pair[0] as f32, ((pair[0] + pair[1]) / 2.0) as f32, pair[1] as f32] {
            out.extend([x, x.next_up(), x.next_down()]);
        }
    }
    out.extend(out.clone().iter().map(|x| -x));
    out
}

#[test]
fn encoding_to_small_formats_is_nearest_even_and_saturates() {
    for f in &SMALL {
        let spacing = if f.bits == 4 { 4 } else { 8 };
        for x in interesting(f) {
            let want = nearest(f, x as f64);
            let bits = x.to_bits() as u64;
            let got = num::cvt(f.packed, Type::F32, &rounded(RN), true, bits, Some(0)).unwrap();
            assert_eq!(got >> spacing, want as u64, "{:?} <- {x:e} ({:#x})", f.packed, x.to_bits());
            let got = num::cvt(f.packed, Type::F32, &rounded(RN), true, 0, Some(bits)).unwrap();
            assert_eq!(got, want as u64, "{:?} <- {x:e} in the lower element", f.packed);
            // The same through f16, whose values are a subset of f32.
            let half = half::f16::from_f32(x);
            let packed = (half.to_bits() as u64) << 16;
            let got = num::cvt(f.packed, Type::F16x2, &rounded(RN), true, packed, None).unwrap();
            assert_eq!(got >> spacing, nearest(f, half.to_f64()) as u64, "{:?} <- f16 {half}", f.packed);
            let relu = FloatMods { relu: true, ..rounded(RN) };
            let got = num::cvt(f.packed, Type::F32, &relu, true, bits, Some(0)).unwrap() >> spacing;
            let want = if x < 0.0 || x.to_bits() == 1 << 31 { 0 } else { want };
            assert_eq!(got, want as u64, "{:?}.relu <- {x:e}", f.packed);
        }
    }
}

#[test]
fn small_formats_widen_to_halves_exactly() {
    for f in &SMALL {
        for low in 0..1u32 << f.bits {
            let spacing = if f.bits == 4 { 4 } else { 8 };
            let packed = (low as u64) << spacing | 1;
            let got = num::cvt(Type::F16x2, f.packed, &rounded(RN), false, packed, None).unwrap();
            let upper = half::f16::from_bits((got >> 16) as u16);
            let want = formats::decode(low as u16, f.ty);
            assert!(upper.to_f32() == want || (want.is_nan() && got >> 16 == 0x7fff), "{:?} {low:#x}", f.packed);
            assert_eq!(half::f16::from_bits(got as u16).to_f64(), by_definition(1, f.exponent, f.mantissa));
        }
    }
}

#[test]
fn ue8m0_follows_the_rounding_of_its_power() {
    let up = |x: f32| {
        num::cvt(Type::UE8M0x2, Type::F32, &rounded(Rounding::Rp), true, x.to_bits() as u64, Some(0)).unwrap() >> 8
    };
    let down = |x: f32| {
        num::cvt(Type::UE8M0x2, Type::F32, &rounded(Rounding::Rz), true, x.to_bits() as u64, Some(0)).unwrap() >> 8
    };
    assert_eq!((up(1.0), down(1.0)), (127, 127));
    assert_eq!((up(1.5), down(1.5)), (128, 127));
    assert_eq!((up(1.0f32.next_up()), down(2.0f32.next_down())), (128, 127));
    assert_eq!((up(0.0), down(0.0)), (0, 0));
    // 2^-127 and less is 0; between 2^-127 and 2^-126 the direction decides.
    let smallest = 2f32.powi(-127);
    assert_eq!((up(smallest), up(smallest.next_up()), down(smallest.next_up())), (0, 1, 0));
    assert_eq!((up(-3.0), down(-3.0)), (129, 128));
    assert_eq!((up(f32::MAX), down(f32::MAX), up(f32::INFINITY)), (254, 254, 254));
    assert_eq!(up(f32::NAN), 255);
    let open = num::cvt(Type::UE8M0x2, Type::F32, &rounded(Rounding::Rp), false, f32::MAX.to_bits() as u64, Some(0));
    assert_eq!(open.unwrap() >> 8, 255);
    assert_eq!(num::cvt(Type::BF16x2, Type::UE8M0x2, &rounded(RN), false, 0x00ff, None), Some(0x0040_7fff));
    assert_eq!(num::cvt(Type::UE8M0x2, Type::BF16x2, &rounded(Rounding::Rp), true, 0x3f81_3f80, None), Some(0x807f));
}

#[test]
fn sixteen_bit_formats_round_like_the_definition() {
    for x in 0..=u16::MAX {
        // Values, middles and their neighbours of both formats.
        let a = half::f16::from_bits(x).to_f32();
        let b = half::bf16::from_bits(x).to_f32();
        for centre in [a, b] {
            let unit16 = half::f16::from_bits(x ^ 1).to_f32();
            let unit_b = half::bf16::from_bits(x ^ 1).to_f32();
            for y in [centre, centre.next_up(), (a + unit16) / 2.0, ((a + unit16) / 2.0).next_up(), (b + unit_b) / 2.0]
            {
                let want = half::f16::from_f32(y);
                let got = formats::f32_to_f16(y);
                assert!(got == want.to_bits() || (got == 0x7fff && want.is_nan()), "f16 <- {y:e} {got:#x}");
                let want = half::bf16::from_f32(y);
                let got = formats::f32_to_bf16(y);
                assert!(got == want.to_bits() || (got == 0x7fff && want.is_nan()), "bf16 <- {y:e} {got:#x}");
            }
        }
    }
}

#[test]
fn conversions_between_floats_keep_the_rules_of_the_isa() {
    let f32_to = |to, m: FloatMods, sat, x: f32| num::cvt(to, Type::F32, &m, sat, x.to_bits() as u64, None).unwrap();
    // 1 + 2^-11 is the middle between 1 and the next f16.
    let middle = 1.0 + 2f32.powi(-11);
    assert_eq!(f32_to(Type::F16, rounded(RN), false, middle), 0x3c00);
    assert_eq!(f32_to(Type::F16, rounded(Rounding::Rp), false, middle), 0x3c01);
    assert_eq!(f32_to(Type::F16, rounded(Rounding::Rz), false, -middle), 0xbc00);
    assert_eq!(f32_to(Type::F16, rounded(Rounding::Rm), false, -middle), 0xbc01);
    assert_eq!(f32_to(Type::F16, rounded(RN), false, 1e6), 0x7c00);
    assert_eq!(f32_to(Type::F16, rounded(RN), true, 1e6), 0x7bff);
    assert_eq!(f32_to(Type::F16, rounded(Rounding::Rz), false, -1e6), 0xfbff);
    assert_eq!(f32_to(Type::F16, rounded(RN), true, f32::NAN), 0x7fff);
    assert_eq!(f32_to(Type::BF16, FloatMods { relu: true, ..rounded(RN) }, false, -1.0), 0);
    assert_eq!(f32_to(Type::BF16, FloatMods { relu: true, ..rounded(RN) }, false, f32::NAN), 0x7fff);
    // tf32 keeps ten mantissa bits; rna takes the middle away from zero, rn to even.
    let tf32_middle = f32::from_bits(0x3f80_1000);
    assert_eq!(f32_to(Type::TF32, rounded(Rounding::Rna), false, tf32_middle), 0x3f80_2000);
    assert_eq!(f32_to(Type::TF32, rounded(Rounding::Rna), false, -tf32_middle), 0xbf80_2000);
    assert_eq!(f32_to(Type::TF32, rounded(RN), false, tf32_middle), 0x3f80_0000);
    assert_eq!(f32_to(Type::TF32, rounded(RN), true, f32::INFINITY), 0x7f7f_e000);
    assert_eq!(f32_to(Type::TF32, rounded(RN), false, f32::NAN), 0x7fff_ffff);
    // Rounding to integral values.
    for (x, rni, rzi, rmi, rpi) in [
        (2.5f32, 2.0f32, 2.0, 2.0, 3.0),
        (-2.5, -2.0, -2.0, -3.0, -2.0),
        (0.4, 0.0, 0.0, 0.0, 1.0),
        (-0.4, -0.0, -0.0, -1.0, -0.0),
        (3e9, 3e9, 3e9, 3e9, 3e9),
    ] {
        for (mode, want) in [(Rounding::Rni, rni), (Rounding::Rzi, rzi), (Rounding::Rmi, rmi), (Rounding::Rpi, rpi)] {
            assert_eq!(f32_to(Type::F32, rounded(mode), false, x), want.to_bits() as u64, "{mode:?} of {x}");
        }
    }
    let sat = FloatMods { sat: true, ..mods() };
    assert_eq!(f32_to(Type::F32, sat, false, -3.0), 0);
    assert_eq!(f32_to(Type::F32, sat, false, 3.0), 1.0f32.to_bits() as u64);
    assert_eq!(f32_to(Type::F32, sat, false, f32::NAN), 0);
    let ftz = FloatMods { ftz: true, ..mods() };
    assert_eq!(f32_to(Type::F32, ftz, false, -1e-40), 0x8000_0000);
    assert_eq!(f32_to(Type::F64, mods(), false, 1e-40), (1e-40f32 as f64).to_bits());
    assert_eq!(
        num::cvt(Type::F32, Type::F64, &rounded(Rounding::Rp), false, 0.1f64.to_bits(), None),
        Some(0x3dcc_cccd)
    );
    assert_eq!(
        num::cvt(Type::F32, Type::F64, &rounded(Rounding::Rm), false, 0.1f64.to_bits(), None),
        Some(0x3dcc_cccc)
    );
    assert_eq!(num::cvt(Type::F32, Type::BF16, &mods(), false, 0x3fc0, None), Some(0x3fc0_0000));
    // Pairs: the first source is the upper half.
    let pair =
        num::cvt(Type::BF16x2, Type::F32, &rounded(RN), false, 1.0f32.to_bits() as u64, Some(2.0f32.to_bits() as u64));
    assert_eq!(pair, Some(0x3f80_4000));
    // No such conversion.
    assert_eq!(num::cvt(Type::F16x2, Type::S32, &mods(), false, 0, None), None);
    assert_eq!(num::cvt(Type::B32, Type::F32, &mods(), false, 0, None), None);
}

#[test]
fn conversions_to_and_from_integers_clamp_as_documented() {
    let to_int =
        |to, mode, x: f32| num::cvt(to, Type::F32, &rounded(mode), false, x.to_bits() as u64, None).unwrap() as i64;
    for (to, mode, x, want) in [
        (Type::S32, Rounding::Rzi, -2.7, -2),
        (Type::S32, Rounding::Rni, 2.5, 2),
        (Type::S32, Rounding::Rni, 3.5, 4),
        (Type::S32, Rounding::Rmi, -2.1, -3),
        (Type::S32, Rounding::Rpi, 2.1, 3),
        (Type::S32, Rounding::Rzi, 3e9, i32::MAX as i64),
        (Type::S32, Rounding::Rzi, -3e9, i32::MIN as i64),
        (Type::S32, Rounding::Rzi, f32::NEG_INFINITY, i32::MIN as i64),
        (Type::U32, Rounding::Rzi, -1.0, 0),
        (Type::U32, Rounding::Rzi, 5e9, u32::MAX as i64),
        (Type::S8, Rounding::Rzi, 200.0, 127),
        (Type::U8, Rounding::Rni, 255.5, 255),
        (Type::S64, Rounding::Rzi, 1e19, i64::MAX),
        (Type::U64, Rounding::Rzi, f32::INFINITY, -1),
        (Type::S32, Rounding::Rzi, f32::NAN, 0),
        (Type::U32, Rounding::Rzi, f32::NAN, 0),
        (Type::S64, Rounding::Rzi, f32::NAN, i64::MIN),
        (Type::U64, Rounding::Rzi, f32::NAN, i64::MIN),
    ] {
        assert_eq!(to_int(to, mode, x), want, "cvt.{mode:?}.{to:?}.f32 of {x}");
    }
    let nan64 = num::cvt(Type::S32, Type::F64, &rounded(Rounding::Rzi), false, f64::NAN.to_bits(), None);
    assert_eq!(nan64.unwrap() as i64, i32::MIN as i64);
    let from_int = |to, from, mode, x: u64| num::cvt(to, from, &rounded(mode), false, x, None).unwrap();
    assert_eq!(from_int(Type::F32, Type::S32, RN, -1i64 as u64), (-1.0f32).to_bits() as u64);
    assert_eq!(from_int(Type::F32, Type::U32, RN, 0xffff_ffff), 4294967296.0f32.to_bits() as u64);
    assert_eq!(from_int(Type::F32, Type::U32, Rounding::Rz, 0xffff_ffff), 4294967040.0f32.to_bits() as u64);
    assert_eq!(from_int(Type::F32, Type::S32, Rounding::Rm, -16777217i64 as u64), (-16777218.0f32).to_bits() as u64);
    assert_eq!(from_int(Type::F64, Type::S64, RN, i64::MAX as u64), 9223372036854775808.0f64.to_bits());
    assert_eq!(from_int(Type::F16, Type::U32, RN, 70000), 0x7c00);
    assert_eq!(from_int(Type::F16, Type::U32, Rounding::Rz, 70000), 0x7bff);
    assert_eq!(from_int(Type::F32, Type::U8, RN, 0x1ff), 255.0f32.to_bits() as u64);
    let int = |to, from, sat, x: u64| num::cvt(to, from, &FloatMods { sat, ..mods() }, false, x, None).unwrap();
    assert_eq!(int(Type::S64, Type::S32, false, 0x8000_0000), 0xffff_ffff_8000_0000);
    assert_eq!(int(Type::U64, Type::U32, false, 0xffff_ffff_8000_0000), 0x8000_0000);
    assert_eq!(int(Type::S8, Type::S32, false, 0x180), -128i64 as u64);
    assert_eq!(int(Type::S8, Type::S32, true, 300), 127);
    assert_eq!(int(Type::U8, Type::S32, true, -5i64 as u64), 0);
    assert_eq!(int(Type::U32, Type::S8, false, 0xff), 0xffff_ffff);
}

#[test]
fn minimum_maximum_and_sign_rules() {
    let go = |op, m: FloatMods, a: u32, b: u32| num::binary(op, Type::F32, &m, a as u64, b as u64).unwrap() as u32;
    let (one, two, nan, zero, minus) = (1.0f32.to_bits(), 2.0f32.to_bits(), 0xffc0_1234, 0, 0x8000_0000);
    assert_eq!(go(Binary::Min, mods(), one, two), one);
    assert_eq!(go(Binary::Max, mods(), nan, two), two);
    assert_eq!(go(Binary::Min, mods(), one, nan), one);
    assert_eq!(go(Binary::Min, mods(), nan, nan), 0x7fff_ffff);
    assert_eq!(go(Binary::Max, FloatMods { nan: true, ..mods() }, nan, two), 0x7fff_ffff);
    assert_eq!((go(Binary::Min, mods(), zero, minus), go(Binary::Max, mods(), minus, zero)), (minus, zero));
    assert_eq!((go(Binary::Min, mods(), minus, zero), go(Binary::Max, mods(), zero, minus)), (minus, zero));
    let xor = FloatMods { xorsign_abs: true, ..mods() };
    assert_eq!(go(Binary::Min, xor, (-1.0f32).to_bits(), two), (-1.0f32).to_bits());
    assert_eq!(go(Binary::Max, xor, (-1.0f32).to_bits(), (-2.0f32).to_bits()), two);
    let ftz = FloatMods { ftz: true, ..mods() };
    assert_eq!(go(Binary::Max, ftz, 1, minus), zero);
    assert_eq!(go(Binary::CopySign, mods(), minus, two), (-2.0f32).to_bits());
    let pair = num::binary(Binary::Max, Type::BF16x2, &mods(), 0x3f80_bf80, 0x4000_ffc0).unwrap();
    assert_eq!(pair, 0x4000_bf80);
    let three = num::ternary(Ternary::Max3, Type::F32, &mods(), one as u64, nan as u64, two as u64);
    assert_eq!(three, Some(two as u64));
    assert_eq!(num::unary(Unary::Neg, Type::F16x2, &mods(), 0x3c00_bc00), Some(0xbc00_3c00));
    assert_eq!(num::unary(Unary::Abs, Type::F64, &mods(), (-3.0f64).to_bits()), Some(3.0f64.to_bits()));
}

#[test]
fn comparisons_order_nan_as_documented() {
    let f = |cmp, a: f32, b: f32| num::compare(cmp, Type::F32, false, a.to_bits() as u64, b.to_bits() as u64);
    for cmp in [Cmp::Eq, Cmp::Ne, Cmp::Lt, Cmp::Le, Cmp::Gt, Cmp::Ge, Cmp::Num] {
        assert!(!f(cmp, f32::NAN, 1.0), "{cmp:?} is ordered");
    }
    for cmp in [Cmp::Equ, Cmp::Neu, Cmp::Ltu, Cmp::Leu, Cmp::Gtu, Cmp::Geu, Cmp::Nan] {
        assert!(f(cmp, f32::NAN, 1.0), "{cmp:?} is unordered");
    }
    assert!(f(Cmp::Eq, 0.0, -0.0) && f(Cmp::Lt, 1.0, 2.0) && f(Cmp::Geu, 2.0, 2.0) && !f(Cmp::Gtu, 2.0, 2.0));
    assert!(num::compare(Cmp::Eq, Type::F32, true, 1, 0x8000_0002));
    assert!(
        num::compare(Cmp::Lt, Type::S32, false, 0xffff_ffff, 0)
            && !num::compare(Cmp::Lt, Type::U32, false, 0xffff_ffff, 0)
    );
    assert!(num::compare(Cmp::Hi, Type::S32, false, 0xffff_ffff, 0));
    assert!(num::compare(Cmp::Eq, Type::U16, false, 0x1_0007, 7));
    let classes = |x: f32| {
        use FloatClass::*;
        [Finite, Infinite, Number, NotANumber, Normal, Subnormal]
            .map(|c| num::testp(c, Type::F32, x.to_bits() as u64).unwrap())
    };
    assert_eq!(classes(1.0), [true, false, true, false, true, false]);
    assert_eq!(classes(-0.0), [true, false, true, false, true, false]);
    assert_eq!(classes(1e-40), [true, false, true, false, false, true]);
    assert_eq!(classes(f32::INFINITY), [false, true, true, false, false, false]);
    assert_eq!(classes(f32::NAN), [false, false, false, true, false, false]);
}

#[test]
fn special_values_of_the_approximate_functions() {
    let go = |op, ftz, x: f32| {
        let m = FloatMods { approx: true, ftz, ..mods() };
        f32::from_bits(num::unary(op, Type::F32, &m, x.to_bits() as u64).unwrap() as u32)
    };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for (op, x, want) in [
        (Unary::Ex2, -inf, 0.0),
        (Unary::Ex2, -0.0, 1.0),
        (Unary::Ex2, inf, inf),
        (Unary::Ex2, 3.0, 8.0),
        (Unary::Ex2, -149.0, f32::from_bits(1)),
        (Unary::Ex2, 128.0, inf),
        (Unary::Lg2, 8.0, 3.0),
        (Unary::Lg2, 0.0, -inf),
        (Unary::Lg2, -0.0, -inf),
        (Unary::Lg2, inf, inf),
        (Unary::Lg2, -1.0, nan),
        (Unary::Lg2, f32::from_bits(1), -149.0),
        (Unary::Rcp, -inf, -0.0),
        (Unary::Rcp, -0.0, -inf),
        (Unary::Rcp, 4.0, 0.25),
        (Unary::Rsqrt, 0.0, inf),
        (Unary::Rsqrt, -0.0, -inf),
        (Unary::Rsqrt, inf, 0.0),
        (Unary::Rsqrt, -1.0, nan),
        (Unary::Sqrt, -0.0, -0.0),
        (Unary::Sqrt, 2.25, 1.5),
        (Unary::Sin, -0.0, -0.0),
        (Unary::Sin, inf, nan),
        (Unary::Cos, 0.0, 1.0),
        (Unary::Tanh, inf, 1.0),
        (Unary::Tanh, -0.0, -0.0),
    ] {
        let got = go(op, false, x);
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{op:?} {x:e}: {got:e} {want:e}");
        assert_eq!(go(op, false, nan).to_bits(), 0x7fff_ffff);
    }
    assert_eq!(go(Unary::Ex2, true, -140.0).to_bits(), 0);
    assert_eq!(go(Unary::Rcp, true, 1e-40), inf);
    assert_eq!(go(Unary::Rcp, true, 3e38).to_bits(), 0);
    let div = |full: bool, a: f32, b: f32| {
        let m = FloatMods { approx: !full, full, ..mods() };
        f32::from_bits(num::binary(Binary::Div, Type::F32, &m, a.to_bits() as u64, b.to_bits() as u64).unwrap() as u32)
    };
    assert_eq!(div(false, 1.0, 1.7e38), 0.0);
    assert!(div(false, inf, 1.7e38).is_nan());
    assert!(div(true, 1.0, 1.7e38) > 0.0);
    assert_eq!(div(false, 7.0, 2.0), 3.5);
    let f64_rcp = num::unary(Unary::Rcp, Type::F64, &FloatMods { approx: true, ftz: true, ..mods() }, 3.0f64.to_bits());
    assert_eq!(f64_rcp, Some(0x3fd5_5555_0000_0000));
    // f16 and bf16 forms.
    assert_eq!(num::unary(Unary::Ex2, Type::F16x2, &mods(), 0x4000_bc00), Some(0x4400_3800));
    assert_eq!(num::unary(Unary::Ex2, Type::BF16, &FloatMods { ftz: true, ..mods() }, 0xc302), Some(0));
    assert_eq!(num::unary(Unary::Tanh, Type::BF16, &mods(), 0x7f80), Some(0x3f80));
}

fn any_f32() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        (-30i32..30, any::<u32>())
            .prop_map(|(e, m)| f32::from_bits(((127 + e) as u32 * (1 << 23)) | (m & 0x807f_ffff))),
        prop_oneof![Just(0.0), Just(-0.0), Just(f32::MAX), Just(f32::MIN_POSITIVE), Just(1e-45)],
    ]
}

const MODES: [Rounding; 4] = [Rounding::Rn, Rounding::Rz, Rounding::Rm, Rounding::Rp];

/// Packs an exact value; the definition of what a fast path must give.
fn exact(value: soft::Value, mode: Rounding) -> u64 {
    value.pack(soft::Format::F32, mode, false)
}

fn wide(x: f32) -> soft::Value {
    soft::Value::unpack(x.to_bits() as u64, soft::Format::F32)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    /// `rm` and `rp` bracket the exact result, `rz` is the inner one, `rn` the nearer one. The product of two f32 is
    /// exact in f64, which makes this a check against arithmetic that this crate did not write.
    #[test]
    fn directed_products_bracket_the_exact_one(a in any_f32(), b in any_f32()) {
        let product = a as f64 * b as f64;
        let of = |mode| f32::from_bits(num::binary(Binary::MulLo, Type::F32, &rounded(mode), a.to_bits() as u64, b.to_bits() as u64).unwrap() as u32);
        if product.is_nan() {
            for mode in MODES { prop_assert_eq!(of(mode).to_bits(), 0x7fff_ffff); }
            return Ok(());
        }
        let (down, up) = (of(Rounding::Rm), of(Rounding::Rp));
        prop_assert!(down as f64 <= product && product <= up as f64);
        prop_assert!(down == up || down.next_up() == up || (down == 0.0 && up == 0.0));
        prop_assert_eq!(of(Rounding::Rz).to_bits(), if product < 0.0 || (product == 0.0 && product.is_sign_negative()) { up } else { down }.to_bits());
        prop_assert_eq!(of(Rounding::Rn), product as f32);
    }

    #[test]
    fn fast_paths_agree_with_exact_arithmetic(a in any_f32(), b in any_f32(), c in any_f32()) {
        let (x, y, z) = (a.to_bits() as u64, b.to_bits() as u64, c.to_bits() as u64);
        for mode in MODES {
            let m = rounded(mode);
            prop_assert_eq!(num::binary(Binary::Add, Type::F32, &m, x, y).unwrap(), exact(soft::add(wide(a), wide(b), mode), mode), "add {:?}", mode);
            prop_assert_eq!(num::binary(Binary::Sub, Type::F32, &m, x, y).unwrap(), exact(soft::add(wide(a), wide(b).negated(), mode), mode), "sub {:?}", mode);
            prop_assert_eq!(num::binary(Binary::MulLo, Type::F32, &m, x, y).unwrap(), exact(soft::mul(wide(a), wide(b)), mode), "mul {:?}", mode);
            prop_assert_eq!(num::binary(Binary::Div, Type::F32, &m, x, y).unwrap(), exact(soft::div(wide(a), wide(b)), mode), "div {:?}", mode);
            prop_assert_eq!(num::ternary(Ternary::Fma, Type::F32, &m, x, y, z).unwrap(), exact(soft::add(soft::mul(wide(a), wide(b)), wide(c), mode), mode), "fma {:?}", mode);
            prop_assert_eq!(num::unary(Unary::Sqrt, Type::F32, &m, x).unwrap(), exact(soft::sqrt(wide(a)), mode), "sqrt {:?}", mode);
            prop_assert_eq!(num::unary(Unary::Rcp, Type::F32, &m, x).unwrap(), exact(soft::div(soft::Value::integer(1), wide(a)), mode), "rcp {:?}", mode);
        }
    }

    /// The CPU's own f64 arithmetic is an independent implementation of the nearest mode of the exact path.
    #[test]
    fn exact_arithmetic_agrees_with_the_cpu(a in any::<u64>(), b in any::<u64>(), c in any::<u64>(), near in any::<bool>()) {
        // Half of the cases bring the exponents together, where cancellation happens.
        let pull = |x: u64| if near { x & 0x800f_ffff_ffff_ffff | (1010 + x % 28) << 52 } else { x };
        let (a, b, c) = (pull(a), pull(b), pull(c));
        let f = |x| soft::Value::unpack(x, soft::Format::F64);
        let same = |got: soft::Value, want: f64| {
            let got = got.pack(soft::Format::F64, Rounding::Rn, false);
            got == want.to_bits() || (want.is_nan() && got == 0x7ff8_0000_0000_0000)
        };
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        prop_assert!(same(soft::add(f(a), f(b), Rounding::Rn), x + y));
        prop_assert!(same(soft::mul(f(a), f(b)), x * y));
        prop_assert!(same(soft::div(f(a), f(b)), x / y));
        prop_assert!(same(soft::sqrt(f(a)), x.sqrt()));
        prop_assert!(same(soft::add(soft::mul(f(a), f(b)), f(c), Rounding::Rn), x.mul_add(y, z)));
        prop_assert_eq!(f(a).pack(soft::Format::F32, Rounding::Rn, false) as u32, if x.is_nan() { 0x7fff_ffff } else { (x as f32).to_bits() });
    }

    #[test]
    fn sixteen_bit_arithmetic_rounds_once(a in any::<u16>(), b in any::<u16>(), c in any::<u16>()) {
        for (ty, format) in [(Type::F16, soft::Format::F16), (Type::BF16, soft::Format::BF16)] {
            let f = |x: u16| soft::Value::unpack(x as u64, format);
            let m = rounded(Rounding::Rn);
            let (x, y, z) = (a as u64, b as u64, c as u64);
            let pack = |v: soft::Value| v.pack(format, Rounding::Rn, false);
            prop_assert_eq!(num::binary(Binary::Add, ty, &m, x, y).unwrap(), pack(soft::add(f(a), f(b), RN)));
            prop_assert_eq!(num::binary(Binary::Sub, ty, &m, x, y).unwrap(), pack(soft::add(f(a), f(b).negated(), RN)));
            prop_assert_eq!(num::binary(Binary::MulLo, ty, &m, x, y).unwrap(), pack(soft::mul(f(a), f(b))));
            prop_assert_eq!(num::ternary(Ternary::Fma, ty, &m, x, y, z).unwrap(), pack(soft::add(soft::mul(f(a), f(b)), f(c), RN)));
        }
    }

    /// f64 of the platform is the judge: one rounding to f32 of a result good to 2^-50 is within one unit of it.
    #[test]
    fn approximations_are_within_one_unit(x in any_f32()) {
        let go = |op| f32::from_bits(num::unary(op, Type::F32, &FloatMods { approx: true, ..FloatMods::default() }, x.to_bits() as u64).unwrap() as u32);
        let y = x as f64;
        for (op, want) in [(Unary::Ex2, y.exp2()), (Unary::Lg2, y.log2()), (Unary::Rcp, 1.0 / y), (Unary::Rsqrt, 1.0 / y.sqrt()), (Unary::Sqrt, y.sqrt()), (Unary::Sin, y.sin()), (Unary::Cos, y.cos()), (Unary::Tanh, y.tanh())] {
            let got = go(op);
            let nearest = want as f32;
            let close = got == nearest || got.next_up() == nearest || got.next_down() == nearest || (got.is_nan() && want.is_nan());
            prop_assert!(close, "{:?} {:e}: {:e} {:e}", op, x, got, want);
        }
    }
}
