//! Cases of `moe_experts`: experts without tokens, all tokens on one, picks of other ranks, picks that stand there twice.

use super::Size;
use super::products::{Values, rows_of};
use crate::formats::{f32_bytes, s32_bytes};
use crate::ops::{Dtype, WeightFormat};
use crate::problem::{Memory, MoeProblem, Problem, ProductsProblem, WeightMemory};
use crate::rng::Rng;
use crate::suite::Case;

/// What the tokens pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Picks {
    /// Any expert, one in eight of them not here (and of those, some no expert at all).
    Random,
    /// The last expert only.
    One,
    /// Two experts, each several times in a list.
    Twice,
    /// None that is here.
    Elsewhere,
    /// Even experts; the weights of the odd ones are NaN.
    Even,
}

/// A problem in words.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Shape {
    pub dtype: Dtype,
    pub formats: [WeightFormat; 2],
    pub values: Values,
    pub picks: Picks,
    pub t: u32,
    pub d: u32,
    pub inter: u32,
    pub topk: u32,
    pub first_expert: u32,
    pub num_experts: u32,
    pub limit: f32,
}

impl Shape {
    /// Six experts from 2 on, three picks, a clamp that acts.
    pub fn of(dtype: Dtype, format: WeightFormat, [t, d, inter]: [u32; 3]) -> Shape {
        Shape {
            dtype,
            formats: [format; 2],
            values: Values::Random,
            picks: Picks::Random,
            t,
            d,
            inter,
            topk: 3,
            first_expert: 2,
            num_experts: 6,
            limit: 1.0,
        }
    }

    fn pick(&self, rng: &mut Rng, place: usize) -> i32 {
        let here = |local: u64| (u64::from(self.first_expert) + local) as i32;
        let elsewhere = [-1, self.first_expert as i32 - 1, here(u64::from(self.num_experts)), i32::MIN, i32::MAX];
        match self.picks {
            Picks::Random if rng.chance(0.125) => elsewhere[rng.below(5) as usize],
            Picks::Random => here(rng.below(u64::from(self.num_experts))),
            Picks::One => here(u64::from(self.num_experts) - 1),
            Picks::Twice => here(rng.below(2)),
            Picks::Elsewhere => elsewhere[place % 5],
            Picks::Even => here(rng.below(u64::from(self.num_experts)) & !1),
        }
    }

    /// The experts' matrices one after the other.
    fn experts(&self, rng: &mut Rng, which: usize, rows: u32, k: u32) -> WeightMemory {
        let all = (self.num_experts * rows) as usize;
        let mut weight = self.values.weight(rng, self.formats[which], all, k as usize);
        if self.picks == Picks::Even {
            // e2m1 has no NaN, the scales of its blocks do.
            let memory = match self.formats[which] {
                WeightFormat::Fp4Block32 => weight.scale.as_mut().expect("fp4 has scales"),
                _ => &mut weight.data,
            };
            let bytes = &mut memory.pieces[0].1;
            let each = bytes.len() / self.num_experts as usize;
            for expert in bytes.chunks_mut(each).skip(1).step_by(2) {
                expert.fill(0xff);
            }
        }
        weight
    }

    /// Makes the data.
    pub fn build(&self, seed: u64) -> MoeProblem {
        let mut rng = Rng::named(seed, "moe_experts");
        let (t, d) = (self.t as usize, self.d as usize);
        let x = self.values.activations(&mut rng, t, d);
        let picks = t * self.topk as usize;
        let ids: Vec<i32> = (0..picks).map(|place| self.pick(&mut rng, place)).collect();
        let weights: Vec<f32> = (0..picks).map(|_| 0.1 + rng.uniform() as f32).collect();
        MoeProblem {
            dtype: self.dtype,
            x: rows_of("x", self.dtype, &x, u64::from(self.d)),
            expert_ids: Memory::full("expert_ids", s32_bytes(&ids)),
            expert_weights: Memory::full("expert_weights", f32_bytes(&weights)),
            w13: self.experts(&mut rng, 0, 2 * self.inter, self.d),
            w2: self.experts(&mut rng, 1, self.d, self.inter),
            t: self.t,
            d: self.d,
            inter: self.inter,
            topk: self.topk,
            first_expert: self.first_expert,
            num_experts: self.num_experts,
            limit: self.limit,
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
                let build = move |seed| Problem::Products(Box::new(ProductsProblem::MoeExperts(shape.build(seed))));
                cases.push(Case::new("moe_experts", name, size, build));
            };
            let of = |t, d, inter| Shape::of(dtype, format, [t, d, inter]);
            use Size::{Full, Quick};
            add(Quick, "random_1", of(1, 64, 32));
            add(Quick, "random_5", of(5, 32, 64));
            add(Quick, "random_19", of(19, 32, 32));
            add(Quick, "empty_batch", of(0, 32, 32));
            add(Quick, "all_on_one", Shape { picks: Picks::One, topk: 1, ..of(9, 32, 32) });
            add(Quick, "picks_twice", Shape { picks: Picks::Twice, topk: 4, ..of(5, 32, 32) });
            add(Quick, "picks_elsewhere", Shape { picks: Picks::Elsewhere, ..of(7, 32, 32) });
            add(Quick, "unused_experts_nan", Shape { picks: Picks::Even, ..of(6, 64, 32) });
            add(Quick, "one_expert", Shape { num_experts: 1, first_expert: 0, topk: 1, ..of(3, 32, 32) });
            // More tokens on an expert than a tile has, and products deep enough that rings of buffers go round.
            let one = |t, d, inter, num_experts| Shape { picks: Picks::One, topk: 1, num_experts, ..of(t, d, inter) };
            add(Quick, "20_on_one_of_8_deep", one(20, 448, 32, 8));
            add(Quick, "70_on_one_of_2_deep", one(70, 448, 32, 2));
            add(Quick, "20_on_one_of_8_wide", one(20, 32, 448, 8));
            add(Quick, "70_on_one_of_2_wide", one(70, 32, 448, 2));
            if format == Bf16 {
                add(Quick, "random_300_picks", of(100, 32, 32));
            }
            add(Quick, "no_limit", Shape { limit: f32::INFINITY, ..of(4, 32, 32) });
            add(Full, "random_70", Shape { topk: 6, num_experts: 16, ..of(70, 128, 96) });
            add(Full, "random_2_of_64", Shape { topk: 6, num_experts: 64, first_expert: 64, ..of(2, 256, 128) });
            add(Full, "all_on_one_130", Shape { picks: Picks::One, topk: 2, ..of(130, 128, 64) });
            add(Full, "heavy_tails", Shape { values: Values::Heavy, limit: 10.0, ..of(33, 160, 128) });
        }
    }
    // Weights of two formats in one call.
    let mixed = Shape { formats: [Fp4Block32, Fp8Block128], ..Shape::of(Dtype::Bf16, Bf16, [4, 128, 64]) };
    cases.push(Case::new("moe_experts", "bf16_x_fp4_fp8/random_4", Size::Quick, move |seed| {
        Problem::Products(Box::new(ProductsProblem::MoeExperts(mixed.build(seed))))
    }));
    cases
}
