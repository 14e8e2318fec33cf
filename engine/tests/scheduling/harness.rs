//! A scheduler, the fake model, and everything that must hold after every call.

use crate::fake::{FakeModel, Oracle};
use crate::tier::Tier;
use engine::batch::Batch;
use engine::geometry::CacheShape;
use engine::host_cache::HostOrders;
use engine::ids::{PageId, SequenceId, TokenId};
use engine::pools::PoolSizes;
use engine::scheduler::{AddError, Scheduler, SchedulerConfig};
use engine::sequence::{Event, FinishReason, Request};
use engine::step::{InputToken, Sampled, StepEntry, StepOutput, StepPlan};
use std::collections::{BTreeMap, HashSet, VecDeque};
use transfer::exchange::{CopyId, CopySeen};

/// What is known of a request.
pub(crate) struct Tracked {
    request: Request,
    /// Tokens it must produce, and how it ends unless it is cancelled.
    expected: Vec<TokenId>,
    reason: FinishReason,
    pub(crate) produced: Vec<TokenId>,
    pub(crate) ended: Option<FinishReason>,
    /// Position behind the last one that was planned.
    next: Option<u32>,
}

/// A step, copies, or both.
struct InFlight {
    step: Option<(StepPlan, Batch)>,
    host: HostOrders,
    ran: Option<Ran>,
}

/// What came of it.
struct Ran {
    samples: Vec<TokenId>,
    seen: BTreeMap<CopyId, CopySeen>,
}

impl InFlight {
    fn entries(&self) -> &[StepEntry] {
        self.step.as_ref().map_or(&[], |(plan, _)| &plan.entries)
    }

    /// Runs it as ranks do: loads begin, the step, saves are read.
    fn run(&mut self, model: &mut FakeModel, tier: Option<&mut Tier>, fails: bool) {
        if self.ran.is_some() {
            return;
        }
        let forward = |step: &Option<(StepPlan, Batch)>, model: &mut FakeModel| match step {
            Some((_, batch)) if !fails => model.forward(batch).to_vec(),
            _ => Vec::new(),
        };
        let mut seen = BTreeMap::new();
        let samples = match tier {
            None => forward(&self.step, model),
            Some(tier) => {
                tier.before_step(&self.host, model);
                let samples = forward(&self.step, model);
                tier.behind_step(&self.host, model);
                seen = tier.seen();
                samples
            }
        };
        self.ran = Some(Ran { samples, seen });
    }
}

/// Runs steps and judges them.
pub(crate) struct Harness {
    pub(crate) scheduler: Scheduler,
    model: FakeModel,
    pub(crate) tier: Option<Tier>,
    shape: CacheShape,
    config: SchedulerConfig,
    pub(crate) requests: BTreeMap<SequenceId, Tracked>,
    in_flight: VecDeque<InFlight>,
    planned_tokens: u64,
    starts: u64,
    pub(crate) largest_overlap: usize,
    pub(crate) accepted_drafts: u64,
}

impl Harness {
    pub(crate) fn new(config: SchedulerConfig, shape: CacheShape, sizes: PoolSizes) -> Self {
        Self {
            scheduler: Scheduler::new(config, shape, sizes).unwrap(),
            model: FakeModel::new(shape, sizes),
            tier: None,
            shape,
            config,
            requests: BTreeMap::new(),
            in_flight: VecDeque::new(),
            planned_tokens: 0,
            starts: 0,
            largest_overlap: 0,
            accepted_drafts: 0,
        }
    }

    pub(crate) fn add(&mut self, request: Request) -> Result<SequenceId, AddError> {
        let id = self.scheduler.add(request.clone())?;
        let mut oracle = Oracle::new(self.shape, request.sampling.temperature);
        let mut next = TokenId(0);
        for &token in &request.prompt {
            next = oracle.step(token);
        }
        let (room, max_tokens) = (self.config.max_context as usize - request.prompt.len(), request.max_tokens as usize);
        let mut expected = vec![next];
        let reason = loop {
            let last = expected[expected.len() - 1];
            if request.stop.contains(&last) {
                break FinishReason::Stop(last);
            } else if expected.len() == max_tokens {
                break FinishReason::MaxTokens;
            } else if expected.len() == room {
                break FinishReason::ContextLimit;
            }
            expected.push(oracle.step(last));
        };
        let tracked = Tracked { request, expected, reason, produced: Vec::new(), ended: None, next: None };
        assert!(self.requests.insert(id, tracked).is_none(), "an id is given once");
        self.check();
        Ok(id)
    }

    pub(crate) fn cancel(&mut self, id: SequenceId) {
        let event = self.scheduler.cancel(id);
        assert_eq!(event.is_some(), self.requests.get(&id).is_some_and(|r| r.ended.is_none()), "cancel of {id}");
        self.take_events(event.into_iter().collect());
        self.check();
    }

    /// The harness with host memory behind it.
    pub(crate) fn with_tier(mut self, tier: Tier) -> Self {
        self.tier = Some(tier);
        self
    }

    /// Hands over a step, with copies or without, or copies alone; false if there was neither.
    pub(crate) fn schedule(&mut self) -> bool {
        let plan = self.scheduler.schedule();
        let host = self.scheduler.take_host_orders();
        let nothing = plan.is_none() && host.is_empty();
        if nothing {
            let waits = self.requests.values().any(|r| r.ended.is_none());
            assert!(
                !waits || !self.in_flight.is_empty() || self.scheduler.has_copies(),
                "requests wait, nothing is in flight, and no step is planned"
            );
        } else {
            let step = plan.map(|plan| {
                self.judge_plan(&plan);
                let batch = Batch::new(&plan, &self.shape).unwrap();
                self.judge_next_ids(&plan, &batch);
                (plan, batch)
            });
            self.in_flight.push_back(InFlight { step, host, ran: None });
        }
        self.largest_overlap = self.largest_overlap.max(self.in_flight.len());
        self.check();
        !nothing
    }

    /// An order that only asks how far copies are.
    pub(crate) fn ask(&mut self) {
        let host = self.scheduler.take_host_orders();
        self.in_flight.push_back(InFlight { step: None, host, ran: None });
    }

    /// Copies get on.
    pub(crate) fn advance(&mut self) {
        if let Some(tier) = &mut self.tier {
            tier.advance(&mut self.model);
        }
    }

    /// Runs everything in flight that has not run, in order.
    pub(crate) fn execute(&mut self) {
        self.in_flight.iter_mut().for_each(|order| order.run(&mut self.model, self.tier.as_mut(), false));
    }

    /// Runs the oldest order and tells the scheduler what the ranks saw.
    fn take_oldest(&mut self, fails: bool) -> Option<(Option<StepPlan>, Vec<TokenId>)> {
        let mut order = self.in_flight.pop_front()?;
        order.run(&mut self.model, self.tier.as_mut(), fails);
        let Ran { samples, seen } = order.ran?;
        self.scheduler.host_carried_out(&order.host);
        self.scheduler.host_seen(&seen);
        Some((order.step.map(|(plan, _)| plan), samples))
    }

    /// Takes in the oldest step; false if none is in flight.
    pub(crate) fn commit(&mut self) -> bool {
        // As late as possible, so that planning cannot depend on what a step brings.
        let Some((plan, samples)) = self.take_oldest(false) else { return false };
        let Some(plan) = plan else {
            self.check();
            return true;
        };
        let mut samples = samples.into_iter();
        let mut output = StepOutput::default();
        for entry in plan.entries.iter().filter(|entry| entry.emits) {
            let token = samples.next().unwrap();
            let after_draft = entry.draft.and_then(|draft| samples.next().filter(|_| draft == token));
            self.accepted_drafts += u64::from(after_draft.is_some());
            if entry.draft.is_some() && after_draft.is_none() {
                // The position of a rejected draft is computed again.
                let next = &mut self.requests.get_mut(&entry.sequence).unwrap().next;
                *next = next.map(|next| next - 1);
            }
            let end = entry.start.0 as usize + entry.tokens.len() + usize::from(after_draft.is_some()) + 1;
            let next_draft = self.config.speculation.then(|| self.guess(entry.sequence, end));
            output.sampled.push(Sampled { token, after_draft, next_draft });
        }
        assert_eq!(samples.next(), None, "every row of logits belongs to an entry");
        let events = self.scheduler.commit(&plan, &output).unwrap();
        self.take_events(events);
        self.check();
        true
    }

    /// Ends the oldest step as failed; false if none is in flight.
    pub(crate) fn fail(&mut self) -> bool {
        // A step that failed wrote nothing; one that a later step was planned on is let run, so that this one finds its
        // inputs.
        let fails = self.in_flight.len() == 1;
        let Some((plan, _)) = self.take_oldest(fails) else { return false };
        if let Some(plan) = plan {
            let events = self.scheduler.fail(&plan, "device lost").unwrap();
            self.take_events(events);
        }
        self.check();
        true
    }

    /// The right token at a position of the text most of the time, a wrong one otherwise.
    fn guess(&self, id: SequenceId, position: usize) -> TokenId {
        let tracked = &self.requests[&id];
        let index = position - tracked.request.prompt.len();
        match tracked.expected.get(index) {
            Some(&token) if !(position + id.0 as usize).is_multiple_of(3) => token,
            Some(&token) => TokenId((token.0 + 1) % crate::fake::VOCAB as u32),
            None => TokenId(0),
        }
    }

    /// Plans and commits until nothing is left, two steps deep where the scheduler allows it.
    pub(crate) fn finish(&mut self) {
        for _ in 0..100_000 {
            while self.schedule() {}
            self.advance();
            if !self.commit() {
                if !self.scheduler.has_copies() {
                    break;
                }
                self.ask();
            }
        }
        assert!(!self.scheduler.has_work() && self.in_flight.is_empty(), "the queues do not empty");
        for (id, tracked) in &self.requests {
            assert!(tracked.ended.is_some(), "request {id} has no end");
        }
        let stats = self.scheduler.stats();
        assert_eq!(stats.computed_tokens, self.planned_tokens);
        // A sequence that resumes where it stopped, from the cache, is not seen to start again.
        assert!(self.starts <= stats.admitted, "{} starts, {stats:?}", self.starts);
        self.scheduler.clear_prefix();
        self.check();
        let pools = self.scheduler.pools();
        assert_eq!(pools.compressed.num_free(), pools.compressed.num_pages());
        assert_eq!(pools.window.num_free(), pools.window.num_pages());
        assert_eq!(pools.requests.num_free(), pools.requests.num_pages());
        if let Some(host) = self.scheduler.host_cache() {
            assert_eq!((host.pins(), host.is_empty()), (0, true));
            let (compressed, window) = host.pools();
            assert_eq!(compressed.num_free(), compressed.num_pages());
            assert_eq!(window.num_free(), window.num_pages());
        }
    }

    fn check(&mut self) {
        self.scheduler.audit().unwrap();
        self.model.poison_free(self.scheduler.pools());
    }

    fn take_events(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Token { sequence, token, index } => {
                    let tracked = self.requests.get_mut(&sequence).unwrap();
                    assert_eq!(tracked.ended, None, "request {sequence} produces after its end");
                    assert_eq!(index as usize, tracked.produced.len());
                    let expected = tracked.expected.get(index as usize);
                    assert_eq!(Some(&token), expected, "request {sequence}, generated token {index}");
                    tracked.produced.push(token);
                }
                Event::Finished { sequence, reason, usage } => {
                    let tracked = self.requests.get_mut(&sequence).unwrap();
                    assert_eq!(tracked.ended, None, "request {sequence} ends twice");
                    assert_eq!(usage.generated_tokens as usize, tracked.produced.len());
                    assert_eq!(usage.prompt_tokens as usize, tracked.request.prompt.len());
                    assert!(usage.cached_tokens < usage.prompt_tokens);
                    if !matches!(reason, FinishReason::Cancelled | FinishReason::Failed(_)) {
                        assert_eq!(tracked.produced, tracked.expected, "request {sequence}");
                        assert_eq!(reason, tracked.reason, "request {sequence}");
                    }
                    tracked.ended = Some(reason);
                }
            }
        }
    }

    fn judge_plan(&mut self, plan: &StepPlan) {
        assert!(!plan.entries.is_empty() && plan.num_tokens() <= self.config.max_batch_tokens);
        for (i, entry) in plan.entries.iter().enumerate() {
            let decode = entry.emits && entry.tokens.len() == 1;
            assert_eq!(decode, i < plan.num_decode, "decode entries stand first");
            assert!(entry.tokens.len() as u32 <= self.config.chunk_tokens.max(1));
            let from_step = entry.tokens.iter().filter(|t| matches!(t, InputToken::FromStep { .. })).count();
            assert!(from_step == 0 || (decode && from_step == 1), "only a decode token waits for its id");
            let tracked = self.requests.get_mut(&entry.sequence).unwrap();
            assert_eq!(tracked.ended, None, "request {} runs after its end", entry.sequence);
            if tracked.next != Some(entry.start.0) {
                assert!(entry.start.0 % self.shape.page_tokens == 0, "{} resumes at {}", entry.sequence, entry.start);
                self.starts += 1;
            }
            tracked.next = Some(entry.start.0 + entry.num_tokens());
            // The last token of a text is never run.
            let room = self.config.max_context - tracked.request.prompt.len() as u32;
            let limit = tracked.request.prompt.len() as u32 + tracked.request.max_tokens.min(room);
            assert!(entry.start.0 + entry.num_tokens() < limit, "{} runs to its limit {limit}", entry.sequence);
            self.planned_tokens += u64::from(entry.num_tokens());
        }
        self.judge_pages(plan);
        // Nobody is overtaken, and the oldest request advances; but who waits for a copy is passed by those behind him.
        if self.tier.is_none() {
            let started = self.requests.iter().filter(|(_, r)| r.next.is_some()).map(|(&id, _)| id).max().unwrap();
            let behind = |(id, r): &(&SequenceId, &Tracked)| **id < started && r.next.is_none() && r.ended.is_none();
            let overtaken = self.requests.iter().find(behind);
            assert!(overtaken.is_none(), "{:?} is overtaken by {started}", overtaken.map(|o| o.0));
        }
        if self.scheduler.num_loading() > 0 {
            return;
        }
        if let Some((oldest, _)) = self.requests.iter().find(|(_, r)| r.ended.is_none()) {
            let mut plans = self.in_flight.iter().map(InFlight::entries).chain([&plan.entries[..]]);
            assert!(
                plans.any(|entries| entries.iter().any(|e| e.sequence == *oldest)),
                "the oldest, {oldest}, stands still"
            );
        }
    }

    /// Pages that an entry writes are in no other entry's tables, here or in a step in flight.
    fn judge_pages(&self, plan: &StepPlan) {
        for (i, entry) in plan.entries.iter().enumerate() {
            let (start, end) = (entry.start.0, entry.start.0 + entry.num_tokens());
            let range = |page: u32| (start / page) as usize..end.div_ceil(page) as usize;
            let window: HashSet<PageId> =
                entry.window_table[range(self.shape.window_page_tokens)].iter().map(|p| p.unwrap()).collect();
            let compressed: HashSet<PageId> =
                entry.compressed_table[range(self.shape.page_tokens)].iter().copied().collect();
            let here = plan.entries.iter().enumerate().filter(|&(k, _)| k != i).map(|(_, other)| other);
            let before = self.in_flight.iter().flat_map(InFlight::entries);
            for other in here.chain(before.filter(|other| other.sequence != entry.sequence)) {
                let shared = other.window_table.iter().flatten().find(|page| window.contains(page));
                assert!(shared.is_none(), "{} writes window page {shared:?} of {}", entry.sequence, other.sequence);
                let shared = other.compressed_table.iter().find(|page| compressed.contains(page));
                assert!(shared.is_none(), "{} writes compressed page {shared:?} of {}", entry.sequence, other.sequence);
                let slots = (entry.request_slot, other.request_slot);
                assert!(slots.0.is_none() || slots.0 != slots.1, "two sequences have request slot {slots:?}");
            }
        }
    }

    fn judge_next_ids(&self, plan: &StepPlan, batch: &Batch) {
        for (i, &next) in batch.next_ids.iter().enumerate() {
            let tracked = &self.requests[&plan.entries[batch.seq[i] as usize].sequence];
            let position = batch.positions[i] as usize + 1;
            let text = tracked.request.prompt.iter().chain(&tracked.produced).nth(position);
            assert_eq!(next, text.map_or(-1, |token| token.0 as i32), "token behind token {i}");
        }
    }
}
