//! Cases of `router`: ties, biases that turn the order round, scores without numbers, tables with entries that are none.
//!
//! Sums `s + bias` are drawn again until any two of the best `topk + 1` differ by 2^-14 of the larger, or are equal in both
//! terms: f32 arithmetic cannot change their order.

use super::activations::numbers;
use super::{Size, invalid};
use crate::formats::s32_bytes;
use crate::plain::streams::{affinity, pick};
use crate::problem::streams::{RouterProblem, RoutingProblem, StreamsProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// Scores of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Normal.
    Random,
    /// Few different values, biases 0: ties at every place of the list.
    Ties,
    /// All equal, biases 0.
    Equal,
    /// From -150 to 60: exponentials at both ends, the linear part.
    Wide,
    /// NaN and infinities among ordinary ones; every fourth token NaN only.
    NotFinite,
    /// The bias is larger than any score and falls with it: the worst are picked.
    BiasReverses,
    /// Most biases -inf: fewer experts than picks are left.
    BiasMinusInfinity,
}

/// How a case picks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// By scores.
    None,
    /// A table; ids inside.
    Ids,
    /// Ids outside the table among them.
    IdsOutside,
    /// Entries outside the experts among them.
    EntriesOutside,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Tokens.
    pub t: u32,
    /// Experts.
    pub experts: u32,
    /// Picks.
    pub topk: u32,
    /// Scores.
    pub scores: Scores,
    /// Table.
    pub table: Table,
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> RouterProblem {
        let mut rng = Rng::named(seed, "router");
        let experts = self.experts as usize;
        let bias: Vec<f32> = (0..experts)
            .map(|e| match self.scores {
                Scores::Ties | Scores::Equal => 0.0,
                Scores::BiasReverses => -3.0 * e as f32,
                Scores::BiasMinusInfinity if e % 16 > 0 => f32::NEG_INFINITY,
                _ => (0.2 * rng.normal()) as f32,
            })
            .collect();
        let mut scores = Vec::new();
        for token in 0..self.t as usize {
            let row = loop {
                let row: Vec<f32> = (0..experts).map(|e| self.score(&mut rng, token, e)).collect();
                if apart(&row, &bias, self.topk as usize) {
                    break row;
                }
            };
            scores.extend(row);
        }
        RouterProblem {
            scores: numbers("scores", &scores),
            routing: self.routing(&mut rng, &bias),
            t: self.t,
            experts: self.experts,
            topk: self.topk,
            routed_scaling: 1.5,
        }
    }

    fn score(&self, rng: &mut Rng, token: usize, expert: usize) -> f32 {
        match self.scores {
            Scores::Random | Scores::BiasMinusInfinity => rng.normal() as f32,
            Scores::Ties => [0.5, 1.0, -2.0, 25.0, 3.0][rng.below(5) as usize],
            Scores::Equal => 0.75 - token as f32,
            Scores::Wide => (210.0 * rng.uniform() - 150.0) as f32,
            Scores::NotFinite if token % 4 == 3 || rng.chance(0.1) => f32::NAN,
            Scores::NotFinite if rng.chance(0.02) => f32::INFINITY,
            Scores::NotFinite if rng.chance(0.02) => f32::NEG_INFINITY,
            Scores::NotFinite => rng.normal() as f32,
            Scores::BiasReverses => expert as f32 / self.experts as f32,
        }
    }

    fn routing(&self, rng: &mut Rng, bias: &[f32]) -> RoutingProblem {
        if self.table == Table::None {
            return RoutingProblem::Bias(numbers("bias", bias));
        }
        let vocab = 23;
        let experts = u64::from(self.experts);
        let mut entries = Vec::new();
        for _ in 0..vocab {
            let mut line: Vec<i32> = (0..self.experts as i32).collect();
            rng.shuffle(&mut line);
            line.truncate(self.topk as usize);
            if self.table == Table::EntriesOutside {
                line.iter_mut()
                    .enumerate()
                    .for_each(|(i, e)| *e = if rng.chance(0.4) { invalid(i, experts) } else { *e });
            }
            entries.extend(line);
        }
        let ids: Vec<i32> = (0..self.t as usize)
            .map(|token| match self.table {
                Table::IdsOutside if rng.chance(0.5) => invalid(token, vocab),
                _ => rng.below(vocab) as i32,
            })
            .collect();
        RoutingProblem::Hash {
            tid2eid: Memory::full("tid2eid", s32_bytes(&entries)),
            ids: Memory::full("ids", s32_bytes(&ids)),
            vocab: vocab as u32,
        }
    }
}

/// No rounding can change the order of the best `topk + 1`.
fn apart(row: &[f32], bias: &[f32], topk: usize) -> bool {
    let keys: Vec<f64> = row.iter().zip(bias).map(|(&z, &b)| affinity(z) + f64::from(b)).collect();
    let best = pick(&keys, topk + 1);
    best.windows(2).all(|pair| {
        let (a, b) = (pair[0], pair[1]);
        let same = row[a].to_bits() == row[b].to_bits() && bias[a].to_bits() == bias[b].to_bits();
        let none = |e: usize| keys[e].is_nan() || keys[e] == f64::NEG_INFINITY;
        let gap = keys[a] - keys[b];
        same || none(b) || gap > keys[a].abs().max(keys[b].abs()).max(affinity(row[a])) / f64::from(1 << 14)
    })
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |size: Size, what: &str, shape: Shape| {
        let build = move |seed| Problem::Streams(StreamsProblem::Router(shape.build(seed)));
        cases.push(Case::new("router", what, size, build));
    };
    let small = Shape { t: 5, experts: 256, topk: 6, scores: Scores::Random, table: Table::None };
    use Size::{Full, Quick};
    add(Quick, "random_256_experts", small.clone());
    for topk in [1, 2, 3, 4, 5, 7, 8, 16] {
        add(Quick, &format!("{topk}_of_256"), Shape { topk, t: 2, ..small.clone() });
    }
    for experts in [6, 31, 32, 33, 384, 512] {
        add(Quick, &format!("{experts}_experts"), Shape { experts, ..small.clone() });
    }
    add(Quick, "one_expert", Shape { experts: 1, topk: 1, ..small.clone() });
    for (what, scores) in [
        ("ties", Scores::Ties),
        ("equal", Scores::Equal),
        ("wide", Scores::Wide),
        ("not_finite", Scores::NotFinite),
        ("bias_reverses", Scores::BiasReverses),
        ("bias_minus_infinity", Scores::BiasMinusInfinity),
    ] {
        add(Quick, what, Shape { scores, t: 8, experts: 64, ..small.clone() });
        add(Quick, &format!("{what}_all_of_6"), Shape { scores, experts: 6, ..small.clone() });
    }
    add(Quick, "table", Shape { table: Table::Ids, ..small.clone() });
    add(Quick, "table_ids_outside", Shape { table: Table::IdsOutside, t: 12, ..small.clone() });
    add(Quick, "table_entries_outside", Shape { table: Table::EntriesOutside, t: 12, ..small.clone() });
    let not_finite = Shape { table: Table::Ids, scores: Scores::NotFinite, t: 12, experts: 8, ..small.clone() };
    add(Quick, "table_not_finite", not_finite);
    add(Quick, "empty_batch", Shape { t: 0, ..small.clone() });
    add(Full, "300_tokens", Shape { t: 300, ..small.clone() });
    add(Full, "300_tokens_384_experts", Shape { t: 300, experts: 384, topk: 8, ..small });
    cases
}
