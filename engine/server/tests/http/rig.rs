//! A server on a port of its own, and a small engine.

use engine::checkpoint::Checkpoint;
use engine::checkpoint::make::{Make, Store};
use engine::config::ModelConfig;
use engine::engine::{Engine, EngineThread, Schedule};
use engine::geometry::{CacheGeometry, CacheShape};
use engine::ids::TokenId;
use engine::model::cache::Caches;
use engine::model::{Limits as ModelLimits, Model, Numerics, Parts, RankShape, load};
use engine::pools::PoolSizes;
use engine::runner::{RunError, Runner};
use engine::scheduler::{Scheduler, SchedulerConfig};
use engine::tokenizer::Tokenizer;
use kernel_bindings::host::HostOps;
use reference::ops::{IndexKFormat, KvFormat};
use server::api::Served;
use server::backend::Backend;
use server::http::{App, Limits};
use server::serve::{Drained, serve};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use transfer::fault::Faults;

/// Tokens of a text at most.
pub(crate) const CONTEXT: u32 = 700;
/// Requests that run at once.
pub(crate) const RUNNING: u32 = 16;

static TINY: LazyLock<Arc<Checkpoint>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("checkpoint");
    let config = ModelConfig::tiny();
    Make { config: &config, seed: 5, store: Store::Fp8Fp4, shard_bytes: 1 << 22 }.run(&dir, |_| ()).expect("written");
    // The files stay mapped when their names are gone.
    Arc::new(Checkpoint::open(&dir).expect("what was written can be read"))
});

/// A small engine without a prefix cache, whose model takes `model_tokens` tokens per step: fewer than the 64 of a step make it fail.
pub(crate) fn engine(model_tokens: u32) -> EngineThread {
    let checkpoint = Arc::clone(&TINY);
    let shape = CacheShape::ring_per_request(checkpoint.config().window, false);
    let sizes = PoolSizes { compressed_pages: 48, window_pages: 96, request_slots: RUNNING };
    let limits = SchedulerConfig {
        max_batch_tokens: 64,
        max_running: RUNNING,
        chunk_tokens: 64,
        max_context: CONTEXT,
        prefix_cache: false,
        speculation: false,
        host: None,
    };
    let scheduler = Scheduler::new(limits, shape, sizes).expect("limits that fit");
    let limits = ModelLimits { tokens: model_tokens, logits_rows: 32, context: CONTEXT };
    let numerics = Numerics { kv: KvFormat::V4Fp8, index_k: IndexKFormat::Fp8, ..Numerics::plain(512, 128) };
    let runner = Runner::start(1, shape, move |rank, collective| {
        let config = checkpoint.config().clone();
        let failed = |error: reference::ops::OpsError| RunError::Load(error.into());
        let ranks = RankShape::new(&config, rank, 1)?;
        let weights = load(&HostOps, &checkpoint, &numerics, &ranks, &limits, false, &|_| ())?;
        let geometry =
            CacheGeometry::new(&config, shape, numerics.kv, numerics.index_k, 0).expect("formats of the model");
        let caches = Caches::new(&HostOps, &geometry, sizes).map_err(failed)?;
        Model::new(HostOps, Parts { config, numerics, shape: ranks, limits, weights, caches, collective })
            .map_err(failed)
    });
    let engine = Engine::new(scheduler, runner.expect("ranks start"), Schedule::Overlap);
    EngineThread::spawn(engine).expect("a thread")
}

/// The model of [`engine`], which speaks in bytes.
pub(crate) fn served() -> Served {
    let config = ModelConfig::tiny();
    Served {
        name: "tiny".into(),
        created: 1,
        tokenizer: Tokenizer::bytes(&config).expect("room for bytes"),
        vocab_size: config.vocab_size,
        context: CONTEXT,
        eos: config.eos_ids.iter().map(|&id| TokenId(id)).collect(),
        max_prompts: 8,
    }
}

/// A model whose tokens are bytes and markers, with room for the instructions about tools.
pub(crate) fn marked() -> Served {
    let config = ModelConfig::mini();
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/markers");
    let tokenizer = Tokenizer::open(dir, &config).expect("a tokenizer");
    let eos = vec![tokenizer.marker("<｜end▁of▁sentence｜>").expect("a marker")];
    Served { tokenizer, vocab_size: config.vocab_size, context: 8192, eos, ..served() }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) app: Arc<App>,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Drained>,
}

impl Server {
    pub(crate) fn start(backend: Arc<dyn Backend>, limits: Limits) -> Self {
        Self::draining(backend, limits, Duration::from_secs(60))
    }

    /// With faults of its connections.
    pub(crate) fn with_faults(backend: Arc<dyn Backend>, limits: Limits, rules: &str) -> Self {
        let faults = Arc::new(Faults::parse(rules).expect("rules"));
        Self::of(App::new(backend, served(), limits).with_faults(faults), Duration::from_secs(60))
    }

    /// With a deadline for its end.
    pub(crate) fn draining(backend: Arc<dyn Backend>, limits: Limits, drain: Duration) -> Self {
        Self::of(App::new(backend, served(), limits), drain)
    }

    /// Of [`marked`].
    pub(crate) fn marked(backend: Arc<dyn Backend>) -> Self {
        Self::of(App::new(backend, marked(), Limits::default()), Duration::from_secs(60))
    }

    fn of(app: App, drain: Duration) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = Arc::new(app);
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(serve(listener, Arc::clone(&app), async { _ = stopped.await }, drain));
        Self { address, app, runtime, stop, task }
    }

    /// Tells it to stop, runs `meanwhile`, and waits for its end.
    pub(crate) fn stop(self, meanwhile: impl FnOnce()) -> Drained {
        self.stop.send(()).expect("the server runs");
        meanwhile();
        self.runtime.block_on(self.task).expect("the server does not panic")
    }
}

/// Waits until something is so, for a minute.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "after a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
