//! Cases of `index_logits_decode`: ragged lengths, empty rows, invalid pages, padded strides, NaN, exact zeros.

use super::{Draw, Size, invalid};
use crate::formats::{bf16_bytes, f32_bytes, quantise_fp4_row, quantise_index_row, s32_bytes};
use crate::layout::{
    D_INDEX, INDEX_HEADS, LOGITS_STRIDE_MULTIPLE, f32_row, index_k_bf16, index_k_fp4_data, index_k_fp4_scale,
    index_k_fp8_data, index_k_fp8_scale,
};
use crate::ops::{IndexKFormat, Pages, ScaleRule};
use crate::problem::{IndexLogitsProblem, Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// What is special about the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Nothing.
    Plain(Draw),
    /// Every dot is negative: logits are exactly zero.
    Negative,
    /// Every seventh key and the last query hold a NaN.
    Nan,
    /// fp4 only: every group of channels has a scale of its own, binades away from those of its neighbours; among the keys are
    /// some as small as the format goes, and groups of zeros with the largest scale.
    Scales,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Format of queries and keys.
    pub format: IndexKFormat,
    /// Context length of every row, `b * s_q` of them.
    pub lens: Vec<i32>,
    /// Queries per sequence.
    pub s_q: u32,
    /// Heads of the indexer.
    pub index_heads: u32,
    /// Rows per page.
    pub page_size: u32,
    /// Bytes between pages beyond the smallest stride, a multiple of 16.
    pub page_pad: u64,
    /// Columns of the block table; `None` for what the lengths need.
    pub max_pages: Option<u32>,
    /// Columns of the table beyond `max_pages`.
    pub table_pad: u64,
    /// Columns of the logits beyond the smallest stride, in units of 256.
    pub logits_pad: u64,
    /// Whether the tail of every row is set to -inf.
    pub clean: bool,
    /// Whether every third page id is invalid.
    pub holes: bool,
    /// First page in use: with a large one, byte offsets exceed 32 bits.
    pub first_page: u32,
    /// Values.
    pub values: Values,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            format: IndexKFormat::Fp8,
            lens: Vec::new(),
            s_q: 1,
            index_heads: INDEX_HEADS as u32,
            page_size: 64,
            page_pad: 0,
            max_pages: None,
            table_pad: 0,
            logits_pad: 0,
            clean: true,
            holes: false,
            first_page: 0,
            values: Values::Plain(Draw::Normal),
        }
    }
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> IndexLogitsProblem {
        let mut rng = Rng::named(seed, "index_logits_decode");
        let (s_q, page_size) = (self.s_q as usize, self.page_size as usize);
        let b = self.lens.len() / s_q;
        let wanted = |lens: &[i32]| lens.iter().copied().max().unwrap_or(0).max(0) as usize;
        let max_pages = self.max_pages.map_or_else(|| wanted(&self.lens).div_ceil(page_size).max(1), |m| m as usize);
        let longest: Vec<usize> = self.lens.chunks(s_q).map(|lens| wanted(lens).min(max_pages * page_size)).collect();

        // One page more than is used, in random order, so that the unused one lies anywhere.
        let used: usize = longest.iter().map(|n| n.div_ceil(page_size)).sum();
        let mut free: Vec<u32> = (self.first_page..self.first_page + used as u32 + 1).collect();
        rng.shuffle(&mut free);
        let mut pages = Pages::index_k(self.format, self.first_page + used as u32 + 1, self.page_size);
        pages.page_stride_bytes += self.page_pad;

        let stride_block_table = max_pages as u64 + self.table_pad;
        let mut block_table = Memory::undefined("block_table", 4 * b as u64 * stride_block_table);
        let pool = u64::from(pages.num_pages - 1) * pages.page_stride_bytes + self.format.page_bytes(self.page_size);
        let mut index_k = Memory::undefined("index_k", pool);
        for (sequence, &n) in longest.iter().enumerate() {
            let mut line = Vec::new();
            for column in 0..max_pages {
                let rows = n.saturating_sub(column * page_size).min(page_size);
                if rows == 0 || (self.holes && column % 3 == 1) {
                    line.push(invalid(sequence + column, u64::from(pages.num_pages)));
                    continue;
                }
                let page = free.pop().expect("counted above");
                line.push(page as i32);
                self.fill_page(&mut rng, &mut index_k, &pages, page, &(0..rows as u32).collect::<Vec<_>>());
            }
            block_table.put(4 * sequence as u64 * stride_block_table, &s32_bytes(&line));
        }

        let heads = u64::from(self.index_heads);
        let per_row = heads * self.format.query_head_bytes();
        let mut index_q = Memory::undefined("index_q", self.lens.len() as u64 * per_row);
        let mut index_weights = Memory::undefined("index_weights", self.lens.len() as u64 * heads * 4);
        for (row, &len) in self.lens.iter().enumerate() {
            if len <= 0 {
                continue; // nothing of this row is looked at
            }
            let poisoned = self.values == Values::Nan && row + 1 == self.lens.len() && self.lens.len() > 1;
            let (q, w) = self.query(&mut rng, poisoned);
            index_q.put(row as u64 * per_row, &q);
            index_weights.put(row as u64 * heads * 4, &f32_bytes(&w));
        }

        let columns = (max_pages * page_size) as u64;
        IndexLogitsProblem {
            format: self.format,
            index_q,
            index_weights,
            index_k,
            pages,
            block_table,
            context_lens: Memory::full("context_lens", s32_bytes(&self.lens)),
            b: b as u32,
            s_q: self.s_q,
            index_heads: self.index_heads,
            max_pages: max_pages as u32,
            stride_block_table,
            stride_logits: columns.next_multiple_of(LOGITS_STRIDE_MULTIPLE) + self.logits_pad * LOGITS_STRIDE_MULTIPLE,
            clean_logits: self.clean,
        }
    }

    fn draw(&self, rng: &mut Rng) -> f32 {
        match self.values {
            Values::Plain(draw) => draw.value(rng),
            Values::Negative | Values::Nan | Values::Scales => rng.normal() as f32,
        }
    }

    /// Keys of rows of a page, each with a size of its own, so that a scale of another row is seen.
    pub(super) fn fill_page(&self, rng: &mut Rng, index_k: &mut Memory, pages: &Pages, page: u32, rows: &[u32]) {
        let mut scales = Vec::new(); // stand behind all codes
        let d = self.format.d();
        for &row in rows {
            let size = (rng.normal() as f32).exp();
            let mut key: Vec<f32> = (0..d).map(|_| size * self.draw(rng)).collect();
            match self.values {
                // -0 * positive query: far enough from zero that no rounding makes the dot positive
                Values::Negative => key.iter_mut().for_each(|k| *k = -(k.abs() + 0.1)),
                Values::Nan if row % 7 == 3 => key[rng.below(u64::from(d)) as usize] = f32::NAN,
                _ => {}
            }
            match self.format {
                IndexKFormat::F32 { d } => index_k.put(f32_row(pages, page, row, d), &f32_bytes(&key)),
                IndexKFormat::Fp4 => {
                    let (mut codes, mut of_row) = quantise_fp4_row(&row_128(&key));
                    if self.values == Values::Scales {
                        of_row = apart(rng);
                        match row % 8 {
                            2 => of_row = [0; 4],
                            5 => {
                                let group = rng.below(4) as usize;
                                of_row[group] = 254;
                                codes[16 * group..16 * (group + 1)].fill(0);
                            }
                            _ => {}
                        }
                    }
                    index_k.put(index_k_fp4_data(pages, page, row), &codes);
                    // a NaN has no code: it comes with the scale
                    if self.values == Values::Nan && row % 7 == 5 {
                        of_row[(row % 4) as usize] = 255;
                    }
                    scales.push((index_k_fp4_scale(pages, page, row), of_row));
                }
                IndexKFormat::Bf16 => index_k.put(index_k_bf16(pages, page, row), &bf16_bytes(&key)),
                IndexKFormat::Fp8 => {
                    let rule = if row % 2 == 0 { ScaleRule::Exact } else { ScaleRule::PowerOfTwo };
                    let (scale, codes) = quantise_index_row(&row_128(&key), rule);
                    index_k.put(index_k_fp8_data(pages, page, row), &codes);
                    let scale = if self.values == Values::Nan && row % 7 == 5 { f32::NAN } else { scale };
                    scales.push((index_k_fp8_scale(pages, page, row), scale.to_le_bytes()));
                }
            }
        }
        for (offset, bytes) in scales {
            index_k.put(offset, &bytes);
        }
    }

    /// Query bytes of one row, and its head weights with the query scales folded in.
    pub(super) fn query(&self, rng: &mut Rng, poisoned: bool) -> (Vec<u8>, Vec<f32>) {
        let (mut bytes, mut weights) = (Vec::new(), Vec::new());
        for head in 0..self.index_heads {
            let mut q: Vec<f32> = (0..self.format.d()).map(|_| self.draw(rng)).collect();
            if self.values == Values::Negative {
                q.iter_mut().for_each(|q| *q = q.abs() + 0.1);
            }
            if poisoned && head == 5 {
                q[47] = f32::NAN;
            }
            // 128^-1/2 and 64^-1/2, then any sign
            let w = 0.011_048_543 * rng.normal() as f32;
            match self.format {
                IndexKFormat::Bf16 => {
                    bytes.extend(bf16_bytes(&q));
                    weights.push(w);
                }
                IndexKFormat::F32 { .. } => {
                    bytes.extend(f32_bytes(&q));
                    weights.push(w);
                }
                IndexKFormat::Fp4 => {
                    let (codes, mut scales) = quantise_fp4_row(&row_128(&q));
                    if self.values == Values::Scales {
                        scales = apart(rng);
                    }
                    if poisoned && head == 5 {
                        scales[1] = 255;
                    }
                    bytes.extend(codes.into_iter().chain(scales));
                    weights.push(w);
                }
                IndexKFormat::Fp8 => {
                    let (scale, codes) = quantise_index_row(&row_128(&q), ScaleRule::Exact);
                    bytes.extend(codes);
                    weights.push(w * scale);
                }
            }
        }
        (bytes, weights)
    }
}

/// Scales of the groups of an fp4 row, 2^-20 to 2^20.
fn apart(rng: &mut Rng) -> [u8; 4] {
    std::array::from_fn(|_| 107 + rng.below(41) as u8)
}

/// A row of a format whose width is fixed.
fn row_128(values: &[f32]) -> [f32; D_INDEX] {
    values.try_into().expect("formats other than f32 have 128 channels")
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let formats = [
        ("fp8", IndexKFormat::Fp8),
        ("bf16", IndexKFormat::Bf16),
        ("fp4", IndexKFormat::Fp4),
        ("f32_64", IndexKFormat::F32 { d: 64 }),
        ("f32_128", IndexKFormat::F32 { d: 128 }),
    ];
    for (name, format) in formats {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let shape = Shape { format, ..shape };
            let virtual_pool = shape.first_page > 0;
            let case = Case::new("index_logits_decode", format!("{name}/{what}"), size, move |seed| {
                Problem::IndexLogitsDecode(shape.build(seed))
            });
            cases.push(if virtual_pool { case.in_virtual_pool() } else { case });
        };
        let rows = |lens: &[i32]| Shape { lens: lens.to_vec(), ..Shape::default() };
        use Size::{Full, Quick};

        add(Quick, "random_one_page", rows(&[64]));
        add(Quick, "lens_around_a_page", Shape { table_pad: 3, logits_pad: 1, ..rows(&[1, 63, 65]) });
        add(Quick, "empty_rows", rows(&[0, 5, 0, 17]));
        add(Quick, "all_rows_empty", rows(&[0, 0]));
        add(Quick, "empty_batch", rows(&[]));
        add(Quick, "negative_lens", rows(&[-1, 3, i32::MIN]));
        add(Quick, "len_beyond_the_table", Shape { max_pages: Some(1), ..rows(&[i32::MAX, 64, 65]) });
        add(Quick, "not_cleaned", Shape { clean: false, logits_pad: 1, ..rows(&[33, 0, 64]) });
        add(Quick, "two_queries", Shape { s_q: 2, ..rows(&[63, 64]) });
        add(Quick, "three_queries", Shape { s_q: 3, ..rows(&[64, 65, 66]) });
        add(Quick, "four_queries_far_apart", Shape { s_q: 4, ..rows(&[0, 70, 1, 64]) });
        add(Quick, "invalid_pages", Shape { holes: true, page_size: 32, ..rows(&[32 * 5 + 3]) });
        add(Quick, "padded_pages", Shape { page_pad: 48, ..rows(&[65]) });
        add(Quick, "long_row", Shape { logits_pad: 1, ..rows(&[64 * 27 + 5]) });
        add(Quick, "nan", Shape { values: Values::Nan, ..rows(&[40, 12]) });
        add(Quick, "all_dots_negative", Shape { values: Values::Negative, ..rows(&[40]) });
        add(Quick, "heavy_tails", Shape { values: Values::Plain(Draw::Heavy), ..rows(&[64]) });
        add(Quick, "page_of_2_rows", Shape { page_size: 2, ..rows(&[9]) });
        add(Quick, "page_of_61_rows", Shape { page_size: 61, ..rows(&[62]) });
        add(Quick, "page_of_256_rows", Shape { page_size: 256, ..rows(&[100]) });
        if format == IndexKFormat::Fp4 {
            add(Quick, "scales_apart", Shape { values: Values::Scales, s_q: 2, ..rows(&[70, 64, 9, 16]) });
        }
        for index_heads in [1, 3, 16, 128] {
            add(Quick, &format!("{index_heads}_index_heads"), Shape { index_heads, s_q: 2, ..rows(&[40, 13]) });
        }

        add(Full, "ragged_batch", rows(&[1025, 1, 4096, 0, 777, 64, 2048, 3000]));
        add(Full, "page_of_576_rows", Shape { page_size: 576, page_pad: 16, ..rows(&[1200, 575]) });
        add(Full, "page_of_69_rows", Shape { page_size: 69, ..rows(&[700, 69]) });
        add(Full, "four_queries", Shape { s_q: 4, ..rows(&[509, 510, 511, 512, 1021, 1022, 1023, 1024]) });
        add(Full, "batch_of_200", Shape { lens: (0..200).map(|i| i * 37 % 131).collect(), ..Shape::default() });
        add(Full, "holes_in_long_rows", Shape { holes: true, clean: false, ..rows(&[1500, 1501]) });
        add(Full, "zeros_everywhere", Shape { values: Values::Negative, ..rows(&[1500]) });
        add(Full, "pages_past_4_gib", {
            let stride = format.page_stride_bytes(64);
            Shape { first_page: ((1u64 << 32) / stride) as u32, ..rows(&[130, 64]) }
        });
        add(Full, "pages_past_2_gib", {
            let stride = format.page_stride_bytes(64);
            Shape { first_page: ((1u64 << 31) / stride) as u32, ..rows(&[130, 64]) }
        });
    }
    cases
}
