//! Requests of which another engine does one half: random lives of two schedulers.

use crate::fake::{FakeModel, Oracle};
use crate::tier::Tier;
use engine::batch::Batch;
use engine::geometry::{CacheShape, HcaState};
use engine::host_cache::{HostOrders, HostSizes, HostStats};
use engine::ids::{SequenceId, TokenId};
use engine::pools::PoolSizes;
use engine::scheduler::{FirstToken, HostConfig, HostPolicy, Reserved, Scheduler, SchedulerConfig};
use engine::sequence::{Event, FinishReason, Request};
use engine::step::{Sampled, Sampling, StepEntry, StepOutput, StepPlan};
use reference::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use transfer::exchange::{CopyId, CopySeen};

pub(crate) const SHAPE: CacheShape = CacheShape {
    page_tokens: 16,
    window_page_tokens: 8,
    window: 8,
    csa_ratio: 4,
    hca_ratio: 8,
    csa_ring_rows: 8,
    hca_ring_rows: 8,
    hca_state: HcaState::PerRequest,
};

const SLOTS: HostSizes = HostSizes { compressed_slots: 24, window_slots: 14 };

/// A scheduler with a model that reads and writes what its plans say.
pub(crate) struct Half {
    pub(crate) scheduler: Scheduler,
    model: FakeModel,
    shape: CacheShape,
    /// Copies get on by themselves, each at its own time.
    tier: Option<Tier>,
    in_flight: VecDeque<Order>,
}

/// A step that has run, copies that were ordered with it, or both.
struct Order {
    step: Option<(StepPlan, Vec<TokenId>)>,
    host: HostOrders,
    seen: BTreeMap<CopyId, CopySeen>,
}

impl Half {
    pub(crate) fn new(shape: CacheShape, [pages, window_pages]: [u32; 2], cached: Cached) -> Self {
        let sizes = PoolSizes { compressed_pages: pages, window_pages, request_slots: 6 };
        let config = SchedulerConfig {
            max_batch_tokens: 24,
            max_running: 5,
            chunk_tokens: 24,
            prefix_cache: cached != Cached::No,
            host: match cached {
                Cached::InHost(policy) => Some(HostConfig::new(SLOTS, policy)),
                Cached::No | Cached::OnDevice => None,
            },
            ..SchedulerConfig::new(14 * 16)
        };
        let tier = config.host.map(|_| Tier::new(2, u64::from(pages), 0.2));
        let scheduler = Scheduler::new(config, shape, sizes).expect("limits that fit");
        Self { scheduler, model: FakeModel::new(shape, sizes), shape, tier, in_flight: VecDeque::new() }
    }

    /// Plans and runs a step, copies, or both; the step's entries. `None` if there is neither.
    pub(crate) fn schedule(&mut self) -> Option<Vec<StepEntry>> {
        let (plan, host) = (self.scheduler.schedule(), self.scheduler.take_host_orders());
        let asks = self.in_flight.is_empty() && self.scheduler.has_copies();
        if plan.is_none() && host.is_empty() && !asks {
            return None;
        }
        let Self { tier, model, .. } = self;
        tier.iter_mut().for_each(|tier| tier.before_step(&host, model));
        let step = plan.map(|plan| {
            let batch = Batch::new(&plan, &self.shape).expect("every page is there");
            let samples = model.forward(&batch).to_vec();
            (plan, samples)
        });
        tier.iter_mut().for_each(|tier| tier.behind_step(&host, model));
        let seen = tier.as_ref().map(Tier::seen).unwrap_or_default();
        let entries = step.iter().flat_map(|(plan, _)| plan.entries.clone()).collect();
        self.in_flight.push_back(Order { step, host, seen });
        Some(entries)
    }

    pub(crate) fn commit(&mut self) -> Vec<Event> {
        self.tier.iter_mut().for_each(|tier| tier.advance(&mut self.model));
        let Some(Order { step, host, seen }) = self.in_flight.pop_front() else { return Vec::new() };
        self.scheduler.host_carried_out(&host);
        self.scheduler.host_seen(&seen);
        let Some((plan, samples)) = step else { return Vec::new() };
        let sampled = |token| Sampled { token, after_draft: None, next_draft: None };
        let output = StepOutput { sampled: samples.into_iter().map(sampled).collect(), ..StepOutput::default() };
        self.scheduler.commit(&plan, &output).expect("the step in turn")
    }

    pub(crate) fn check(&mut self) {
        self.scheduler.audit().expect("every page is accounted for");
        self.model.poison_free(self.scheduler.pools());
    }
}

/// Where beginnings of texts are kept.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Cached {
    No,
    OnDevice,
    InHost(HostPolicy),
}

/// Pages of a computed prompt, kept where a room would keep them.
type Parcel = (FakeModel, Vec<Vec<u32>>);

struct Tracked {
    expected: Vec<TokenId>,
    produced: Vec<TokenId>,
    ended: Option<FinishReason>,
    reserved: Option<Reserved>,
    /// Its prompt over there.
    asked: Option<SequenceId>,
    parcel: Option<(Parcel, FirstToken)>,
    filling: u32,
    filled: bool,
}

/// Two schedulers and what travels between them.
struct World {
    prefill: Half,
    decode: Half,
    requests: BTreeMap<SequenceId, Tracked>,
    /// Emitting entries of prompts, by the sequence over there.
    entries: BTreeMap<SequenceId, StepEntry>,
    prompts: BTreeMap<SequenceId, Request>,
    /// What was seen: aborts while waiting, reserved, asked, held, filling, landed, running.
    aborted: [u32; 7],
    recomputed: u32,
}

impl World {
    fn new(shape: CacheShape, cached: Cached) -> Self {
        Self {
            prefill: Half::new(shape, [16, 32], cached),
            decode: Half::new(shape, [14, 20], cached),
            requests: BTreeMap::new(),
            entries: BTreeMap::new(),
            prompts: BTreeMap::new(),
            aborted: [0; 7],
            recomputed: 0,
        }
    }

    fn add(&mut self, request: Request) {
        let mut oracle = Oracle::new(self.decode.shape, 0.0);
        let mut next = request.prompt.iter().fold(TokenId(0), |_, &token| oracle.step(token));
        let mut expected = Vec::new();
        for _ in 0..request.max_tokens {
            expected.push(next);
            next = oracle.step(next);
        }
        let id = self.decode.scheduler.add_remote(request.clone()).expect("a request that fits");
        let tracked = Tracked {
            expected,
            produced: Vec::new(),
            ended: None,
            reserved: None,
            asked: None,
            parcel: None,
            filling: 0,
            filled: false,
        };
        self.requests.insert(id, tracked);
        self.prompts.insert(id, request);
    }

    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Token { sequence, token, index } => {
                    let tracked = self.requests.get_mut(&sequence).expect("a request of ours");
                    assert_eq!(tracked.ended, None, "{sequence} produces after its end");
                    assert_eq!(Some(&token), tracked.expected.get(index as usize), "{sequence}, token {index}");
                    tracked.produced.push(token);
                }
                Event::Finished { sequence, reason, usage } => {
                    let tracked = self.requests.get_mut(&sequence).expect("a request of ours");
                    assert_eq!(tracked.ended, None, "{sequence} ends twice");
                    assert_eq!(usage.generated_tokens as usize, tracked.produced.len());
                    if reason == FinishReason::MaxTokens {
                        assert_eq!(tracked.produced, tracked.expected);
                    }
                    tracked.ended = Some(reason);
                }
            }
        }
    }

    fn living(&self) -> Vec<SequenceId> {
        self.requests.iter().filter(|(_, r)| r.ended.is_none()).map(|(&id, _)| id).collect()
    }

    fn abort(&mut self, id: SequenceId) {
        let tracked = &self.requests[&id];
        let state = match tracked {
            Tracked { produced, .. } if !produced.is_empty() => 6,
            Tracked { filled: true, .. } => 5,
            Tracked { filling: 1.., .. } => 4,
            Tracked { parcel: Some(_), .. } => 3,
            Tracked { asked: Some(_), .. } => 2,
            Tracked { reserved: Some(_), .. } => 1,
            _ => 0,
        };
        self.aborted[state] += 1;
        let event = self.decode.scheduler.cancel(id).expect("it lives");
        self.take(vec![event]);
        self.forget(id);
    }

    /// The other side stops too, wherever it is.
    fn forget(&mut self, id: SequenceId) {
        let tracked = self.requests.get_mut(&id).expect("a request of ours");
        tracked.reserved = None;
        if let Some(asked) = tracked.asked.take() {
            let _ = self.prefill.scheduler.cancel(asked);
            self.entries.remove(&asked);
        }
    }

    /// One of everything that may happen, at random.
    fn act(&mut self, rng: &mut Rng) {
        let living = self.living();
        let pick = |rng: &mut Rng| living.get(rng.below(living.len().max(1) as u64) as usize).copied();
        match rng.below(20) {
            0 if living.len() < 8 => {
                // Every second prompt is one of seven that come again and again.
                let (text, again) = (rng.below(7), rng.chance(0.5));
                let (shared, own) = if again { (51, 0) } else { (rng.below(50), 1 + rng.below(30)) };
                let prompt = (0..shared).map(|i| (i + 17 * text) % 61).chain((0..own).map(|_| rng.below(61)));
                let prompt = prompt.map(|id| TokenId(id as u32)).collect();
                let max_tokens = 1 + rng.below(80) as u32;
                self.add(Request { prompt, max_tokens, stop: Vec::new(), sampling: Sampling::GREEDY });
            }
            1 if rng.chance(0.3) => pick(rng).into_iter().for_each(|id| self.abort(id)),
            2..=4 => {
                if let Some(entries) = self.prefill.schedule() {
                    for entry in entries.into_iter().filter(|entry| entry.emits) {
                        self.entries.insert(entry.sequence, entry);
                    }
                }
            }
            5 | 6 => {
                let events = self.prefill.commit();
                assert_eq!(events, [], "a prompt for somebody else has no client here");
            }
            12..=14 => _ = self.decode.schedule(),
            15 => {
                for _ in 0..6 {
                    self.decode.schedule();
                    let events = self.decode.commit();
                    self.take(events);
                }
            }
            7 | 8 | 16 | 17 => {
                let events = self.decode.commit();
                self.take(events);
            }
            9 => pick(rng).into_iter().for_each(|id| self.ask(id)),
            10 => self.fill(pick(rng)),
            11 => self.filled(pick(rng).filter(|_| rng.chance(0.8))),
            _ => self.start(pick(rng)),
        }
        self.pass();
        self.prefill.check();
        self.decode.check();
    }

    /// What is told at once.
    fn pass(&mut self) {
        while let Some(id) = self.decode.scheduler.take_preempted() {
            self.recomputed += 1;
            self.forget(id);
            let tracked = self.requests.get_mut(&id).expect("a request of ours");
            (tracked.parcel, tracked.filled) = (None, false);
        }
        while let Some(reserved) = self.decode.scheduler.take_reserved() {
            let tracked = self.requests.get_mut(&reserved.sequence).expect("a request of ours");
            tracked.reserved = Some(reserved);
        }
        while let Some(prefilled) = self.prefill.scheduler.take_prefilled() {
            let asked = |(_, tracked): &(&SequenceId, &mut Tracked)| tracked.asked == Some(prefilled.sequence);
            let (_, tracked) = self.requests.iter_mut().find(asked).expect("somebody asked");
            let entry = self.entries.remove(&prefilled.sequence).expect("its last chunk ran");
            let needed = &tracked.reserved.as_ref().expect("pages are reserved before anybody asks").needed;
            let pages = needed.pages(&entry.compressed_table, &entry.window_table, entry.request_slot);
            let parcel = (self.prefill.model.clone(), pages.expect("the tables are whole"));
            tracked.parcel = Some((parcel, prefilled.first));
            self.prefill.scheduler.release(prefilled.sequence);
        }
    }

    fn ask(&mut self, id: SequenceId) {
        let tracked = self.requests.get_mut(&id).expect("a request of ours");
        if tracked.asked.is_none() && tracked.reserved.is_some() && tracked.parcel.is_none() {
            let request = self.prompts[&id].clone();
            tracked.asked = Some(self.prefill.scheduler.add_prefill(request).expect("a request that fits"));
        }
    }

    fn fill(&mut self, id: Option<SequenceId>) {
        let Some(tracked) = id.and_then(|id| self.requests.get_mut(&id)) else { return };
        let (Some((parcel, _)), Some(reserved)) = (&tracked.parcel, &tracked.reserved) else { return };
        if tracked.filled || tracked.filling > 0 || !self.decode.scheduler.filling(reserved.sequence) {
            return;
        }
        let Reserved { needed, compressed, window, request_slot, .. } = reserved;
        let to = needed.pages(compressed, window, *request_slot).expect("pages were reserved");
        self.decode.model.take_pages(&parcel.0, &parcel.1, &to);
        tracked.filling += 1;
    }

    fn filled(&mut self, which: Option<SequenceId>) {
        let mut requests = self.requests.iter_mut();
        if let Some((&id, tracked)) =
            requests.find(|(id, tracked)| tracked.filling > 0 && which.is_none_or(|w| w == **id))
        {
            self.decode.scheduler.filled(id);
            (tracked.filling, tracked.filled) = (0, true);
        }
    }

    fn start(&mut self, id: Option<SequenceId>) {
        let Some((id, tracked)) = id.and_then(|id| Some((id, self.requests.get_mut(&id)?))) else { return };
        let Some((_, first)) = tracked.parcel.as_ref().filter(|_| tracked.filled) else { return };
        let first = *first;
        (tracked.parcel, tracked.reserved, tracked.asked, tracked.filled) = (None, None, None, false);
        let events = self.decode.scheduler.start(id, &first);
        assert!(!events.is_empty(), "a landed prompt goes on");
        self.take(events);
    }

    fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.living().is_empty() {
                break;
            }
            self.filled(None);
            for id in self.living() {
                self.ask(id);
                self.fill(Some(id));
                self.filled(Some(id));
                self.start(Some(id));
            }
            while let Some(entries) = self.prefill.schedule() {
                entries.into_iter().filter(|e| e.emits).for_each(|e| _ = self.entries.insert(e.sequence, e));
            }
            self.prefill.commit();
            self.decode.schedule();
            let events = self.decode.commit();
            self.take(events);
            self.pass();
        }
        assert_eq!(self.living(), [], "the queues do not empty");
        while self.requests.values().any(|tracked| tracked.filling > 0) {
            self.filled(None);
        }
        while self.prefill.schedule().is_some() || !self.prefill.in_flight.is_empty() {
            self.prefill.commit();
        }
        while self.decode.schedule().is_some() || !self.decode.in_flight.is_empty() {
            let events = self.decode.commit();
            self.take(events);
        }
        self.pass();
        for half in [&mut self.prefill, &mut self.decode] {
            half.scheduler.clear_prefix();
            half.check();
            assert!(!half.scheduler.has_work());
            let pools = half.scheduler.pools();
            assert_eq!(pools.compressed.num_free(), pools.compressed.num_pages());
            assert_eq!(pools.window.num_free(), pools.window.num_pages());
            assert_eq!(pools.requests.num_free(), pools.requests.num_pages());
        }
    }
}

/// 60,000 steps, with aborts in every state: every text is that of one engine, and every page comes back on both sides.
#[test]
fn random_lives_of_two_halves() {
    let per_page = CacheShape { hca_state: HcaState::PerWindowPage, ..SHAPE };
    let (mut aborted, mut recomputed, mut ended, mut cached, mut host) = ([0; 7], 0, 0, [0; 2], [[0; 4]; 2]);
    let caches = [
        Cached::No,
        Cached::OnDevice,
        Cached::InHost(HostPolicy::WriteThrough),
        Cached::OnDevice,
        Cached::InHost(HostPolicy::WriteBack),
    ];
    for seed in 0..20 {
        let shape = if seed % 2 == 0 { SHAPE } else { per_page };
        let mut world = World::new(shape, caches[seed as usize % caches.len()]);
        let mut rng = Rng::named(seed, "halves");
        (0..3000).for_each(|_| world.act(&mut rng));
        world.finish();
        aborted.iter_mut().zip(world.aborted).for_each(|(sum, n)| *sum += n);
        recomputed += world.recomputed;
        ended += world.requests.values().filter(|r| r.ended == Some(FinishReason::MaxTokens)).count();
        let stats = [world.decode.scheduler.stats(), world.prefill.scheduler.stats()];
        cached.iter_mut().zip(stats).for_each(|(sum, stats)| *sum += stats.cached_tokens);
        for (sum, half) in host.iter_mut().zip([&world.decode, &world.prefill]) {
            let HostStats { saved, hits, loads_failed, evicted, .. } = half.scheduler.host_stats();
            sum.iter_mut().zip([saved, hits, loads_failed, evicted]).for_each(|(sum, n)| *sum += n);
        }
    }
    assert!(
        host.iter().flatten().all(|&n| n > 0),
        "saved, hits, loads failed, evicted of decode and prefill: {host:?}"
    );
    assert!(aborted.iter().all(|&n| n > 0), "states in which requests were aborted: {aborted:?}");
    assert!(recomputed > 0 && ended > 100, "{recomputed} recomputed, {ended} ended");
    assert!(cached.iter().all(|&tokens| tokens > 100), "{cached:?} cached tokens");
}
