//! Cases of `compress`: sequences that start at every place of a window, chunks around the window's length, several
//! sequences in a batch, rings per page and per request, pages that do not exist, gates of every kind.
//!
//! State rows that no window may reach hold NaN.

use super::{Size, invalid};
use crate::formats::{f32_bytes, s32_bytes};
use crate::ops::Dtype;
use crate::problem::{CompressProblem, Memory, Problem, RowsProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// Gates of the tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gates {
    /// Some units apart.
    Normal,
    /// Up to a hundred apart: most weights vanish.
    Wide,
    /// NaN and infinities; all gates of the first channels are -inf.
    NotFinite,
}

/// A problem in words.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Shape {
    pub dtype: Dtype,
    pub ratio: u32,
    pub overlap: bool,
    pub d: u32,
    /// First position and number of tokens of every sequence.
    pub sequences: Vec<(u32, u32)>,
    pub ring_rows: u32,
    pub state_page_tokens: u32,
    /// Share of state pages that do not exist.
    pub missing: f64,
    pub gates: Gates,
    /// Elements between the rows of `kv_gate`, a multiple of 4.
    pub pad: u64,
    /// Tokens of no sequence behind the batch, and rows that are no token.
    pub padding: u32,
}

impl Shape {
    /// Ratio 4 with overlap, a ring of 8 rows per page of 128 tokens.
    pub fn csa(d: u32, sequences: &[(u32, u32)]) -> Shape {
        Shape {
            dtype: Dtype::F32,
            ratio: 4,
            overlap: true,
            d,
            sequences: sequences.to_vec(),
            ring_rows: 8,
            state_page_tokens: 128,
            missing: 0.0,
            gates: Gates::Normal,
            pad: 0,
            padding: 0,
        }
    }

    /// Ratio 128 without overlap, a ring of 128 rows per page of 128 tokens.
    pub fn hca(d: u32, sequences: &[(u32, u32)]) -> Shape {
        Shape { ratio: 128, overlap: false, ring_rows: 128, ..Shape::csa(d, sequences) }
    }

    fn w(&self) -> usize {
        self.d as usize * if self.overlap { 2 } else { 1 }
    }

    /// `u` then `g` of a token.
    fn token(&self, rng: &mut Rng) -> Vec<f32> {
        let w = self.w();
        let mut row: Vec<f32> = (0..w).map(|_| rng.heavy() as f32).collect();
        for c in 0..w {
            row.push(match self.gates {
                Gates::Normal => 2.0 * rng.normal() as f32,
                Gates::Wide => 25.0 * rng.normal() as f32,
                Gates::NotFinite => match rng.below(60) {
                    _ if c % self.d as usize == 0 => f32::NEG_INFINITY,
                    0..20 => f32::NEG_INFINITY,
                    20 => f32::INFINITY,
                    21 => f32::NAN,
                    _ => rng.normal() as f32,
                },
            });
        }
        row
    }

    /// Makes the data.
    pub fn build(&self, seed: u64) -> CompressProblem {
        let mut rng = Rng::named(seed, "compress");
        let (w, page_tokens, ratio) = (self.w(), self.state_page_tokens, self.ratio);
        // Pages: of every sequence those that hold its first to its last token, in random order.
        let columns = |&(start, len): &(u32, u32)| (start + len).div_ceil(page_tokens).max(1) as usize;
        let max_state_pages = self.sequences.iter().map(columns).max().unwrap_or(0);
        let used: usize = self.sequences.iter().map(columns).sum();
        let num_pages = used + 2;
        let mut pages: Vec<i32> = (0..num_pages as i32).collect();
        rng.shuffle(&mut pages);
        let mut table = vec![-1; max_state_pages * self.sequences.len()];
        for (sequence, line) in self.sequences.iter().zip(table.chunks_mut(max_state_pages.max(1))) {
            for (i, entry) in line.iter_mut().enumerate() {
                let exists = i < columns(sequence) && !rng.chance(self.missing);
                *entry = if exists { pages.pop().expect("a page per column") } else { invalid(i, num_pages as u64) };
            }
        }

        // What earlier steps left, as far as a window of this batch reaches back.
        let row = 2 * w;
        let mut state = vec![f32::NAN; num_pages * self.ring_rows as usize * row];
        for (s, &(start, _)) in self.sequences.iter().enumerate() {
            let window = start - start % ratio;
            let reach = if self.overlap { window.saturating_sub(ratio) } else { window };
            for position in reach..start {
                let token = self.token(&mut rng);
                let page = table[s * max_state_pages + (position / page_tokens) as usize];
                if (0..num_pages as i32).contains(&page) {
                    let slot = page as usize * self.ring_rows as usize + (position % self.ring_rows) as usize;
                    state[slot * row..(slot + 1) * row].copy_from_slice(&token);
                }
            }
        }

        let (mut positions, mut seq, mut cu_seqlens, mut row_tokens) = (vec![], vec![], vec![0], vec![]);
        for (s, &(start, len)) in self.sequences.iter().enumerate() {
            for position in start..start + len {
                if (position + 1).is_multiple_of(ratio) {
                    row_tokens.push(positions.len() as i32);
                }
                positions.push(position as i32);
                seq.push(s as i32);
            }
            cu_seqlens.push(positions.len() as i32);
        }
        for i in 0..self.padding as usize {
            positions.push(if i % 2 == 0 { ratio as i32 - 1 } else { -1 });
            seq.push(if i % 2 == 0 { invalid(i / 2, self.sequences.len() as u64) } else { 0 });
            row_tokens.push(positions.len() as i32 - 1);
            row_tokens.push(invalid(i, positions.len() as u64 + u64::from(self.padding)));
        }
        rng.shuffle(&mut row_tokens);

        let stride = row as u64 + self.pad;
        let mut kv_gate = Memory::undefined("kv_gate", 4 * positions.len() as u64 * stride);
        for token in 0..positions.len() as u64 {
            kv_gate.put(4 * token * stride, &f32_bytes(&self.token(&mut rng)));
        }
        let ape: Vec<f32> = (0..ratio as usize * w).map(|_| rng.normal() as f32).collect();
        let ints = |label, values: &[i32]| Memory::full(label, s32_bytes(values));
        CompressProblem {
            dtype: self.dtype,
            kv_gate,
            ape: Memory::full("ape", f32_bytes(&ape)),
            state: Memory::full("state", f32_bytes(&state)),
            state_table: ints("state_table", &table),
            positions: ints("positions", &positions),
            seq: ints("seq", &seq),
            cu_seqlens: ints("cu_seqlens", &cu_seqlens),
            row_tokens: ints("row_tokens", &row_tokens),
            t: positions.len() as u32,
            b: self.sequences.len() as u32,
            n: row_tokens.len() as u32,
            ratio,
            d: self.d,
            overlap: self.overlap,
            max_state_pages: max_state_pages as u32,
            num_state_pages: num_pages as u32,
            state_page_tokens: page_tokens,
            ring_rows: self.ring_rows,
            stride_kv_gate: stride,
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let shape = Shape { dtype, ..shape };
            cases.push(Case::new("compress", format!("{}/{what}", dtype.name()), size, move |seed| {
                Problem::Rows(Box::new(RowsProblem::Compress(shape.build(seed))))
            }));
        };
        use Size::{Full, Quick};
        const REQUEST: u32 = 1 << 30;
        let csa = Shape::csa;
        let hca = Shape::hca;
        let each = |starts: std::ops::Range<u32>, len: u32| -> Vec<(u32, u32)> { starts.map(|s| (s, len)).collect() };

        add(Quick, "ratio_4/random_two_sequences", csa(128, &[(0, 11), (133, 6)]));
        add(Quick, "ratio_4/index_rows", csa(128, &[(7, 1), (11, 2), (40, 5)]));
        add(Quick, "ratio_4/main_rows", csa(512, &[(3, 1), (6, 3)]));
        for len in [1, 3, 4, 5] {
            add(Quick, &format!("ratio_4/{len}_tokens_from_every_place"), csa(32, &each(120..136, len)));
            add(Quick, &format!("ratio_4/{len}_tokens_from_the_start"), csa(32, &each(0..9, len)));
        }
        for len in [127, 128, 129] {
            add(Full, &format!("ratio_4/{len}_tokens_from_every_place"), csa(32, &each(8..16, len)));
        }
        for ring_rows in [16, 128] {
            add(Quick, &format!("ratio_4/ring_of_{ring_rows}"), Shape { ring_rows, ..csa(32, &each(124..132, 9)) });
        }
        let per_request = Shape { state_page_tokens: REQUEST, ..csa(32, &each(0..10, 13)) };
        add(Quick, "ratio_4/ring_per_request", per_request.clone());
        add(Quick, "ratio_4/ring_of_16_per_request", Shape { ring_rows: 16, ..per_request });
        add(Quick, "ratio_4/missing_pages", Shape { missing: 0.4, ..csa(32, &each(124..134, 9)) });
        add(Quick, "ratio_4/no_page_at_all", Shape { missing: 1.0, ..csa(32, &each(4..12, 5)) });
        add(Quick, "ratio_4/padding", Shape { padding: 6, ..csa(32, &[(2, 7), (9, 4)]) });
        add(Quick, "ratio_4/padded_stride", Shape { pad: 20, ..csa(32, &[(2, 7), (9, 4)]) });
        add(Quick, "ratio_4/no_sequence", Shape { padding: 4, ..csa(32, &[]) });
        add(Quick, "ratio_4/empty_batch", csa(32, &[(5, 0)]));
        add(Quick, "ratio_4/empty_sequences", csa(32, &[(4, 0), (5, 3), (9, 0), (3, 1)]));
        add(Quick, "ratio_4/wide_gates", Shape { gates: Gates::Wide, ..csa(64, &[(1, 12), (6, 7)]) });
        add(Quick, "ratio_4/not_finite", Shape { gates: Gates::NotFinite, ..csa(64, &[(1, 12), (6, 7)]) });
        add(Quick, "ratio_4/rows_of_20", csa(20, &[(1, 12), (6, 7)]));
        add(Quick, "ratio_4/rows_of_7", csa(7, &[(1, 12), (6, 7)]));

        add(Quick, "ratio_128/random_two_sequences", hca(64, &[(100, 60), (255, 1)]));
        add(Quick, "ratio_128/main_rows", hca(512, &[(127, 1)]));
        for len in [1, 3, 4, 5] {
            let starts = [0, 1, 123, 124, 125, 126, 127, 128, 251, 255];
            let sequences = starts.map(|start| (start, len));
            add(Quick, &format!("ratio_128/{len}_tokens"), hca(16, &sequences));
            add(Full, &format!("ratio_128/{len}_tokens_from_every_place"), hca(8, &each(256..384, len)));
        }
        for len in [127, 128, 129] {
            add(Full, &format!("ratio_128/{len}_tokens_from_every_place"), hca(8, &each(128..256, len)));
        }
        let per_request = Shape { state_page_tokens: REQUEST, ..hca(16, &[(0, 5), (126, 131), (384, 128), (255, 1)]) };
        add(Quick, "ratio_128/ring_per_request", per_request);
        add(Quick, "ratio_128/ring_of_256", Shape { ring_rows: 256, ..hca(16, &[(120, 9), (250, 7)]) });
        add(Quick, "ratio_128/missing_pages", Shape { missing: 0.5, ..hca(16, &each(126..140, 3)) });
        // Half of a window lies on another page than the other half.
        let half_pages = Shape { state_page_tokens: 64, missing: 0.3, ..hca(16, &each(124..132, 5)) };
        add(Quick, "ratio_128/window_over_two_pages", half_pages);
        add(Quick, "ratio_128/wide_gates", Shape { gates: Gates::Wide, ..hca(64, &[(120, 8)]) });
        add(Quick, "ratio_128/not_finite", Shape { gates: Gates::NotFinite, ..hca(64, &[(120, 8)]) });
        for (ratio, overlap) in [(1, false), (1, true), (3, true), (16, false), (24, false), (16, true), (33, true)] {
            let name = format!("ratio_{ratio}{}/two_sequences", if overlap { "_overlap" } else { "" });
            let shape = Shape { ratio, overlap, ring_rows: 2 * ratio + 1, ..csa(16, &[(0, 70), (45, 61)]) };
            add(Quick, &name, shape);
        }
    }
    cases
}
