//! Limits of a scheduler, and what is refused.

use super::HostConfig;
use crate::geometry::{CacheShape, ShapeError};
use crate::pools::PoolSizes;
use crate::sequence::Request;
use thiserror::Error;

/// Limits and choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Tokens of a step at most.
    pub max_batch_tokens: u32,
    /// Running sequences at most.
    pub max_running: u32,
    /// Tokens of a sequence in a step at most.
    pub chunk_tokens: u32,
    /// Tokens of a text at most, generated ones included.
    pub max_context: u32,
    /// Keep finished pages for other requests with the same beginning.
    pub prefix_cache: bool,
    /// Decode entries carry drafts; steps do not overlap.
    pub speculation: bool,
    /// Host memory under the prefix cache.
    pub host: Option<HostConfig>,
}

impl SchedulerConfig {
    /// Steps of up to 512 tokens, up to 32 running sequences.
    pub fn new(max_context: u32) -> Self {
        Self {
            max_batch_tokens: 512,
            max_running: 32,
            chunk_tokens: 512,
            max_context,
            prefix_cache: true,
            speculation: false,
            host: None,
        }
    }

    /// Tokens of a decode entry at most.
    const fn decode_tokens(&self) -> u32 {
        if self.speculation { 2 } else { 1 }
    }
}

/// Limits that contradict each other or the pools.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchedulerError {
    /// The shape of the cache does not work.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A limit does not work.
    #[error("{name}: expected {expected}, got {got}")]
    Limit {
        /// Which.
        name: &'static str,
        /// What would work.
        expected: String,
        /// What was given.
        got: u32,
    },
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddError {
    /// Nothing to continue.
    #[error("prompt: expected at least one token, got none")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens: expected at least 1, got 0")]
    NoTokens,
    /// Not a temperature.
    #[error("temperature: expected a number from 0, got {0}")]
    Temperature(String),
    /// No room for a generated token.
    #[error("prompt: expected fewer than {max_context} tokens (the context limit), got {prompt}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of a text at most.
        max_context: u32,
    },
    /// The pool is too small for the whole text, even if nothing else ran.
    #[error("request of up to {tokens} tokens: needs {needed} compressed pages, the pool has {have}")]
    NeverFits {
        /// Prompt and generated tokens.
        tokens: u32,
        /// Pages that they take.
        needed: u32,
        /// Pages of the pool.
        have: u32,
    },
    /// A prompt that does not fit the frame in which it is sent to a prefill server.
    #[error("prompt of {tokens} tokens: takes {bytes} bytes on the way to a prefill server, a frame holds {limit}")]
    NeverSent {
        /// Tokens of the prompt.
        tokens: usize,
        /// Bytes that they and their pages take.
        bytes: usize,
        /// Bytes there may be.
        limit: usize,
    },
    /// A prefill server computes prompts for decode servers, and has no clients of its own.
    #[error("this server computes prompts for decode servers: send requests to one of those, or to their router")]
    PrefillOnly,
}

/// Refuses limits that contradict each other or the pools.
pub(super) fn check(config: &SchedulerConfig, shape: &CacheShape, sizes: PoolSizes) -> Result<(), SchedulerError> {
    shape.check()?;
    let need = |name, ok: bool, expected: String, got| match ok {
        true => Ok(()),
        false => Err(SchedulerError::Limit { name, expected, got }),
    };
    need("max_running", config.max_running >= 1, "at least 1".to_owned(), config.max_running)?;
    let decode = config.max_running.saturating_mul(config.decode_tokens());
    let room = format!("more than the {decode} decode tokens of {} sequences", config.max_running);
    need("max_batch_tokens", config.max_batch_tokens > decode, room, config.max_batch_tokens)?;
    need("chunk_tokens", config.chunk_tokens >= 1, "at least 1".to_owned(), config.chunk_tokens)?;
    let contexts = 2..=i32::MAX as u32 / 2;
    let context = format!("{} to {}", contexts.start(), contexts.end());
    need("max_context", contexts.contains(&config.max_context), context, config.max_context)?;
    let windows = shape.max_window_pages(config.decode_tokens());
    let one = format!("at least {windows} for one sequence");
    need("window_pages", sizes.window_pages >= windows, one, sizes.window_pages)?;
    need("compressed_pages", sizes.compressed_pages >= 1, "at least 1".to_owned(), sizes.compressed_pages)?;
    let slots = u32::from(shape.has_request_slots());
    need("request_slots", sizes.request_slots >= slots, format!("at least {slots}"), sizes.request_slots)?;
    if let Some(HostConfig { sizes, max_copies, .. }) = config.host {
        let cached = u32::from(config.prefix_cache);
        need("prefix_cache", cached == 1, "to be on above a host cache".to_owned(), cached)?;
        let slots = [("host compressed_slots", sizes.compressed_slots), ("host window_slots", sizes.window_slots)];
        let all = slots.into_iter().chain([("host max_copies", max_copies)]);
        all.into_iter().try_for_each(|(name, got)| need(name, got >= 1, "at least 1".to_owned(), got))?;
    }
    let most = shape.max_pages();
    let PoolSizes { compressed_pages, window_pages, request_slots } = sizes;
    let pools =
        [("window_pages", window_pages), ("compressed_pages", compressed_pages), ("request_slots", request_slots)];
    pools.into_iter().try_for_each(|(name, pages)| {
        need(name, pages <= most, format!("at most {most}, of which every row has a 32-bit number"), pages)
    })
}

/// Refuses a request that is malformed or leaves no room for a token.
pub(super) fn check_request(request: &Request, max_context: u32) -> Result<(), AddError> {
    let temperature = request.sampling.temperature;
    if request.prompt.is_empty() {
        return Err(AddError::EmptyPrompt);
    }
    if request.max_tokens == 0 {
        return Err(AddError::NoTokens);
    }
    if !(temperature >= 0.0 && temperature.is_finite()) {
        return Err(AddError::Temperature(temperature.to_string()));
    }
    if request.prompt.len() >= max_context as usize {
        return Err(AddError::PromptTooLong { prompt: request.prompt.len(), max_context });
    }
    Ok(())
}
