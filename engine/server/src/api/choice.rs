//! One text on its way to a client.

use super::error::ApiError;
use super::text::Text;
use super::tools::{Demand, Offer};
use super::turn::{End, Piece};
use crate::backend::{Update, Updates};
use crate::metrics::Record;
use engine::ids::TokenId;
use engine::sequence::FinishReason;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Tokens of one text or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of prompts.
    pub prompt: u32,
    /// Of those, from the prefix cache.
    pub cached: u32,
    /// Generated, the one that stopped the text included.
    pub completion: u32,
}

impl std::ops::AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.completion += other.completion;
    }
}

/// Why a text is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or string.
    Stop,
    /// The token limit or the context, or a tool call that the model has not completed.
    Length,
    /// The model waits for the results of what it called.
    ToolCalls,
}

impl Finish {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// What comes of a text: pieces, then one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Piece(Piece),
    /// Nothing follows.
    End(Finish, Tokens),
}

/// A text that is being generated. Dropped, it is cancelled.
#[derive(Debug)]
pub struct Choice {
    updates: Updates,
    text: Text,
    offer: Option<Arc<Offer>>,
    /// Tokens that end the text and are not part of it.
    stop: Vec<TokenId>,
    tokens: Tokens,
    ready: VecDeque<Part>,
    /// Tokens since the part before.
    ids: Vec<TokenId>,
    record: Record,
    _place: OwnedSemaphorePermit,
}

impl Choice {
    /// A text of a request that was handed over, with its place among those in flight.
    pub fn new(
        updates: Updates,
        text: Text,
        offer: Option<Arc<Offer>>,
        stop: Vec<TokenId>,
        prompt: usize,
        record: Record,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let tokens = Tokens { prompt: prompt as u32, ..Tokens::default() };
        let (ready, ids) = (VecDeque::new(), Vec::new());
        Self { updates, text, offer, stop, tokens, ready, ids, record, _place: place }
    }

    /// The tokens that came since this was last asked. Those of a piece are there when it is, with the later ones if the text was
    /// held back for them.
    pub fn take_ids(&mut self) -> Vec<TokenId> {
        std::mem::take(&mut self.ids)
    }

    /// The next part.
    ///
    /// # Errors
    /// The request was refused, or whoever computes failed. Nothing comes after an error or an end.
    pub async fn next(&mut self) -> Result<Part, ApiError> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Ok(part);
            }
            let update = self.updates.next().await;
            let taken = self.take(update);
            if let Err(error) = &taken {
                self.record.end(error.kind);
            }
            taken?;
        }
    }

    fn take(&mut self, update: Update) -> Result<(), ApiError> {
        let wrong = |error: engine::tokenizer::TokenizerError| ApiError::failed(error.to_string());
        match update {
            // What comes behind a stop string was computed before the cancellation arrived.
            Update::Token(_) if self.text.stopped() => {}
            Update::Token(token) => {
                self.tokens.completion += 1;
                self.record.token();
                self.ids.push(token);
                if !self.stop.contains(&token) {
                    let pieces = self.text.push(token).map_err(wrong)?;
                    self.hand_out(pieces)?;
                    if self.text.stopped() {
                        self.updates.cancel();
                    }
                }
            }
            Update::Finished { reason, usage } => {
                self.tokens.cached = usage.cached_tokens;
                let end = match reason {
                    // Whatever else happened since: the text was complete.
                    _ if self.text.stopped() => End::Said,
                    FinishReason::Stop(_) => End::Said,
                    FinishReason::MaxTokens | FinishReason::ContextLimit => End::Cut,
                    FinishReason::Failed(why) => return Err(ApiError::failed(why)),
                    FinishReason::Unavailable(why) => return Err(ApiError::unavailable(why)),
                    FinishReason::Cancelled => {
                        return Err(ApiError::unavailable("the request was cancelled by the server"));
                    }
                };
                let pieces = self.text.finish(end).map_err(wrong)?;
                self.hand_out(pieces)?;
                let finish = self.finish(end)?;
                self.ready.push_back(Part::End(finish, self.tokens));
                self.record.end(finish.word());
            }
            Update::Refused(refusal) => return Err(refusal.into()),
            Update::Lost(why) => return Err(ApiError::unavailable(why)),
        }
        Ok(())
    }

    fn demand(&self) -> Option<&Demand> {
        self.offer.as_ref()?.demand.as_ref()
    }

    fn hand_out(&mut self, pieces: Vec<Piece>) -> Result<(), ApiError> {
        for piece in &pieces {
            if let (Piece::Call { name, .. }, Some(Demand::Named(tool))) = (piece, self.demand())
                && name != tool
            {
                return Err(ApiError::disobeyed(format!(
                    "tool_choice: expected a call of {tool:?}, got one of {name:?}"
                )));
            }
        }
        self.ready.extend(pieces.into_iter().map(Part::Piece));
        Ok(())
    }

    fn finish(&self, end: End) -> Result<Finish, ApiError> {
        match (end, self.text.called()) {
            // A stop string can be in what was held back to the end.
            (End::Cut, _) if !self.text.stopped() => Ok(Finish::Length),
            (_, Some(true)) => Ok(Finish::ToolCalls),
            (_, Some(false)) => Ok(Finish::Length),
            (_, None) if self.demand().is_some() => {
                Err(ApiError::disobeyed("tool_choice: expected a call, got none from the model"))
            }
            (_, None) => Ok(Finish::Stop),
        }
    }
}
