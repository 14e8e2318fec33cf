//! The arithmetic of `mma`: gather the fragments into small dense matrices, multiply, round once, scatter.
//!
//! ```text
//! a[row][k], b[k][column] <- registers         tables for formats of at most 8 bits, bit operations for the others
//! for row: for k: sum[row][0..8] += a[row][k] * b[k][0..8]     f64, products exact, order of k
//! d = round(sum + c)
//! ```
//!
//! A product is exact in f64, so a fused and a separate multiplication and addition give the same bits: the code is
//! compiled for the baseline and for AVX2 + FMA, chosen at run time. One warp-wide m16n8k32 of e4m3 (4096 products)
//! takes well under a microsecond.

use super::fragment::{Fragment, Fragments, fragments};
use super::scale::{ScaleInput, factor, lane_of_column, lane_of_row};
use super::{Lanes, Unsupported, wide_vectors};
use crate::ir::{BlockScale, MmaDesc, MmaKind, Rounding, Type};
use crate::num::arith::{add_odd, f64_to_16};
use crate::num::formats::{E2M1, NAN_F32, bf16_to_f32, decode, f16_to_f32};
use crate::num::soft::Format;

/// An `mma` with everything decided that does not depend on register contents.
#[derive(Debug, Clone, Copy)]
pub struct MmaPlan {
    desc: MmaDesc,
    fragments: Fragments,
    kernel: Kernel,
}

#[derive(Debug, Clone, Copy)]
enum Kernel {
    /// f16 (`false`) or bf16 (`true`) by k.
    Half8(bool),
    Half16(bool),
    Tf32x4,
    Tf32x8,
    /// Formats of at most 8 bits in 8-bit containers.
    Byte16(&'static [f64; 256], &'static [f64; 256]),
    Byte32(&'static [f64; 256], &'static [f64; 256]),
    /// e2m1 in nibbles.
    Nibble64,
    Int16,
    Int32,
    IntNibble32,
    IntNibble64,
}

const fn byte_table(ty: Type) -> [f64; 256] {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match ty {
            // The container keeps e2m1 in its four middle bits and the 6-bit formats in its low bits.
            Type::E2M1 => E2M1_VALUES[byte >> 2 & 15] as f64,
            Type::E3M2 => E3M2_VALUES[byte & 63] as f64,
            Type::E2M3 => E2M3_VALUES[byte & 63] as f64,
            Type::E5M2 => E5M2_VALUES[byte] as f64,
            _ => E4M3_VALUES[byte] as f64,
        };
        byte += 1;
    }
    table
}

use crate::num::formats::{E2M1 as E2M1_VALUES, E2M3 as E2M3_VALUES, E3M2 as E3M2_VALUES};
use crate::num::formats::{E4M3 as E4M3_VALUES, E5M2 as E5M2_VALUES};

static BYTES_E4M3: [f64; 256] = byte_table(Type::E4M3);
static BYTES_E5M2: [f64; 256] = byte_table(Type::E5M2);
static BYTES_E3M2: [f64; 256] = byte_table(Type::E3M2);
static BYTES_E2M3: [f64; 256] = byte_table(Type::E2M3);
static BYTES_E2M1: [f64; 256] = byte_table(Type::E2M1);

fn table(ty: Type) -> &'static [f64; 256] {
    match ty {
        Type::E5M2 => &BYTES_E5M2,
        Type::E3M2 => &BYTES_E3M2,
        Type::E2M3 => &BYTES_E2M3,
        Type::E2M1 => &BYTES_E2M1,
        _ => &BYTES_E4M3,
    }
}

impl MmaPlan {
    /// Checks the shape and types and picks the kernel.
    ///
    /// # Errors
    /// [`Unsupported`] names what no target has.
    pub fn new(desc: &MmaDesc) -> Result<Self, Unsupported> {
        let fragments = fragments(desc)?;
        let kernel = match (desc.a, desc.shape.k) {
            (Type::F16, 8) => Kernel::Half8(false),
            (Type::F16, _) => Kernel::Half16(false),
            (Type::BF16, 8) => Kernel::Half8(true),
            (Type::BF16, _) => Kernel::Half16(true),
            (Type::TF32, 4) => Kernel::Tf32x4,
            (Type::TF32, _) => Kernel::Tf32x8,
            (Type::S8 | Type::U8, 16) => Kernel::Int16,
            (Type::S8 | Type::U8, _) => Kernel::Int32,
            (Type::S4 | Type::U4, 32) => Kernel::IntNibble32,
            (Type::S4 | Type::U4, _) => Kernel::IntNibble64,
            _ if matches!(desc.kind, MmaKind::Mxf4 | MmaKind::Mxf4nvf4) => Kernel::Nibble64,
            (_, 16) => Kernel::Byte16(table(desc.a), table(desc.b)),
            _ => Kernel::Byte32(table(desc.a), table(desc.b)),
        };
        Ok(MmaPlan { desc: *desc, fragments, kernel })
    }

    /// The layouts, which also say how many registers every operand has.
    pub fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    /// The instruction's description.
    pub fn desc(&self) -> &MmaDesc {
        &self.desc
    }

    /// Executes the instruction for a full warp. `d` may not alias the sources.
    ///
    /// # Panics
    /// When the register counts differ from the fragments' or a block-scaled instruction gets no scales.
    pub fn run(
        &self,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        scales: Option<(&ScaleInput, &ScaleInput)>,
        d: &mut [Lanes],
    ) {
        let counts = [a.len(), b.len(), c.len(), d.len()];
        let f = &self.fragments;
        assert_eq!(counts, [f.a.registers(), f.b.registers(), f.c.registers(), f.d.registers()], "registers of mma");
        let scales = self.desc.block_scale.map(|scale| {
            let (scale_a, scale_b) = scales.expect("a block-scaled mma has scale operands");
            Scales { scale, a: scale_a, b: scale_b }
        });
        #[cfg(target_arch = "x86_64")]
        if wide_vectors() {
            // SAFETY: `execute_wide` needs AVX2 and FMA, which `wide_vectors` has just reported present.
            return unsafe { execute_wide(self, a, b, c, scales, d) };
        }
        execute::<false>(self, a, b, c, scales, d);
    }

    /// [`MmaPlan::run`] on the baseline path, for the test that both paths agree.
    #[doc(hidden)]
    pub fn run_baseline(
        &self,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        scales: Option<(&ScaleInput, &ScaleInput)>,
        d: &mut [Lanes],
    ) {
        let scales = self.desc.block_scale.zip(scales).map(|(scale, (a, b))| Scales { scale, a, b });
        execute::<false>(self, a, b, c, scales, d);
    }
}

#[derive(Clone, Copy)]
struct Scales<'a> {
    scale: BlockScale,
    a: &'a ScaleInput,
    b: &'a ScaleInput,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn execute_wide(plan: &MmaPlan, a: &[Lanes], b: &[Lanes], c: &[Lanes], scales: Option<Scales>, d: &mut [Lanes]) {
    execute::<true>(plan, a, b, c, scales, d);
}

#[inline(always)]
fn execute<const FMA: bool>(
    plan: &MmaPlan,
    a: &[Lanes],
    b: &[Lanes],
    c: &[Lanes],
    scales: Option<Scales>,
    d: &mut [Lanes],
) {
    let halves = |bf16: bool| {
        move |bits: u32| {
            let low = if bf16 { bf16_to_f32(bits as u16) } else { f16_to_f32(bits as u16) };
            let high = if bf16 { bf16_to_f32((bits >> 16) as u16) } else { f16_to_f32((bits >> 16) as u16) };
            [low as f64, high as f64]
        }
    };
    let tf32 = |bits: u32| [f32::from_bits(bits & 0xffff_e000) as f64];
    let bytes = |table: &'static [f64; 256]| move |bits: u32| bits.to_le_bytes().map(|byte| table[byte as usize]);
    let nibbles = |bits: u32| -> [f64; 8] { std::array::from_fn(|i| E2M1[(bits >> (4 * i)) as usize & 15] as f64) };
    let signed = |ty: Type| matches!(ty, Type::S8 | Type::S4);
    let int8 = |signed: bool| {
        move |bits: u32| bits.to_le_bytes().map(|byte| if signed { byte as i8 as i32 } else { byte as i32 })
    };
    let int4 = |signed: bool| {
        move |bits: u32| -> [i32; 8] {
            std::array::from_fn(|i| {
                let top = (bits << (28 - 4 * i)) & 0xf000_0000;
                if signed { top as i32 >> 28 } else { (top >> 28) as i32 }
            })
        }
    };
    let (sa, sb) = (signed(plan.desc.a), signed(plan.desc.b));
    match plan.kernel {
        Kernel::Half8(bf16) => float::<8, 2, FMA>(plan, a, b, c, scales, d, halves(bf16), halves(bf16)),
        Kernel::Half16(bf16) => {
            if bf16 {
                float::<16, 2, FMA>(plan, a, b, c, scales, d, halves(true), halves(true))
            } else {
                float::<16, 2, FMA>(plan, a, b, c, scales, d, halves(false), halves(false))
            }
        }
        Kernel::Tf32x4 => float::<4, 1, FMA>(plan, a, b, c, scales, d, tf32, tf32),
        Kernel::Tf32x8 => float::<8, 1, FMA>(plan, a, b, c, scales, d, tf32, tf32),
        Kernel::Byte16(ta, tb) => float::<16, 4, FMA>(plan, a, b, c, scales, d, bytes(ta), bytes(tb)),
        Kernel::Byte32(ta, tb) => float::<32, 4, FMA>(plan, a, b, c, scales, d, bytes(ta), bytes(tb)),
        Kernel::Nibble64 => float::<64, 8, FMA>(plan, a, b, c, scales, d, nibbles, nibbles),
        Kernel::Int16 => integer::<16, 4>(plan, a, b, c, d, int8(sa), int8(sb)),
        Kernel::Int32 => integer::<32, 4>(plan, a, b, c, d, int8(sa), int8(sb)),
        Kernel::IntNibble32 => integer::<32, 8>(plan, a, b, c, d, int4(sa), int4(sb)),
        Kernel::IntNibble64 => integer::<64, 8>(plan, a, b, c, d, int4(sa), int4(sb)),
    }
}

/// Spreads registers over a dense matrix; `E` elements to a register.
///
/// Index loops with constant bounds over arrays, here and below: they vectorise in a debug-assertions build too.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn gather_rows<T: Copy, const K: usize, const E: usize>(
    fragment: &Fragment,
    registers: &[Lanes],
    matrix: &mut [[T; K]; 16],
    unpack: impl Fn(u32) -> [T; E],
) {
    for register in 0..registers.len() {
        let (row, column) = fragment.origins[register];
        let lanes = &registers[register];
        for group in 0..8 {
            let target = &mut matrix[(group + row as usize) & 15];
            for member in 0..4 {
                let values = unpack(lanes[4 * group + member]);
                for i in 0..E {
                    // The mask changes nothing: k is a power of two.
                    target[(member * E + column as usize + i) & (K - 1)] = values[i];
                }
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn gather_columns<T: Copy, const K: usize, const E: usize>(
    fragment: &Fragment,
    registers: &[Lanes],
    matrix: &mut [[T; 8]; K],
    unpack: impl Fn(u32) -> [T; E],
) {
    for register in 0..registers.len() {
        let (_, row) = fragment.origins[register];
        let lanes = &registers[register];
        for member in 0..4 {
            for group in 0..8 {
                let values = unpack(lanes[4 * group + member]);
                for i in 0..E {
                    matrix[(member * E + row as usize + i) & (K - 1)][group] = values[i];
                }
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn float<const K: usize, const E: usize, const FMA: bool>(
    plan: &MmaPlan,
    a: &[Lanes],
    b: &[Lanes],
    c: &[Lanes],
    scales: Option<Scales>,
    d: &mut [Lanes],
    unpack_a: impl Fn(u32) -> [f64; E],
    unpack_b: impl Fn(u32) -> [f64; E],
) {
    let mut left = [[0.0f64; K]; 16];
    let mut right = [[0.0f64; 8]; K];
    gather_rows(&plan.fragments.a, a, &mut left, unpack_a);
    gather_columns(&plan.fragments.b, b, &mut right, unpack_b);
    if let Some(scales) = scales {
        scale::<K>(&scales, &mut left, &mut right);
    }
    let mut sum = [[0.0f64; 8]; 16];
    // Four rows at a time: eight independent chains of additions hide the latency of one.
    for first in [0, 4, 8, 12] {
        let mut block = [[0.0f64; 8]; 4];
        for k in 0..K {
            for i in 0..4 {
                for j in 0..8 {
                    block[i][j] = if FMA {
                        left[first + i][k].mul_add(right[k][j], block[i][j])
                    } else {
                        left[first + i][k] * right[k][j] + block[i][j]
                    };
                }
            }
        }
        sum[first..first + 4].copy_from_slice(&block);
    }
    finish_float(plan, &sum, c, d);
}

/// Multiplies the rows of A and the columns of B with their scales: exact, at most 4 + 4 bits under any power of two.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn scale<const K: usize>(scales: &Scales, left: &mut [[f64; K]; 16], right: &mut [[f64; 8]; K]) {
    let chunks = scales.scale.scale_vec as usize;
    let length = K / chunks;
    for chunk in 0..chunks {
        let (start, end) = (chunk * length, (chunk + 1) * length);
        for row in 0..16 {
            let factor = factor(scales.a, lane_of_row(row, scales.a.thread_id), chunk, scales.scale.ty);
            for value in &mut left[row][start..end] {
                *value *= factor;
            }
        }
        let mut factors = [0.0; 8];
        for column in 0..8 {
            factors[column] = factor(scales.b, lane_of_column(column, scales.b.thread_id), chunk, scales.scale.ty);
        }
        for values in &mut right[start..end] {
            for column in 0..8 {
                values[column] *= factors[column];
            }
        }
    }
}

/// Adds `c`, rounds once and scatters.
#[inline(always)]
fn finish_float(plan: &MmaPlan, sum: &[[f64; 8]; 16], c: &[Lanes], d: &mut [Lanes]) {
    let f = &plan.fragments;
    if f.c.width == 32 && f.d.width == 32 {
        // A lane holds columns 2 * member and + 1 of rows group (registers 0, 1) and group + 8 (2, 3).
        let mut doubtful = false;
        for register in 0..4 {
            let (c, d) = (&c[register], &mut d[register]);
            let (row, column) = (register / 2 * 8, register % 2);
            for lane in 0..32 {
                let exact_sum = sum[row + lane / 4][lane % 4 * 2 + column];
                let total = exact_sum + f32::from_bits(c[lane]) as f64;
                let narrow = total as f32;
                // Two roundings go wrong only when the first lands on the middle between two f32, or near zero.
                let bits = total.to_bits();
                let near_zero = narrow.to_bits() & 0x7f80_0000 == 0 && total != 0.0;
                doubtful |= bits & 0x1fff_ffff == 0x1000_0000 || near_zero;
                d[lane] = if narrow.is_nan() { NAN_F32 } else { narrow.to_bits() };
            }
        }
        if doubtful {
            for register in 0..4 {
                let (row, column) = (register / 2 * 8, register % 2);
                for lane in 0..32 {
                    let c = f32::from_bits(c[register][lane]) as f64;
                    let narrow = add_odd(sum[row + lane / 4][lane % 4 * 2 + column], c) as f32;
                    d[register][lane] = if narrow.is_nan() { NAN_F32 } else { narrow.to_bits() };
                }
            }
        }
        return;
    }
    let mut total = [[0.0f64; 8]; 16];
    for (register, lanes) in c.iter().enumerate() {
        for (lane, bits) in lanes.iter().enumerate() {
            for i in 0..f.c.per_register() as usize {
                let (row, column) = f.c.position(register, lane, i);
                let value =
                    if f.c.width == 32 { f32::from_bits(*bits) } else { decode((bits >> (16 * i)) as u16, Type::F16) };
                total[row][column] = add_odd(sum[row][column], value as f64);
            }
        }
    }
    for (register, lanes) in d.iter_mut().enumerate() {
        for (lane, bits) in lanes.iter_mut().enumerate() {
            *bits = 0;
            for i in 0..f.d.per_register() as usize {
                let (row, column) = f.d.position(register, lane, i);
                let value = total[row][column];
                *bits |= if f.d.width == 32 {
                    let narrow = value as f32;
                    if narrow.is_nan() { NAN_F32 } else { narrow.to_bits() }
                } else {
                    (f64_to_16(value, Format::F16, Rounding::Rn) as u32) << (16 * i)
                };
            }
        }
    }
}

#[inline(always)]
fn integer<const K: usize, const E: usize>(
    plan: &MmaPlan,
    a: &[Lanes],
    b: &[Lanes],
    c: &[Lanes],
    d: &mut [Lanes],
    unpack_a: impl Fn(u32) -> [i32; E],
    unpack_b: impl Fn(u32) -> [i32; E],
) {
    let f = &plan.fragments;
    let mut left = [[0i32; K]; 16];
    let mut right = [[0i32; 8]; K];
    gather_rows(&f.a, a, &mut left, unpack_a);
    gather_columns(&f.b, b, &mut right, unpack_b);
    let mut sum = [[0i32; 8]; 16];
    for row in 0..plan.desc.shape.m as usize & 31 {
        let mut sums = [0i32; 8];
        for k in 0..K {
            for j in 0..8 {
                // At most 64 * 255 * 255, no overflow; `wrapping` keeps the overflow check out of the vector loop.
                sums[j] = sums[j].wrapping_add(left[row][k].wrapping_mul(right[k][j]));
            }
        }
        sum[row] = sums;
    }
    for (register, (c, d)) in c.iter().zip(d).enumerate() {
        for lane in 0..32 {
            let (row, column) = f.c.position(register, lane, 0);
            let total = sum[row][column] as i64 + c[lane] as i32 as i64;
            d[lane] =
                if plan.desc.satfinite { total.clamp(i32::MIN as i64, i32::MAX as i64) as u32 } else { total as u32 };
        }
    }
}
