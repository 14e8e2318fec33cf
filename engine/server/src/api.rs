//! The OpenAI-shaped interface: bodies to requests, tokens to text, text to answers.

pub mod chat;
pub mod choice;
mod dsml;
pub mod error;
pub mod fields;
pub mod job;
pub mod json;
pub mod marker;
pub mod prompt;
pub mod stop;
pub mod text;
pub mod tools;
pub mod turn;
pub mod wire;

use self::error::ApiError;
use engine::ids::TokenId;
use engine::tokenizer::Tokenizer;

/// The model that is served.
#[derive(Debug, Clone)]
pub struct Served {
    /// Name in requests and answers.
    pub name: String,
    /// Seconds since 1970 when it was loaded.
    pub created: u64,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Ids are below this.
    pub vocab_size: u32,
    /// Tokens of a text at most, generated ones included.
    pub context: u32,
    /// Tokens that end a text.
    pub eos: Vec<TokenId>,
    /// Prompts of one request at most.
    pub max_prompts: usize,
}

impl Served {
    /// Whether a request means this model.
    ///
    /// # Errors
    /// It names another one.
    pub fn known(&self, name: &str) -> Result<(), ApiError> {
        (name == self.name).then_some(()).ok_or_else(|| ApiError::model(&self.name, name))
    }
}

/// A way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

impl Endpoint {
    /// Name in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Endpoint::Completions => "completions",
            Endpoint::Chat => "chat",
        }
    }
}
