//! The whole engine, requests in and tokens out: the same text whatever the schedule, the pools, the ranks, drafts, cached
//! beginnings and other requests around it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::faults::Panics;
use engine::checkpoint::Checkpoint;
use engine::checkpoint::make::{Make, Store};
use engine::config::ModelConfig;
use engine::engine::{Engine, EngineThread, Schedule};
use engine::geometry::{CacheGeometry, CacheShape};
use engine::ids::TokenId;
use engine::model::cache::Caches;
use engine::model::{Limits, Model, Numerics, Parts, RankShape, load};
use engine::pools::PoolSizes;
use engine::runner::{RunError, Runner};
use engine::scheduler::{Scheduler, SchedulerConfig};
use engine::sequence::{Event, FinishReason, Request};
use engine::step::Sampling;
use kernel_bindings::host::HostOps;
use reference::ops::{IndexKFormat, KvFormat, Ops};
use reference::rng::Rng;

const CONTEXT: u32 = 700;

/// A random checkpoint of the given sizes.
pub(crate) fn made(config: &ModelConfig, seed: u64) -> Arc<Checkpoint> {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("checkpoint");
    let make = Make { config, seed, store: Store::Fp8Fp4, shard_bytes: 1 << 22 };
    make.run(&dir, |_| ()).expect("written");
    // The files stay mapped when their names are gone.
    Arc::new(Checkpoint::open(&dir).expect("what was written can be read"))
}

pub(crate) static TINY: LazyLock<Arc<Checkpoint>> = LazyLock::new(|| made(&ModelConfig::tiny(), 5));

/// What a test varies.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) ranks: u32,
    /// Rank that panics behind its n-th exchange.
    pub(crate) panics: Option<(u32, u32)>,
    pub(crate) schedule: Schedule,
    pub(crate) mtp: bool,
    pub(crate) prefix_cache: bool,
    pub(crate) max_batch_tokens: u32,
    /// Tokens that the model has room for, where that differs.
    pub(crate) model_tokens: Option<u32>,
    /// Compressed pages; window pages follow.
    pub(crate) pages: u32,
    pub(crate) per_page: bool,
    pub(crate) numerics: Numerics,
}

impl Setup {
    pub(crate) fn new(checkpoint: &Arc<Checkpoint>) -> Self {
        Self {
            checkpoint: Arc::clone(checkpoint),
            ranks: 1,
            panics: None,
            schedule: Schedule::Lockstep,
            mtp: false,
            prefix_cache: false,
            max_batch_tokens: 256,
            model_tokens: None,
            pages: 48,
            per_page: false,
            numerics: Numerics { kv: KvFormat::V4Fp8, index_k: IndexKFormat::Fp8, ..Numerics::plain(512, 128) },
        }
    }

    pub(crate) fn engine(&self) -> Engine {
        self.engine_on(|| HostOps, |_| ())
    }

    /// An engine whose ranks run on what `open` gives; `ready` sees every rank's model.
    pub(crate) fn engine_on<O: Ops + 'static>(
        &self,
        open: impl Fn() -> O + Send + Sync + 'static,
        ready: impl Fn(&mut Model<O>) + Send + Sync + 'static,
    ) -> Engine {
        let config = self.checkpoint.config();
        let shape = match self.per_page {
            true => CacheShape::ring_per_page(config.window, self.mtp),
            false => CacheShape::ring_per_request(config.window, self.mtp),
        };
        let sizes = PoolSizes { compressed_pages: self.pages, window_pages: 2 * self.pages, request_slots: 16 };
        let limits = SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_running: 16,
            chunk_tokens: self.max_batch_tokens,
            max_context: CONTEXT,
            prefix_cache: self.prefix_cache,
            speculation: self.mtp,
            host: None,
        };
        let scheduler = Scheduler::new(limits, shape, sizes).expect("limits that fit");
        let limits =
            Limits { tokens: self.model_tokens.unwrap_or(self.max_batch_tokens), logits_rows: 32, context: CONTEXT };
        let setup = self.clone();
        let runner = Runner::start(self.ranks, shape, move |rank, collective| {
            let (checkpoint, numerics) = (&setup.checkpoint, setup.numerics);
            let config = checkpoint.config().clone();
            let failed = |error: reference::ops::OpsError| RunError::Load(error.into());
            let collective = match setup.panics {
                Some((who, exchanges)) if who == rank => Box::new(Panics { inner: collective, exchanges }),
                _ => collective,
            };
            let ranks = RankShape::new(&config, rank, setup.ranks)?;
            let ops = open();
            let weights = load(&ops, checkpoint, &numerics, &ranks, &limits, setup.mtp, &|_| ())?;
            let drafts = u32::from(setup.mtp);
            let geometry = CacheGeometry::new(&config, shape, numerics.kv, numerics.index_k, drafts);
            let caches = Caches::new(&ops, &geometry.expect("formats of the model"), sizes).map_err(failed)?;
            let parts = Parts { config, numerics, shape: ranks, limits, weights, caches, collective };
            let mut model = Model::new(ops, parts).map_err(failed)?;
            ready(&mut model);
            Ok(model)
        });
        Engine::new(scheduler, runner.expect("ranks start"), self.schedule)
    }

    /// Texts of the requests, in order.
    fn run(&self, requests: &[Request]) -> (Vec<Vec<u32>>, Engine) {
        let mut engine = self.engine();
        let texts = run(&mut engine, requests);
        (texts, engine)
    }
}

pub(crate) fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<u32>> {
    let mut place = HashMap::new();
    for (i, request) in requests.iter().enumerate() {
        place.insert(engine.add(request.clone()).expect("a request that fits"), i);
    }
    let mut texts = vec![Vec::new(); requests.len()];
    let mut events = Vec::new();
    while engine.has_work() {
        engine.turn(&mut events).expect("steps run");
        for event in events.drain(..) {
            match event {
                Event::Token { sequence, token, .. } => texts[place[&sequence]].push(token.0),
                Event::Finished { reason, .. } => assert_eq!(reason, FinishReason::MaxTokens),
            }
        }
    }
    engine.scheduler().audit().expect("every page is accounted for");
    texts
}

/// Prompts of random tokens; every second one is greedy, the others sample.
pub(crate) fn requests(vocab: u32, lengths: &[usize], max_tokens: u32) -> Vec<Request> {
    let mut rng = Rng::named(3, "requests");
    let request = |(i, &len): (usize, &usize)| Request {
        prompt: (0..len).map(|_| TokenId(rng.below(u64::from(vocab)) as u32)).collect(),
        max_tokens,
        stop: Vec::new(),
        sampling: Sampling { temperature: if i % 2 == 0 { 0.0 } else { 0.8 }, seed: i as u64 },
    };
    lengths.iter().enumerate().map(request).collect()
}

fn tiny_requests() -> Vec<Request> {
    requests(TINY.config().vocab_size, &[300, 5, 129, 64, 260, 1, 33, 512], 24)
}

#[test]
fn one_by_one_together_overlapped() {
    let requests = tiny_requests();
    let base = Setup::new(&TINY);
    let (together, _) = base.run(&requests);
    let alone: Vec<Vec<u32>> =
        requests.iter().map(|request| base.run(std::slice::from_ref(request)).0.remove(0)).collect();
    assert_eq!(together, alone, "one by one");
    assert_eq!(Setup { schedule: Schedule::Overlap, ..base.clone() }.run(&requests).0, alone, "overlapped");
    assert_eq!(Setup { max_batch_tokens: 37, ..base.clone() }.run(&requests).0, alone, "chunks of 37");
    assert_eq!(Setup { per_page: true, ..base }.run(&requests).0, alone, "rings per page");
}

#[test]
fn full_pools_preempt_and_finish() {
    // Every text begins in one page and grows into a second one.
    let requests = requests(TINY.config().vocab_size, &[250, 240, 255, 245, 230, 252], 40);
    let base = Setup::new(&TINY);
    let (expected, _) = base.run(&requests);
    for schedule in [Schedule::Lockstep, Schedule::Overlap] {
        let small = Setup { pages: 5, schedule, ..base.clone() };
        let (texts, engine) = small.run(&requests);
        assert_eq!(texts, expected, "{schedule:?}");
        assert!(engine.scheduler().stats().preempted > 0, "the pools were never full");
    }
}

#[test]
fn cached_beginnings_change_nothing() {
    let mut requests = tiny_requests();
    // The last prompt again, with other endings, and a longer one.
    let long = requests[7].prompt.clone();
    for tail in [1, 77, 180] {
        let mut prompt = long[..300].to_vec();
        prompt.extend((0..tail).map(|i| TokenId(i * 7 % 256)));
        requests.push(Request { prompt, ..requests[7].clone() });
    }
    for per_page in [false, true] {
        let base = Setup { per_page, ..Setup::new(&TINY) };
        let (expected, _) = base.run(&requests);
        let mut engine = Setup { prefix_cache: true, ..base }.engine();
        assert_eq!(run(&mut engine, &requests), expected, "cold");
        let cold = engine.scheduler().stats().cached_tokens;
        assert_eq!(run(&mut engine, &requests), expected, "warm");
        let warm = engine.scheduler().stats().cached_tokens - cold;
        assert!(warm >= 256 * 5, "five of the requests begin with a cached page, {warm} tokens came from the cache");
    }
}

/// The text is the same; some guesses are right (the draft layer of a random model knows nothing, but the vocabulary is small),
/// so that both ways through a step are taken.
#[test]
fn drafts_change_nothing() {
    let requests = requests(TINY.config().vocab_size, &[40, 300, 3, 127], 96);
    let base = Setup::new(&TINY);
    let (expected, plain) = base.run(&requests);
    let (texts, drafting) = Setup { mtp: true, ..base }.run(&requests);
    assert_eq!(texts, expected);
    assert!(drafting.scheduler().stats().steps <= plain.scheduler().stats().steps);
}

#[test]
fn ranks_change_nothing() {
    let mini = made(&ModelConfig::mini(), 2);
    let requests = requests(mini.config().vocab_size, &[150, 20, 7], 8);
    let base = Setup::new(&mini);
    let (expected, _) = base.run(&requests);
    for ranks in [2, 4] {
        assert_eq!(Setup { ranks, ..base.clone() }.run(&requests).0, expected, "{ranks} ranks");
    }
    let overlapped = Setup { ranks: 2, schedule: Schedule::Overlap, ..base };
    assert_eq!(overlapped.run(&requests).0, expected, "2 ranks, overlapped");
}

/// Clients on other threads; one cancels, one goes away.
#[test]
fn clients_on_threads() {
    let requests = tiny_requests();
    let base = Setup { schedule: Schedule::Overlap, ..Setup::new(&TINY) };
    let (expected, _) = base.run(&requests);
    let engine = EngineThread::spawn(base.engine()).expect("a thread");
    std::thread::scope(|scope| {
        for (request, expected) in requests.iter().zip(&expected) {
            let engine = &engine;
            scope.spawn(move || {
                let (_, events) = engine.add(request.clone()).expect("runs").expect("fits");
                let tokens = events.iter().filter_map(|event| match event {
                    Event::Token { token, .. } => Some(token.0),
                    Event::Finished { .. } => None,
                });
                assert_eq!(tokens.collect::<Vec<_>>(), *expected);
            });
        }
        let (id, events) = engine.add(Request { max_tokens: 180, ..requests[0].clone() }).expect("runs").expect("fits");
        let first = events.recv().expect("a token");
        engine.cancel(id).expect("runs");
        let last = std::iter::once(first).chain(events.iter()).last().expect("an end");
        assert!(matches!(last, Event::Finished { reason: FinishReason::Cancelled, .. }), "{last:?}");
        drop(engine.add(requests[0].clone()).expect("runs").expect("fits"));
    });
    engine.finish().expect("everything has ended well");
}

/// A client that goes away before it is answered, while it waits, or between tokens leaves nothing behind, and the loop shows it.
#[test]
fn requests_are_withdrawn_by_ticket() {
    struct Deaf(std::sync::mpsc::Sender<Event>);
    impl engine::engine::Client for Deaf {
        fn answer(&mut self, added: Result<engine::ids::SequenceId, engine::scheduler::AddError>) -> bool {
            added.is_ok()
        }
        fn event(&mut self, event: Event) -> bool {
            self.0.send(event).is_ok()
        }
    }
    let request = Request { max_tokens: 150, ..tiny_requests()[0].clone() };
    let engine =
        EngineThread::spawn(Setup { schedule: Schedule::Overlap, ..Setup::new(&TINY) }.engine()).expect("a thread");
    let idle = engine.snapshot();
    let (events, received) = std::sync::mpsc::channel();
    // More than run at once: some are withdrawn while they wait.
    let tickets: Vec<_> =
        (0..20).map(|_| engine.submit(request.clone(), Box::new(Deaf(events.clone()))).expect("runs")).collect();
    drop(events);
    received.recv().expect("a token");
    assert!(engine.snapshot().running > 0);
    for &ticket in tickets.iter().chain(&tickets) {
        engine.withdraw(ticket).expect("runs");
    }
    let ends = received.iter().filter(|event| matches!(event, Event::Finished { reason: FinishReason::Cancelled, .. }));
    assert_eq!(ends.count(), 20);
    // The next request runs alone, and its end is the last thing that happens.
    let (_, alone) = engine.add(Request { max_tokens: 1, ..request }).expect("runs").expect("fits");
    assert_eq!(alone.iter().count(), 2);
    let parts = engine.parts();
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["rank 0", "engine", "commands"]);
    assert!(parts.iter().all(|part| part.done > 0), "{parts:?}");
    assert!(parts[0].done >= parts[1].done * u64::from(TINY.config().num_layers()), "a rank counts layers: {parts:?}");
    assert!(engine.ended().is_none());
    while engine.snapshot().compressed.free < idle.compressed.free || engine.parts().iter().any(|part| part.waiting > 0)
    {
        std::thread::yield_now();
    }
    assert_eq!(engine.snapshot().window, idle.window);
    engine.finish().expect("everything has ended well");
}

/// Requests inside the failed step, waiting behind it, and not yet looked at: each ends once, with the reason.
#[test]
fn a_failed_step_ends_every_request() {
    let requests = requests(TINY.config().vocab_size, &[300; 20], 4);
    let engine = Setup { model_tokens: Some(8), ..Setup::new(&TINY) }.engine();
    let engine = EngineThread::spawn(engine).expect("a thread");
    let clients: Vec<_> = requests.iter().filter_map(|request| engine.add(request.clone()).ok()?.ok()).collect();
    assert!(!clients.is_empty(), "the engine failed before anybody asked");
    for (id, events) in clients {
        let events: Vec<Event> = events.iter().collect();
        assert!(
            matches!(&events[..], [Event::Finished { reason: FinishReason::Failed(why), .. }] if why.contains("expected at least")),
            "request {id}: {events:?}"
        );
    }
    engine.finish().expect_err("the engine says that it failed");
}
