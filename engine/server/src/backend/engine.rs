//! The engine of this process.

use super::{Backend, Figure, FigureKind, Refusal, Update, Updates};
use engine::engine::{Client, EngineThread, HostUse, PoolUse};
use engine::ids::SequenceId;
use engine::progress::PartState;
use engine::scheduler::AddError;
use engine::sequence::{Event, Request};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// An engine on a thread of this process.
#[derive(Debug, Clone)]
pub struct EngineBackend {
    engine: Arc<EngineThread>,
}

impl EngineBackend {
    /// Over that engine, which ends with the last copy.
    pub fn new(engine: EngineThread) -> Self {
        Self { engine: Arc::new(engine) }
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &EngineThread {
        &self.engine
    }
}

struct Sink(UnboundedSender<Update>);

impl Client for Sink {
    fn answer(&mut self, added: Result<SequenceId, AddError>) -> bool {
        match added {
            Ok(_) => !self.0.is_closed(),
            Err(error) => self.0.send(Update::Refused(Refusal::Invalid(error.to_string()))).is_ok(),
        }
    }

    fn event(&mut self, event: Event) -> bool {
        let update = match event {
            Event::Token { token, .. } => Update::Token(token),
            Event::Finished { reason, usage, .. } => Update::Finished { reason, usage },
        };
        self.0.send(update).is_ok()
    }
}

impl Backend for EngineBackend {
    fn submit(&self, request: Request) -> Updates {
        let ticket = Arc::new(std::sync::OnceLock::new());
        let (engine, theirs) = (Arc::downgrade(&self.engine), Arc::clone(&ticket));
        let cancel = move || {
            if let (Some(engine), Some(&ticket)) = (engine.upgrade(), theirs.get()) {
                // An engine that has ended has nothing to withdraw.
                let _ = engine.withdraw(ticket);
            }
        };
        let engine = Arc::downgrade(&self.engine);
        let obituary = move || {
            let why = engine.upgrade().and_then(|engine| engine.ended());
            why.unwrap_or_else(|| "the engine has stopped".to_owned())
        };
        let (sender, updates) = Updates::new(cancel, obituary);
        match self.engine.submit(request, Box::new(Sink(sender))) {
            // Nobody else sets it.
            Ok(number) => _ = ticket.set(number),
            Err(error) => return Updates::ended(Update::Lost(self.ended().unwrap_or_else(|| error.to_string()))),
        }
        updates
    }

    fn parts(&self) -> Vec<PartState> {
        self.engine.parts()
    }

    fn ended(&self) -> Option<String> {
        self.engine.ended()
    }

    fn figures(&self) -> Vec<Figure> {
        use FigureKind::{Counter, Gauge};
        let now = self.engine.snapshot();
        let mut figures = Vec::new();
        let mut put = |name, kind, help, value: f64| {
            figures.push(Figure { name, help, kind, labels: Vec::new(), value });
        };
        let stats = now.stats;
        put("sm120_engine_steps_total", Counter, "Steps planned.", stats.steps as f64);
        put("sm120_engine_admitted_total", Counter, "Requests that got pages, again included.", stats.admitted as f64);
        put("sm120_engine_preempted_total", Counter, "Requests that lost their pages.", stats.preempted as f64);
        put("sm120_engine_cached_tokens_total", Counter, "Tokens from the prefix cache.", stats.cached_tokens as f64);
        put("sm120_engine_computed_tokens_total", Counter, "Tokens computed.", stats.computed_tokens as f64);
        put("sm120_engine_discarded_tokens_total", Counter, "Tokens computed in vain.", stats.discarded_tokens as f64);
        put("sm120_engine_waiting_requests", Gauge, "Requests without pages.", now.waiting as f64);
        put("sm120_engine_running_requests", Gauge, "Requests that take part in steps.", now.running as f64);
        let pools = [("compressed", now.compressed), ("window", now.window), ("request", now.requests)];
        let of_pool = |name, help, value: fn(PoolUse) -> u32| {
            pools.map(|(pool, pages)| Figure {
                name,
                help,
                kind: Gauge,
                labels: vec![("pool", pool.to_owned())],
                value: f64::from(value(pages)),
            })
        };
        figures.extend(of_pool("sm120_pool_pages", "Pages of a pool.", |pool| pool.pages));
        figures.extend(of_pool("sm120_pool_free_pages", "Pages that nobody holds.", |pool| pool.free));
        figures.extend(of_pool("sm120_pool_cached_pages", "Pages of the prefix cache.", |pool| pool.cached));
        figures.extend(now.host.iter().flat_map(host_figures));
        figures
    }
}

/// Host memory under the prefix cache, on one rank.
fn host_figures(host: &HostUse) -> Vec<Figure> {
    use FigureKind::{Counter, Gauge};
    let figure = |name, kind, help, value: f64| Figure { name, help, kind, labels: Vec::new(), value };
    let of_slots = |name, help, slots: [u32; 2]| {
        ["compressed", "window"].into_iter().zip(slots).map(move |(pool, slots)| Figure {
            name,
            help,
            kind: Gauge,
            labels: vec![("pool", pool.to_owned())],
            value: f64::from(slots),
        })
    };
    let stats = host.stats;
    let counts = [
        ("sm120_host_cache_saved_total", "Copies into host memory that were finished.", stats.saved),
        ("sm120_host_cache_not_saved_total", "Copies that failed or had no room.", stats.not_saved),
        ("sm120_host_cache_hits_total", "Beginnings copied back.", stats.hits),
        ("sm120_host_cache_hit_tokens_total", "Tokens of those.", stats.hit_tokens),
        ("sm120_host_cache_disk_hits_total", "Those with pages from disk.", stats.disk_hits),
        ("sm120_host_cache_loads_failed_total", "Copies back that failed; the text was computed.", stats.loads_failed),
        ("sm120_host_cache_evicted_total", "Pages dropped for others.", stats.evicted),
    ];
    let mut figures: Vec<Figure> =
        counts.into_iter().map(|(name, help, count)| figure(name, Counter, help, count as f64)).collect();
    figures.push(figure(
        "sm120_host_cache_bytes",
        Gauge,
        "Bytes of slots in use, on one rank.",
        host.used_bytes as f64,
    ));
    figures.push(figure("sm120_host_cache_loading", Gauge, "Requests that are copied back.", host.loading as f64));
    let HostUse { compressed, window, on_disk, .. } = host;
    let [all, free] = [[compressed.pages, window.pages], [compressed.free, window.free]];
    figures.extend(of_slots("sm120_host_cache_slots", "Slots, those on disk included.", all));
    figures.extend(of_slots("sm120_host_cache_free_slots", "Slots that hold nothing.", free));
    let on_disk = [on_disk.compressed_slots, on_disk.window_slots];
    figures.extend(of_slots("sm120_host_cache_disk_slots", "Slots on disk.", on_disk));
    figures
}
