//! Which pages a step reads and writes, by who was given them: what the gate in front of the caches is asked for.

use crate::geometry::{CacheShape, HcaState, PoolName};
use crate::handover::{PageRun, class};
use crate::step::StepEntry;

/// Pages of one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPages {
    /// Pages with rows from before the step that a token of it may read.
    pub read: Vec<PageRun>,
    /// Pages that it writes; the first time, they are claimed.
    pub written: Vec<PageRun>,
}

impl StepPages {
    /// Adds an entry. Its tables hold every page of its range.
    pub fn push(&mut self, entry: &StepEntry, shape: &CacheShape) {
        let (start, end) = (entry.start.0, entry.start.0 + entry.num_tokens());
        let own = entry.generations.own;
        let ratio = shape.csa_ratio.min(shape.hca_ratio);
        let rows_per_page = shape.page_tokens / ratio;
        let compressed = class(PoolName::Compressed);
        let before = (start / ratio).div_ceil(rows_per_page) as usize;
        for (page, of) in entry.compressed_table.iter().zip(&entry.generations.compressed).take(before) {
            PageRun::push(&mut self.read, compressed, page.0, *of);
        }
        let rows = (start / ratio / rows_per_page) as usize..(end / ratio).div_ceil(rows_per_page) as usize;
        // Without a completed row nothing is written.
        for page in entry.compressed_table.get(rows).into_iter().flatten().filter(|_| end / ratio > start / ratio) {
            PageRun::push(&mut self.written, compressed, page.0, own);
        }
        let (window, tokens) = (class(PoolName::Window), shape.window_page_tokens);
        let first = (shape.first_needed(entry.start).0 / tokens) as usize;
        let held = first..start.div_ceil(tokens) as usize;
        for i in held {
            if let (Some(Some(page)), Some(of)) = (entry.window_table.get(i), entry.generations.window.get(i)) {
                PageRun::push(&mut self.read, window, page.0, *of);
            }
        }
        let range = (start / tokens) as usize..end.div_ceil(tokens) as usize;
        for page in entry.window_table.get(range).into_iter().flatten().flatten() {
            PageRun::push(&mut self.written, window, page.0, own);
        }
        let slot = entry.request_slot.filter(|_| shape.hca_state == HcaState::PerRequest);
        if let Some(slot) = slot {
            // Where the ratio divides the text, the rings are empty.
            if !start.is_multiple_of(shape.hca_ratio) {
                PageRun::push(&mut self.read, class(PoolName::Request), slot.0, own);
            }
            PageRun::push(&mut self.written, class(PoolName::Request), slot.0, own);
        }
    }
}
