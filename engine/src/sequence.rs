//! Requests, what they turn into while they run, and how they end.

use crate::geometry::CacheShape;
use crate::handover::Needed;
use crate::ids::{Generation, Position, SequenceId, TokenId};
use crate::pools::{Compressed, PageRef, Pools, RequestSlots, Window};
use crate::prefix::NodeId;
use crate::step::Sampling;
use transfer::exchange::CopyId;

/// A text to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The text, at least one token.
    pub prompt: Vec<TokenId>,
    /// Tokens to generate at most, at least one.
    pub max_tokens: u32,
    /// Tokens that end the text; the one that does is reported like any other.
    pub stop: Vec<TokenId>,
    /// How tokens are picked.
    pub sampling: Sampling,
}

/// Why a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// This stop token was sampled.
    Stop(TokenId),
    /// `max_tokens` were generated.
    MaxTokens,
    /// The text reached the context limit.
    ContextLimit,
    /// It was cancelled.
    Cancelled,
    /// A step that it was part of failed.
    Failed(String),
    /// Nobody is there to compute it.
    Unavailable(String),
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the prompt, found in the prefix cache or in host memory when the request was first admitted.
    pub cached_tokens: u32,
    /// Generated.
    pub generated_tokens: u32,
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A token was generated.
    Token {
        /// Of this request.
        sequence: SequenceId,
        /// The token.
        token: TokenId,
        /// Its place among the generated ones, from 0.
        index: u32,
    },
    /// The request ended; nothing follows.
    Finished {
        /// This request.
        sequence: SequenceId,
        /// Why.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
}

/// Which part of a request is done here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// All of it.
    Whole,
    /// The prompt and the first token; somebody else goes on.
    Prefill,
    /// What follows the first token; somebody else computes the prompt.
    Remote,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Holds nothing; also after a preemption.
    Waiting,
    /// Holds pages into which the beginning of its text is copied out of host memory.
    Loading,
    /// Holds the pages of a prompt that somebody else computes.
    Landing,
    /// The prompt is computed; holds its pages for somebody else.
    Held,
    /// Holds pages and takes part in steps.
    Running,
    /// Told to the client; holds pages until the steps that contain it are committed and its copy is dropped.
    Ended,
}

/// A request with its text so far and its pages.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    /// Of its present admission.
    pub(crate) generation: Generation,
    /// Prompt, then generated tokens.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: Option<u32>,
    /// Tokens of the whole text at most, and why.
    pub(crate) limit: u32,
    pub(crate) limit_reason: FinishReason,
    pub(crate) stop: Vec<TokenId>,
    pub(crate) sampling: Sampling,
    /// Positions that are computed once every step in flight is done.
    pub(crate) scheduled: u32,
    /// Positions whose steps are committed.
    pub(crate) committed: u32,
    /// Tokens that steps in flight will sample.
    pub(crate) pending: u32,
    /// Where the last of them stands among the samples of its step.
    pub(crate) sample_row: u32,
    /// Steps in flight that contain this sequence, steps that fill its pages among them.
    pub(crate) in_flight: u32,
    /// The copy out of host memory that writes its pages.
    pub(crate) load: Option<CopyId>,
    /// A guess of the token behind the text.
    pub(crate) draft: Option<TokenId>,
    /// Compressed page of positions `i * page_tokens ..`.
    pub(crate) compressed: Vec<PageRef<Compressed>>,
    /// Window page of positions `i * window_page_tokens ..`; `None` once they fell out of the window.
    pub(crate) window: Vec<Option<PageRef<Window>>>,
    pub(crate) request_slot: Option<PageRef<RequestSlots>>,
    /// Pages of the text that were offered to the prefix cache, and where the last one is stored.
    pub(crate) published: u32,
    pub(crate) node: Option<NodeId>,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId, request: Request, max_context: u32) -> Self {
        let prompt_tokens = request.prompt.len() as u32;
        let wanted = prompt_tokens.saturating_add(request.max_tokens);
        let limit_reason = if wanted <= max_context { FinishReason::MaxTokens } else { FinishReason::ContextLimit };
        Self {
            id,
            role: Role::Whole,
            phase: Phase::Waiting,
            generation: Generation(0),
            tokens: request.prompt,
            prompt_tokens,
            cached_tokens: None,
            limit: wanted.min(max_context),
            limit_reason,
            stop: request.stop,
            sampling: request.sampling,
            scheduled: 0,
            committed: 0,
            pending: 0,
            sample_row: 0,
            in_flight: 0,
            load: None,
            draft: None,
            compressed: Vec::new(),
            window: Vec::new(),
            request_slot: None,
            published: 0,
            node: None,
        }
    }

    /// Tokens of the text once every step in flight is done.
    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32 + self.pending
    }

    /// Tokens that the next step could run: 0 when the text will have reached its limit.
    pub(crate) fn remaining(&self) -> u32 {
        if self.len() >= self.limit { 0 } else { self.len() - self.scheduled }
    }

    /// The draft, if the text has room for what it may bring.
    pub(crate) fn usable_draft(&self) -> Option<TokenId> {
        self.draft.filter(|_| self.remaining() == 1 && self.len() + 2 <= self.limit)
    }

    /// Appends a sampled token; the reason if it ends the text.
    pub(crate) fn push(&mut self, token: TokenId) -> (Event, Option<FinishReason>) {
        let index = self.tokens.len() as u32 - self.prompt_tokens;
        self.tokens.push(token);
        let ended = if self.stop.contains(&token) {
            Some(FinishReason::Stop(token))
        } else if self.tokens.len() as u32 >= self.limit {
            Some(self.limit_reason.clone())
        } else {
            None
        };
        (Event::Token { sequence: self.id, token, index }, ended)
    }

    /// First window page that a token from `next` on reads, or that is handed over with the prompt.
    pub(crate) fn first_window(&self, shape: &CacheShape, next: u32) -> u32 {
        let read = shape.first_needed(Position(next)).0 / shape.window_page_tokens;
        match self.role {
            Role::Prefill => read.min(Needed::at(shape, 0, self.prompt_tokens).window.start),
            Role::Whole | Role::Remote => read,
        }
    }

    /// Gives back the window pages that nobody needs once `committed` tokens are there.
    pub(crate) fn leave_window(&mut self, shape: &CacheShape, pools: &mut Pools) {
        let first = self.first_window(shape, self.committed);
        let end = self.window.len().min(first as usize);
        // Pages leave in order: everything before the last `None` is `None`.
        for page in self.window[..end].iter_mut().rev() {
            match page.take() {
                Some(page) => _ = pools.window.release(page),
                None => break,
            }
        }
    }

    /// Gives everything back and forgets what was computed.
    pub(crate) fn release(&mut self, pools: &mut Pools) {
        debug_assert_eq!(self.in_flight, 0, "a step in flight may still write these pages");
        debug_assert_eq!(self.load, None, "a copy may still write these pages");
        self.compressed.drain(..).for_each(|page| _ = pools.compressed.release(page));
        self.window.drain(..).flatten().for_each(|page| _ = pools.window.release(page));
        self.request_slot.take().into_iter().for_each(|slot| _ = pools.requests.release(slot));
        (self.scheduled, self.committed, self.published) = (0, 0, 0);
        (self.node, self.draft) = (None, None);
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            generated_tokens: self.tokens.len() as u32 - self.prompt_tokens,
        }
    }
}
