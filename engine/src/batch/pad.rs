//! Decode batches brought to one of a few sizes, so that a step recorded for a size serves every batch that fits into it.
//!
//! What a batch is padded with reads what its first entry reads and writes nothing: the same tokens at the same places, without
//! a slot to write to. So it computes what the first entry computes, picks the experts that are picked anyway, and
//! touches no memory that nobody else touches. Its results are discarded.

use super::{Batch, CompletedRows};
use crate::geometry::{CacheShape, HcaState};

/// What the arrays of a padded batch are sized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecodeSize {
    /// Entries.
    pub entries: u32,
    /// Tokens of every entry: 1, or 2 with a draft.
    pub tokens_per_entry: u32,
    /// Compressed pages that the tables have columns for; window pages and HCA rows are those of the same tokens.
    pub pages: u32,
}

/// The largest [`DecodeSize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeMost {
    /// Tokens of a step.
    pub tokens: u32,
    /// Tokens of a sequence.
    pub context: u32,
}

/// 1, 2, 4, 8, 16, 24, 32, 48, 64, 96 ..: powers of two, and from 16 on the middle between them.
fn bucket(entries: u32, most: u32) -> u32 {
    let power = entries.next_power_of_two();
    let middle = power / 4 * 3;
    let size = if power >= 32 && entries <= middle { middle } else { power };
    size.min(most)
}

impl DecodeSize {
    /// The smallest size that holds the batch. `None` for a batch that is not recorded: prompts in it, drafts behind some texts
    /// only, tokens whose logits are not wanted, or more than `most`.
    pub fn of(batch: &Batch, most: &DecodeMost) -> Option<Self> {
        let Batch { t, b, shape, .. } = batch;
        let tokens_per_entry = t.checked_div(*b)?;
        let regular = batch.num_decode_entries == *b
            && (1..=2).contains(&tokens_per_entry)
            && batch.cu_seqlens.iter().zip(0..).all(|(&first, entry)| first == entry * tokens_per_entry as i32)
            && batch.logits_rows.iter().copied().eq(0..*t as i32);
        let most_pages = shape.compressed_pages(most.context);
        let pages = batch.max_pages.max(batch.window_columns.div_ceil(window_pages(shape)));
        let pages = pages.max(batch.hca_width.div_ceil(shape.hca_rows())).max(1);
        let most_entries = most.tokens / tokens_per_entry.max(1);
        (regular && *b <= most_entries && pages <= most_pages).then(|| Self {
            entries: bucket(*b, most_entries),
            tokens_per_entry,
            pages: pages.next_power_of_two().min(most_pages),
        })
    }

    /// A size whose arrays are as long as those of every other size up to `most`.
    pub fn largest(shape: &CacheShape, most: &DecodeMost) -> Self {
        Self { entries: most.tokens, tokens_per_entry: 1, pages: shape.compressed_pages(most.context) }
    }
}

/// Window pages of a compressed page's tokens.
fn window_pages(shape: &CacheShape) -> u32 {
    shape.page_tokens / shape.window_page_tokens
}

/// Lines of `from` columns widened to `to` with -1; a line that is `None` is -1 throughout.
fn widened(lines: &[i32], from: u32, to: u32, which: impl Iterator<Item = Option<u32>>) -> Vec<i32> {
    let (from, to) = (from as usize, to as usize);
    let mut wide = Vec::new();
    for line in which {
        let end = wide.len() + to;
        if let Some(line) = line {
            wide.extend_from_slice(&lines[line as usize * from..][..from]);
        }
        wide.resize(end, -1);
    }
    wide
}

impl CompletedRows {
    /// One row per token: of a token that completes none, a row without a token and without a slot.
    fn padded(&self, t: u32, num_rows: Vec<i32>) -> Self {
        let none = vec![-1; t as usize];
        let row_positions = vec![0; t as usize];
        let mut rows = Self { slot_mapping: none.clone(), row_tokens: none, row_positions, num_rows };
        for (n, &token) in self.row_tokens.iter().enumerate() {
            // A batch that is padded already has rows of no token.
            let Ok(at) = usize::try_from(token) else { continue };
            rows.row_tokens[at] = token;
            rows.slot_mapping[at] = self.slot_mapping[n];
            rows.row_positions[at] = self.row_positions[n];
        }
        rows
    }
}

impl Batch {
    /// The same batch in a size that holds it, as [`DecodeSize::of`] says: its own entries in front, results of its own tokens in
    /// front. The lengths of all arrays follow from the size alone.
    pub fn padded(&self, size: DecodeSize) -> Self {
        let DecodeSize { entries, tokens_per_entry: each, pages } = size;
        let t = entries * each;
        let token = |i: u32| if i < self.t { i } else { i % each };
        let entry = |e: u32| if e < self.b { e } else { 0 };
        let tokens = |of: &[i32]| -> Vec<i32> { (0..t).map(|i| of[token(i) as usize]).collect() };
        let own = || (0..entries).map(|e| (e < self.b).then_some(e));
        let with = |of: &[i32], len: u32, fill: i32| {
            let mut all = of.to_vec();
            all.resize(len as usize, fill);
            all
        };

        let shape = self.shape;
        let window_columns = pages * window_pages(&shape);
        let hca_state_columns = match shape.hca_state {
            HcaState::PerWindowPage => window_columns,
            HcaState::PerRequest => 1,
        };
        let hca_width = pages * shape.hca_rows();
        let window_tokens = || (0..t).map(|i| Some(token(i)));
        let mut temperature = self.temperature.clone();
        temperature.resize(t as usize, 0.0);
        let mut seeds = self.seeds.clone();
        seeds.resize(2 * t as usize, 0);
        Self {
            shape,
            t,
            b: entries,
            num_decode_entries: entries,
            num_decode_tokens: t,
            ids: tokens(&self.ids),
            id_rows: tokens(&self.id_rows),
            next_ids: tokens(&self.next_ids),
            positions: tokens(&self.positions),
            seq: (0..t as i32).map(|i| i / each as i32).collect(),
            cu_seqlens: (0..=entries).map(|e| (e * each) as i32).collect(),
            window_mapping: with(&self.window_mapping, t, -1),
            window_slots: widened(&self.window_slots, shape.window, shape.window, window_tokens()),
            // Compressors write where these tables say: only the batch's own entries have pages there.
            window_table: widened(&self.window_table, self.window_columns, window_columns, own()),
            window_columns,
            hca_state_table: widened(&self.hca_state_table, self.hca_state_columns, hca_state_columns, own()),
            hca_state_columns,
            block_table: widened(&self.block_table, self.max_pages, pages, (0..entries).map(|e| Some(entry(e)))),
            max_pages: pages,
            csa: self.csa.padded(t, tokens(&self.csa.num_rows)),
            hca: self.hca.padded(t, tokens(&self.hca.num_rows)),
            max_csa_rows: pages * shape.csa_rows(),
            hca_slots: widened(&self.hca_slots, self.hca_width, hca_width, window_tokens()),
            hca_width,
            logits_rows: (0..t as i32).collect(),
            temperature,
            seeds,
            pages: self.pages.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets() {
        let of: Vec<u32> = [1, 2, 3, 5, 8, 9, 16, 17, 24, 25, 33, 48, 49, 65, 97].map(|n| bucket(n, 100)).into();
        assert_eq!(of, [1, 2, 4, 8, 8, 16, 16, 24, 24, 32, 48, 48, 64, 96, 100]);
    }
}
