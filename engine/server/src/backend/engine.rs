//! The engine of this process.

use super::{Backend, Figure, FigureKind, Refusal, Update, Updates};
use engine::engine::{Client, EngineThread};
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
        let of_pool = |name, help, value: fn(engine::engine::PoolUse) -> u32| {
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
        figures
    }
}
