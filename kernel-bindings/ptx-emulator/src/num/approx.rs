//! The approximate functions: computed in f64 to better than 2^-50, rounded once to nearest.
//!
//! Documented bounds (PTX ISA 9.0) that a card keeps and this model is inside of:
//!
//! | instruction | bound |
//! |---|---|
//! | `ex2.approx.f32` | 2 ulp |
//! | `lg2.approx.f32` | 2^-22 absolute in (0.5, 2), 2^-22 relative outside |
//! | `rcp.approx.f32` | 1 ulp |
//! | `rsqrt.approx.f32` | 2^-22.9 relative |
//! | `sqrt.approx.f32` | 2^-23 relative |
//! | `sin`, `cos.approx.f32` | 2^-20.5 absolute in \[-2 pi, 2 pi\] |
//! | `tanh.approx.f32` | 2^-11 relative |
//! | `div.approx.f32` | 2 ulp for divisors in \[2^-126, 2^126\] |
//! | `div.full.f32` | 2 ulp |
//! | `ex2.approx.f16` / `.bf16` | 2^-9.9 / 2^-7 relative |
//! | `tanh.approx.f16` / `.bf16` | 2^-10.987 / 2^-8 absolute |
//! | `rcp`, `rsqrt.approx.ftz.f64` | "gross": the upper 32 bits of operand and result only |
//! | `rsqrt.approx.f64` | none is given |
//!
//! `exp2`, `log2` are polynomials written without fused operations or calls into a C library, so every machine computes
//! the same bits; `sin`, `cos`, `tanh` use the platform's f64 functions, whose last-bit differences all but vanish in
//! the rounding to f32 (one argument in 2^28).

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// ln(2)^n / n!, the Taylor coefficients of 2^x.
const EXP2: [f64; 14] = {
    let mut table = [1.0; 14];
    let mut n = 1;
    while n < 14 {
        table[n] = table[n - 1] * LN_2 / n as f64;
        n += 1;
    }
    table
};

/// 2^x. Branch-free for finite x, so that a loop over lanes vectorises; 13 terms on [-1/2, 1/2] leave 2^-54.
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    // Adding 1.5 * 2^52 rounds to an integer in the low mantissa bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let clamped = x.clamp(-1100.0, 1100.0);
    let shifted = clamped + ROUND;
    let rest = clamped - (shifted - ROUND);
    let mut sum = EXP2[13];
    let mut n = 13;
    while n > 0 {
        n -= 1;
        sum = sum * rest + EXP2[n];
    }
    // Two factors, each a normal power of two, reach the whole range of f64 and its sub-normals.
    let power = (shifted.to_bits() as i32 as i64).clamp(-1100, 1100);
    let half = power >> 1;
    let scale = |p: i64| f64::from_bits(((p + 1023) as u64) << 52);
    sum * scale(half) * scale(power - half)
}

/// log2(x) for finite positive normal x: `log2(m) + e` with m in [sqrt(1/2), sqrt(2)), by the odd series in
/// (m - 1) / (m + 1), |.| < 0.172; 11 terms leave 2^-58 relative.
#[inline(always)]
fn log2_normal(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    let mut n = 23;
    while n > 1 {
        n -= 2;
        sum = sum * square + 1.0 / n as f64;
    }
    exponent as f64 + 2.0 * LOG2_E * s * sum
}

/// tanh(x).
pub fn tanh(x: f64) -> f64 {
    x.tanh()
}

/// `ex2.approx.f32` before `.ftz`.
#[inline(always)]
pub fn ex2_f32(x: f32) -> f32 {
    exp2(x as f64) as f32
}

/// `lg2.approx.f32`: -inf for both zeros, NaN below.
pub fn lg2_f32(x: f32) -> f32 {
    if x == 0.0 {
        f32::NEG_INFINITY
    } else if x < 0.0 || x.is_nan() {
        f32::NAN
    } else if x == f32::INFINITY {
        x
    } else {
        log2_normal(x as f64) as f32
    }
}

/// `rcp.approx.f32`.
#[inline(always)]
pub fn rcp_f32(x: f32) -> f32 {
    (1.0 / x as f64) as f32
}

/// `sqrt.approx.f32`.
#[inline(always)]
pub fn sqrt_f32(x: f32) -> f32 {
    x.sqrt()
}

/// `rsqrt.approx.f32`: the infinity of the zero's sign for zeros.
#[inline(always)]
pub fn rsqrt_f32(x: f32) -> f32 {
    (1.0 / (x as f64).sqrt()) as f32
}

/// `sin.approx.f32`.
pub fn sin_f32(x: f32) -> f32 {
    (x as f64).sin() as f32
}

/// `cos.approx.f32`.
pub fn cos_f32(x: f32) -> f32 {
    (x as f64).cos() as f32
}

/// `tanh.approx.f32`.
pub fn tanh_f32(x: f32) -> f32 {
    tanh(x as f64) as f32
}

/// `div.approx.f32`, `div.full.f32`. The first multiplies with a reciprocal: a divisor above 2^126 gives 0 for a finite
/// dividend and NaN for an infinite one (PTX ISA).
#[inline(always)]
pub fn div_f32(a: f32, b: f32, full: bool) -> f32 {
    let huge = b.abs() > f32::from_bits(253 << 23) && b.abs() < f32::INFINITY;
    if !full && huge {
        return if a.is_finite() { 0.0f32.copysign(a) * b.signum() } else { f32::NAN };
    }
    (a as f64 / b as f64) as f32
}

/// Upper 32 bits of an f64 operand, sub-normals flushed.
fn upper_ftz(bits: u64) -> f64 {
    let upper = bits & 0xffff_ffff_0000_0000;
    f64::from_bits(if upper & 0x7ff0_0000_0000_0000 == 0 { upper & 1 << 63 } else { upper })
}

fn lower_cleared(value: f64) -> u64 {
    if value.is_nan() {
        // The NaN of the 32-bit format that these two instructions work in.
        return 0x7fff_ffff_0000_0000;
    }
    let bits = value.to_bits() & 0xffff_ffff_0000_0000;
    if bits & 0x7ff0_0000_0000_0000 == 0 { bits & 1 << 63 } else { bits }
}

/// `rcp.approx.ftz.f64`: reads and writes the upper 32 bits only.
pub fn rcp_ftz_f64(bits: u64) -> u64 {
    lower_cleared(1.0 / upper_ftz(bits))
}

/// `rsqrt.approx.ftz.f64`: reads and writes the upper 32 bits only.
pub fn rsqrt_ftz_f64(bits: u64) -> u64 {
    lower_cleared(1.0 / upper_ftz(bits).sqrt())
}
