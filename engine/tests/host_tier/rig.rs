//! Ranks with a tier, driven order by order without a scheduler.

use engine::checkpoint::Checkpoint;
use engine::checkpoint::make::{Make, Store};
use engine::collective::Collective;
use engine::config::ModelConfig;
use engine::geometry::{CacheGeometry, CacheShape};
use engine::handover::{Needed, PageMove, PageRun, RankParts, Work};
use engine::host_cache::{HostLoad, HostOrders, HostSave, HostSizes};
use engine::host_tier::{HostTier, HostTierConfig};
use engine::ids::{Generation, PageId, Position, SequenceId, SlotIndex, TokenId};
use engine::model::cache::Caches;
use engine::model::{Limits, Model, Numerics, Parts, RankShape, load};
use engine::pools::PoolSizes;
use engine::runner::{RunError, Runner};
use engine::step::{Generations, InputToken, Sampled, Sampling, StepEntry, StepOutput, StepPlan};
use kernel_bindings::host::HostOps;
use reference::ops::{IndexKFormat, KvFormat, Ops, OpsError};
use reference::rng::Rng;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use transfer::exchange::{Agreed, CopyId, CopySeen};
use transfer::fault::Faults;

pub(crate) const SIZES: PoolSizes = PoolSizes { compressed_pages: 12, window_pages: 24, request_slots: 4 };
pub(crate) const SLOTS: HostSizes = HostSizes { compressed_slots: 5, window_slots: 3 };
const LIMITS: Limits = Limits { tokens: 600, logits_rows: 8, context: 1024 };

fn made(config: &ModelConfig, seed: u64) -> Arc<Checkpoint> {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("checkpoint");
    Make { config, seed, store: Store::Fp8Fp4, shard_bytes: 1 << 22 }.run(&dir, |_| ()).expect("written");
    // The files stay mapped when their names are gone.
    Arc::new(Checkpoint::open(&dir).expect("what was written can be read"))
}

pub(crate) static TINY: LazyLock<Arc<Checkpoint>> = LazyLock::new(|| made(&ModelConfig::tiny(), 5));
/// Wide enough for two ranks.
pub(crate) static WIDE: LazyLock<Arc<Checkpoint>> =
    LazyLock::new(|| made(&ModelConfig { heads: 16, o_lora_rank: 32, ..ModelConfig::tiny() }, 5));

/// What a test varies.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) ranks: u32,
    pub(crate) mtp: bool,
    pub(crate) per_page: bool,
    pub(crate) numerics: Numerics,
    /// Of the gate.
    pub(crate) faults: &'static str,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let numerics = Numerics { kv: KvFormat::V4Fp8, index_k: IndexKFormat::Fp8, ..Numerics::plain(512, 128) };
        Self { checkpoint: Arc::clone(&TINY), ranks: 1, mtp: false, per_page: false, numerics, faults: "" }
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

    /// A tier of every rank.
    pub(crate) fn tiers(&self, config: &HostTierConfig) -> Vec<RankParts> {
        (0..self.ranks).map(|_| HostTier::new(&self.geometry(), config).expect("starts").into()).collect()
    }

    /// The model of one rank. Every cache page is NaN until it is written.
    fn model<O: Ops>(&self, ops: O, rank: u32, collective: Box<dyn Collective<O>>) -> Result<Model<O>, RunError> {
        let failed = |error: OpsError| RunError::Load(error.into());
        let (config, numerics) = (self.checkpoint.config().clone(), self.numerics);
        let shape = RankShape::new(&config, rank, self.ranks)?;
        let weights = load(&ops, &self.checkpoint, &numerics, &shape, &LIMITS, self.mtp, &|_| ())?;
        let faults = Arc::new(Faults::parse(self.faults).expect("rules"));
        let mut caches = Caches::new(&ops, &self.geometry(), SIZES).map_err(failed)?.with_faults(SIZES, faults);
        for spec in self.geometry().buffers(SIZES) {
            let buffer = caches.layer_mut(spec.layer).and_then(|layer| layer.buffer_mut(spec.buffer)).expect("listed");
            ops.upload(buffer, 0, &vec![0xff; spec.bytes as usize]).map_err(failed)?;
        }
        Model::new(ops, Parts { config, numerics, shape, limits: LIMITS, weights, caches, collective }).map_err(failed)
    }

    /// Ranks on the host.
    pub(crate) fn ranks(&self, parts: Vec<RankParts>) -> Ranks {
        self.ranks_on(parts, |collective| (HostOps, collective), |_| ())
    }

    /// Ranks on what `open` makes, which may put something around the sums; `ready` sees every model.
    pub(crate) fn ranks_on<O: Ops + 'static>(
        &self,
        parts: Vec<RankParts>,
        open: impl Fn(Box<dyn Collective<O>>) -> (O, Box<dyn Collective<O>>) + Send + Sync + 'static,
        ready: impl Fn(&Model<O>) + Send + Sync + 'static,
    ) -> Ranks {
        let setup = self.clone();
        let runner = Runner::start_with_parts(self.ranks, self.shape(), parts, move |rank, collective| {
            let (ops, collective) = open(collective);
            let model = setup.model(ops, rank, collective)?;
            ready(&model);
            Ok(model)
        });
        Ranks { runner: runner.expect("ranks start"), step: 0 }
    }
}

/// A text and the pages it lies in.
#[derive(Clone)]
pub(crate) struct Text {
    pub(crate) shape: CacheShape,
    pub(crate) tokens: Vec<TokenId>,
    /// Its number, the generation of its pages, and where in the pools they lie.
    pub(crate) number: u32,
}

impl Text {
    pub(crate) fn random(shape: CacheShape, len: usize, number: u32) -> Self {
        let mut rng = Rng::named(7, "text");
        Self { shape, tokens: (0..len).map(|_| TokenId(rng.below(251) as u32)).collect(), number }
    }

    /// The same tokens in other pages.
    pub(crate) fn elsewhere(&self, number: u32) -> Self {
        Self { number, ..self.clone() }
    }

    pub(crate) fn generation(&self) -> Generation {
        Generation(u64::from(self.number) + 1)
    }

    /// Page `i`: neighbours in the text are no neighbours in the pool, texts share none.
    fn page(&self, i: u32, of: u32) -> PageId {
        let each = of / 4;
        PageId(self.number * each + i * 5 % each)
    }

    /// Tokens `range` as an entry.
    pub(crate) fn entry(&self, range: Range<usize>) -> StepEntry {
        let (end, shape) = (range.end as u32, &self.shape);
        let windows = end.div_ceil(shape.window_page_tokens);
        let first = shape.first_needed(Position(range.start as u32)).0 / shape.window_page_tokens;
        StepEntry {
            sequence: SequenceId(u64::from(self.number)),
            start: Position(range.start as u32),
            tokens: self.tokens[range].iter().map(|&token| InputToken::Known(token)).collect(),
            draft: None,
            next: None,
            emits: true,
            sampling: Sampling::GREEDY,
            window_table: (0..windows).map(|i| (i >= first).then(|| self.page(i, SIZES.window_pages))).collect(),
            compressed_table: (0..shape.compressed_pages(end)).map(|i| self.page(i, SIZES.compressed_pages)).collect(),
            request_slot: Some(SlotIndex(self.number)),
            generations: Generations::uniform(
                self.generation(),
                shape.compressed_pages(end) as usize,
                windows as usize,
            ),
        }
    }

    /// What a text of its first `tokens` tokens needs to go on, and slots for it.
    pub(crate) fn moves(&self, tokens: u32, held: u32) -> Vec<PageMove> {
        let needed = Needed::at(&self.shape, held, tokens);
        let entry = self.entry(0..tokens as usize);
        let pages = needed.pages(&entry.compressed_table, &entry.window_table, None).expect("whole pages");
        let slots: Vec<Vec<u32>> = pages.iter().map(|pages| (0..pages.len() as u32).rev().collect()).collect();
        PageMove::pairs(&pages, &slots)
    }

    pub(crate) fn save(&self, id: u64, tokens: u32) -> HostSave {
        let pages: Arc<[PageMove]> = self.moves(tokens, 0).into();
        HostSave { id: CopyId(id), runs: PageRun::of_moves(&pages, self.generation()).into(), pages }
    }

    pub(crate) fn load(&self, id: u64, tokens: u32) -> HostLoad {
        HostLoad { id: CopyId(id), pages: self.moves(tokens, 0).into(), generation: self.generation() }
    }
}

pub(crate) struct Ranks {
    pub(crate) runner: Runner,
    step: u64,
}

impl Ranks {
    /// One exchange.
    pub(crate) fn order(
        &mut self,
        entries: Vec<StepEntry>,
        num_decode: usize,
        host: HostOrders,
    ) -> Result<(StepOutput, Agreed), RunError> {
        let plan = StepPlan { step: self.step, num_decode, entries };
        self.step += 1;
        self.runner.submit_work(Work { host, ..plan.into() })?;
        self.runner.wait_agreed()
    }

    /// An exchange without a step.
    pub(crate) fn exchange(&mut self, host: HostOrders) -> Agreed {
        self.order(Vec::new(), 0, host).expect("copies begin").1
    }

    /// A step of one entry.
    pub(crate) fn step(&mut self, entry: StepEntry, host: HostOrders) -> Result<Sampled, RunError> {
        let decode = usize::from(entry.tokens.len() == 1);
        self.order(vec![entry], decode, host).map(|(output, _)| output.sampled[0])
    }

    pub(crate) fn run(&mut self, entry: StepEntry) -> Sampled {
        self.step(entry, HostOrders::default()).expect("runs")
    }

    /// Goes on with a text behind its first `cached` tokens: the rest of them, with these orders, then `more` tokens one by one.
    /// What every step sampled, drafts included.
    pub(crate) fn go_on(&mut self, mut text: Text, cached: usize, more: usize, host: HostOrders) -> Vec<Sampled> {
        let mut all = vec![self.step(text.entry(cached..text.tokens.len()), host).expect("runs")];
        for nth in 0..more {
            text.tokens.push(all[nth].token);
            let end = text.tokens.len();
            all.push(self.run(text.entry(end - 1..end)));
        }
        all
    }

    /// Exchanges until a copy is that far, or further, or has failed.
    pub(crate) fn until(&mut self, id: u64, wanted: &CopySeen) -> CopySeen {
        let start = Instant::now();
        loop {
            let seen = self.exchange(HostOrders::default()).copies.remove(&CopyId(id)).expect("not dropped");
            if seen == *wanted || matches!(seen, CopySeen::Done | CopySeen::Failed(_)) {
                return seen;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "copy {id} stays {seen:?}");
            std::thread::yield_now();
        }
    }
}

pub(crate) fn saves(saves: Vec<HostSave>) -> HostOrders {
    HostOrders { saves, ..HostOrders::default() }
}

pub(crate) fn loads(loads: Vec<HostLoad>) -> HostOrders {
    HostOrders { loads, ..HostOrders::default() }
}

pub(crate) fn drops(ids: &[u64]) -> HostOrders {
    HostOrders { drops: ids.iter().map(|&id| CopyId(id)).collect(), ..HostOrders::default() }
}

/// A text without any tier.
pub(crate) fn expected(setup: &Setup, text: &Text, cached: usize, more: usize) -> Vec<Sampled> {
    let mut ranks = setup.ranks(Vec::new());
    ranks.run(text.entry(0..cached));
    ranks.go_on(text.clone(), cached, more, HostOrders::default())
}
