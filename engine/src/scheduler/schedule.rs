//! The next step: pages for running sequences in order of arrival, then admissions, then entries.

use super::Scheduler;
use crate::handover::Needed;
use crate::ids::{Generation, Position, SequenceId, SlotIndex};
use crate::sequence::{Phase, Role};
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
        let running: Vec<SequenceId> = self.running.iter().copied().collect();
        let decode = running.iter().map(|id| &self.sequences[id]).filter(|s| s.remaining() == 1);
        let decode_tokens: u32 = decode.map(|s| 1 + u32::from(s.usable_draft().is_some())).sum();
        let mut budget = self.config.max_batch_tokens - decode_tokens;
        let mut grants = Vec::new();
        let mut preempted = false;
        for id in running {
            while self.running.contains(&id) {
                match self.grant(id, budget) {
                    Ok(None) => break,
                    Ok(Some(grant)) => {
                        budget -= if grant.decode { 0 } else { grant.tokens };
                        grants.push(grant);
                        break;
                    }
                    // What a step in flight gives back may do, and no page of its sequences may be taken before.
                    Err(OutOfPages) if !self.in_flight.is_empty() || self.halves.is_filling() => return None,
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
            if !self.admit(id) {
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

    /// Whether `pages` compressed pages are free, after evictions if need be. Nothing is evicted in vain: what the
    /// cache shares with a running sequence is what that sequence resumes from when it is preempted.
    fn reserve_compressed(&mut self, pages: u32) -> bool {
        let fits = self.available_compressed(pages);
        while fits && self.pools.compressed.num_free() < pages {
            if !self.prefix.evict_compressed(&mut self.pools) {
                return false;
            }
        }
        fits
    }

    /// How many window pages of the wanted ones are free, after evictions if need be.
    pub(super) fn reserve_windows(&mut self, pages: u32) -> u32 {
        while self.pools.window.num_free() < pages && self.prefix.evict_window(&mut self.pools) {}
        self.pools.window.num_free().min(pages)
    }

    /// The youngest sequence with pages gives everything back and waits at its place in the order of arrival. One whose
    /// prompt was being computed elsewhere will be computed here: it has the text.
    fn preempt_youngest(&mut self) {
        let Some(id) = self.running.last().copied().max(self.halves.youngest_landing()) else { return };
        debug_assert!(self.num_occupied() > 1, "a sequence alone always fits: checked when it was added");
        self.halves.preempt(id);
        self.give_way(id);
        self.stats.preempted += 1;
    }

    /// A sequence with pages gives everything back and waits.
    pub(super) fn give_way(&mut self, id: SequenceId) {
        self.running.remove(&id);
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        sequence.release(&mut self.pools);
        sequence.phase = Phase::Waiting;
        sequence.role = if sequence.role == Role::Remote { Role::Whole } else { sequence.role };
        self.waiting.insert(id);
    }

    /// Gives a waiting sequence what it starts with: the pages of a cached beginning, compressed pages for its whole
    /// text, a slot for its rings. One page per running sequence is left over, so that the next steps need not take
    /// these pages away again.
    fn admit(&mut self, id: SequenceId) -> bool {
        let generation = Generation(self.next_generation);
        let running = self.num_occupied() as u32;
        let sequence = self.sequences.get_mut(&id).expect("waiting sequences exist");
        let tokens = sequence.tokens.len() as u32;
        let hit = match self.config.prefix_cache {
            true => self.prefix.lookup(&sequence.tokens, tokens - 1, &mut self.pools),
            false => None,
        };
        if let Some(hit) = hit {
            let first = hit.tokens / self.shape.window_page_tokens - 1;
            sequence.compressed = hit.compressed;
            sequence.window.resize_with(first as usize, || None);
            sequence.window.push(Some(hit.window));
            (sequence.scheduled, sequence.committed) = (hit.tokens, hit.tokens);
            (sequence.published, sequence.node) = (hit.tokens / self.shape.page_tokens, Some(hit.node));
        }
        let cached = sequence.scheduled;
        let remote = (sequence.role == Role::Remote).then(|| Needed::at(&self.shape, cached, tokens));
        let compressed = self.shape.compressed_pages(tokens) - sequence.compressed.len() as u32;
        let windows = self.shape.max_window_pages(1) - u32::from(cached > 0);
        let windows = windows.max(remote.as_ref().map_or(0, |needed| needed.window.len() as u32));
        let slot = if self.shape.has_request_slots() { self.pools.requests.alloc_for(generation) } else { None };
        let fits = slot.is_some() == self.shape.has_request_slots()
            && self.available_compressed(compressed + running)
            && self.available_windows(windows + running)
            && self.reserve_compressed(compressed);
        let sequence = self.sequences.get_mut(&id).expect("waiting sequences exist");
        sequence.request_slot = slot;
        if !fits {
            sequence.release(&mut self.pools);
            return false;
        }
        sequence.compressed.extend((0..compressed).map_while(|_| self.pools.compressed.alloc_for(generation)));
        sequence.phase = Phase::Running;
        sequence.generation = generation;
        sequence.cached_tokens.get_or_insert(cached);
        self.next_generation += 1;
        self.waiting.remove(&id);
        match remote {
            Some(needed) => self.reserve(id, cached, needed),
            None => _ = self.running.insert(id),
        }
        self.stats.admitted += 1;
        self.stats.cached_tokens += u64::from(cached);
        true
    }

    /// Sequences that hold pages and are running or will be.
    pub(super) fn num_occupied(&self) -> usize {
        self.running.len() + self.halves.num_landing()
    }

    fn available_compressed(&self, pages: u32) -> bool {
        let free = self.pools.compressed.num_free();
        free >= pages || free + self.prefix.evictable_compressed(&self.pools) >= pages
    }

    fn available_windows(&self, pages: u32) -> bool {
        let free = self.pools.window.num_free();
        free >= pages || free + self.prefix.evictable_windows(&self.pools) >= pages
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
            let first_window = self.shape.first_needed(Position(start)).0 / self.shape.window_page_tokens;
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
