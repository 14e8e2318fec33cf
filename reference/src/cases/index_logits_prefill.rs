//! Cases of `index_logits_prefill`: ragged sequences, tokens that are not the call's, ranges of every kind. Keys that no
//! query asks for are NaN, and so are the queries that ask for none.

use super::index_logits_decode::{Shape as Keys, Values};
use super::{Draw, Size, invalid};
use crate::formats::{f32_bytes, s32_bytes};
use crate::layout::LOGITS_STRIDE_MULTIPLE;
use crate::ops::{IndexKFormat, Pages};
use crate::problem::{IndexLogitsPrefillProblem, Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// A problem in words.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Formats, pages, pads and values as in `index_logits_decode`; its lengths and `s_q` are not looked at.
    pub keys: Keys,
    /// Range of every query of every sequence.
    pub sequences: Vec<Vec<(i32, i32)>>,
    /// Tokens of the batch before the first sequence.
    pub in_front: u32,
    /// Tokens of the batch after the last one.
    pub behind: u32,
    /// Whether starts are given; otherwise they count as 0.
    pub starts: bool,
}

/// Ranges of `count` queries from position `first` on that see the finished rows of `ratio` tokens.
pub fn causal(first: i32, count: i32, ratio: i32) -> Vec<(i32, i32)> {
    (first..first + count).map(|position| (0, (position + 1) / ratio)).collect()
}

impl Shape {
    /// The range of a query inside `0..columns`; empty ones have equal ends.
    fn range(&self, (start, end): (i32, i32), columns: usize) -> (usize, usize) {
        let clamp = |x: i32| (x.max(0) as usize).min(columns);
        let start = if self.starts { clamp(start) } else { 0 };
        (start, clamp(end).max(start))
    }

    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> IndexLogitsPrefillProblem {
        let (keys, format) = (&self.keys, self.keys.format);
        let mut rng = Rng::named(seed, "index_logits_prefill");
        let page_size = keys.page_size as usize;
        let longest = self.sequences.iter().flatten().map(|&(_, end)| end.max(0) as usize).max().unwrap_or(0);
        let max_pages = keys.max_pages.map_or_else(|| longest.div_ceil(page_size).max(1), |pages| pages as usize);
        let columns = max_pages * page_size;

        // Rows of every page that some query asks for; pages without such rows have no id.
        let wanted: Vec<Vec<Vec<u32>>> = self
            .sequences
            .iter()
            .map(|queries| {
                let mut asked = vec![false; columns];
                for &query in queries {
                    let (start, end) = self.range(query, columns);
                    asked[start..end].fill(true);
                }
                let rows = |page: &[bool]| (0..).zip(page).filter_map(|(row, &asked)| asked.then_some(row)).collect();
                asked.chunks(page_size).map(rows).collect()
            })
            .collect();
        // One page more than is used, in random order, so that the unused one lies anywhere.
        let used = wanted.iter().flatten().filter(|rows| !rows.is_empty()).count() as u32;
        let mut free: Vec<u32> = (keys.first_page..keys.first_page + used + 1).collect();
        rng.shuffle(&mut free);
        let mut pages = Pages::index_k(format, keys.first_page + used + 1, keys.page_size);
        pages.page_stride_bytes += keys.page_pad;
        let pool = u64::from(pages.num_pages - 1) * pages.page_stride_bytes + format.page_bytes(keys.page_size);
        let mut index_k = Memory::undefined("index_k", pool);

        let b = self.sequences.len();
        let stride_block_table = max_pages as u64 + keys.table_pad;
        let mut block_table = Memory::undefined("block_table", 4 * b as u64 * stride_block_table);
        for (sequence, of_pages) in wanted.iter().enumerate() {
            let mut line = Vec::new();
            for (column, rows) in of_pages.iter().enumerate() {
                if rows.is_empty() || (keys.holes && column % 3 == 1) {
                    line.push(invalid(sequence + column, u64::from(pages.num_pages)));
                    continue;
                }
                let page = free.pop().expect("counted above");
                line.push(page as i32);
                keys.fill_page(&mut rng, &mut index_k, &pages, page, rows);
            }
            block_table.put(4 * sequence as u64 * stride_block_table, &s32_bytes(&line));
        }

        let queries: usize = self.sequences.iter().map(Vec::len).sum();
        let t = u64::from(self.in_front) + queries as u64 + u64::from(self.behind);
        let mut cu_seqlens = vec![self.in_front as i32];
        for sequence in &self.sequences {
            cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + sequence.len() as i32);
        }
        let heads = u64::from(keys.index_heads);
        let per_row = heads * format.query_head_bytes();
        let mut index_q = Memory::undefined("index_q", t * per_row);
        let mut index_weights = Memory::undefined("index_weights", t * heads * 4);
        let mut starts = Memory::undefined("starts", 4 * t);
        let mut ends = Memory::undefined("ends", 4 * t);
        for (i, &query) in self.sequences.iter().flatten().enumerate() {
            let row = u64::from(self.in_front) + i as u64;
            starts.put(4 * row, &s32_bytes(&[query.0]));
            ends.put(4 * row, &s32_bytes(&[query.1]));
            let (start, end) = self.range(query, columns);
            if start == end {
                continue; // nothing of this row is looked at
            }
            let poisoned = keys.values == Values::Nan && i + 1 == queries && queries > 1;
            let (q, w) = keys.query(&mut rng, poisoned);
            index_q.put(row * per_row, &q);
            index_weights.put(row * heads * 4, &f32_bytes(&w));
        }

        IndexLogitsPrefillProblem {
            format,
            index_q,
            index_weights,
            index_k,
            pages,
            block_table,
            cu_seqlens_q: Memory::full("cu_seqlens_q", s32_bytes(&cu_seqlens)),
            starts: self.starts.then_some(starts),
            ends,
            t: t as u32,
            b: b as u32,
            index_heads: keys.index_heads,
            max_pages: max_pages as u32,
            stride_block_table,
            stride_logits: (columns as u64).next_multiple_of(LOGITS_STRIDE_MULTIPLE)
                + keys.logits_pad * LOGITS_STRIDE_MULTIPLE,
            clean_logits: keys.clean,
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let formats = [IndexKFormat::Fp8, IndexKFormat::Bf16, IndexKFormat::Fp4, IndexKFormat::F32 { d: 128 }];
    for format in formats {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let shape = Shape { keys: Keys { format, ..shape.keys }, ..shape };
            let virtual_pool = shape.keys.first_page > 0;
            let case = Case::new("index_logits_prefill", format!("{}/{what}", format.name()), size, move |seed| {
                Problem::IndexLogitsPrefill(shape.build(seed))
            });
            cases.push(if virtual_pool { case.in_virtual_pool() } else { case });
        };
        let keys = Keys::default;
        let of = |sequences: &[&[(i32, i32)]]| Shape {
            sequences: sequences.iter().map(|queries| queries.to_vec()).collect(),
            starts: sequences.iter().copied().flatten().any(|&(start, _)| start != 0),
            ..Shape::default()
        };
        let ragged = |sequences: Vec<Vec<(i32, i32)>>| Shape { sequences, ..Shape::default() };
        use Size::{Full, Quick, Slow};

        add(Quick, "random_one_query", of(&[&[(0, 64)]]));
        add(Quick, "random_ends_around_a_page", of(&[&[(0, 1), (0, 63), (0, 64)], &[(0, 65), (0, 5)]]));
        add(Quick, "causal_chunk", ragged(vec![causal(100, 19, 4)]));
        add(
            Quick,
            "sequences_without_queries",
            ragged(vec![vec![], causal(4, 1, 4), vec![], causal(30, 2, 4), vec![]]),
        );
        for queries in [7, 8, 9, 63, 64, 65] {
            add(Quick, &format!("{queries}_queries"), ragged(vec![causal(2, queries, 8)]));
        }
        let around = || of(&[&[(0, 9), (0, 30)], &[(0, 17)]]);
        add(Quick, "tokens_in_front_and_behind", Shape { in_front: 11, behind: 2, ..around() });
        add(Quick, "tokens_in_front", Shape { in_front: 3, ..around() });
        add(Quick, "starts", of(&[&[(5, 40), (17, 64), (60, 70)], &[(64, 65), (0, 1)]]));
        add(Quick, "starts_with_gaps", of(&[&[(3, 10), (100, 130), (70, 71)]]));
        add(Quick, "starts_that_nobody_gave", Shape { starts: false, ..of(&[&[(0, 10), (0, 3)]]) });
        let odd = [(40, 30), (-5, 10), (i32::MIN, 3), (9, 9), (0, -1), (5, i32::MIN), (i32::MAX, 12)];
        add(Quick, "empty_and_negative_ranges", of(&[&odd, &[(7, 7)]]));
        add(Quick, "ends_0", of(&[&[(0, 0), (0, 5), (0, 0)], &[(0, 0)]]));
        add(Quick, "all_rows_empty", of(&[&[(0, 0), (0, 0)], &[(0, 0)]]));
        add(Quick, "empty_batch", of(&[]));
        add(Quick, "no_queries", of(&[&[], &[]]));
        add(Quick, "no_sequences", Shape { in_front: 2, behind: 1, ..of(&[]) });
        let beyond = of(&[&[(0, i32::MAX), (3, 64), (0, 65), (64, 70)]]);
        add(Quick, "ends_beyond_the_table", Shape { keys: Keys { max_pages: Some(1), ..keys() }, ..beyond });
        let unclean = Keys { clean: false, logits_pad: 1, ..keys() };
        add(Quick, "not_cleaned", Shape { keys: unclean, in_front: 1, ..of(&[&[(3, 33), (0, 0), (0, 64)]]) });
        let padded = Keys { page_pad: 48, table_pad: 3, logits_pad: 1, ..keys() };
        add(Quick, "padded_strides", Shape { keys: padded, ..of(&[&[(2, 65)], &[(0, 7), (5, 6)]]) });
        let holes = Keys { holes: true, page_size: 32, ..keys() };
        add(Quick, "invalid_pages", Shape { keys: holes, ..of(&[&[(0, 32 * 5 + 3), (40, 100)]]) });
        add(Quick, "long_rows", of(&[&[(0, 64 * 11 + 5), (0, 64 * 9)]]));
        add(Quick, "long_rows_from_a_start", of(&[&[(70, 64 * 9 + 5), (0, 0), (64 * 3, 64 * 9)]]));
        let nan = Keys { values: Values::Nan, ..keys() };
        add(Quick, "nan", Shape { keys: nan, ..of(&[&[(0, 40), (0, 12)]]) });
        let negative = Keys { values: Values::Negative, ..keys() };
        add(Quick, "all_dots_negative", Shape { keys: negative, ..of(&[&[(0, 40)]]) });
        let heavy = Keys { values: Values::Plain(Draw::Heavy), ..keys() };
        add(Quick, "heavy_tails", Shape { keys: heavy, ..of(&[&[(0, 64), (0, 30)]]) });
        if format == IndexKFormat::Fp4 {
            let apart = Keys { values: Values::Scales, ..keys() };
            add(Quick, "scales_apart", Shape { keys: apart, ..of(&[&[(0, 70), (3, 64)], &[(0, 16)]]) });
        }
        for page_size in [1, 2, 61, 256] {
            let keys = Keys { page_size, ..keys() };
            add(Quick, &format!("page_of_{page_size}_rows"), Shape { keys, ..of(&[&[(0, 9), (3, 70)]]) });
        }
        if let IndexKFormat::F32 { .. } = format {
            let small = |d, index_heads| Keys { format: IndexKFormat::F32 { d }, index_heads, ..keys() };
            for (d, heads) in [(32, 16), (20, 3), (1, 1)] {
                let shape = Shape { keys: small(d, heads), ..of(&[&[(0, 9), (3, 70)], &[(0, 33)]]) };
                let what = format!("f32/{d}_channels_{heads}_heads");
                cases.push(Case::new("index_logits_prefill", what, Quick, move |seed| {
                    Problem::IndexLogitsPrefill(shape.build(seed))
                }));
            }
            continue;
        }

        let all = [0, 1, 63, 64, 65, 130].map(|queries| causal(150 - queries, queries, 2));
        add(Full, "ragged_batch", Shape { in_front: 5, ..ragged(all.to_vec()) });
        add(Full, "chunk_of_a_long_sequence", ragged(vec![causal(4000, 70, 4)]));
        add(Full, "batch_of_200", ragged((0..200).map(|i| causal(i * 37 % 131, i % 3, 4)).collect()));
        let wide = Keys { page_size: 576, page_pad: 16, ..keys() };
        add(Full, "page_of_576_rows", Shape { keys: wide, ..of(&[&[(3, 1200), (570, 580)], &[(0, 575)]]) });
        let holes = Keys { holes: true, clean: false, ..keys() };
        add(Full, "holes_in_long_rows", Shape { keys: holes, ..of(&[&[(0, 1500), (0, 1501)], &[(900, 1300)]]) });
        for (name, bytes) in [("2", 1u64 << 31), ("4", 1 << 32)] {
            let first_page = (bytes / format.page_stride_bytes(64)) as u32;
            let far = Keys { first_page, ..keys() };
            add(Full, &format!("pages_past_{name}_gib"), Shape { keys: far, ..of(&[&[(0, 130)], &[(0, 64)]]) });
        }
        if format == IndexKFormat::Fp8 {
            // The plain f64 sums are what takes the time: 96 queries at the end of 32,768 tokens.
            add(Slow, "96_queries_8192_keys", ragged(vec![causal(8192 * 4 - 96, 96, 4)]));
        }
    }
    cases
}
