//! A prefill engine and a decode engine of the same checkpoint, and an engine that does both.

use crate::wire::{End, Manners, Wire};
use engine::checkpoint::Checkpoint;
use engine::checkpoint::make::{Make, Store};
use engine::collective::Collective;
use engine::config::ModelConfig;
use engine::coordinator::{Coordinator, Decode, Prefill};
use engine::engine::{Engine, Schedule};
use engine::geometry::{CacheGeometry, CacheShape};
use engine::handover::{Handover, RankParts, RankRooms};
use engine::host_cache::HostSizes;
use engine::host_tier::{HostTier, HostTierConfig};
use engine::ids::{SequenceId, TokenId};
use engine::model::cache::Caches;
use engine::model::{Limits, Model, Numerics, Parts, RankShape, load};
use engine::pools::PoolSizes;
use engine::runner::{RunError, Runner};
use engine::scheduler::{HostConfig, HostPolicy, Scheduler, SchedulerConfig};
use engine::sequence::{Event, FinishReason, Request};
use engine::step::Sampling;
use kernel_bindings::host::HostOps;
use reference::ops::{IndexKFormat, KvFormat};
use reference::rng::Rng;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use transfer::fault::Faults;

const CONTEXT: u32 = 700;

/// A random checkpoint of the given sizes.
fn made(config: &ModelConfig, seed: u64) -> Arc<Checkpoint> {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("checkpoint");
    let make = Make { config, seed, store: Store::Fp8Fp4, shard_bytes: 1 << 22 };
    make.run(&dir, |_| ()).expect("written");
    // The files stay mapped when their names are gone.
    Arc::new(Checkpoint::open(&dir).expect("what was written can be read"))
}

pub(crate) static TINY: LazyLock<Arc<Checkpoint>> = LazyLock::new(|| made(&ModelConfig::tiny(), 5));
/// [`TINY`] in sizes that two ranks share.
pub(crate) static PAIRED: LazyLock<Arc<Checkpoint>> =
    LazyLock::new(|| made(&ModelConfig { o_lora_rank: 32, ..ModelConfig::tiny() }, 7));
pub(crate) static MINI: LazyLock<Arc<Checkpoint>> = LazyLock::new(|| made(&ModelConfig::mini(), 2));

/// `v4_fp8` rows and fp8 keys, without rounding elsewhere.
pub(crate) fn fp8() -> Numerics {
    Numerics { kv: KvFormat::V4Fp8, index_k: IndexKFormat::Fp8, ..Numerics::plain(512, 128) }
}

/// What a test varies.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) ranks: u32,
    pub(crate) schedule: Schedule,
    pub(crate) mtp: bool,
    pub(crate) prefix_cache: bool,
    pub(crate) max_batch_tokens: u32,
    /// Compressed pages of the decode side; window pages follow.
    pub(crate) pages: u32,
    /// Compressed pages of the prefill side.
    pub(crate) prefill_pages: u32,
    /// Compressed pages of either arena; window pages follow.
    pub(crate) arena: u32,
    pub(crate) per_page: bool,
    /// Host memory of either side.
    pub(crate) host: Option<HostPolicy>,
    pub(crate) numerics: Numerics,
    pub(crate) manners: Manners,
    /// Of either side, where no driver is between them.
    pub(crate) faults: &'static str,
    pub(crate) seed: u64,
}

const SLOTS: HostSizes = HostSizes { compressed_slots: 24, window_slots: 12 };

/// The two engines.
pub(crate) struct Pair {
    pub(crate) decode: Coordinator<Decode>,
    pub(crate) prefill: Coordinator<Prefill>,
    pub(crate) wires: Vec<Wire>,
}

impl Setup {
    pub(crate) fn new(checkpoint: &Arc<Checkpoint>) -> Self {
        Self {
            checkpoint: Arc::clone(checkpoint),
            ranks: 1,
            schedule: Schedule::Lockstep,
            mtp: false,
            prefix_cache: false,
            max_batch_tokens: 256,
            pages: 48,
            prefill_pages: 48,
            arena: 8,
            per_page: false,
            host: None,
            numerics: fp8(),
            manners: Manners { delay: 3, ..Manners::default() },
            faults: "",
            seed: 1,
        }
    }

    pub(crate) fn shape(&self) -> CacheShape {
        let window = self.checkpoint.config().window;
        match self.per_page {
            true => CacheShape::ring_per_page(window, self.mtp),
            false => CacheShape::ring_per_request(window, self.mtp),
        }
    }

    pub(crate) fn geometry(&self) -> CacheGeometry {
        let Numerics { kv, index_k, .. } = self.numerics;
        CacheGeometry::new(self.checkpoint.config(), self.shape(), kv, index_k, u32::from(self.mtp))
            .expect("formats of the model")
    }

    pub(crate) fn scheduler(&self, sizes: PoolSizes) -> Scheduler {
        let limits = SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_running: 16,
            chunk_tokens: self.max_batch_tokens,
            max_context: CONTEXT,
            prefix_cache: self.prefix_cache,
            speculation: self.mtp,
            host: self.host.map(|policy| HostConfig::new(SLOTS, policy)),
        };
        Scheduler::new(limits, self.shape(), sizes).expect("limits that fit")
    }

    pub(crate) fn runner(&self, sizes: PoolSizes, rooms: Vec<RankRooms>) -> Runner {
        let setup = self.clone();
        let mut rooms = rooms.into_iter();
        let tier = HostTierConfig { verify: true, ..HostTierConfig::new(SLOTS) };
        let host = || self.host.map(|_| HostTier::new(&self.geometry(), &tier).expect("starts"));
        let parts = (0..self.ranks).map(|_| RankParts { rooms: rooms.next(), host: host() }).collect();
        let runner = Runner::start_with_parts(self.ranks, self.shape(), parts, move |rank, collective| {
            setup.model(rank, collective, sizes)
        });
        runner.expect("ranks start")
    }

    /// The model of one rank.
    pub(crate) fn model(
        &self,
        rank: u32,
        collective: Box<dyn Collective<HostOps>>,
        sizes: PoolSizes,
    ) -> Result<Model<HostOps>, RunError> {
        let limits = Limits { tokens: self.max_batch_tokens, logits_rows: 32, context: CONTEXT };
        let (checkpoint, numerics) = (&self.checkpoint, self.numerics);
        let config = checkpoint.config().clone();
        let failed = |error: reference::ops::OpsError| RunError::Load(error.into());
        let shape = RankShape::new(&config, rank, self.ranks)?;
        let weights = load(&HostOps, checkpoint, &numerics, &shape, &limits, self.mtp, &|_| ())?;
        let caches = Caches::new(&HostOps, &self.geometry(), sizes).map_err(failed)?;
        Model::new(HostOps, Parts { config, numerics, shape, limits, weights, caches, collective }).map_err(failed)
    }

    pub(crate) fn sizes(&self, pages: u32) -> PoolSizes {
        PoolSizes { compressed_pages: pages, window_pages: 2 * pages, request_slots: 16 }
    }

    /// One engine for everything.
    pub(crate) fn engine(&self) -> Engine {
        let sizes = self.sizes(48);
        Engine::new(self.scheduler(sizes), self.runner(sizes, Vec::new()), self.schedule)
    }

    pub(crate) fn pair(&self) -> Pair {
        let geometry = self.geometry();
        // Arenas of different sizes, so that no page has the same place on both sides.
        let arena = |pages| {
            Handover::new(
                &geometry,
                PoolSizes { compressed_pages: pages, window_pages: 2 * pages, request_slots: pages },
            )
            .expect("an arena")
        };
        let (of_prefill, of_decode) = (arena(self.arena), arena(self.arena + 1));
        let wires: Vec<Wire> = (0..self.ranks)
            .map(|rank| {
                let manners = Manners { skew: self.manners.skew * u64::from(rank), ..self.manners.clone() };
                Wire::new(of_prefill.layout(), of_decode.layout(), manners, self.seed + u64::from(rank))
            })
            .collect();
        let faults = Arc::new(Faults::parse(self.faults).expect("rules"));
        let rank =
            |wire: &Wire, end, pages| RankRooms::new(arena(pages), wire.port(end)).with_faults(Arc::clone(&faults));
        let rooms = |end, pages| wires.iter().map(|wire| rank(wire, end, pages)).collect();
        let (here, there) = (self.sizes(self.prefill_pages), self.sizes(self.pages));
        let prefill = Coordinator::on_side(
            self.scheduler(here),
            self.runner(here, rooms(End::Prefill, self.arena)),
            self.schedule,
            Prefill::new(&of_prefill, self.shape()).with_faults(Arc::clone(&faults)),
        );
        let decode = Coordinator::on_side(
            self.scheduler(there),
            self.runner(there, rooms(End::Decode, self.arena + 1)),
            self.schedule,
            Decode::new(&of_decode, geometry.shape).with_faults(Arc::clone(&faults)),
        );
        Pair { decode, prefill, wires }
    }

    /// Texts of one engine.
    pub(crate) fn alone(&self, requests: &[Request]) -> Vec<Vec<u32>> {
        let mut engine = self.engine();
        let mut texts = Texts::default();
        for request in requests {
            texts.expect(engine.add(request.clone()).expect("a request that fits"));
        }
        let mut events = Vec::new();
        while engine.has_work() {
            engine.turn(&mut events).expect("steps run");
            texts.take(&mut events);
        }
        texts.finished()
    }

    /// Texts of two engines.
    pub(crate) fn apart(&self, requests: &[Request]) -> Vec<Vec<u32>> {
        self.pair().run(requests)
    }
}

/// Tokens by request, in the order in which requests were added.
#[derive(Default)]
pub(crate) struct Texts {
    place: HashMap<SequenceId, usize>,
    texts: Vec<Vec<u32>>,
    pub(crate) ends: Vec<Option<FinishReason>>,
}

impl Texts {
    pub(crate) fn expect(&mut self, id: SequenceId) {
        self.place.insert(id, self.texts.len());
        self.texts.push(Vec::new());
        self.ends.push(None);
    }

    pub(crate) fn take(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match event {
                Event::Token { sequence, token, index } => {
                    let text = &mut self.texts[self.place[&sequence]];
                    assert_eq!(index as usize, text.len(), "tokens come in order");
                    text.push(token.0);
                }
                Event::Finished { sequence, reason, .. } => {
                    let end = &mut self.ends[self.place[&sequence]];
                    assert_eq!(*end, None, "a request ends once");
                    *end = Some(reason);
                }
            }
        }
    }

    pub(crate) fn finished(self) -> Vec<Vec<u32>> {
        assert!(self.ends.iter().all(|end| *end == Some(FinishReason::MaxTokens)), "{:?}", self.ends);
        self.texts
    }

    pub(crate) fn so_far(&self, i: usize) -> &[u32] {
        &self.texts[i]
    }
}

impl Pair {
    pub(crate) fn run(&mut self, requests: &[Request]) -> Vec<Vec<u32>> {
        let mut texts = Texts::default();
        for request in requests {
            texts.expect(self.decode.add(request.clone()).expect("a request that fits"));
        }
        while self.decode.has_work() {
            self.turn(&mut texts);
        }
        self.settle(&mut texts);
        texts.finished()
    }

    pub(crate) fn turn(&mut self, texts: &mut Texts) {
        let mut events = Vec::new();
        self.decode.turn(&mut events).expect("decode runs");
        texts.take(&mut events);
        self.prefill.turn(&mut events).expect("prefill runs");
        assert!(events.is_empty(), "prefill has no clients");
    }

    /// Until every room is forgotten; then everything is given back on both sides.
    pub(crate) fn settle(&mut self, texts: &mut Texts) {
        for turns in 0.. {
            let rooms: usize = self.wires.iter().map(Wire::num_rooms).sum();
            if rooms == 0 && !self.decode.has_work() && !self.prefill.has_work() {
                break;
            }
            assert!(turns < 10_000, "{rooms} rooms never end: {:?} {:?}", self.decode.side(), self.prefill.side());
            self.turn(texts);
        }
        self.decode.clear_prefix();
        self.prefill.clear_prefix();
        for scheduler in [self.decode.scheduler(), self.prefill.scheduler()] {
            scheduler.audit().expect("every page is accounted for");
            let pools = scheduler.pools();
            assert_eq!(pools.compressed.num_free(), pools.compressed.num_pages());
            assert_eq!(pools.window.num_free(), pools.window.num_pages());
            assert_eq!(pools.requests.num_free(), pools.requests.num_pages());
        }
        assert!(self.decode.side().arena().is_whole() && self.prefill.side().arena().is_whole());
        assert_eq!((self.decode.side().num_rooms(), self.prefill.side().num_rooms()), (0, 0));
    }
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
