//! One completion, printed as it comes.

use crate::serving::{ModelArgs, ServingError};
use clap::Args;
use engine::engine::EngineError;
use engine::ids::TokenId;
use engine::scheduler::AddError;
use engine::sequence::{Event, FinishReason, Request, Usage};
use engine::step::Sampling;
use engine::tokenizer::{Tokenizer, TokenizerError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Options of `generate`.
#[derive(Debug, Clone, Args)]
pub struct GenerateArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text to continue.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_ids", conflicts_with = "prompt_ids")]
    pub prompt: Option<String>,
    /// Token ids to continue, comma-separated; the continuation is printed as ids too.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub prompt_ids: Option<Vec<u32>>,
    /// Tokens to generate at most.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Randomness of sampling; 0 takes the likeliest token.
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = crate::e2e::parse_temperature)]
    pub temperature: f32,
    /// Seed of sampling.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Go on behind end-of-text tokens.
    #[arg(long)]
    pub ignore_eos: bool,
}

/// Why there is no completion.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// No engine.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// A step failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The request was refused.
    #[error(transparent)]
    Refused(#[from] AddError),
    /// Tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Nothing to continue.
    #[error("--prompt: expected text or ids, got none")]
    Empty,
    /// An id that the vocabulary lacks.
    #[error("--prompt-ids: expected ids below {vocab}, got {id}")]
    Id {
        /// Vocabulary.
        vocab: u32,
        /// Id.
        id: u32,
    },
}

/// How it went.
#[derive(Debug, Clone)]
pub struct Done {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens.
    pub usage: Usage,
    /// Until the first token.
    pub first: Duration,
    /// Until the last.
    pub all: Duration,
}

/// Generates, handing every piece of text to `out`.
pub fn run(args: &GenerateArgs, mut out: impl FnMut(&str)) -> Result<Done, GenerateError> {
    let checkpoint = args.model.checkpoint()?;
    let config = checkpoint.config().clone();
    let tokenizer = Tokenizer::open(checkpoint.dir(), &config)?;
    let prompt: Vec<TokenId> = match (&args.prompt, &args.prompt_ids) {
        (Some(text), _) => tokenizer.encode(text)?,
        (None, ids) => ids.iter().flatten().map(|&id| TokenId(id)).collect(),
    };
    if prompt.is_empty() {
        return Err(GenerateError::Empty);
    }
    if let Some(id) = prompt.iter().find(|id| id.0 >= config.vocab_size) {
        return Err(GenerateError::Id { vocab: config.vocab_size, id: id.0 });
    }
    let context = (prompt.len() as u32).saturating_add(args.max_tokens);
    let mut model = args.model.clone();
    model.max_running = 1;
    let mut serving = model.start(checkpoint, context, false)?;
    let stop = if args.ignore_eos { Vec::new() } else { config.eos_ids.iter().map(|&id| TokenId(id)).collect() };
    let sampling = Sampling { temperature: args.temperature, seed: args.seed };
    let start = Instant::now();
    serving.engine.add(Request { prompt, max_tokens: args.max_tokens, stop, sampling })?;
    let as_ids = args.prompt_ids.is_some();
    let mut text = tokenizer.stream();
    let mut first = None;
    let mut events = Vec::new();
    loop {
        serving.engine.turn(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Token { token, index, .. } => {
                    first.get_or_insert_with(|| start.elapsed());
                    if as_ids {
                        out(&format!("{}{token}", if index == 0 { "" } else { "," }));
                    } else {
                        out(&text.push(token)?);
                    }
                }
                Event::Finished { reason, usage, .. } => {
                    if !as_ids {
                        out(&text.finish()?);
                    }
                    let all = start.elapsed();
                    return Ok(Done { reason, usage, first: first.unwrap_or(all), all });
                }
            }
        }
    }
}
