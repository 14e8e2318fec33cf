//! The next step: pages for running sequences in order of arrival, then admissions ([`admit`](super::admit)), then entries.

use super::Scheduler;
use crate::ids::{Generation, Position, SequenceId, SlotIndex};
use crate::step::{Generations, InputToken, StepEntry, StepPlan};

/// Tokens of a sequence that have their pages.
struct Grant {
    sequence: SequenceId,
    tokens: u32,
    decode: bool,
}

/// Neither free pages nor cached ones to take.
#[derive(Debug)]
struct OutOfPages;

impl Scheduler {
    /// Plans the next step. `None` if there is nothing to run, or nothing before the steps in flight are committed.
    pub fn schedule(&mut self) -> Option<StepPlan> {
        let depth = if self.config.speculation { 1 } else { 2 };
        if self.in_flight.len() >= depth {
            return None;
        }
        self.admit_overtaken().ok()?;
        let running: Vec<SequenceId> = self.running.iter().copied().collect();
        let decode = running.iter().map(|id| &self.sequences[id]).filter(|s| s.remaining() == 1);
        let decode_tokens: u32 = decode.map(|s| 1 + u32::from(s.usable_draft().is_some())).sum();
        let mut budget = self.config.max_batch_tokens - decode_tokens;
        let (mut grants, mut preempted) = (Vec::new(), false);
        for id in running {
            while self.running.contains(&id) {
                match self.grant(id, budget) {
                    Ok(None) => break,
                    Ok(Some(grant)) => {
                        budget -= if grant.decode { 0 } else { grant.tokens };
                        grants.push(grant);
                        break;
                    }
                    Err(OutOfPages) if self.pages_return() => return None,
                    // Prompts held for others go back by themselves; nobody else is left to give way.
                    Err(OutOfPages) if self.num_occupied() == 1 && self.halves.has_held() => return None,
                    Err(OutOfPages) => {
                        self.preempt_youngest();
                        preempted = true;
                    }
                }
            }
        }
        while !preempted && budget > 0 && self.num_occupied() < self.config.max_running as usize {
            let Some(&id) = self.waiting.first() else { break };
            if self.comes_back_before(id) || !self.admit(id) {
                break;
            }
            if !self.running.contains(&id) {
                continue;
            }
            let Ok(Some(grant)) = self.grant(id, budget) else { break };
            budget -= grant.tokens.min(budget);
            grants.push(grant);
        }
        if grants.is_empty() {
            return None;
        }
        Some(self.plan(grants))
    }

    /// Whether pages return without anybody giving way: what a step in flight was given may be taken only once it is committed.
    fn pages_return(&self) -> bool {
        !self.in_flight.is_empty() || self.halves.is_filling() || self.copies_hold_pages()
    }

    /// Admits who waits although a younger one has pages; the youngest gives way for it.
    fn admit_overtaken(&mut self) -> Result<(), OutOfPages> {
        while let Some(&id) = self.waiting.first().filter(|&&id| self.youngest() > Some(id)) {
            let room = self.num_occupied() < self.config.max_running as usize;
            if room && self.admit(id) {
                continue;
            }
            if self.pages_return() || self.loads_are_full() {
                return Err(OutOfPages);
            }
            self.preempt_youngest();
        }
        Ok(())
    }

    /// Pages for the next tokens of a running sequence: all of a decode entry, as much as fits of a prefill chunk.
    fn grant(&mut self, id: SequenceId, budget: u32) -> Result<Option<Grant>, OutOfPages> {
        let sequence = &self.sequences[&id];
        let (start, remaining) = (sequence.scheduled, sequence.remaining());
        let decode = remaining == 1;
        let wanted = match decode {
            true => 1 + u32::from(sequence.usable_draft().is_some()),
            false => remaining.min(self.config.chunk_tokens).min(budget),
        };
        if wanted == 0 {
            return Ok(None);
        }
        let window_page = self.shape.window_page_tokens;
        let compressed = self.shape.compressed_pages(start + wanted).saturating_sub(sequence.compressed.len() as u32);
        let windows = (start + wanted).div_ceil(window_page).saturating_sub(sequence.window.len() as u32);
        let held = sequence.window.len() as u32 * window_page;
        let compressed_fit = self.reserve_compressed(compressed);
        let free = self.reserve_windows(windows);
        let tokens = wanted.min((held + free * window_page).saturating_sub(start));
        if !compressed_fit || tokens == 0 || (decode && tokens < wanted) {
            return Err(OutOfPages);
        }
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        for _ in 0..compressed {
            sequence.compressed.push(self.pools.compressed.alloc_for(sequence.generation).ok_or(OutOfPages)?);
        }
        while sequence.window.len() < (start + tokens).div_ceil(window_page) as usize {
            sequence.window.push(Some(self.pools.window.alloc_for(sequence.generation).ok_or(OutOfPages)?));
        }
        Ok(Some(Grant { sequence: id, tokens, decode }))
    }

    /// Sequences that hold pages and are running or will be.
    pub(super) fn num_occupied(&self) -> usize {
        self.running.len() + self.halves.num_landing() + self.num_loading()
    }

    /// Turns grants into entries, decode first, and marks their tokens as scheduled.
    fn plan(&mut self, mut grants: Vec<Grant>) -> StepPlan {
        grants.sort_by_key(|grant| !grant.decode);
        let num_decode = grants.iter().filter(|grant| grant.decode).count();
        let mut plan = StepPlan { step: self.next_step, num_decode, entries: Vec::with_capacity(grants.len()) };
        let mut sample_row = 0;
        for grant in grants {
            let sequence = self.sequences.get_mut(&grant.sequence).expect("granted sequences exist");
            let draft = sequence.usable_draft();
            let start = sequence.scheduled;
            let end = start + grant.tokens - u32::from(draft.is_some());
            let token = |p: u32| match sequence.tokens.get(p as usize) {
                Some(&id) => InputToken::Known(id),
                None => InputToken::FromStep { row: sequence.sample_row },
            };
            let first_window = sequence.first_window(&self.shape, start);
            let window = sequence.window.iter().enumerate();
            let window_generations =
                sequence.window.iter().map(|page| page.as_ref().map_or(Generation(0), |page| page.generation()));
            let window_table =
                window.map(|(i, page)| page.as_ref().filter(|_| i >= first_window as usize).map(|p| p.id()));
            let entry = StepEntry {
                sequence: grant.sequence,
                start: Position(start),
                tokens: (start..end).map(token).collect(),
                draft,
                next: sequence.tokens.get(end as usize).copied(),
                emits: end == sequence.len(),
                sampling: sequence.sampling,
                window_table: window_table.collect(),
                compressed_table: sequence.compressed.iter().map(|page| page.id()).collect(),
                request_slot: sequence.request_slot.as_ref().map(|slot| SlotIndex(slot.id().0)),
                generations: Generations {
                    own: sequence.generation,
                    compressed: sequence.compressed.iter().map(|page| page.generation()).collect(),
                    window: window_generations.collect(),
                },
            };
            sequence.scheduled = end;
            sequence.in_flight += 1;
            if entry.emits {
                sequence.pending += 1;
                sequence.sample_row = sample_row;
            }
            sample_row += entry.num_samples();
            plan.entries.push(entry);
        }
        self.in_flight.push_back(self.next_step);
        self.next_step += 1;
        self.stats.steps += 1;
        plan
    }
}
