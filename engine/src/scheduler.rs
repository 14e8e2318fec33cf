//! Who runs which tokens in the next step: queues, pages, preemption, and what a finished step changes. Pure: no device,
//! no thread, no clock.
//!
//! **Order.** Requests are admitted in order of arrival and never overtaken: one that does not fit holds back all behind
//! it. Running sequences get pages in order of arrival too; when pages run out the youngest is preempted, gives back what it holds,
//! waits at its old place and later computes its text again (what the prefix cache still holds it need not). So the oldest
//! request always advances, and every request becomes the oldest. Decode tokens have their places in a step before prefill
//! chunks, which share the rest, oldest first; the rest is never empty.
//!
//! **Overlap.** A second step may be planned while one is in flight: its decode tokens are then the samples of that step
//! ([`InputToken::FromStep`]). Pages return to the pools in [`Scheduler::commit`] alone, so no plan hands out a page that a
//! step in flight was given. Where only a preemption could help, [`Scheduler::schedule`] waits for the step in flight.

use crate::geometry::{CacheShape, ShapeError};
use crate::ids::{Position, SequenceId, SlotIndex};
use crate::pools::{AuditError, PoolSizes, Pools};
use crate::prefix::PrefixCache;
use crate::sequence::{Event, FinishReason, Phase, Request, Sequence};
use crate::step::{InputToken, StepEntry, StepOutput, StepPlan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;

/// Limits and choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Tokens of a step at most.
    pub max_batch_tokens: u32,
    /// Sequences that hold pages at most.
    pub max_running: u32,
    /// Tokens of a sequence in a step at most.
    pub chunk_tokens: u32,
    /// Tokens of a text at most, generated ones included.
    pub max_context: u32,
    /// Keep finished pages for other requests with the same beginning.
    pub prefix_cache: bool,
    /// Decode entries carry drafts; steps do not overlap.
    pub speculation: bool,
}

impl SchedulerConfig {
    /// Steps of up to 512 tokens, up to 32 running sequences.
    pub fn new(max_context: u32) -> Self {
        Self {
            max_batch_tokens: 512,
            max_running: 32,
            chunk_tokens: 512,
            max_context,
            prefix_cache: true,
            speculation: false,
        }
    }

    const fn decode_tokens(&self) -> u32 {
        if self.speculation { 2 } else { 1 }
    }
}

/// Limits that contradict each other or the pools.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchedulerError {
    /// The shape of the cache does not work.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A limit does not work.
    #[error("{name}: expected {expected}, got {got}")]
    Limit {
        /// Which.
        name: &'static str,
        /// What would work.
        expected: String,
        /// What was given.
        got: u32,
    },
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddError {
    /// Nothing to continue.
    #[error("prompt: expected at least one token, got none")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens: expected at least 1, got 0")]
    NoTokens,
    /// Not a temperature.
    #[error("temperature: expected a number from 0, got {0}")]
    Temperature(String),
    /// No room for a generated token.
    #[error("prompt: expected fewer than {max_context} tokens (the context limit), got {prompt}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of a text at most.
        max_context: u32,
    },
    /// The pool is too small for the whole text, even if nothing else ran.
    #[error("request of up to {tokens} tokens: needs {needed} compressed pages, the pool has {have}")]
    NeverFits {
        /// Prompt and generated tokens.
        tokens: u32,
        /// Pages that they take.
        needed: u32,
        /// Pages of the pool.
        have: u32,
    },
}

/// A step that is not the one in turn, or an output that is not its own.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError {
    /// Steps are committed in order.
    #[error("commit: expected step {expected:?} (the oldest in flight), got step {got}")]
    OutOfTurn {
        /// The oldest step in flight, if any.
        expected: Option<u64>,
        /// The plan's step.
        got: u64,
    },
    /// One sample per entry that emits.
    #[error("output of step {step}: expected {expected} samples, got {got}")]
    Samples {
        /// The step.
        step: u64,
        /// Entries that emit.
        expected: usize,
        /// Samples given.
        got: usize,
    },
    /// A token behind a draft that was not accepted, or that there was not.
    #[error("output of step {step}: sample {row} has a token behind a draft that it does not equal")]
    Draft {
        /// The step.
        step: u64,
        /// Which sample.
        row: usize,
    },
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SchedulerStats {
    /// Steps planned.
    pub steps: u64,
    /// Times that a request got its pages, readmissions included.
    pub admitted: u64,
    /// Times that a request lost them again.
    pub preempted: u64,
    /// Tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of committed steps.
    pub computed_tokens: u64,
    /// Those of them whose request had ended before.
    pub discarded_tokens: u64,
}

/// Queues and pages of an engine.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    shape: CacheShape,
    pools: Pools,
    prefix: PrefixCache,
    sequences: BTreeMap<SequenceId, Sequence>,
    waiting: BTreeSet<SequenceId>,
    running: BTreeSet<SequenceId>,
    in_flight: VecDeque<u64>,
    next_id: u64,
    next_step: u64,
    stats: SchedulerStats,
}

/// Tokens of a sequence that have their pages.
struct Grant {
    sequence: SequenceId,
    tokens: u32,
    decode: bool,
}

impl Scheduler {
    /// An idle scheduler over free pools.
    ///
    /// # Errors
    /// The shape does not work; a step has no room for prefill beside all decode tokens; the pools are too small for one
    /// sequence.
    pub fn new(config: SchedulerConfig, shape: CacheShape, sizes: PoolSizes) -> Result<Self, SchedulerError> {
        shape.check()?;
        let need = |name, ok: bool, expected: String, got| match ok {
            true => Ok(()),
            false => Err(SchedulerError::Limit { name, expected, got }),
        };
        need("max_running", config.max_running >= 1, "at least 1".to_owned(), config.max_running)?;
        let decode = config.max_running.saturating_mul(config.decode_tokens());
        let room = format!("more than the {decode} decode tokens of {} sequences", config.max_running);
        need("max_batch_tokens", config.max_batch_tokens > decode, room, config.max_batch_tokens)?;
        need("chunk_tokens", config.chunk_tokens >= 1, "at least 1".to_owned(), config.chunk_tokens)?;
        let contexts = 2..=i32::MAX as u32 / 2;
        let context = format!("{} to {}", contexts.start(), contexts.end());
        need("max_context", contexts.contains(&config.max_context), context, config.max_context)?;
        let windows = shape.max_window_pages(config.decode_tokens());
        let one = format!("at least {windows} for one sequence");
        need("window_pages", sizes.window_pages >= windows, one, sizes.window_pages)?;
        need("compressed_pages", sizes.compressed_pages >= 1, "at least 1".to_owned(), sizes.compressed_pages)?;
        let slots = u32::from(shape.has_request_slots());
        need("request_slots", sizes.request_slots >= slots, format!("at least {slots}"), sizes.request_slots)?;
        Ok(Self {
            config,
            shape,
            pools: Pools::new(sizes),
            prefix: PrefixCache::new(shape.page_tokens),
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            in_flight: VecDeque::new(),
            next_id: 0,
            next_step: 0,
            stats: SchedulerStats::default(),
        })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The request is malformed or could not be run even alone.
    pub fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        let max_context = self.config.max_context;
        let temperature = request.sampling.temperature;
        if request.prompt.is_empty() {
            return Err(AddError::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(AddError::NoTokens);
        }
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(AddError::Temperature(temperature.to_string()));
        }
        if request.prompt.len() >= max_context as usize {
            return Err(AddError::PromptTooLong { prompt: request.prompt.len(), max_context });
        }
        let id = SequenceId(self.next_id);
        let sequence = Sequence::new(id, request, max_context);
        let (needed, have) = (self.shape.compressed_pages(sequence.limit), self.pools.compressed.num_pages());
        if needed > have {
            return Err(AddError::NeverFits { tokens: sequence.limit, needed, have });
        }
        self.next_id += 1;
        self.waiting.insert(id);
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    /// Ends a request at once, in whatever state; `None` if it has ended already or never was. Pages that a step in
    /// flight was given return when that step is committed.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        let sequence = self.sequences.get(&id).filter(|sequence| sequence.phase != Phase::Ended)?;
        let event = Event::Finished { sequence: id, reason: FinishReason::Cancelled, usage: sequence.usage() };
        self.end(id);
        Some(event)
    }

    /// Takes a request out of the queues, and away once no step contains it.
    fn end(&mut self, id: SequenceId) {
        self.waiting.remove(&id);
        self.running.remove(&id);
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.phase = Phase::Ended;
        if sequence.in_flight == 0 {
            sequence.release(&mut self.pools);
            self.sequences.remove(&id);
        }
    }

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
                    Err(OutOfPages) if !self.in_flight.is_empty() => return None,
                    Err(OutOfPages) => {
                        self.preempt_youngest();
                        preempted = true;
                    }
                }
            }
        }
        while !preempted && budget > 0 && self.running.len() < self.config.max_running as usize {
            let Some(&id) = self.waiting.first() else { break };
            if !self.admit(id) {
                break;
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
            sequence.compressed.push(self.pools.compressed.alloc().ok_or(OutOfPages)?);
        }
        while sequence.window.len() < (start + tokens).div_ceil(window_page) as usize {
            sequence.window.push(Some(self.pools.window.alloc().ok_or(OutOfPages)?));
        }
        Ok(Some(Grant { sequence: id, tokens, decode }))
    }

    /// Whether `pages` compressed pages are free, after evictions if need be. Nothing is evicted in vain: what the cache
    /// shares with a running sequence is what that sequence resumes from when it is preempted.
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
    fn reserve_windows(&mut self, pages: u32) -> u32 {
        while self.pools.window.num_free() < pages && self.prefix.evict_window(&mut self.pools) {}
        self.pools.window.num_free().min(pages)
    }

    /// The youngest running sequence gives everything back and waits at its place in the order of arrival.
    fn preempt_youngest(&mut self) {
        let Some(id) = self.running.pop_last() else { return };
        debug_assert!(!self.running.is_empty(), "a sequence alone always fits: checked when it was added");
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        sequence.release(&mut self.pools);
        sequence.phase = Phase::Waiting;
        self.waiting.insert(id);
        self.stats.preempted += 1;
    }

    /// Gives a waiting sequence what it starts with: the pages of a cached beginning, compressed pages for its whole
    /// text, a slot for its rings. One page per running sequence is left over, so that the next steps need not take
    /// these pages away again.
    fn admit(&mut self, id: SequenceId) -> bool {
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
        let running = self.running.len() as u32;
        let compressed = self.shape.compressed_pages(tokens) - sequence.compressed.len() as u32;
        let windows = self.shape.max_window_pages(1) - u32::from(cached > 0);
        let slot = if self.shape.has_request_slots() { self.pools.requests.alloc() } else { None };
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
        sequence.compressed.extend((0..compressed).map_while(|_| self.pools.compressed.alloc()));
        sequence.phase = Phase::Running;
        sequence.cached_tokens.get_or_insert(cached);
        self.waiting.remove(&id);
        self.running.insert(id);
        self.stats.admitted += 1;
        self.stats.cached_tokens += u64::from(cached);
        true
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

    /// Takes in what a step brought: tokens, ends, finished pages for the prefix cache, pages that nobody reads any more.
    ///
    /// # Errors
    /// The step is not the oldest in flight, or the output is not its own; nothing is changed then.
    pub fn commit(&mut self, plan: &StepPlan, output: &StepOutput) -> Result<Vec<Event>, CommitError> {
        let step = plan.step;
        self.check_turn(step)?;
        let emitting = || plan.entries.iter().filter(|entry| entry.emits);
        let (expected, got) = (emitting().count(), output.sampled.len());
        if expected != got {
            return Err(CommitError::Samples { step, expected, got });
        }
        let wrong = |(entry, sampled): (&StepEntry, &crate::step::Sampled)| {
            sampled.after_draft.is_some() && entry.draft != Some(sampled.token)
        };
        if let Some(row) = emitting().zip(&output.sampled).position(wrong) {
            return Err(CommitError::Draft { step, row });
        }
        self.in_flight.pop_front();
        let speculation = self.config.speculation;
        let mut events = Vec::new();
        let mut samples = output.sampled.iter();
        for entry in &plan.entries {
            let sampled = if entry.emits { samples.next() } else { None };
            let Some(sequence) = self.arrive(entry) else { continue };
            sequence.committed = entry.start.0 + entry.tokens.len() as u32;
            let mut ended = None;
            if let Some(sampled) = sampled {
                sequence.pending -= 1;
                if sampled.after_draft.is_some() {
                    sequence.committed += 1;
                    sequence.scheduled = sequence.committed;
                }
                for token in [Some(sampled.token), sampled.after_draft].into_iter().flatten() {
                    if ended.is_none() {
                        let (event, reason) = sequence.push(token);
                        events.push(event);
                        ended = reason;
                    }
                }
                sequence.draft = sampled.next_draft.filter(|_| speculation);
            }
            let usage = sequence.usage();
            self.publish(entry.sequence);
            if let Some(reason) = ended {
                events.push(Event::Finished { sequence: entry.sequence, reason, usage });
                self.end(entry.sequence);
            }
        }
        Ok(events)
    }

    /// Ends every request of a step that could not be run. Later steps in flight lose them too when they are committed.
    ///
    /// # Errors
    /// The step is not the oldest in flight.
    pub fn fail(&mut self, plan: &StepPlan, why: &str) -> Result<Vec<Event>, CommitError> {
        self.check_turn(plan.step)?;
        self.in_flight.pop_front();
        let mut events = Vec::new();
        for entry in &plan.entries {
            if let Some(sequence) = self.arrive(entry) {
                let (reason, usage) = (FinishReason::Failed(why.to_owned()), sequence.usage());
                events.push(Event::Finished { sequence: entry.sequence, reason, usage });
                self.end(entry.sequence);
            }
        }
        Ok(events)
    }

    fn check_turn(&self, got: u64) -> Result<(), CommitError> {
        let expected = self.in_flight.front().copied();
        if expected == Some(got) { Ok(()) } else { Err(CommitError::OutOfTurn { expected, got }) }
    }

    /// One step less contains this entry's sequence. `None` if the sequence has ended: its part is dropped.
    fn arrive(&mut self, entry: &StepEntry) -> Option<&mut Sequence> {
        self.stats.computed_tokens += u64::from(entry.num_tokens());
        let sequence = self.sequences.get_mut(&entry.sequence)?;
        sequence.in_flight -= 1;
        if sequence.phase == Phase::Ended {
            self.stats.discarded_tokens += u64::from(entry.num_tokens());
            self.end(entry.sequence);
            return None;
        }
        self.sequences.get_mut(&entry.sequence)
    }

    /// Offers the pages that have become full to the prefix cache, then gives back the window pages that fell out.
    fn publish(&mut self, id: SequenceId) {
        let sequence = self.sequences.get_mut(&id).expect("committed sequences exist");
        let (page, window_page) = (self.shape.page_tokens, self.shape.window_page_tokens);
        while self.config.prefix_cache && (sequence.published + 1) * page <= sequence.committed {
            let pages = sequence.published + 1;
            let end = pages * page;
            let Some(window) = &sequence.window[(end / window_page - 1) as usize] else {
                unreachable!("the window page before a boundary leaves after the boundary was committed")
            };
            let tokens = &sequence.tokens[..end as usize];
            let compressed = &sequence.compressed[..pages as usize];
            sequence.node = self.prefix.insert(sequence.node, tokens, compressed, window, &mut self.pools);
            sequence.published = pages;
        }
        sequence.leave_window(&self.shape, &mut self.pools);
    }

    /// Whether a request waits, runs, or still holds pages.
    pub fn has_work(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Requests that wait.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that hold pages and take part in steps.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Counts since the start.
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }

    /// The pools, to look at.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The prefix cache, to look at.
    pub fn prefix(&self) -> &PrefixCache {
        &self.prefix
    }

    /// Forgets all cached beginnings.
    pub fn clear_prefix(&mut self) {
        self.prefix.clear(&mut self.pools);
    }

    /// Checks that every page is free or held by exactly those who are counted.
    ///
    /// # Errors
    /// The first page for which this is not so.
    pub fn audit(&self) -> Result<(), AuditError> {
        let sequences = || self.sequences.values();
        self.pools.compressed.audit(sequences().flat_map(|s| &s.compressed).chain(self.prefix.compressed_pages()))?;
        self.pools
            .window
            .audit(sequences().flat_map(|s| s.window.iter().flatten()).chain(self.prefix.window_pages()))?;
        self.pools.requests.audit(sequences().filter_map(|s| s.request_slot.as_ref()))
    }
}

/// Neither free pages nor cached ones to take.
#[derive(Debug)]
struct OutOfPages;
