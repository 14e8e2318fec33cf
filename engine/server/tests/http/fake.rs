//! A backend that does as it is told.

use engine::ids::TokenId;
use engine::progress::{Part, PartState};
use engine::sequence::{FinishReason, Request, Usage};
use server::backend::{Backend, Figure, Refusal, Update, Updates};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::UnboundedSender;

/// How a request is answered.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// These tokens, then the end.
    Say(Vec<TokenId>, FinishReason),
    /// These tokens, then nobody is there any more.
    Vanish(Vec<TokenId>),
    /// A refusal.
    Refuse(Refusal),
    /// Nothing, until [`Fake::release`].
    Hang,
}

impl Script {
    pub(crate) fn say(text: &str) -> Self {
        Script::Say(ids(text.as_bytes()), FinishReason::MaxTokens)
    }
}

/// Bytes as tokens.
pub(crate) fn ids(bytes: &[u8]) -> Vec<TokenId> {
    bytes.iter().map(|&byte| TokenId(byte.into())).collect()
}

/// See above.
pub(crate) struct Fake {
    script: Mutex<Script>,
    part: Arc<Part>,
    held: Mutex<Vec<(UnboundedSender<Update>, Request)>>,
    pub(crate) submitted: AtomicUsize,
    pub(crate) cancelled: Arc<AtomicUsize>,
    pub(crate) dead: Mutex<Option<String>>,
}

impl Fake {
    pub(crate) fn new(script: Script) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(script),
            part: Part::new("worker", Vec::new()),
            held: Mutex::default(),
            submitted: AtomicUsize::new(0),
            cancelled: Arc::default(),
            dead: Mutex::default(),
        })
    }

    pub(crate) fn set(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    /// Answers what hangs.
    pub(crate) fn release(&self, script: &Script) {
        for (sender, request) in self.held.lock().unwrap().drain(..) {
            play(&sender, &request, script);
            self.part.leave();
        }
    }
}

fn play(sender: &UnboundedSender<Update>, request: &Request, script: &Script) {
    let said = match script {
        Script::Say(tokens, _) | Script::Vanish(tokens) => tokens.as_slice(),
        Script::Refuse(refusal) => {
            let _ = sender.send(Update::Refused(refusal.clone()));
            return;
        }
        Script::Hang => unreachable!("held"),
    };
    for &token in said {
        let _ = sender.send(Update::Token(token));
    }
    if let Script::Say(_, reason) = script {
        let (prompt_tokens, generated_tokens) = (request.prompt.len() as u32, said.len() as u32);
        let usage = Usage { prompt_tokens, cached_tokens: 1, generated_tokens };
        let _ = sender.send(Update::Finished { reason: reason.clone(), usage });
    }
}

impl Backend for Fake {
    fn submit(&self, request: Request) -> Updates {
        let cancelled = Arc::clone(&self.cancelled);
        let cancel = move || _ = cancelled.fetch_add(1, Ordering::SeqCst);
        let (sender, updates) = Updates::new(cancel, || "the worker has vanished".to_owned());
        self.submitted.fetch_add(1, Ordering::SeqCst);
        match &*self.script.lock().unwrap() {
            Script::Hang => {
                self.part.arrive();
                self.held.lock().unwrap().push((sender, request));
            }
            script => {
                self.part.arrive();
                play(&sender, &request, script);
                self.part.leave();
            }
        }
        updates
    }

    fn parts(&self) -> Vec<PartState> {
        vec![self.part.state()]
    }

    fn ended(&self) -> Option<String> {
        self.dead.lock().unwrap().clone()
    }

    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}
