//! Cases of `embed`: ids outside the table, tables whose other rows are NaN, every bit pattern.

use super::activations::DTYPES;
use super::{Size, invalid};
use crate::formats::s32_bytes;
use crate::ops::Dtype;
use crate::problem::streams::{EmbedProblem, StreamsProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Type.
    pub dtype: Dtype,
    /// Tokens.
    pub t: u32,
    /// Rows of the table.
    pub vocab: u32,
    /// Channels.
    pub d: u32,
    /// Streams.
    pub copies: u32,
    /// Share of ids outside the table.
    pub outside: f64,
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> EmbedProblem {
        let mut rng = Rng::named(seed, "embed");
        let row = u64::from(self.d) * self.dtype.bytes();
        let mut ids = Vec::new();
        for token in 0..self.t as usize {
            let id = rng.below(u64::from(self.vocab).max(1)) as i32;
            ids.push(if rng.chance(self.outside) { invalid(token, u64::from(self.vocab)) } else { id });
        }
        // Rows that no id names stay undefined.
        let mut table = Memory::undefined("table", u64::from(self.vocab) * row);
        let mut used: Vec<u64> = ids.iter().filter_map(|&id| u64::try_from(id).ok()).collect();
        used.retain(|&id| id < u64::from(self.vocab));
        used.sort_unstable();
        used.dedup();
        for id in used {
            let bytes: Vec<u8> = (0..row).map(|_| rng.bits() as u8).collect();
            table.put(id * row, &bytes);
        }
        EmbedProblem {
            dtype: self.dtype,
            table,
            ids: Memory::full("ids", s32_bytes(&ids)),
            t: self.t,
            vocab: self.vocab,
            d: self.d,
            copies: self.copies,
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DTYPES {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let build = move |seed| Problem::Streams(StreamsProblem::Embed(shape.build(seed)));
            cases.push(Case::new("embed", format!("{}/{what}", dtype.name()), size, build));
        };
        let small = Shape { dtype, t: 9, vocab: 50, d: 64, copies: 4, outside: 0.0 };
        use Size::{Full, Quick};
        add(Quick, "random_9_tokens", small.clone());
        add(Quick, "one_copy", Shape { copies: 1, ..small.clone() });
        add(Quick, "one_token", Shape { t: 1, d: 2056, ..small.clone() });
        add(Quick, "8_channels", Shape { d: 8, t: 33, ..small.clone() });
        add(Quick, "ids_outside", Shape { outside: 0.5, t: 16, ..small.clone() });
        add(Quick, "all_outside", Shape { outside: 1.0, ..small.clone() });
        add(Quick, "empty_table", Shape { outside: 1.0, vocab: 0, ..small.clone() });
        add(Quick, "empty_batch", Shape { t: 0, ..small.clone() });
        add(Quick, "5_channels", Shape { d: 5, ..small.clone() });
        add(Full, "33_tokens_4096_channels", Shape { t: 33, d: 4096, vocab: 200, outside: 0.1, ..small });
    }
    cases
}
