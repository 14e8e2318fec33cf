//! Vector arithmetic at the width that the machine has, found when the program runs: AVX-512, AVX2 with FMA, NEON, or what
//! every machine has. The crate `pulp` chooses and holds the instructions; there is no unsafe code here.
//!
//! Two ways to use it. [`widest`] compiles a closure for every width: plain loops in it become vector instructions, as long
//! as everything that they call is inlined. Types that implement [`WithSimd`] handle vectors themselves. The functions below
//! are made of both; each costs a few nanoseconds besides its work, so call them with a row, not with an element.
//!
//! The order of a sum depends on the width of the machine, never on the number of threads.

use std::sync::LazyLock;

pub(super) use pulp::{Simd, WithSimd};

use super::numbers::{self, e4m3, exponential};

/// `portable`, `avx2` or `avx512` in the environment: no wider vectors than these. For tests and comparisons.
const LIMIT: &str = "SM120_HOST_VECTORS";

static ARCH: LazyLock<pulp::Arch> = LazyLock::new(|| narrowed(std::env::var(LIMIT).ok().as_deref()));

/// The best instruction set up to a limit by name; no limit, or a name that is none, takes the best there is.
fn narrowed(limit: Option<&str>) -> pulp::Arch {
    #[cfg(target_arch = "x86_64")]
    if limit == Some("avx2")
        && let Some(v3) = pulp::x86::V3::try_new()
    {
        return pulp::Arch::V3(v3);
    }
    if limit == Some("portable") { pulp::Arch::Scalar } else { pulp::Arch::new() }
}

/// Runs an operation, or a closure, compiled for the widest vectors of this machine.
pub(super) fn widest<Op: WithSimd>(op: Op) -> Op::Output {
    ARCH.dispatch(op)
}

/// Scalar product. Lengths are equal.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    widest(Dot { a, b })
}

struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl WithSimd for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        dot_with(simd, self.a, self.b)
    }
}

/// Scalar product inside of an operation: four chains of vectors, then a tail. Lengths are equal.
#[inline(always)]
pub(super) fn dot_with<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let (a, a_tail) = S::as_simd_f32s(a);
    let (b, b_tail) = S::as_simd_f32s(b);
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (a_fours, a_rest) = a.as_chunks::<4>();
    let (b_fours, b_rest) = b.as_chunks::<4>();
    for (a, b) in a_fours.iter().zip(b_fours) {
        for chain in 0..4 {
            sums[chain] = simd.mul_add_e_f32s(a[chain], b[chain], sums[chain]);
        }
    }
    for (chain, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[chain] = simd.mul_add_e_f32s(*a, *b, sums[chain]);
    }
    let sum = simd.add_f32s(simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3]));
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    simd.reduce_sum_f32s(sum) + tail
}

/// `y += a x`. Lengths are equal.
pub(super) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    debug_assert_eq!(x.len(), y.len());
    widest(|| {
        for (y, x) in y.iter_mut().zip(x) {
            *y += a * x;
        }
    });
}

/// `x = e^(x - shift)`, good to 2 units in the last place; NaN stays NaN.
pub(super) fn exp(x: &mut [f32], shift: f32) {
    widest(|| {
        for x in x {
            *x = exponential(*x - shift);
        }
    });
}

/// Largest magnitude, NaN left out; 0 for none.
pub(super) fn amax(values: &[f32]) -> f32 {
    widest(|| {
        let mut most = [0.0f32; 16];
        let (whole, rest) = values.as_chunks::<16>();
        for values in whole {
            for lane in 0..16 {
                most[lane] = if values[lane].abs() > most[lane] { values[lane].abs() } else { most[lane] };
            }
        }
        most.into_iter().chain(rest.iter().map(|x| x.abs())).fold(0.0, f32::max)
    })
}

/// e4m3 codes times a scale. As many codes as values.
pub(super) fn e4m3_values(codes: &[u8], scale: f32, out: &mut [f32]) {
    widest(|| {
        for (x, &code) in out.iter_mut().zip(codes) {
            *x = e4m3(code) * scale;
        }
    });
}

/// e2m1 codes, two to a byte, the low nibble first, times the ue8m0 scale of their group of 32.
pub(super) fn fp4_values(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    widest(|| numbers::fp4_values(codes, scales, out));
}

/// bf16 elements in f32.
pub(super) fn bf16_values(bytes: &[u8], out: &mut [f32]) {
    widest(|| numbers::widen_bf16(bytes, out));
}

/// Elements rounded to bf16, to nearest even.
pub(super) fn to_bf16(values: &[f32], bytes: &mut [u8]) {
    widest(|| numbers::narrow_bf16(values, bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::rng::Rng;

    /// Every instruction set of this machine, by the name that asks for it.
    fn every() -> Vec<(&'static str, pulp::Arch)> {
        ["portable", "avx2", "best"].map(|name| (name, narrowed(Some(name)))).into()
    }

    fn draws(len: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::named(seed, "simd");
        (0..len).map(|_| rng.normal() as f32).collect()
    }

    #[test]
    fn a_limit_is_kept() {
        assert!(matches!(narrowed(Some("portable")), pulp::Arch::Scalar));
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            assert!(matches!(narrowed(Some("avx2")), pulp::Arch::V3(_)));
        }
    }

    #[test]
    fn dots_of_every_length() {
        for len in (0..200).chain([512, 1000]) {
            let (a, b) = (draws(len, 1), draws(len, 2));
            let want: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a * b)).sum();
            let size: f64 = a.iter().zip(&b).map(|(a, b)| f64::from((a * b).abs())).sum();
            for (name, arch) in every() {
                let got = arch.dispatch(Dot { a: &a, b: &b });
                assert!((f64::from(got) - want).abs() <= 1e-6 * size, "{name}, {len}: {got} and {want}");
            }
        }
    }

    #[test]
    fn rows_of_every_length() {
        for len in [0, 1, 7, 16, 33, 128, 513] {
            let x = draws(len, 3);
            let mut y = draws(len, 4);
            let want: Vec<f32> = y.iter().zip(&x).map(|(y, x)| y + 0.3 * x).collect();
            axpy(0.3, &x, &mut y);
            assert!(y.iter().zip(want).all(|(y, want)| (y - want).abs() <= 1e-6));
            let most = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert_eq!(amax(&x), most);
            let mut powers = x.clone();
            exp(&mut powers, 0.5);
            assert!(powers.iter().zip(&x).all(|(p, x)| (p - (x - 0.5).exp()).abs() <= 1e-6 * p));
            let codes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut values = vec![0.0; len];
            e4m3_values(&codes, 0.25, &mut values);
            for (value, code) in values.iter().zip(&codes) {
                let want = 0.25 * reference::formats::e4m3_decode(*code);
                assert!(*value == want || (value.is_nan() && want.is_nan()), "{code:#x}: {value} and {want}");
            }
        }
        assert_eq!(amax(&[f32::NAN, -2.0, 1.0, f32::NAN]), 2.0);
        assert_eq!(amax(&[[1.0, f32::NAN, -3.0, 0.0]; 9].concat()), 3.0);
    }
}
