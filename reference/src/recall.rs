//! How many of the true best rows a quantised index still finds.
//!
//! Synthetic keys and queries go through the real path of an implementation: Hadamard transform and rounding to bf16,
//! `index_k_write` into pages, `index_logits_decode`, `topk_select`. The picks are compared with those of the exact
//! scores, f64 sums over the untransformed f32 vectors (the transform changes no exact score).
//!
//! # The data
//!
//! Seeded, with the structure that makes selection hard in practice:
//!
//! * A text is a walk over topics: a topic lasts a geometric number of rows, 48 on average; the next one is new or, half
//!   of the time, one seen before. A key is `0.6 topic + 0.3 previous key + noise`, four of its 128 channels 8 times as
//!   large as the others, then divided by its root mean square, as a normed row of the model is.
//! * A query belongs to one topic of the text. Its 64 heads look, each with its own mixture, at the topic, at one row of
//!   it, and at noise. Head weights are normal with mean 0.5 and deviation 1, times 2^-6.5: some are negative.
//!
//! So scores have heavy tails, near-ties by the hundred at the boundary (rows of the same topic), and outlier channels.

use std::collections::HashSet;

use serde::Serialize;

use crate::formats::{bf16, bf16_bytes, f32_bytes, hadamard, quantise_fp4_row, quantise_index_row, s32_bytes, s32s};
use crate::layout::{D_INDEX, INDEX_HEADS, LOGITS_STRIDE_MULTIPLE};
use crate::ops::{
    Dtype, IndexKFormat, IndexKWrite, IndexLogitsDecode, Ops, OpsError, Paged, Pages, ScaleRule, TopkSelect,
};
use crate::plain::select;
use crate::rng::Rng;

type Row = [f32; D_INDEX];

/// Formats that are compared.
pub const FORMATS: [(&str, IndexKFormat, ScaleRule); 3] = [
    ("bf16", IndexKFormat::Bf16, ScaleRule::Exact),
    ("fp8, exact scale", IndexKFormat::Fp8, ScaleRule::Exact),
    ("fp8, power-of-two scale", IndexKFormat::Fp8, ScaleRule::PowerOfTwo),
];

/// Recall of one format at one context length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recall {
    /// Format of index K and index Q.
    pub format: &'static str,
    /// Index rows per query.
    pub rows: usize,
    /// Rows picked.
    pub topk: usize,
    /// Queries measured.
    pub queries: usize,
    /// Share of the exact picks that were picked, mean over the queries.
    pub mean: f64,
    /// The same, worst query.
    pub min: f64,
    /// Share of the sum of exact scores of the exact picks that the picks reach, mean over the queries: what a lost row
    /// costs.
    pub score_kept: f64,
}

/// A text and its queries.
#[derive(Debug, Clone)]
pub struct Text {
    /// Keys.
    pub keys: Vec<Row>,
    /// 64 heads per query.
    pub queries: Vec<Vec<Row>>,
    /// 64 weights per query.
    pub weights: Vec<Vec<f32>>,
}

fn normal_row(rng: &mut Rng) -> Row {
    std::array::from_fn(|_| rng.normal() as f32)
}

fn normed(row: Row) -> Row {
    let mean = row.iter().map(|x| f64::from(x * x)).sum::<f64>() / D_INDEX as f64;
    row.map(|x| (f64::from(x) / (mean + 1e-6).sqrt()) as f32)
}

fn mix(parts: &[(f32, &Row)]) -> Row {
    std::array::from_fn(|c| parts.iter().map(|(weight, row)| weight * row[c]).sum())
}

impl Text {
    /// `rows` keys and `queries` queries.
    pub fn new(rows: usize, queries: usize, seed: u64) -> Text {
        let mut rng = Rng::named(seed, "recall");
        let mut channels: Row = [1.0; D_INDEX];
        for _ in 0..4 {
            channels[rng.below(D_INDEX as u64) as usize] = 8.0;
        }
        let mut topics = vec![normal_row(&mut rng)];
        let mut of_row = Vec::with_capacity(rows);
        let mut keys: Vec<Row> = Vec::with_capacity(rows);
        let (mut topic, mut state) = (0, [0.0; D_INDEX]);
        for _ in 0..rows {
            if rng.chance(1.0 / 48.0) {
                topic = rng.below(2 * topics.len() as u64) as usize;
                if topic >= topics.len() {
                    topic = topics.len();
                    topics.push(normal_row(&mut rng));
                }
            }
            state = mix(&[(0.6, &topics[topic]), (0.3, &state), (0.7, &normal_row(&mut rng))]);
            keys.push(normed(std::array::from_fn(|c| channels[c] * state[c])));
            of_row.push(topic);
        }
        let mut text = Text { keys, queries: Vec::new(), weights: Vec::new() };
        for _ in 0..queries {
            let target = rng.below(rows as u64) as usize;
            let (topic, row) = (topics[of_row[target]], text.keys[target]);
            let heads = (0..INDEX_HEADS).map(|_| {
                let amounts = [rng.uniform() as f32, 0.5 * rng.uniform() as f32];
                normed(mix(&[(amounts[0], &topic), (amounts[1], &row), (0.8, &normal_row(&mut rng))]))
            });
            let heads = heads.collect();
            text.queries.push(heads);
            let weight = |_| (2f64.powf(-6.5) * (0.5 + rng.normal())) as f32;
            text.weights.push((0..INDEX_HEADS).map(weight).collect());
        }
        text
    }

    /// Exact scores of every key for one query.
    pub fn scores(&self, query: usize) -> Vec<f64> {
        let heads: Vec<[f64; D_INDEX]> = self.queries[query].iter().map(|q| q.map(f64::from)).collect();
        let score = |key: &Row| {
            let key = key.map(f64::from);
            heads.iter().zip(&self.weights[query]).map(|(q, &w)| f64::from(w) * dot(q, &key).max(0.0)).sum()
        };
        self.keys.iter().map(score).collect()
    }
}

/// Four partial sums, so that it is vector arithmetic.
fn dot(a: &[f64; D_INDEX], b: &[f64; D_INDEX]) -> f64 {
    let mut sums = [0.0; 4];
    for (a, b) in a.chunks_exact(4).zip(b.chunks_exact(4)) {
        for lane in 0..4 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

fn upload<O: Ops>(ops: &O, label: &str, bytes: &[u8]) -> Result<O::Buffer, OpsError> {
    let mut buffer = ops.alloc(bytes.len() as u64, label)?;
    ops.upload(&mut buffer, 0, bytes)?;
    Ok(buffer)
}

/// Picks of `topk` rows per query, through the operations of `ops`.
fn picks<O: Ops>(
    ops: &O,
    text: &Text,
    format: IndexKFormat,
    scale_rule: ScaleRule,
    topk: usize,
) -> Result<Vec<Vec<i32>>, OpsError> {
    const PAGE: usize = 64;
    let (rows, queries) = (text.keys.len(), text.queries.len());
    let num_pages = rows.div_ceil(PAGE);
    let pages = Pages::index_k(format, num_pages as u32, PAGE as u32);
    // Pages in reverse order, as a pool that has been in use for a while hands them out.
    let page = |column: usize| (num_pages - 1 - column) as i32;
    let slots: Vec<i32> = (0..rows).map(|j| page(j / PAGE) * PAGE as i32 + (j % PAGE) as i32).collect();
    let given: Vec<u8> = text.keys.iter().flat_map(|key| bf16_bytes(&hadamard(key))).collect();
    let given = upload(ops, "rows", &given)?;
    let slots = upload(ops, "slot_mapping", &s32_bytes(&slots))?;
    let mut cache = ops.alloc(num_pages as u64 * pages.page_stride_bytes, "index_k")?;
    ops.index_k_write(IndexKWrite {
        dtype: Dtype::Bf16,
        format,
        scale_rule,
        rows: &given,
        slot_mapping: &slots,
        cache: &mut cache,
        pages,
        t: rows as u32,
        stride_rows: D_INDEX as u64,
    })?;

    let (mut q_bytes, mut weights) = (Vec::new(), Vec::new());
    for (heads, head_weights) in text.queries.iter().zip(&text.weights) {
        for (q, &w) in heads.iter().zip(head_weights) {
            let q = hadamard(q).map(|x| bf16::from_f32(x).to_f32());
            match format {
                IndexKFormat::Bf16 => {
                    q_bytes.extend(bf16_bytes(&q));
                    weights.push(w);
                }
                IndexKFormat::Fp8 => {
                    let (scale, codes) = quantise_index_row(&q, scale_rule);
                    q_bytes.extend(codes);
                    weights.push(w * scale);
                }
                IndexKFormat::Fp4 => {
                    let (codes, scales) = quantise_fp4_row(&q);
                    q_bytes.extend(codes.into_iter().chain(scales));
                    weights.push(w);
                }
                IndexKFormat::F32 { .. } => {
                    q_bytes.extend(f32_bytes(&q));
                    weights.push(w);
                }
            }
        }
    }
    let index_q = upload(ops, "index_q", &q_bytes)?;
    let index_weights = upload(ops, "index_weights", &f32_bytes(&weights))?;
    let line: Vec<i32> = (0..num_pages).map(page).collect();
    let block_table = upload(ops, "block_table", &s32_bytes(&line.repeat(queries)))?;
    let context_lens = upload(ops, "context_lens", &s32_bytes(&vec![rows as i32; queries]))?;
    let stride_logits = ((num_pages * PAGE) as u64).next_multiple_of(LOGITS_STRIDE_MULTIPLE);
    let mut index_logits = ops.alloc(4 * queries as u64 * stride_logits, "index_logits")?;
    ops.index_logits_decode(IndexLogitsDecode {
        format,
        index_q: &index_q,
        index_weights: &index_weights,
        index_k: Paged { buffer: &cache, pages },
        block_table: &block_table,
        context_lens: &context_lens,
        index_logits: &mut index_logits,
        b: queries as u32,
        s_q: 1,
        index_heads: INDEX_HEADS as u32,
        max_pages: num_pages as u32,
        stride_block_table: num_pages as u64,
        stride_logits,
        clean_logits: false,
    })?;
    let mut positions = ops.alloc(4 * (queries * topk) as u64, "topk_positions")?;
    ops.topk_select(TopkSelect {
        index_logits: &index_logits,
        context_lens: &context_lens,
        block_table: None,
        sequence_of_row: None,
        topk_positions: Some(&mut positions),
        topk_slots: None,
        topk_lens: None,
        rows: queries as u32,
        rows_per_sequence: 1,
        num_sequences: 0,
        topk: topk as u32,
        page_size: PAGE as u32,
        max_pages: 0,
        stride_logits,
        stride_block_table: 0,
    })?;
    let mut bytes = vec![0; 4 * queries * topk];
    ops.download(&positions, 0, &mut bytes)?;
    Ok(s32s(&bytes).chunks(topk).map(<[i32]>::to_vec).collect())
}

/// Exact scores of one query, and the rows that they pick.
fn exact_picks(text: &Text, query: usize, topk: usize) -> (Vec<f64>, HashSet<i32>) {
    let scores = text.scores(query);
    let rounded: Vec<f32> = scores.iter().map(|&s| s as f32).collect();
    let chosen = select(&rounded, topk).into_iter().map(|j| j as i32).collect();
    (scores, chosen)
}

/// Recall of every format in [`FORMATS`] on a text of `rows` rows.
pub fn measure<O: Ops>(ops: &O, rows: usize, queries: usize, topk: usize, seed: u64) -> Result<Vec<Recall>, OpsError> {
    let text = Text::new(rows, queries, seed);
    // One thread per query: 8,192 products per row and query are the cost of a measurement.
    let exact: Vec<(Vec<f64>, HashSet<i32>)> = std::thread::scope(|scope| {
        let text = &text;
        let threads: Vec<_> = (0..queries).map(|query| scope.spawn(move || exact_picks(text, query, topk))).collect();
        threads.into_iter().map(|thread| thread.join().expect("scores do not panic")).collect()
    });
    FORMATS
        .iter()
        .map(|&(name, format, scale_rule)| {
            let picks = picks(ops, &text, format, scale_rule, topk)?;
            let (mut shares, mut kept) = (Vec::new(), 0.0);
            for ((scores, exact), picks) in exact.iter().zip(picks) {
                let picks: HashSet<i32> = picks.into_iter().filter(|&j| j >= 0).collect();
                let found = picks.intersection(exact).count();
                shares.push(found as f64 / exact.len().max(1) as f64);
                let sum = |of: &HashSet<i32>| of.iter().map(|&j| scores[j as usize]).sum::<f64>();
                kept += sum(&picks) / sum(exact) / queries as f64;
            }
            Ok(Recall {
                format: name,
                rows,
                topk,
                queries,
                mean: shares.iter().sum::<f64>() / queries as f64,
                min: shares.iter().copied().fold(1.0, f64::min),
                score_kept: kept,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::ReferenceOps;

    #[test]
    fn formats_rank_as_their_precision_and_lose_little() {
        let recall = measure(&ReferenceOps, 1500, 2, 256, 1).unwrap();
        let [bf16, fp8, pow2] = &recall[..] else { panic!("three formats") };
        assert!(bf16.mean > 0.97 && bf16.mean <= 1.0, "{recall:?}");
        assert!(fp8.mean > 0.85 && fp8.mean < bf16.mean, "{recall:?}");
        assert!(pow2.mean > 0.85 && pow2.mean < bf16.mean, "{recall:?}");
        assert!(recall.iter().all(|r| r.min <= r.mean && r.score_kept > 0.99 && r.score_kept <= 1.0 + 1e-12));
    }

    #[test]
    fn up_to_topk_rows_nothing_is_lost() {
        let recall = measure(&ReferenceOps, 40, 1, 64, 1).unwrap();
        assert!(recall.iter().all(|r| r.mean == 1.0));
    }

    #[test]
    fn scores_have_heavy_tails_and_a_crowd_at_the_boundary() {
        let text = Text::new(4096, 1, 5);
        let mut scores = text.scores(0);
        scores.sort_by(|a, b| b.total_cmp(a));
        let deviation = |of: &[f64]| {
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            (of.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / of.len() as f64).sqrt()
        };
        let all = deviation(&scores);
        let gap = (scores[511] - scores[512]) / all;
        assert!(gap < 0.05, "neighbours at the boundary differ by {gap} deviations");
        assert!((scores[0] - scores[2048]) / all > 2.5, "the best row stands out");
    }
}
