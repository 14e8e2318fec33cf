//! The hot f32 operations on the 32 lanes of a warp.
//!
//! Plain loops over fixed arrays that the compiler vectorises, compiled twice: for the baseline and for AVX2 with FMA.
//! Both give the same bits (nothing but correctly rounded operations), which the tests assert.

use super::approx;
use super::arith::flush;
use super::formats::{NAN_F32, f32_to_bf16, f32_to_f16};

/// One 32-bit register of a warp.
pub type Lanes = [u32; 32];

#[inline(always)]
fn canonical(value: f32) -> u32 {
    if value.is_nan() { NAN_F32 } else { value.to_bits() }
}

#[inline(always)]
fn pass<const FTZ: bool>(bits: u32) -> u32 {
    if FTZ { flush(bits) } else { bits }
}

/// Compiles a lane loop for the baseline and for AVX2 + FMA and picks at run time.
macro_rules! lane_op {
    ($(#[$doc:meta])* $name:ident($($arg:ident),+) $body:expr) => {
        $(#[$doc])*
        pub fn $name(ftz: bool, $($arg: &Lanes,)+ d: &mut Lanes) {
            #[inline(always)]
            fn run<const FTZ: bool>($($arg: &Lanes,)+ d: &mut Lanes) {
                for i in 0..32 {
                    $(let $arg = f32::from_bits(pass::<FTZ>($arg[i]));)+
                    d[i] = pass::<FTZ>(canonical($body));
                }
            }
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide<const FTZ: bool>($($arg: &Lanes,)+ d: &mut Lanes) {
                    run::<FTZ>($($arg,)+ d)
                }
                if crate::tensor::wide_vectors() {
                    // SAFETY: `wide` needs AVX2 and FMA, which `wide_vectors` has just reported present.
                    return unsafe { if ftz { wide::<true>($($arg,)+ d) } else { wide::<false>($($arg,)+ d) } };
                }
            }
            if ftz { run::<true>($($arg,)+ d) } else { run::<false>($($arg,)+ d) }
        }
    };
}

lane_op! {
    /// `add{.ftz}.rn.f32`
    add_f32(a, b) a + b
}
lane_op! {
    /// `sub{.ftz}.rn.f32`
    sub_f32(a, b) a - b
}
lane_op! {
    /// `mul{.ftz}.rn.f32`
    mul_f32(a, b) a * b
}
lane_op! {
    /// `fma.rn{.ftz}.f32`
    fma_f32(a, b, c) a.mul_add(b, c)
}
lane_op! {
    /// `ex2.approx{.ftz}.f32`
    ex2_f32(a) approx::ex2_f32(a)
}

/// `max`/`min{.ftz}.f32` without `.NaN`: the number beats the NaN, -0 is below +0.
pub fn min_max_f32(maximum: bool, ftz: bool, a: &Lanes, b: &Lanes, d: &mut Lanes) {
    // Sign-magnitude to two's complement order.
    let key = |x: u32| (x ^ (((x as i32 >> 31) as u32) >> 1)) as i32;
    let nan = |x: u32| x & 0x7fff_ffff > 0x7f80_0000;
    for i in 0..32 {
        let (x, y) = if ftz { (flush(a[i]), flush(b[i])) } else { (a[i], b[i]) };
        let first = if maximum { key(x) > key(y) } else { key(x) < key(y) };
        let pick = if nan(x) || (!first && !nan(y)) { y } else { x };
        d[i] = if nan(pick) { NAN_F32 } else { pick };
    }
}

/// `cvt.rn.bf16x2.f32 d, a, b` or `cvt.rn.f16x2.f32`: `a` is the upper half.
pub fn pack16(bf16: bool, a: &Lanes, b: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        let narrow = |bits: u32| {
            let value = f32::from_bits(bits);
            if bf16 { f32_to_bf16(value) } else { f32_to_f16(value) }
        };
        d[i] = (narrow(a[i]) as u32) << 16 | narrow(b[i]) as u32;
    }
}
