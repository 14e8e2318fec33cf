//! Cases of `linear`: every format, batches around the tile sizes, groups, padded strides, accumulation, odd scales.

use super::Size;
use super::products::{Values, rows_of};
use crate::ops::{Dtype, WeightFormat};
use crate::problem::{LinearProblem, Problem, ProductsProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// A problem in words.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Shape {
    pub dtype: Dtype,
    pub format: WeightFormat,
    pub out_dtype: Dtype,
    pub accumulate: bool,
    pub values: Values,
    pub t: u32,
    pub groups: u32,
    pub n: u32,
    pub k: u32,
    /// Elements between rows beyond their width; of `x` a multiple of 8.
    pub pad_x: u64,
    /// Elements between rows beyond their width.
    pub pad_out: u64,
}

impl Shape {
    /// One group, f32 output, nothing between rows.
    pub fn of(dtype: Dtype, format: WeightFormat, [t, n, k]: [u32; 3]) -> Shape {
        let (out_dtype, values) = (Dtype::F32, Values::Random);
        Shape { dtype, format, out_dtype, accumulate: false, values, t, groups: 1, n, k, pad_x: 0, pad_out: 0 }
    }

    /// Makes the data.
    pub fn build(&self, seed: u64) -> LinearProblem {
        let mut rng = Rng::named(seed, "linear");
        let (columns, outputs) = ((self.groups * self.k) as usize, (self.groups * self.n) as usize);
        let stride_x = columns as u64 + self.pad_x;
        let x = self.values.activations(&mut rng, self.t as usize, columns);
        let before = self.accumulate.then(|| (0..self.t as usize * outputs).map(|_| rng.normal() as f32).collect());
        LinearProblem {
            dtype: self.dtype,
            x: rows_of("x", self.dtype, &x, stride_x),
            weight: self.values.weight(&mut rng, self.format, outputs, self.k as usize),
            out_dtype: self.out_dtype,
            accumulate: before,
            t: self.t,
            groups: self.groups,
            n: self.n,
            k: self.k,
            stride_x,
            stride_out: outputs as u64 + self.pad_out,
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    use WeightFormat::{Bf16, F32, Fp4Block32, Fp8Block128};
    let mut cases = Vec::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for format in [F32, Bf16, Fp8Block128, Fp4Block32] {
            let mut add = |size: Size, what: &str, shape: Shape| {
                let name = format!("{}_x_{}/{what}", dtype.name(), format.name());
                let build = move |seed| Problem::Products(Box::new(ProductsProblem::Linear(shape.build(seed))));
                cases.push(Case::new("linear", name, size, build));
            };
            let of = |t, n, k| Shape::of(dtype, format, [t, n, k]);
            let bf16 = |shape: Shape| Shape { out_dtype: Dtype::Bf16, ..shape };
            use Size::{Full, Quick};
            add(Quick, "random_1", of(1, 67, 96));
            add(Quick, "random_2_bf16_out", bf16(of(2, 7, 288)));
            add(Quick, "random_3_padded", Shape { pad_x: 40, pad_out: 3, ..of(3, 33, 160) });
            add(Quick, "random_16_accumulate", Shape { accumulate: true, pad_out: 5, ..of(16, 17, 128) });
            add(Quick, "random_17_bf16_padded", bf16(Shape { pad_x: 8, pad_out: 1, ..of(17, 130, 64) }));
            add(Quick, "random_33", of(33, 24, 32));
            add(Quick, "one_output", of(5, 1, 32));
            add(Quick, "empty_batch", of(0, 40, 64));
            add(Quick, "groups_2", Shape { groups: 2, pad_x: 8, ..of(3, 16, 160) });
            add(Quick, "groups_8", bf16(Shape { groups: 8, pad_out: 2, ..of(19, 5, 32) }));
            add(Quick, "not_finite", Shape { values: Values::NotFinite, ..of(6, 20, 64) });
            add(Quick, "not_finite_many", Shape { values: Values::NotFinite, ..of(20, 20, 64) });
            add(Quick, "heavy_tails", Shape { values: Values::Heavy, ..of(4, 40, 224) });
            add(Quick, "all_positive", Shape { values: Values::Positive, ..of(4, 9, 512) });
            // Kernels that bring tokens piece by piece use every place of their ring again.
            add(Quick, "random_20_deep", of(20, 20, 448));
            if format == Fp8Block128 || format == Fp4Block32 {
                let extreme = |t| Shape { values: Values::ExtremeScales, ..of(t, 140, 160) };
                add(Quick, "scale_bytes_0_and_254", extreme(4));
                add(Quick, "scale_bytes_0_and_254_many", extreme(18));
            }
            add(Full, "random_64_by_130_by_1024", of(64, 130, 1024));
            add(Full, "random_130_bf16_groups", bf16(Shape { groups: 2, pad_x: 16, ..of(130, 129, 416) }));
            add(Full, "random_130_accumulate", Shape { accumulate: true, ..of(130, 64, 256) });
            add(Full, "random_16_by_257_by_4096", of(16, 257, 4096));
            add(Full, "random_1_by_512_by_4096", bf16(of(1, 512, 4096)));
            add(Full, "all_positive_17_by_64_by_4096", Shape { values: Values::Positive, ..of(17, 64, 4096) });
            add(Full, "heavy_tails_64", Shape { values: Values::Heavy, ..of(64, 70, 512) });
        }
    }
    cases
}
