//! Answers as JSON, whole or in events.

use super::Endpoint;
use super::choice::{Finish, Part, Tokens};
use super::text::Piece;
use engine::ids::TokenId;
use serde_json::{Value, json};

/// What all parts of an answer share.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Way in.
    pub endpoint: Endpoint,
    /// Number of the answer.
    pub id: String,
    /// Model.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Whether there is reasoning beside the answer.
    pub reasons: bool,
    /// Whether tokens stand beside the text.
    pub token_ids: bool,
}

/// A text put together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whole {
    /// What the model says to itself.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Why it is complete.
    pub finish: Option<Finish>,
    /// Its tokens, the one that stopped it included.
    pub ids: Vec<TokenId>,
}

impl Whole {
    /// Adds a part.
    pub fn add(&mut self, part: Part) {
        match part {
            Part::Piece(Piece::Reasoning(text)) => self.reasoning += &text,
            Part::Piece(Piece::Content(text)) => self.content += &text,
            Part::End(finish, _) => self.finish = Some(finish),
        }
    }
}

/// The usage of an answer.
pub fn usage(tokens: Tokens) -> Value {
    json!({
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": tokens.prompt + tokens.completion,
        "prompt_tokens_details": { "cached_tokens": tokens.cached },
    })
}

/// An event of a stream.
pub fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// The last event of a stream that is complete.
pub const DONE: &str = "data: [DONE]\n\n";

impl Reply {
    fn envelope(&self, chunk: bool, choices: Value) -> Value {
        let object = match (self.endpoint, chunk) {
            (Endpoint::Completions, _) => "text_completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Chat, false) => "chat.completion",
        };
        let Self { id, model, created, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }

    /// An event with a part of text `index` and the tokens since the part before; `first` of that text.
    pub fn chunk(&self, index: usize, part: &Part, ids: &[TokenId], first: bool) -> Value {
        let (reasoning, content, finish) = match part {
            Part::Piece(Piece::Reasoning(text)) => (Some(text), None, None),
            Part::Piece(Piece::Content(text)) => (None, Some(text), None),
            Part::End(finish, _) => (None, None, Some(finish.word())),
        };
        let mut choice = match self.endpoint {
            Endpoint::Completions => {
                let text = content.map_or("", String::as_str);
                json!({ "index": index, "text": text, "logprobs": null, "finish_reason": finish })
            }
            Endpoint::Chat => {
                let mut delta = json!({});
                if first {
                    delta["role"] = "assistant".into();
                }
                if let Some(text) = reasoning {
                    delta["reasoning_content"] = text.as_str().into();
                }
                if let Some(text) = content {
                    delta["content"] = text.as_str().into();
                }
                json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish })
            }
        };
        if self.token_ids {
            choice["token_ids"] = json!(ids);
        }
        self.envelope(true, json!([choice]))
    }

    /// The event with the usage.
    pub fn usage_chunk(&self, tokens: Tokens) -> Value {
        let mut value = self.envelope(true, json!([]));
        value["usage"] = usage(tokens);
        value
    }

    /// The whole answer.
    pub fn whole(&self, texts: &[Whole], tokens: Tokens) -> Value {
        let choice = |(index, whole): (usize, &Whole)| {
            let finish = whole.finish.map(Finish::word);
            let mut choice = match self.endpoint {
                Endpoint::Completions => {
                    json!({ "index": index, "text": whole.content, "logprobs": null, "finish_reason": finish })
                }
                Endpoint::Chat => {
                    let mut message = json!({ "role": "assistant", "content": whole.content });
                    if self.reasons {
                        message["reasoning_content"] = whole.reasoning.as_str().into();
                    }
                    json!({ "index": index, "message": message, "logprobs": null, "finish_reason": finish })
                }
            };
            if self.token_ids {
                choice["token_ids"] = json!(whole.ids);
            }
            choice
        };
        let mut value = self.envelope(false, texts.iter().enumerate().map(choice).collect());
        value["usage"] = usage(tokens);
        value
    }
}
