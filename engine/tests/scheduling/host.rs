//! What holds for host memory under the prefix cache, one promise per test. That a node split during a copy keeps its pin has no
//! test: nodes are whole pages, so none is ever split. Stages of a pipeline, whose layers could be mixed up, there are none.

use crate::harness::Harness;
use crate::tier::Tier;
use engine::geometry::{CacheShape, HcaState};
use engine::handover::Needed;
use engine::host_cache::HostSizes;
use engine::ids::{SequenceId, TokenId};
use engine::pools::PoolSizes;
use engine::scheduler::{HostConfig, HostPolicy, Scheduler, SchedulerConfig};
use engine::sequence::{FinishReason, Request};
use engine::step::{Sampled, Sampling, StepOutput};
use std::collections::BTreeMap;
use transfer::exchange::{CopyId, CopySeen};
use transfer::reason::{Code, Reason};

const SHAPE: CacheShape = CacheShape {
    page_tokens: 16,
    window_page_tokens: 8,
    window: 8,
    csa_ratio: 4,
    hca_ratio: 8,
    csa_ring_rows: 8,
    hca_ring_rows: 8,
    hca_state: HcaState::PerRequest,
};

/// The device holds one text of three pages and little more, so that texts push each other out.
const SIZES: PoolSizes = PoolSizes { compressed_pages: 5, window_pages: 9, request_slots: 2 };

fn config(policy: HostPolicy, slots: u32) -> SchedulerConfig {
    let sizes = HostSizes { compressed_slots: slots, window_slots: slots };
    let host = Some(HostConfig::new(sizes, policy));
    SchedulerConfig { max_batch_tokens: 32, max_running: 2, chunk_tokens: 32, host, ..SchedulerConfig::new(80) }
}

/// Forty tokens, two pages of which are full before the last one.
fn request(text: u32, max_tokens: u32) -> Request {
    let prompt = (0..40).map(|i| TokenId((i * i + text * (i + 7)) % 61)).collect();
    Request { prompt, max_tokens, stop: Vec::new(), sampling: Sampling::GREEDY }
}

fn harness(config: SchedulerConfig, fail: f64) -> Harness {
    Harness::new(config, SHAPE, SIZES).with_tier(Tier::new(2, 1, fail))
}

impl Harness {
    /// Until nothing is left to do, copies included, with everything still in its place.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            while self.schedule() {}
            self.advance();
            if !self.commit() {
                if !self.scheduler.has_copies() {
                    return;
                }
                self.ask();
            }
        }
        panic!("the copies do not end");
    }

    /// A text from its beginning to its end; tokens of its prompt that were found.
    fn complete(&mut self, request: Request) -> u64 {
        let before = self.scheduler.stats().cached_tokens;
        let id = self.add(request).unwrap();
        self.settle();
        assert_eq!(self.requests[&id].ended, Some(FinishReason::MaxTokens));
        self.scheduler.stats().cached_tokens - before
    }
}

/// Whatever the policy, a text that the device has lost comes back, and goes on with the same tokens.
#[test]
fn what_the_device_has_lost_comes_back() {
    for policy in [HostPolicy::WriteThrough, HostPolicy::WriteBack] {
        let mut harness = harness(config(policy, 16), 0.0);
        assert_eq!([1, 2, 3].map(|text| harness.complete(request(text, 4))), [0; 3]);
        let found = [1, 2, 3, 1, 2, 3].map(|text| harness.complete(request(text, 4)));
        assert_eq!(found, [32; 6], "{policy:?}: two whole pages before the last token");
        let stats = harness.scheduler.host_stats();
        assert!(stats.hits >= 4 && stats.hit_tokens == 32 * stats.hits, "{policy:?}: {stats:?}");
        harness.finish();
    }
}

/// A text is worth a copy when it has been resumed from twice.
#[test]
fn a_selective_tier_waits_for_the_second_hit() {
    let mut harness = harness(config(HostPolicy::WriteThroughSelective, 16), 0.0);
    for (hits, saved) in [(0, 0), (1, 0), (2, 2)] {
        assert_eq!(harness.complete(request(1, 4)), if hits == 0 { 0 } else { 32 });
        assert_eq!(harness.scheduler.host_stats().saved, saved, "after {hits} hits");
    }
    harness.finish();
}

/// H4: two requests with the same text save it once, and both keep their own pages.
#[test]
fn the_same_text_is_saved_once() {
    let mut harness = harness(config(HostPolicy::WriteThrough, 16), 0.0);
    harness.add(request(1, 4)).unwrap();
    harness.add(request(1, 4)).unwrap();
    harness.settle();
    let stats = harness.scheduler.host_stats();
    assert_eq!((stats.saved, stats.not_saved, harness.scheduler.host_cache().unwrap().len()), (2, 0, 2));
    harness.finish();
}

/// A scheduler without a model: copies are answered by hand.
struct Bare {
    scheduler: Scheduler,
    copies: BTreeMap<CopyId, CopySeen>,
}

impl Bare {
    /// Text 1 has been resumed from often enough to be saved, and another text has pushed it off the device.
    fn new(slots: u32, saves: CopySeen) -> Self {
        Self::on(SIZES, slots, saves)
    }

    fn on(sizes: PoolSizes, slots: u32, saves: CopySeen) -> Self {
        let scheduler = Scheduler::new(config(HostPolicy::WriteThroughSelective, slots), SHAPE, sizes).unwrap();
        let mut bare = Self { scheduler, copies: BTreeMap::new() };
        (0..3).for_each(|_| bare.run(request(1, 1)));
        bare.exchange();
        assert_eq!(bare.copies.len(), 2, "both whole pages of it");
        bare.copies.values_mut().for_each(|seen| *seen = saves.clone());
        bare.exchange();
        bare.run(prompt(9, 79));
        bare
    }

    /// Computes a text as far as its first token.
    fn run(&mut self, request: Request) {
        self.scheduler.add(request).unwrap();
        while self.step().is_some() {}
    }

    /// One step: who ran, and from which token on.
    fn step(&mut self) -> Option<Vec<(SequenceId, u32)>> {
        let plan = self.scheduler.schedule()?;
        let token = Sampled { token: TokenId(1), after_draft: None, next_draft: None };
        let sampled = plan.entries.iter().filter(|entry| entry.emits).map(|_| token).collect();
        self.scheduler.commit(&plan, &StepOutput { sampled, ..StepOutput::default() }).unwrap();
        Some(plan.entries.iter().map(|entry| (entry.sequence, entry.start.0)).collect())
    }

    /// One order there and back.
    fn exchange(&mut self) {
        let orders = self.scheduler.take_host_orders();
        let begun = orders.saves.iter().map(|save| save.id).chain(orders.loads.iter().map(|load| load.id));
        begun.for_each(|id| _ = self.copies.insert(id, CopySeen::Moving));
        orders.drops.iter().for_each(|id| _ = self.copies.remove(id));
        self.scheduler.host_carried_out(&orders);
        self.scheduler.host_seen(&self.copies);
        self.scheduler.audit().unwrap();
    }

    /// Text 1 is asked for again, and its load is in an order.
    fn load(&mut self) -> (SequenceId, CopyId) {
        let id = self.scheduler.add(request(1, 1)).unwrap();
        assert!(self.scheduler.schedule().is_none(), "nothing of it can run");
        assert_eq!(self.scheduler.num_loading(), 1);
        self.exchange();
        (id, self.last_copy())
    }

    fn last_copy(&self) -> CopyId {
        *self.copies.keys().last().unwrap()
    }

    fn see(&mut self, copy: CopyId, seen: CopySeen) {
        self.copies.insert(copy, seen);
        self.exchange();
    }

    fn slots_free(&self) -> u32 {
        self.scheduler.pools().requests.num_free()
    }

    fn pins(&self) -> u32 {
        self.scheduler.host_cache().unwrap().pins()
    }
}

fn prompt(token: u32, tokens: usize) -> Request {
    Request { prompt: vec![TokenId(token); tokens], ..request(0, 1) }
}

fn failed() -> CopySeen {
    CopySeen::Failed(Reason::new(Code::Protocol, "a page that is not what was saved"))
}

/// H2: slots that a load reads are not given to a save, which goes without.
#[test]
fn slots_are_pinned_until_the_load_has_ended() {
    let mut bare = Bare::on(PoolSizes { compressed_pages: 6, ..SIZES }, 2, CopySeen::Done);
    let (_, load) = bare.load();
    assert_eq!(bare.pins(), 2);
    (0..3).for_each(|_| bare.run(prompt(5, 17)));
    bare.exchange();
    assert_eq!(bare.scheduler.host_stats().not_saved, 1, "no slot is free, and none is taken away");
    assert_eq!((bare.pins(), bare.scheduler.host_stats().evicted), (2, 0));
    bare.see(load, CopySeen::Done);
    assert_eq!(bare.pins(), 0);
    bare.run(prompt(5, 17));
    bare.exchange();
    let stats = bare.scheduler.host_stats();
    assert_eq!((stats.not_saved, stats.evicted), (1, 1), "the text that was read makes room");
}

/// H5: a load is given up in every state; pages and slots return when nobody touches them any more, not before.
#[test]
fn a_cancelled_load_returns_everything_once_it_is_dropped() {
    let states = [
        ("queued", None),
        ("moving", Some(CopySeen::Moving)),
        ("checked", Some(CopySeen::Checked)),
        ("failed", Some(failed())),
    ];
    for (state, seen) in states {
        let mut bare = Bare::new(8, CopySeen::Done);
        let (free, pins) = (bare.slots_free(), bare.pins());
        let id = bare.scheduler.add(request(1, 9)).unwrap();
        assert!(bare.scheduler.schedule().is_none());
        if let Some(seen) = seen {
            bare.exchange();
            let load = bare.last_copy();
            bare.copies.insert(load, seen);
            bare.scheduler.host_seen(&bare.copies);
        }
        assert!(bare.scheduler.cancel(id).is_some(), "{state}");
        assert!(bare.scheduler.cancel(id).is_none(), "{state}: it has ended");
        if state != "queued" {
            assert_eq!(bare.slots_free(), free - 1, "{state}: a rank may still write its pages");
            assert_eq!(bare.pins(), pins + 2, "{state}: and read its slots");
            bare.exchange();
        }
        assert_eq!((bare.slots_free(), bare.pins()), (free, pins), "{state}");
        assert_eq!((bare.scheduler.num_loading(), bare.scheduler.has_work()), (0, false), "{state}");
        bare.scheduler.audit().unwrap();
    }
}

/// A load that fails is no error: the text is computed, and those slots are not read again before they are written again.
#[test]
fn a_failed_load_is_computed_instead() {
    let mut bare = Bare::new(8, CopySeen::Done);
    let (id, load) = bare.load();
    bare.see(load, failed());
    assert!(bare.scheduler.schedule().is_none(), "its pages are not its own yet");
    bare.exchange();
    let plan = bare.scheduler.schedule().unwrap();
    assert_eq!((plan.entries[0].sequence, plan.entries[0].start.0), (id, 0));
    let stats = bare.scheduler.host_stats();
    assert_eq!((stats.loads_failed, stats.hits), (1, 0));
    let mut harness = harness(config(HostPolicy::WriteThrough, 16), 1.0);
    let found = [1, 2, 3, 4, 1, 2, 3, 4].map(|text| harness.complete(request(text, 4)));
    assert_eq!(found, [0; 8], "no copy ever ends well");
    harness.finish();
}

/// H9: a text of which one rank lacks an item is a miss.
#[test]
fn a_text_counts_when_every_rank_has_all_of_it() {
    for saves in [CopySeen::Moving, CopySeen::Checked, failed()] {
        let mut bare = Bare::new(8, saves.clone());
        bare.scheduler.add(request(1, 1)).unwrap();
        let plan = bare.scheduler.schedule().unwrap();
        assert_eq!(plan.entries[0].start.0, 0, "{saves:?}: computed, not loaded");
    }
}

/// Admissions stay in order of arrival: one that loads takes its place, and nobody behind it takes its pages.
#[test]
fn who_loads_is_not_overtaken_by_who_needs_its_pages() {
    let mut bare = Bare::new(8, CopySeen::Done);
    let (first, load) = bare.load();
    // Two pages are left beside the first.
    bare.scheduler.add(prompt(3, 60)).unwrap();
    assert!(bare.scheduler.schedule().is_none(), "the second waits for pages");
    bare.see(load, CopySeen::Done);
    let plan = bare.scheduler.schedule().unwrap();
    let runs: Vec<_> = plan.entries.iter().map(|entry| (entry.sequence, entry.start.0)).collect();
    assert_eq!(runs, [(first, 32)]);
}

/// A copy that fails costs time and not its place: the younger one that ran meanwhile has grown into the pages, and gives way.
#[test]
fn who_lost_its_load_is_computed_before_who_is_younger() {
    let mut bare = Bare::new(8, CopySeen::Done);
    let (first, load) = bare.load();
    let second = bare.scheduler.add(Request { max_tokens: 20, ..prompt(3, 15) }).unwrap();
    for start in [0, 15, 16, 17] {
        assert_eq!(bare.step(), Some(vec![(second, start)]));
    }
    bare.see(load, failed());
    bare.exchange();
    assert_eq!(
        bare.step(),
        Some(vec![(first, 0)]),
        "three pages are left, and it needs one of the second's beside them"
    );
    assert_eq!(bare.scheduler.stats().preempted, 1);
    let rest: Vec<_> = std::iter::from_fn(|| bare.step()).collect();
    assert_eq!(rest[0], [(first, 32)]);
    assert!(rest.iter().skip(1).all(|step| step.iter().all(|(id, _)| *id == second)), "{rest:?}");
    assert!(!bare.scheduler.has_work());
}

/// The other engine is asked for what host memory lacks, once the rest is here.
#[test]
fn a_remote_request_holds_what_was_loaded() {
    let mut bare = Bare::new(8, CopySeen::Done);
    let id = bare.scheduler.add_remote(request(1, 4)).unwrap();
    assert!(bare.scheduler.schedule().is_none());
    bare.exchange();
    let load = bare.last_copy();
    bare.see(load, CopySeen::Checked);
    assert_eq!(bare.scheduler.take_reserved(), None, "what still moves is not held");
    bare.see(load, CopySeen::Done);
    let reserved = bare.scheduler.take_reserved().unwrap();
    assert_eq!((reserved.sequence, reserved.held), (id, 32));
    assert_eq!(reserved.needed, Needed::at(&SHAPE, 32, 40));
    let pages = reserved.needed.pages(&reserved.compressed, &reserved.window, reserved.request_slot);
    assert!(pages.is_some(), "every page that must come has a place");
    assert!(bare.scheduler.cancel(id).is_some());
    bare.scheduler.audit().unwrap();
}
