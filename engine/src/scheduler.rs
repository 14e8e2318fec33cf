//! Who runs which tokens in the next step: queues, pages, preemption, and what a finished step changes. Pure: no
//! device, no thread, no clock.
//!
//! **Order.** Requests are admitted in order of arrival and never overtaken: one that does not fit holds back all
//! behind it. Running sequences get pages in order of arrival too; when pages run out the youngest is preempted, gives
//! back what it holds, waits at its old place and later computes its text again (but for what the prefix cache still
//! has). One that has lost its pages while younger ones kept theirs (its copy out of host memory failed, the other engine
//! is gone) gets them before anybody runs, from the youngest if need be. So the oldest request advances in every step, and
//! every request becomes the oldest. Decode tokens have their places in a step before prefill chunks, which share the rest,
//! oldest first; the rest is never empty.
//!
//! **Overlap.** A second step may be planned while one is in flight: its decode tokens are then the samples of that
//! step ([`InputToken::FromStep`](crate::step::InputToken::FromStep)). A page that a step in flight was given goes to
//! nobody else before that step is committed; where only a preemption could help, [`Scheduler::schedule`] waits for it.

mod admit;
mod commit;
mod evict;
mod halves;
mod host;
mod limits;
mod schedule;

pub use commit::CommitError;
pub use halves::{FirstToken, Prefilled, Reserved};
pub use host::{HostConfig, HostPolicy};
pub use limits::{AddError, SchedulerConfig, SchedulerError};

use crate::geometry::CacheShape;
use crate::host_cache::HostCache;
use crate::ids::SequenceId;
use crate::pools::{AuditError, PoolSizes, Pools};
use crate::prefix::PrefixCache;
use crate::sequence::{Event, FinishReason, Phase, Request, Role, Sequence};
use halves::Halves;
use host::Host;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SchedulerStats {
    /// Steps planned.
    pub steps: u64,
    /// Times that a request got its pages, readmissions included.
    pub admitted: u64,
    /// Times that a request lost them again.
    pub preempted: u64,
    /// Tokens found in the prefix cache or in host memory.
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
    halves: Halves,
    host: Option<Host>,
    in_flight: VecDeque<u64>,
    next_id: u64,
    next_step: u64,
    next_generation: u64,
    stats: SchedulerStats,
}

impl Scheduler {
    /// An idle scheduler over free pools.
    ///
    /// # Errors
    /// The shape does not work; a step has no room for prefill beside all decode tokens; the pools are too small for
    /// one sequence.
    pub fn new(config: SchedulerConfig, shape: CacheShape, sizes: PoolSizes) -> Result<Self, SchedulerError> {
        limits::check(&config, &shape, sizes)?;
        Ok(Self {
            config,
            shape,
            pools: Pools::new(sizes),
            prefix: PrefixCache::new(shape.page_tokens),
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            halves: Halves::default(),
            host: config.host.map(|host| Host::new(host, shape.page_tokens)),
            in_flight: VecDeque::new(),
            next_id: 0,
            next_step: 0,
            next_generation: 1,
            stats: SchedulerStats::default(),
        })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The request is malformed or could not be run even alone.
    pub fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        self.add_as(request, Role::Whole)
    }

    fn add_as(&mut self, request: Request, role: Role) -> Result<SequenceId, AddError> {
        let max_context = self.config.max_context;
        limits::check_request(&request, max_context)?;
        let id = SequenceId(self.next_id);
        let sequence = Sequence { role, ..Sequence::new(id, request, max_context) };
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
    /// flight was given return when that step is committed, those that a copy writes when it has been dropped.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Event> {
        self.end_with(id, FinishReason::Cancelled)
    }

    /// [`Scheduler::cancel`] for another reason.
    pub fn end_with(&mut self, id: SequenceId, reason: FinishReason) -> Option<Event> {
        let sequence = self.sequences.get(&id).filter(|sequence| sequence.phase != Phase::Ended)?;
        let event = Event::Finished { sequence: id, reason, usage: sequence.usage() };
        self.end(id);
        Some(event)
    }

    /// Takes a request out of the queues, and away once no step contains it and no copy writes its pages.
    fn end(&mut self, id: SequenceId) {
        self.waiting.remove(&id);
        self.running.remove(&id);
        self.halves.remove(id);
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.phase = Phase::Ended;
        self.stop_loading(id);
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.in_flight == 0 && sequence.load.is_none() {
            sequence.release(&mut self.pools);
            self.sequences.remove(&id);
        }
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

    /// Requests that wait, run, or still hold pages.
    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Requests that hold pages and take part in no step: those of other engines.
    pub fn num_landing(&self) -> usize {
        self.halves.num_landing()
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

    /// Forgets all cached beginnings, those in host memory too but for what is being copied.
    pub fn clear_prefix(&mut self) {
        self.prefix.clear(&mut self.pools);
        self.host.iter_mut().for_each(|host| host.cache.clear());
    }

    /// Checks that every page is free or held by exactly those who are counted.
    ///
    /// # Errors
    /// The first page for which this is not so.
    pub fn audit(&self) -> Result<(), AuditError> {
        let sequences = || self.sequences.values();
        let (compressed, window) = self.host.as_ref().map(Host::pages).unzip();
        let compressed = compressed.into_iter().flatten().chain(sequences().flat_map(|s| &s.compressed));
        let window = window.into_iter().flatten().chain(sequences().flat_map(|s| s.window.iter().flatten()));
        self.pools.compressed.audit(compressed.chain(self.prefix.compressed_pages()))?;
        self.pools.window.audit(window.chain(self.prefix.window_pages()))?;
        self.host_cache().map_or(Ok(()), HostCache::audit)?;
        self.pools.requests.audit(sequences().filter_map(|s| s.request_slot.as_ref()))
    }
}
