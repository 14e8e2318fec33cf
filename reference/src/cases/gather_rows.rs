//! Cases of `gather_rows`: rows outside the source, rows taken twice, lengths from 4 bytes on.

use super::{Size, invalid};
use crate::formats::s32_bytes;
use crate::problem::streams::{GatherProblem, StreamsProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Rows to take.
    pub n: u32,
    /// Rows of the source.
    pub num_rows: u32,
    /// Bytes per row.
    pub row_bytes: u64,
    /// Share of rows outside the source.
    pub outside: f64,
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> GatherProblem {
        let mut rng = Rng::named(seed, "gather_rows");
        let count = u64::from(self.num_rows);
        let mut rows = Vec::new();
        for i in 0..self.n as usize {
            let row = rng.below(count.max(1)) as i32;
            rows.push(if rng.chance(self.outside) { invalid(i, count) } else { row });
        }
        let mut src = Memory::undefined("src", count * self.row_bytes);
        for row in (0..count).filter(|&row| rows.contains(&(row as i32))) {
            let bytes: Vec<u8> = (0..self.row_bytes).map(|_| rng.bits() as u8).collect();
            src.put(row * self.row_bytes, &bytes);
        }
        GatherProblem {
            src,
            rows: Memory::full("rows", s32_bytes(&rows)),
            n: self.n,
            num_rows: self.num_rows,
            row_bytes: self.row_bytes,
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |size: Size, what: &str, shape: Shape| {
        let build = move |seed| Problem::Streams(StreamsProblem::GatherRows(shape.build(seed)));
        cases.push(Case::new("gather_rows", what, size, build));
    };
    let small = Shape { n: 7, num_rows: 12, row_bytes: 512, outside: 0.0 };
    use Size::{Full, Quick};
    add(Quick, "random_7_rows", small.clone());
    for row_bytes in [4, 16, 20, 1040, 16400] {
        add(Quick, &format!("rows_of_{row_bytes}_bytes"), Shape { row_bytes, ..small.clone() });
    }
    add(Quick, "rows_outside", Shape { outside: 0.5, n: 16, ..small.clone() });
    add(Quick, "all_outside", Shape { outside: 1.0, ..small.clone() });
    add(Quick, "rows_taken_often", Shape { num_rows: 2, n: 20, ..small.clone() });
    add(Quick, "empty_source", Shape { num_rows: 0, outside: 1.0, ..small.clone() });
    add(Quick, "empty_batch", Shape { n: 0, ..small.clone() });
    add(Full, "64_rows_of_32_kib", Shape { n: 64, num_rows: 70, row_bytes: 32768, outside: 0.1 });
    cases
}
