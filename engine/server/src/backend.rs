//! What computes the answers: one trait, whether an engine of this process does it or another server.

mod engine;

pub use self::engine::EngineBackend;

use ::engine::ids::TokenId;
use ::engine::progress::PartState;
use ::engine::sequence::{FinishReason, Request, Usage};
use thiserror::Error;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It can never be run.
    #[error("{0}")]
    Invalid(String),
    /// Not now.
    #[error("{0}")]
    Busy(String),
}

/// What happens to a request, in order: tokens, then exactly one of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// The next token.
    Token(TokenId),
    /// The text is complete, or a step failed, which the reason says.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The request was refused.
    Refused(Refusal),
    /// Who computed it is gone.
    Lost(String),
}

impl Update {
    /// Whether nothing follows.
    pub fn ends(&self) -> bool {
        !matches!(self, Update::Token(_))
    }
}

/// Says why nothing more comes when a backend has gone away without a word.
type Obituary = Box<dyn Fn() -> String + Send + Sync>;

/// The updates of one request. Dropped before their end, they cancel the request, in whatever state it is.
pub struct Updates {
    receiver: UnboundedReceiver<Update>,
    cancel: Option<Box<dyn FnOnce() + Send + Sync>>,
    obituary: Obituary,
}

impl std::fmt::Debug for Updates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updates").field("ended", &self.cancel.is_none()).finish_non_exhaustive()
    }
}

impl Updates {
    /// Updates and the end to feed them from. They are bounded by the tokens that the request asks for. `cancel` must not block
    /// and may come when the request has ended.
    pub fn new(
        cancel: impl FnOnce() + Send + Sync + 'static,
        obituary: impl Fn() -> String + Send + Sync + 'static,
    ) -> (UnboundedSender<Update>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self { receiver, cancel: Some(Box::new(cancel)), obituary: Box::new(obituary) })
    }

    /// A request that ended before it began.
    pub fn ended(update: Update) -> Self {
        let (sender, mut updates) = Self::new(|| (), String::new);
        // The receiver is in hand.
        let _ = sender.send(update);
        updates.cancel = None;
        updates
    }

    /// The next update; waits for ever behind the last.
    pub async fn next(&mut self) -> Update {
        let update = self.receiver.recv().await.unwrap_or_else(|| Update::Lost((self.obituary)()));
        if update.ends() {
            self.cancel = None;
        }
        update
    }

    /// Asks for the end; an update that ends is still to come.
    pub fn cancel(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Whether a figure only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureKind {
    /// Counts since the start.
    Counter,
    /// A level.
    Gauge,
}

/// A figure for `/metrics`.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Name in Prometheus' form, unit at its end; figures of one name stand together.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: FigureKind,
    /// Label and value.
    pub labels: Vec<(&'static str, String)>,
    /// Value.
    pub value: f64,
}

/// Who computes. Nothing here may block: everything is called from tasks that serve other requests too.
pub trait Backend: Send + Sync {
    /// Hands a request over; whether it was taken is the first update.
    fn submit(&self, request: Request) -> Updates;
    /// Threads and queues, with the age of their last progress.
    fn parts(&self) -> Vec<PartState>;
    /// Why there will be no answers any more; `None` while there are.
    fn ended(&self) -> Option<String>;
    /// Why requests of now cannot be computed although everything here is well; `None` while they can.
    fn unavailable(&self) -> Option<String> {
        None
    }
    /// Figures of its own.
    fn figures(&self) -> Vec<Figure>;
}
