//! Vector arithmetic at the width that the machine has, found when the program runs: AVX-512, AVX2 with FMA, NEON, or what
//! every machine has. The crate `pulp` chooses and holds the instructions; there is no unsafe code here.
//!
//! [`widest`] compiles an operation for every width. In a closure, plain loops become vector instructions, as long as
//! everything that they call is inlined; types that implement [`WithSimd`] may handle vectors themselves, in functions that
//! are `inline(always)` and free of closures. A call costs a few nanoseconds: give it a row, not an element.
//!
//! The order of a sum depends on the width of the machine, never on the number of threads.

use std::sync::LazyLock;

pub(super) use pulp::{Simd, WithSimd};

use super::numbers;

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

/// The instruction set in use; a variant of it is proof that the machine has it.
pub(super) fn arch() -> pulp::Arch {
    *ARCH
}

/// Runs an operation, or a closure, compiled for the widest vectors of this machine.
pub(super) fn widest<Op: WithSimd>(op: Op) -> Op::Output {
    ARCH.dispatch(op)
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

/// Elements rounded to bf16, to nearest even.
pub(super) fn to_bf16(values: &[f32], bytes: &mut [u8]) {
    widest(|| numbers::narrow_bf16(values, bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept() {
        assert!(matches!(narrowed(Some("portable")), pulp::Arch::Scalar));
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            assert!(matches!(narrowed(Some("avx2")), pulp::Arch::V3(_)));
        }
    }

    #[test]
    fn largest_magnitude() {
        assert_eq!(amax(&[]), 0.0);
        assert_eq!(amax(&[f32::NAN, -2.0, 1.0, f32::NAN]), 2.0);
        assert_eq!(amax(&[[1.0, f32::NAN, -3.0, 0.0]; 9].concat()), 3.0);
        assert_eq!(amax(&[f32::NEG_INFINITY; 20]), f32::INFINITY);
        for at in 0..37 {
            let mut values = [0.5; 37];
            values[at] = -4.0;
            assert_eq!(amax(&values), 4.0, "{at}");
        }
    }
}
