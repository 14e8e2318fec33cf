//! Matrix instructions: which lane holds which element, and what is computed from them.
//!
//! * [`fragment`]: the lane-to-element maps of every `mma.sync` shape and type, as data.
//! * [`matrix`]: the same for `ldmatrix`, `stmatrix`, `movmatrix`.
//! * [`scale`]: which lane and byte supply the scales of a block-scaled `mma`.
//! * [`MmaPlan`]: an `mma` chosen once when the text is loaded, executed on whole registers of a warp.
//!
//! **Arithmetic model.** The PTX ISA fixes neither the order of summation nor its rounding. Here every product is exact
//! (a block-scaled product includes its two scales), the k products are summed in f64 in the order of k, `c` is added to
//! that sum exactly, and the result is rounded once, to nearest even, to the type of `d`. For e4m3, e5m2 and smaller
//! types without scales the sum of products is exact as well, for the others its relative error is below
//! 2^-47 of the largest term. A card keeps fewer bits and truncates: only inputs whose sums are exact in f32 give the
//! same bits on both. NaN results are canonical. Integer sums are exact and then wrap, or clamp with `.satfinite`.
//! The low 13 bits of a tf32 operand are ignored.

pub mod fragment;
mod kernels;
pub mod matrix;
pub mod scale;

pub use kernels::MmaPlan;
pub use scale::ScaleInput;

use crate::ir::MmaDesc;

/// One 32-bit register of a warp.
pub type Lanes = [u32; 32];

/// An `mma` that no target of this machine has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mma of this shape and these types is not supported: {0}")]
pub struct Unsupported(pub String);

/// Executes one `mma` on a full warp: [`MmaPlan::new`] and [`MmaPlan::run`] in one call.
///
/// Registers come in the order of the instruction's operands. The scales are required for block-scaled kinds.
///
/// # Errors
/// [`Unsupported`] names a shape, type, kind or scale that does not exist.
///
/// # Panics
/// When the register counts differ from [`fragment::fragments`] or a required scale is missing.
pub fn mma(
    desc: &MmaDesc,
    a: &[Lanes],
    b: &[Lanes],
    c: &[Lanes],
    scale_a: Option<&ScaleInput>,
    scale_b: Option<&ScaleInput>,
    d: &mut [Lanes],
) -> Result<(), Unsupported> {
    MmaPlan::new(desc)?.run(a, b, c, scale_a.zip(scale_b), d);
    Ok(())
}

/// Are AVX2 and FMA there? The compiled code differs, the results do not.
#[inline]
pub(crate) fn wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
