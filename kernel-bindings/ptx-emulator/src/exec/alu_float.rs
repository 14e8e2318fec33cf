//! Lane functions of the hot floating-point instructions beyond add, mul and fma. Each is the same arithmetic as
//! [`crate::num`] does lane by lane, laid out so that the compiler makes vector code of it.

use super::alu::{W1, W2, f, fz, out, outz};
use super::lanes::{L32, map1, map2};
use crate::ir::{Binary, FloatMods, Rounding, Type, Unary};
use crate::num::formats::{E4M3, encode_small, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::num::{approx, soft::Format};

const NAN: u32 = 0x7fff_ffff;

/// A function for both settings of `.ftz`.
macro_rules! both {
    ($ftz:expr, |$x:ident| $body:expr) => {{
        let (plain, flushed): (W1, W1) = (
            |a| {
                map1(a, |bits| {
                    let $x = f(bits);
                    out($body)
                })
            },
            |a| {
                map1(a, |bits| {
                    let $x = fz(bits);
                    outz($body)
                })
            },
        );
        Some(if $ftz { flushed } else { plain })
    }};
    ($ftz:expr, |$x:ident, $y:ident| $body:expr) => {{
        let (plain, flushed): (W2, W2) = (
            |a, b| {
                map2(a, b, |x, y| {
                    let ($x, $y) = (f(x), f(y));
                    out($body)
                })
            },
            |a, b| {
                map2(a, b, |x, y| {
                    let ($x, $y) = (fz(x), fz(y));
                    outz($body)
                })
            },
        );
        Some(if $ftz { flushed } else { plain })
    }};
}

/// One source, f32.
pub(crate) fn unary(op: Unary, mods: &FloatMods) -> Option<W1> {
    let FloatMods { rounding, ftz, sat, approx, full: _, nan: _, relu: _, xorsign_abs: _, oob: _ } = *mods;
    if sat {
        return None;
    }
    let nearest = matches!(rounding, None | Some(Rounding::Rn));
    match op {
        Unary::Ex2 => both!(ftz, |x| approx::ex2_f32(x)),
        Unary::Lg2 => both!(ftz, |x| approx::lg2_f32(x)),
        Unary::Rsqrt => both!(ftz, |x| approx::rsqrt_f32(x)),
        Unary::Rcp if approx => both!(ftz, |x| approx::rcp_f32(x)),
        Unary::Sqrt if approx => both!(ftz, |x| approx::sqrt_f32(x)),
        Unary::Rcp if nearest => both!(ftz, |x| 1.0 / x),
        Unary::Sqrt if nearest => both!(ftz, |x| x.sqrt()),
        _ => None,
    }
}

/// Two sources, f32: divisions and the minima that let NaN through.
pub(crate) fn binary(op: Binary, mods: &FloatMods) -> Option<W2> {
    let FloatMods { rounding, ftz, sat, approx, full, nan, relu: _, xorsign_abs, oob: _ } = *mods;
    if sat || xorsign_abs {
        return None;
    }
    match op {
        Binary::Div if full => both!(ftz, |x, y| approx::div_f32(x, y, true)),
        Binary::Div if approx => both!(ftz, |x, y| approx::div_f32(x, y, false)),
        Binary::Div if matches!(rounding, Some(Rounding::Rn)) => both!(ftz, |x, y| x / y),
        Binary::Min if nan && !ftz => Some(|a, b| map2(a, b, |x, y| with_nan(x, y, super::alu::min_f32(f(x), f(y))))),
        Binary::Max if nan && !ftz => Some(|a, b| map2(a, b, |x, y| with_nan(x, y, super::alu::max_f32(f(x), f(y))))),
        _ => None,
    }
}

#[inline(always)]
fn with_nan(x: u32, y: u32, otherwise: u32) -> u32 {
    if f(x).is_nan() || f(y).is_nan() { NAN } else { otherwise }
}

/// e4m3 to f16, exact.
static E4M3_TO_F16: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = f32_to_f16(E4M3_TABLE[i]);
        i += 1;
    }
    table
};

const E4M3_TABLE: [f32; 256] = E4M3;

/// Fast conversions that involve floats.
pub(crate) enum CvtFloat {
    /// One source.
    W1(W1),
    /// Two sources packed.
    W2(W2),
}

/// The hot conversions between 32-bit floats, integers and smaller floats.
pub(crate) fn cvt(to: Type, from: Type, mods: &FloatMods, satfinite: bool, pair: bool) -> Option<CvtFloat> {
    use Type::*;
    if mods.sat || mods.relu || mods.ftz {
        return None;
    }
    let nearest = matches!(mods.rounding, Some(Rounding::Rn));
    Some(match (to, from, pair) {
        (E4M3x2, F32, true) if nearest && satfinite => CvtFloat::W2(|a, b| {
            map2(a, b, |x, y| {
                u32::from(encode_small(f(x), Format::E4M3)) << 8 | u32::from(encode_small(f(y), Format::E4M3))
            })
        }),
        (F16x2, E4M3x2, false) => CvtFloat::W1(|a| {
            map1(a, |x: u32| {
                u32::from(E4M3_TO_F16[(x >> 8 & 0xff) as usize]) << 16 | u32::from(E4M3_TO_F16[(x & 0xff) as usize])
            })
        }),
        _ if satfinite => return None,
        (F32, S32, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| (x as i32 as f32).to_bits())),
        (F32, U32, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| (x as f32).to_bits())),
        // An integer narrower than 32 bits may sit in a wider register.
        (F32, U16, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| ((x & 0xffff) as f32).to_bits())),
        (F32, S16, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| (x as i16 as f32).to_bits())),
        (F32, U8, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| ((x & 0xff) as f32).to_bits())),
        (F32, BF16, false) => CvtFloat::W1(|a| map1(a, |x: u32| out(f(x << 16)))),
        (F32, F16, false) => CvtFloat::W1(|a| map1(a, |x: u32| out(f16_to_f32(x as u16)))),
        (BF16, F32, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| u32::from(f32_to_bf16(f(x))))),
        (F16, F32, false) if nearest => CvtFloat::W1(|a| map1(a, |x: u32| u32::from(f32_to_f16(f(x))))),
        (BF16x2, F32, true) if nearest => CvtFloat::W2(|a: &L32, b: &L32| {
            map2(a, b, |x, y| u32::from(f32_to_bf16(f(x))) << 16 | u32::from(f32_to_bf16(f(y))))
        }),
        (F16x2, F32, true) if nearest => CvtFloat::W2(|a: &L32, b: &L32| {
            map2(a, b, |x, y| u32::from(f32_to_f16(f(x))) << 16 | u32::from(f32_to_f16(f(y))))
        }),
        // Rounding towards zero with clamping is what `as` does; NaN becomes 0.
        (S32, F32, false) if matches!(mods.rounding, Some(Rounding::Rzi)) => {
            CvtFloat::W1(|a| map1(a, |x: u32| f(x) as i32 as u32))
        }
        (U32, F32, false) if matches!(mods.rounding, Some(Rounding::Rzi)) => {
            CvtFloat::W1(|a| map1(a, |x: u32| f(x) as u32))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::lanes::Lanes;
    use crate::num;

    /// Bit patterns that reach every branch, and a spread of others.
    fn patterns() -> Vec<u32> {
        let mut all = vec![
            0,
            0x8000_0000,
            1,
            0x807f_ffff,
            0x0080_0000,
            0x3f80_0000,
            0xbf80_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffff_ffff,
            0x7f7f_ffff,
            0x477f_e000,
            0x477f_f000,
            0x3380_0000,
            0x43e0_0000,
            0x43e8_0001,
            0xc3f0_0000,
            0x4f00_0000,
            0xcf00_0000,
            0x4f80_0000,
            0x7e80_0001,
            0xfe80_0001,
        ];
        let mut rng = crate::exec::rng::Rng::new(1, 1);
        all.extend((0..4096).map(|_| rng.next() as u32));
        all.resize(all.len().next_multiple_of(32), 0);
        all
    }

    fn lanes(values: &[u32]) -> L32 {
        Lanes(values.try_into().unwrap())
    }

    #[test]
    fn one_source_agrees_with_the_lane_by_lane_model() {
        let mods = [
            FloatMods { approx: true, ..FloatMods::default() },
            FloatMods { approx: true, ftz: true, ..FloatMods::default() },
            FloatMods { rounding: Some(Rounding::Rn), ..FloatMods::default() },
            FloatMods { rounding: Some(Rounding::Rn), ftz: true, ..FloatMods::default() },
        ];
        for op in [Unary::Ex2, Unary::Lg2, Unary::Rsqrt, Unary::Rcp, Unary::Sqrt] {
            for mods in &mods {
                let Some(function) = unary(op, mods) else { continue };
                for chunk in patterns().chunks(32) {
                    let got = function(&lanes(chunk));
                    for (x, got) in chunk.iter().zip(got.0) {
                        let want = num::unary(op, Type::F32, mods, u64::from(*x)).unwrap() as u32;
                        assert_eq!(got, want, "{op:?} {mods:?} of {x:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn two_sources_agree_with_the_lane_by_lane_model() {
        let mods = [
            FloatMods { approx: true, ..FloatMods::default() },
            FloatMods { full: true, ftz: true, ..FloatMods::default() },
            FloatMods { rounding: Some(Rounding::Rn), ..FloatMods::default() },
            FloatMods { nan: true, ..FloatMods::default() },
        ];
        let all = patterns();
        for op in [Binary::Div, Binary::Min, Binary::Max] {
            for mods in &mods {
                let Some(function) = binary(op, mods) else { continue };
                for (i, chunk) in all.chunks(32).enumerate() {
                    let other: Vec<u32> = (0..32).map(|k| all[(i * 37 + k * 11) % all.len()]).collect();
                    let got = function(&lanes(chunk), &lanes(&other));
                    for k in 0..32 {
                        let (x, y) = (u64::from(chunk[k]), u64::from(other[k]));
                        let want = num::binary(op, Type::F32, mods, x, y).unwrap() as u32;
                        assert_eq!(got.0[k], want, "{op:?} {mods:?} of {x:#x} {y:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn conversions_agree_with_the_lane_by_lane_model() {
        use Type::*;
        let rn = FloatMods { rounding: Some(Rounding::Rn), ..FloatMods::default() };
        let rzi = FloatMods { rounding: Some(Rounding::Rzi), ..FloatMods::default() };
        let none = FloatMods::default();
        let table = [
            (E4M3x2, F32, rn, true, true),
            (F16x2, E4M3x2, rn, false, false),
            (F32, S32, rn, false, false),
            (F32, U32, rn, false, false),
            (F32, U16, rn, false, false),
            (F32, S16, rn, false, false),
            (F32, U8, rn, false, false),
            (F32, BF16, none, false, false),
            (F32, F16, none, false, false),
            (BF16, F32, rn, false, false),
            (F16, F32, rn, false, false),
            (BF16x2, F32, rn, false, true),
            (F16x2, F32, rn, false, true),
            (S32, F32, rzi, false, false),
            (U32, F32, rzi, false, false),
        ];
        let all = patterns();
        for (to, from, mods, satfinite, pair) in table {
            for (i, chunk) in all.chunks(32).enumerate() {
                let other: Vec<u32> = (0..32).map(|k| all[(i * 37 + k * 11) % all.len()]).collect();
                let got = match cvt(to, from, &mods, satfinite, pair).unwrap() {
                    CvtFloat::W1(function) => function(&lanes(chunk)),
                    CvtFloat::W2(function) => function(&lanes(chunk), &lanes(&other)),
                };
                let cut = u32::MAX >> (32 - to.bits().min(32));
                for k in 0..32 {
                    let second = pair.then_some(u64::from(other[k]));
                    let want = num::cvt(to, from, &mods, satfinite, u64::from(chunk[k]), second).unwrap() as u32 & cut;
                    assert_eq!(got.0[k] & cut, want, "{to:?} from {from:?} of {:#x}", chunk[k]);
                    assert_eq!(got.0[k] & !cut, 0);
                }
            }
        }
    }
}
