//! Number formats and floating-point arithmetic of the PTX instructions, bit for bit.
//!
//! * [`soft`]: exact arithmetic on unpacked numbers, the judge of the fast paths.
//! * [`formats`]: f16, bf16, tf32, e4m3, e5m2, e2m1, e2m3, e3m2, ue8m0 to and from f32.
//! * [`arith`]: add, sub, mul, fma, div, sqrt, rcp, min, max, comparisons in every rounding mode, `.ftz`, `.sat`.
//! * [`approx`]: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div.
//! * [`convert`]: `cvt` between any two scalar types and its packed forms.
//!
//! **Model.** Every instruction that the PTX ISA rounds is exact and rounded once. A NaN result is the canonical NaN of
//! its format (`0x7fffffff`, `0x7fff`, `0x7ff8000000000000`) whatever NaN went in. `.ftz` flushes sub-normal f32 inputs
//! and results (after rounding) to a zero of the same sign. Approximations are computed in f64 with a relative error
//! below 2^-50 and rounded once, to nearest: always inside the error bound that the ISA documents, but a card differs
//! from it inside that bound.
//!
//! Values travel as bit patterns in a `u64`, like registers. A result of a signed integer type is sign-extended, any
//! other is zero-extended: cutting it to the width of the destination register gives what the instruction writes.

pub mod approx;
pub mod arith;
pub mod convert;
pub mod formats;
pub mod soft;

pub use arith::{binary, compare, ternary, testp, unary};
pub use convert::cvt;
