//! The flat record of one forward, made from a plan: every array that the model uploads, nothing else.
//!
//! `t` tokens stand one after the other, entry by entry, decode entries first; `b` is the number of entries.

mod pad;

pub use pad::{DecodeMost, DecodeSize};

use crate::geometry::{CacheShape, HcaState};
use crate::ids::{PageId, SequenceId};
use crate::step::{InputToken, StepEntry, StepPlan};
use crate::step_pages::StepPages;
use thiserror::Error;

/// Rows that the compressor of one ratio completes in this step, `n` of them, and what each token sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletedRows {
    /// `[n]` slot of the row: `page * rows_per_page + row % rows_per_page`.
    pub slot_mapping: Vec<i32>,
    /// `[n]` token of the batch that completes the row, ascending.
    pub row_tokens: Vec<i32>,
    /// `[n]` position of the row, where its window starts: `j * ratio`.
    pub row_positions: Vec<i32>,
    /// `[t]` rows that the token sees, its own included: `(position + 1) / ratio`.
    pub num_rows: Vec<i32>,
}

/// Arrays of one forward. Integers are s32 as the operations read them; -1 stands for none.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The pools that tables and slots point into.
    pub shape: CacheShape,
    /// Tokens.
    pub t: u32,
    /// Entries.
    pub b: u32,
    /// Leading entries that are decode entries.
    pub num_decode_entries: u32,
    /// Their tokens, the leading ones.
    pub num_decode_tokens: u32,
    /// `[t]` token ids; -1 where `id_rows` says which sample it is.
    pub ids: Vec<i32>,
    /// `[t]` row of the samples of the step before that holds the id; -1 where `ids` has it.
    pub id_rows: Vec<i32>,
    /// `[t]` id of the token behind each token: what the MTP layer reads. -1 where this step samples it.
    pub next_ids: Vec<i32>,
    /// `[t]` positions.
    pub positions: Vec<i32>,
    /// `[t]` entry of each token.
    pub seq: Vec<i32>,
    /// `[b + 1]` first token of each entry, then `t`.
    pub cu_seqlens: Vec<i32>,
    /// `[t]` slot of the token's window row.
    pub window_mapping: Vec<i32>,
    /// `[t, window]` slots of positions `max(0, position - window + 1) ..= position`, then -1.
    pub window_slots: Vec<i32>,
    /// `[b, window_columns]` window pages, which are the pages of the CSA state too (and of the HCA state when its
    /// rings are per page).
    pub window_table: Vec<i32>,
    /// Columns of `window_table`.
    pub window_columns: u32,
    /// `[b, hca_state_columns]` pages of the HCA state.
    pub hca_state_table: Vec<i32>,
    /// Columns of `hca_state_table`.
    pub hca_state_columns: u32,
    /// `[b, max_pages]` compressed pages.
    pub block_table: Vec<i32>,
    /// Columns of `block_table`.
    pub max_pages: u32,
    /// Rows of the CSA layers (index keys too).
    pub csa: CompletedRows,
    /// Rows of the HCA layers.
    pub hca: CompletedRows,
    /// Most CSA rows that a token of the batch may see: the largest `csa.num_rows`, or what a padded batch has room for.
    pub max_csa_rows: u32,
    /// `[t, hca_width]` slots of the HCA rows that the token sees, in order, then -1.
    pub hca_slots: Vec<i32>,
    /// Columns of `hca_slots`: the largest `hca.num_rows`, possibly 0.
    pub hca_width: u32,
    /// `[n]` tokens whose vocabulary logits are wanted, ascending; sample `i` belongs to `logits_rows[i]`.
    pub logits_rows: Vec<i32>,
    /// `[n]` temperatures.
    pub temperature: Vec<f32>,
    /// `[n, 2]` keys of the noise.
    pub seeds: Vec<u32>,
    /// Pages read and written, for the gate.
    pub pages: StepPages,
}

/// A plan whose tables lack a page that its tokens need.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("sequence {sequence}: expected a {table} page for position {position}, got none")]
pub struct MissingPage {
    sequence: SequenceId,
    table: &'static str,
    position: u32,
}

impl Batch {
    /// Flattens a plan.
    ///
    /// # Errors
    /// A table lacks a page of a position that is written or of a row that is read.
    pub fn new(plan: &StepPlan, shape: &CacheShape) -> Result<Self, MissingPage> {
        let widest = |len: fn(&StepEntry) -> usize| plan.entries.iter().map(len).max().unwrap_or(0) as u32;
        let last = plan.entries.iter().map(|e| e.start.0 + e.num_tokens()).max().unwrap_or(0);
        let mut batch = Batch {
            t: plan.num_tokens(),
            b: plan.entries.len() as u32,
            num_decode_entries: plan.num_decode as u32,
            num_decode_tokens: plan.entries[..plan.num_decode].iter().map(StepEntry::num_tokens).sum(),
            window_columns: widest(|e| e.window_table.len()),
            max_pages: widest(|e| e.compressed_table.len()),
            hca_width: last / shape.hca_ratio,
            max_csa_rows: last / shape.csa_ratio,
            cu_seqlens: vec![0],
            ..Batch::empty(*shape)
        };
        batch.hca_state_columns = match shape.hca_state {
            HcaState::PerWindowPage => batch.window_columns,
            HcaState::PerRequest => 1,
        };
        for (row, entry) in plan.entries.iter().enumerate() {
            batch.push_tables(entry, shape)?;
            batch.pages.push(entry, shape);
            let rows = (entry.start.0 + entry.num_tokens()) / shape.hca_ratio;
            let hca_slots: Vec<i32> =
                (0..rows).map(|row| row_slot(entry, shape, row, shape.hca_rows())).collect::<Result<_, _>>()?;
            for i in 0..entry.num_tokens() {
                batch.push_token(entry, row as i32, i, shape, &hca_slots)?;
            }
            batch.cu_seqlens.push(batch.positions.len() as i32);
        }
        Ok(batch)
    }

    fn empty(shape: CacheShape) -> Self {
        Self {
            shape,
            t: 0,
            b: 0,
            num_decode_entries: 0,
            num_decode_tokens: 0,
            ids: Vec::new(),
            id_rows: Vec::new(),
            next_ids: Vec::new(),
            positions: Vec::new(),
            seq: Vec::new(),
            cu_seqlens: Vec::new(),
            window_mapping: Vec::new(),
            window_slots: Vec::new(),
            window_table: Vec::new(),
            window_columns: 0,
            hca_state_table: Vec::new(),
            hca_state_columns: 0,
            block_table: Vec::new(),
            max_pages: 0,
            csa: CompletedRows::default(),
            hca: CompletedRows::default(),
            max_csa_rows: 0,
            hca_slots: Vec::new(),
            hca_width: 0,
            logits_rows: Vec::new(),
            temperature: Vec::new(),
            seeds: Vec::new(),
            pages: StepPages::default(),
        }
    }

    fn push_tables(&mut self, entry: &StepEntry, shape: &CacheShape) -> Result<(), MissingPage> {
        let page = |page: PageId| page.0 as i32;
        let window = entry.window_table.iter().map(|p| p.map_or(-1, page));
        push_row(&mut self.window_table, window.clone(), self.window_columns);
        push_row(&mut self.block_table, entry.compressed_table.iter().copied().map(page), self.max_pages);
        match shape.hca_state {
            HcaState::PerWindowPage => push_row(&mut self.hca_state_table, window, self.hca_state_columns),
            HcaState::PerRequest => {
                let missing = MissingPage { sequence: entry.sequence, table: "request", position: entry.start.0 };
                self.hca_state_table.push(entry.request_slot.ok_or(missing)?.0 as i32);
            }
        }
        Ok(())
    }

    /// Token `i` of an entry, whose HCA rows stand in `hca_slots`.
    fn push_token(
        &mut self,
        entry: &StepEntry,
        seq: i32,
        i: u32,
        shape: &CacheShape,
        hca_slots: &[i32],
    ) -> Result<(), MissingPage> {
        let position = entry.start.0 + i;
        let token = self.positions.len() as i32;
        let (id, id_row) = match entry.tokens.get(i as usize) {
            Some(InputToken::Known(id)) => (id.0 as i32, -1),
            Some(InputToken::FromStep { row }) => (-1, *row as i32),
            None => (entry.draft.map_or(-1, |id| id.0 as i32), -1),
        };
        self.ids.push(id);
        self.id_rows.push(id_row);
        let behind = match entry.tokens.get(i as usize + 1) {
            Some(InputToken::Known(id)) => id.0 as i32,
            Some(InputToken::FromStep { .. }) => -1,
            None if i as usize + 1 == entry.tokens.len() => entry.next.map_or(-1, |id| id.0 as i32),
            None => -1,
        };
        self.next_ids.push(behind);
        self.positions.push(position as i32);
        self.seq.push(seq);

        let window_slot = |position: u32| {
            let page = entry.window_table.get((position / shape.window_page_tokens) as usize).copied().flatten();
            let page = page.ok_or(MissingPage { sequence: entry.sequence, table: "window", position })?;
            Ok(CacheShape::slot(page, shape.window_page_tokens, position))
        };
        self.window_mapping.push(window_slot(position)?);
        for p in (position + 1).saturating_sub(shape.window)..=position {
            self.window_slots.push(window_slot(p)?);
        }
        self.window_slots.resize(self.positions.len() * shape.window as usize, -1);

        let kinds =
            [(&mut self.csa, shape.csa_ratio, shape.csa_rows()), (&mut self.hca, shape.hca_ratio, shape.hca_rows())];
        for (rows, ratio, rows_per_page) in kinds {
            let num_rows = (position + 1) / ratio;
            rows.num_rows.push(num_rows as i32);
            if (position + 1).is_multiple_of(ratio) {
                rows.slot_mapping.push(row_slot(entry, shape, num_rows - 1, rows_per_page)?);
                rows.row_tokens.push(token);
                rows.row_positions.push(((num_rows - 1) * ratio) as i32);
            }
        }
        self.hca_slots.extend(&hca_slots[..((position + 1) / shape.hca_ratio) as usize]);
        self.hca_slots.resize(self.positions.len() * self.hca_width as usize, -1);

        let is_last = i + 1 == entry.tokens.len() as u32;
        let is_draft = i == entry.tokens.len() as u32;
        if (is_last && entry.emits) || is_draft {
            self.logits_rows.push(token);
            self.temperature.push(entry.sampling.temperature);
            self.seeds.extend(noise_key(entry.sampling.seed, position));
        }
        Ok(())
    }
}

/// Slot of a compressed row.
fn row_slot(entry: &StepEntry, shape: &CacheShape, row: u32, rows_per_page: u32) -> Result<i32, MissingPage> {
    let page = entry.compressed_table.get((row / rows_per_page) as usize).copied();
    let position = row * (shape.page_tokens / rows_per_page);
    let page = page.ok_or(MissingPage { sequence: entry.sequence, table: "compressed", position })?;
    Ok(CacheShape::slot(page, rows_per_page, row))
}

/// Appends a row, filled with -1 up to `columns`.
fn push_row(array: &mut Vec<i32>, row: impl Iterator<Item = i32>, columns: u32) {
    let end = array.len() + columns as usize;
    array.extend(row);
    array.resize(end, -1);
}

/// Key of the noise of the token sampled behind `position`: the request's seed and the position, mixed (the finaliser
/// of SplitMix64, a bijection, so that two positions of a request never share a key).
fn noise_key(seed: u64, position: u32) -> [u32; 2] {
    let mut z = seed.wrapping_add(u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    [z as u32, (z >> 32) as u32]
}

#[cfg(test)]
mod tests;
