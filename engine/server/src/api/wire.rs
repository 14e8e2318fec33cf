//! Answers as JSON, whole or in events.

use super::Endpoint;
use super::choice::{Finish, Part, Tokens};
use super::turn::Piece;
use engine::ids::TokenId;
use serde_json::{Value, json};

/// What all parts of an answer share.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Way in.
    pub endpoint: Endpoint,
    /// Number of the answer, which no other has.
    pub number: u64,
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
    /// Tools that are called: name and arguments.
    pub calls: Vec<(String, String)>,
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
            Part::Piece(Piece::Call { name, .. }) => self.calls.push((name, String::new())),
            // The arguments of a call follow it.
            Part::Piece(Piece::Arguments { text, .. }) => {
                self.calls.last_mut().into_iter().for_each(|(_, arguments)| *arguments += &text)
            }
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
    /// Name of the answer.
    pub fn id(&self) -> String {
        let prefix = if self.endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
        format!("{prefix}-{:016x}", self.number)
    }

    /// Name of a call of text `index`. Names sort as the calls do: prompts show calls in the order of their names.
    fn call_id(&self, index: usize, call: usize) -> String {
        format!("call_{call:02}_{:016x}{index:02x}", self.number)
    }

    fn envelope(&self, chunk: bool, choices: Value) -> Value {
        let object = match (self.endpoint, chunk) {
            (Endpoint::Completions, _) => "text_completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Chat, false) => "chat.completion",
        };
        let Self { model, created, .. } = self;
        json!({ "id": self.id(), "object": object, "created": created, "model": model, "choices": choices })
    }

    /// An event with a part of text `index` and the tokens since the part before; `first` of that text.
    pub fn chunk(&self, index: usize, part: &Part, ids: &[TokenId], first: bool) -> Value {
        let finish = if let Part::End(finish, _) = part { Some(finish.word()) } else { None };
        let mut choice = match self.endpoint {
            Endpoint::Completions => {
                let text = if let Part::Piece(Piece::Content(text)) = part { text } else { "" };
                json!({ "index": index, "text": text, "logprobs": null, "finish_reason": finish })
            }
            Endpoint::Chat => {
                let mut delta = self.delta(index, part);
                if first {
                    delta["role"] = "assistant".into();
                }
                json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish })
            }
        };
        if self.token_ids {
            choice["token_ids"] = json!(ids);
        }
        self.envelope(true, json!([choice]))
    }

    fn delta(&self, index: usize, part: &Part) -> Value {
        match part {
            Part::Piece(Piece::Reasoning(text)) => json!({ "reasoning_content": text }),
            Part::Piece(Piece::Content(text)) => json!({ "content": text }),
            Part::Piece(Piece::Call { index: call, name }) => json!({ "tool_calls": [{
                "index": call, "id": self.call_id(index, *call), "type": "function",
                "function": { "name": name, "arguments": "" },
            }] }),
            Part::Piece(Piece::Arguments { index: call, text }) => {
                json!({ "tool_calls": [{ "index": call, "function": { "arguments": text } }] })
            }
            Part::End(..) => json!({}),
        }
    }

    fn message(&self, index: usize, whole: &Whole) -> Value {
        let mut message = json!({ "role": "assistant", "content": whole.content });
        if self.reasons {
            message["reasoning_content"] = whole.reasoning.as_str().into();
        }
        if !whole.calls.is_empty() {
            let call = |(call, (name, arguments)): (usize, &(String, String))| {
                let function = json!({ "name": name, "arguments": arguments });
                json!({ "id": self.call_id(index, call), "type": "function", "function": function })
            };
            message["tool_calls"] = whole.calls.iter().enumerate().map(call).collect();
            if whole.content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
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
                    let message = self.message(index, whole);
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
