//! Cases of `topk_select`: the rows on which selections of others have returned wrong indices. Ties across the
//! boundary, plateaus, NaN, buckets that overflow, lengths around every boundary that an implementation may have.

use super::{Draw, Size};
use crate::formats::{f32_bytes, s32_bytes};
use crate::layout::LOGITS_STRIDE_MULTIPLE;
use crate::problem::{Memory, Problem, TopkProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// Values of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Row {
    /// Independent draws.
    Random(Draw),
    /// One value everywhere.
    Equal(f32),
    /// Zeros of both signs.
    Zeros,
    /// Few levels, so that many values tie at the boundary wherever it is.
    Levels(u64),
    /// Two thirds exact zeros of either sign, the rest normal: what a relu leaves.
    Plateau,
    /// Normal, NaN at 0, topk - 1, topk and n - 1.
    NanAtEdges,
    /// Every other value NaN.
    HalfNan,
    /// NaN everywhere.
    AllNan,
    /// -inf but for about topk / 2 values.
    MostlyMinusInfinity,
    /// -inf everywhere.
    AllMinusInfinity,
    /// +inf in more places than topk.
    ManyInfinities,
    /// Distinct values that agree in their upper 13 bits of 16: one fp16 bucket.
    Bucket,
    /// Distinct neighbours in f32.
    Neighbours,
    /// Ascending: every value is a new best one.
    Ascending,
    /// Descending.
    Descending,
    /// Negative only, down to subnormals.
    SmallNegative,
}

impl Row {
    fn values(self, rng: &mut Rng, n: usize, topk: usize) -> Vec<f32> {
        let edges = [0, topk.saturating_sub(1), topk, n.saturating_sub(1)];
        (0..n)
            .map(|j| match self {
                Row::Random(draw) => draw.value(rng),
                Row::Equal(value) => value,
                Row::Zeros => [0.0, -0.0][rng.below(2) as usize],
                Row::Levels(count) => rng.below(count) as f32 - 1.0,
                Row::Plateau if rng.chance(2.0 / 3.0) => [0.0, -0.0][rng.below(2) as usize],
                Row::NanAtEdges if edges.contains(&j) => f32::NAN,
                Row::HalfNan if j % 2 == 0 => f32::from_bits(0xffc0_0000 + (j as u32 & 0xff)),
                Row::AllNan => f32::NAN,
                Row::MostlyMinusInfinity if !rng.chance(topk as f64 / (2.0 * n as f64)) => f32::NEG_INFINITY,
                Row::AllMinusInfinity => f32::NEG_INFINITY,
                Row::ManyInfinities if !rng.chance(0.3 * (n - topk.min(n)) as f64 / n as f64) => f32::INFINITY,
                Row::Bucket => f32::from_bits(1.0f32.to_bits() + rng.below(1 << 13) as u32),
                Row::Neighbours => f32::from_bits(0x3f00_0000 + ((j as u32).wrapping_mul(0x9e37_79b1) >> 8)),
                Row::Ascending => j as f32,
                Row::Descending => -(j as f32),
                Row::SmallNegative => -f32::from_bits(rng.below(1 << 24) as u32),
                Row::Plateau | Row::NanAtEdges | Row::HalfNan | Row::MostlyMinusInfinity | Row::ManyInfinities => {
                    rng.normal() as f32
                }
            })
            .collect()
    }
}

/// What stands behind the last value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// Nothing: NaN, or not initialised.
    Undefined,
    /// +inf: selected at once by whoever looks.
    Infinity,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Length and values of every row.
    pub rows: Vec<(i32, Row)>,
    /// Entries to select.
    pub topk: u32,
    /// What follows the values.
    pub beyond: Beyond,
    /// Whether slots are asked for.
    pub slots: bool,
    /// Whether positions are asked for.
    pub positions: bool,
    /// Whether the counts are asked for.
    pub lens: bool,
    /// Rows per sequence.
    pub rows_per_sequence: u32,
    /// Line of the block table of every row, and how many lines there are; absent: by `rows_per_sequence`.
    pub sequence_of_row: Option<(Vec<i32>, u32)>,
    /// Rows per page.
    pub page_size: u32,
    /// Columns of the table beyond the last page in use.
    pub table_pad: u64,
    /// Columns of the logits beyond the smallest stride, in units of 256.
    pub logits_pad: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            rows: Vec::new(),
            topk: 16,
            beyond: Beyond::Undefined,
            slots: true,
            positions: true,
            lens: true,
            rows_per_sequence: 1,
            sequence_of_row: None,
            page_size: 64,
            table_pad: 0,
            logits_pad: 0,
        }
    }
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> TopkProblem {
        let mut rng = Rng::named(seed, "topk_select");
        let lens: Vec<i32> = self.rows.iter().map(|&(n, _)| n).collect();
        let real = |n: i32, most: u64| (n.max(0) as u64).min(most);
        // A length of 2^31 - 1 stands for "more than the row has".
        let longest = lens.iter().filter(|&&n| n < i32::MAX).map(|&n| real(n, u64::MAX)).max().unwrap_or(0);
        let stride =
            (longest.max(1)).next_multiple_of(LOGITS_STRIDE_MULTIPLE) + self.logits_pad * LOGITS_STRIDE_MULTIPLE;
        let mut index_logits = Memory::undefined("index_logits", 4 * stride * lens.len() as u64);
        for (row, &(n, kind)) in self.rows.iter().enumerate() {
            let n = real(n, stride) as usize;
            // Up to topk values are not looked at, so they are not there.
            let mut values =
                if n > self.topk as usize { kind.values(&mut rng, n, self.topk as usize) } else { Vec::new() };
            if self.beyond == Beyond::Infinity {
                values.resize(stride as usize, f32::INFINITY);
            }
            index_logits.put(4 * stride * row as u64, &f32_bytes(&values));
        }

        let max_pages = stride.div_ceil(u64::from(self.page_size));
        let stride_block_table = max_pages + self.table_pad;
        let sequences = match &self.sequence_of_row {
            Some((_, lines)) => *lines as usize,
            None => lens.len() / self.rows_per_sequence as usize,
        };
        let block_table = self.slots.then(|| {
            let mut table = Memory::undefined("block_table", 4 * stride_block_table * sequences as u64);
            for sequence in 0..sequences {
                // Distinct pages in random order; about one in twelve is missing.
                let mut pages: Vec<i32> = (0..max_pages as i32).map(|p| 3 * p + 1).collect();
                rng.shuffle(&mut pages);
                for page in &mut pages {
                    if rng.chance(1.0 / 12.0) {
                        *page = [-1, i32::MIN][rng.below(2) as usize];
                    }
                }
                table.put(4 * stride_block_table * sequence as u64, &s32_bytes(&pages));
            }
            table
        });
        TopkProblem {
            index_logits,
            context_lens: Memory::full("context_lens", s32_bytes(&lens)),
            block_table,
            sequence_of_row: self
                .sequence_of_row
                .as_ref()
                .map(|(lines, _)| Memory::full("sequence_of_row", s32_bytes(lines))),
            want_positions: self.positions,
            want_lens: self.lens,
            rows: lens.len() as u32,
            // 0 where it must not be looked at
            rows_per_sequence: if self.sequence_of_row.is_some() { 0 } else { self.rows_per_sequence },
            num_sequences: self.sequence_of_row.as_ref().map_or(0, |(_, lines)| *lines),
            topk: self.topk,
            page_size: self.page_size,
            max_pages: max_pages as u32,
            stride_logits: stride,
            stride_block_table,
        }
    }
}

/// The kinds of rows with their names.
pub const KINDS: [(&str, Row); 18] = [
    ("normal", Row::Random(Draw::Normal)),
    ("heavy_tails", Row::Random(Draw::Heavy)),
    ("all_equal", Row::Equal(-2.5)),
    ("all_zero", Row::Equal(0.0)),
    ("zeros_of_both_signs", Row::Zeros),
    ("ties_across_the_boundary", Row::Levels(3)),
    ("levels", Row::Levels(40)),
    ("plateau_of_zeros", Row::Plateau),
    ("nan_at_edges", Row::NanAtEdges),
    ("half_nan", Row::HalfNan),
    ("all_nan", Row::AllNan),
    ("mostly_minus_infinity", Row::MostlyMinusInfinity),
    ("all_minus_infinity", Row::AllMinusInfinity),
    ("many_infinities", Row::ManyInfinities),
    ("one_bucket", Row::Bucket),
    ("neighbours", Row::Neighbours),
    ("ascending", Row::Ascending),
    ("descending", Row::Descending),
];

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |size: Size, what: String, shape: Shape| {
        cases.push(Case::new("topk_select", what, size, move |seed| Problem::TopkSelect(shape.build(seed))));
    };
    let normal = Row::Random(Draw::Normal);
    let of = |topk: u32, rows: &[(i32, Row)]| Shape { topk, rows: rows.to_vec(), ..Shape::default() };
    use Size::{Full, Quick, Slow};

    for (name, row) in KINDS {
        add(Quick, format!("{name}_16_of_100"), of(16, &[(100, row), (17, row)]));
        add(Quick, format!("{name}_512_of_700"), of(512, &[(700, row)]));
    }
    add(Quick, "small_negative".into(), of(16, &[(100, Row::SmallNegative)]));
    add(Quick, "random_one_of_300".into(), of(1, &[(300, normal), (1, normal), (0, normal), (300, Row::Zeros)]));
    add(
        Quick,
        "lens_around_topk".into(),
        of(64, &[(0, normal), (1, normal), (63, normal), (64, normal), (65, normal)]),
    );
    add(Quick, "lens_around_512".into(), of(512, &[(511, normal), (512, normal), (513, Row::Zeros)]));
    add(Quick, "lens_around_1024".into(), of(1024, &[(1023, normal), (1024, normal), (1025, Row::Levels(3))]));
    add(Quick, "lens_around_2048".into(), of(2048, &[(2048, normal), (2049, Row::Zeros)]));
    add(Quick, "odd_topk".into(), of(37, &[(200, normal), (38, Row::Plateau)]));
    add(Quick, "empty_batch".into(), of(16, &[]));
    add(Quick, "all_rows_empty".into(), of(16, &[(0, normal), (0, normal)]));
    add(Quick, "odd_lens".into(), of(16, &[(-5, normal), (i32::MIN, normal), (i32::MAX, normal), (20, normal)]));
    let plateau = [(100, Row::Plateau), (200, normal)];
    add(Quick, "infinity_beyond".into(), Shape { beyond: Beyond::Infinity, logits_pad: 1, ..of(16, &plateau) });
    add(Quick, "positions_only".into(), Shape { slots: false, lens: false, ..of(16, &plateau) });
    add(Quick, "slots_only".into(), Shape { positions: false, lens: false, ..of(16, &plateau) });
    let four = [(100, normal), (10, normal), (0, normal), (90, Row::Plateau)];
    add(Quick, "two_rows_per_sequence".into(), Shape { rows_per_sequence: 2, table_pad: 5, ..of(16, &four) });
    let five = [(100, normal), (10, normal), (0, normal), (90, Row::Plateau), (33, normal)];
    let lines = |lines: &[i32], count| Some((lines.to_vec(), count));
    let ragged = Shape { sequence_of_row: lines(&[0, 0, 0, 2, 2], 3), table_pad: 3, ..of(16, &five) };
    add(Quick, "sequence_of_row".into(), ragged.clone());
    let outside = lines(&[2, -1, i32::MIN, 3, i32::MAX], 3);
    add(Quick, "sequence_of_row_outside_the_table".into(), Shape { sequence_of_row: outside, ..ragged.clone() });
    add(
        Quick,
        "sequence_of_row_without_lines".into(),
        Shape { sequence_of_row: lines(&[0, 1, 0, 0, -1], 0), ..ragged },
    );
    add(Quick, "page_of_2_rows".into(), Shape { page_size: 2, ..of(16, &plateau) });
    add(Quick, "page_of_61_rows".into(), Shape { page_size: 61, ..of(16, &plateau) });

    // Long enough that an implementation may look for a bound first, or cut the row into pieces for several blocks.
    add(Quick, "37_of_5000".into(), of(37, &[(5_000, normal)]));
    add(Quick, "37_of_5000_levels".into(), of(37, &[(5_000, Row::Levels(2))]));
    add(Quick, "16_of_33000".into(), of(16, &[(33_000, Row::Plateau)]));

    for boundary in [1024, 4096, 8192, 16384, 32768, 65536] {
        for topk in [512, 2048] {
            if boundary <= topk as i32 {
                continue;
            }
            let rows = [
                (boundary - 1, Row::Random(Draw::Heavy)),
                (boundary, Row::Plateau),
                (boundary + 1, Row::Bucket),
                (boundary + 1, Row::Levels(3)),
            ];
            add(Full, format!("{topk}_around_{boundary}"), of(topk, &rows));
        }
    }
    let long = [
        (20_000, Row::Bucket),
        (20_000, Row::Equal(1.0)),
        (20_000, Row::Zeros),
        (20_000, Row::Levels(2)),
        (20_000, Row::Neighbours),
        (20_000, Row::HalfNan),
        (20_000, Row::Ascending),
        (20_000, Row::ManyInfinities),
        (20_000, Row::MostlyMinusInfinity),
        (20_000, Row::AllNan),
    ];
    add(Full, "512_of_20000".into(), of(512, &long));
    add(Full, "1024_of_20000".into(), of(1024, &long));
    let many = (0..200).map(|i| (i * 13 % 900, [normal, Row::Plateau, Row::Levels(3)][i as usize % 3]));
    add(Full, "batch_of_200".into(), of(512, &many.collect::<Vec<_>>()));
    for n in [1 << 18, (1 << 18) + 1, 1 << 20] {
        add(
            Slow,
            format!("512_of_{n}"),
            of(512, &[(n, Row::Random(Draw::Heavy)), (n, Row::Plateau), (n, Row::Bucket)]),
        );
    }
    cases
}
