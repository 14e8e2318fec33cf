//! Bodies to requests. Unknown fields are ignored, as clients send many that concern others; a known field that would change
//! the answer and is not supported is refused by name, unless its value is the one that changes nothing.

use super::error::ApiError;
use super::fields::{Fields, shown};
use super::prompt::{self, Message, Thinking};
use super::text::Start;
use super::{Endpoint, Served};
use engine::ids::TokenId;
use engine::sequence::Request;
use engine::step::Sampling;
use serde_json::Value;

/// Stop strings of a request at most.
const MAX_STOPS: usize = 16;
/// Bytes of a stop string at most.
const MAX_STOP_BYTES: usize = 1024;
/// Tokens of a completion that does not say how many.
const DEFAULT_TOKENS: u32 = 16;

/// A request as it was understood.
#[derive(Debug, Clone)]
pub struct Job {
    /// One text per prompt.
    pub requests: Vec<Request>,
    /// Where each text begins.
    pub start: Start,
    /// Stop strings.
    pub stops: Vec<String>,
    /// Answer as events.
    pub stream: bool,
    /// With the usage at their end.
    pub include_usage: bool,
    /// With the tokens beside the text.
    pub token_ids: bool,
}

/// Reads a body. `seed` is taken where the body has none.
pub fn read(endpoint: Endpoint, served: &Served, body: &[u8], seed: u64) -> Result<Job, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("body: {error}")))?;
    let fields = Fields::of(&value, "")?;
    if let Some(name) = fields.str("model")?
        && name != served.name
    {
        return Err(ApiError::not_found(format!("model: expected {:?}, got {name:?}", served.name)));
    }
    unsupported(&fields, endpoint)?;
    let (prompts, start) = match endpoint {
        Endpoint::Completions => (texts(&fields, served)?, Start::Plain),
        Endpoint::Chat => {
            let (prompt, start) = conversation(&fields, served)?;
            (vec![prompt], start)
        }
    };
    let stream = fields.bool("stream")?.unwrap_or(false);
    let include_usage = match fields.get("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(ApiError::field("stream_options", "stream to be true beside it", "a request without a stream"));
        }
        Some(options) => {
            let options = Fields::of(options, "stream_options")?;
            options.only("continuous_usage_stats", "false", |value| value == &Value::Bool(false))?;
            options.bool("include_usage")?.unwrap_or(false)
        }
    };
    let limit = limit(&fields, endpoint)?;
    let sampling = Sampling {
        temperature: fields.from_zero("temperature")?.unwrap_or(1.0),
        seed: seed_of(&fields)?.unwrap_or(seed),
    };
    let mut stop = if fields.bool("ignore_eos")?.unwrap_or(false) { Vec::new() } else { served.eos.clone() };
    if let Some(ids) = fields.array("stop_token_ids")? {
        for (at, id) in ids.iter().enumerate() {
            stop.push(token(id, served, || format!("stop_token_ids[{at}]"))?);
        }
    }
    let stops = stops(&fields)?;
    let requests = prompts.into_iter().enumerate().map(|(at, prompt)| {
        let max_tokens = room(&prompt, limit, endpoint, served.context)?;
        // Equal prompts of one request are different samples.
        let sampling = Sampling { seed: sampling.seed.wrapping_add(at as u64), ..sampling };
        Ok(Request { prompt, max_tokens, stop: stop.clone(), sampling })
    });
    let requests = requests.collect::<Result<_, ApiError>>()?;
    let token_ids = fields.bool("return_token_ids")?.unwrap_or(false);
    Ok(Job { requests, start, stops, stream, include_usage, token_ids })
}

/// Refuses what would change the answer and is not there.
fn unsupported(fields: &Fields<'_>, endpoint: Endpoint) -> Result<(), ApiError> {
    let is = |numbers: &'static [f64]| move |value: &Value| value.as_f64().is_some_and(|n| numbers.contains(&n));
    let off = |value: &Value| value == &Value::Bool(false);
    let empty = |value: &Value| {
        value.as_object().is_some_and(serde_json::Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_str().is_some_and(str::is_empty)
    };
    for name in ["n", "best_of", "top_p", "repetition_penalty", "num_beams"] {
        fields.only(name, "1", is(&[1.0]))?;
    }
    for name in ["min_p", "presence_penalty", "frequency_penalty", "min_tokens", "top_logprobs", "length_penalty"] {
        fields.only(name, "0", is(&[0.0]))?;
    }
    fields.only("top_k", "-1 or 0", is(&[-1.0, 0.0]))?;
    for name in ["logprobs", "echo", "use_beam_search", "include_stop_str_in_output"] {
        fields.only(name, "false", off)?;
    }
    for name in ["logit_bias", "suffix", "bad_words", "functions", "prompt_logprobs", "truncate_prompt_tokens"] {
        fields.only(name, "nothing", empty)?;
    }
    let constraints =
        ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf"];
    for name in constraints {
        fields.only(name, "nothing", empty)?;
    }
    fields.only("response_format", "{\"type\": \"text\"}", |value| value["type"] == "text")?;
    fields.only("modalities", "[\"text\"]", |value| {
        value.as_array().is_some_and(|all| all.iter().all(|m| m == "text"))
    })?;
    let tools = "nothing, since tools are not supported yet";
    fields.only("tools", tools, empty)?;
    fields.only("tool_choice", "\"none\" or \"auto\", since tools are not supported yet", |v| {
        v == "none" || v == "auto"
    })?;
    match endpoint {
        Endpoint::Completions => fields.only("messages", "nothing: those go to /v1/chat/completions", |_| false),
        Endpoint::Chat => fields.only("prompt", "nothing: that goes to /v1/completions", |_| false),
    }
}

/// Tokens to generate at most, if the body says so.
fn limit(fields: &Fields<'_>, endpoint: Endpoint) -> Result<Option<u32>, ApiError> {
    let old = fields.u32("max_tokens", 1..=u32::MAX)?;
    let new = if endpoint == Endpoint::Chat { fields.u32("max_completion_tokens", 1..=u32::MAX)? } else { None };
    match (old, new) {
        (Some(a), Some(b)) if a != b => {
            Err(ApiError::field("max_completion_tokens", &format!("the same as max_tokens, {a}"), b))
        }
        (old, new) => Ok(new.or(old)),
    }
}

/// Tokens that a prompt leaves room for.
fn room(prompt: &[TokenId], limit: Option<u32>, endpoint: Endpoint, context: u32) -> Result<u32, ApiError> {
    let param = if endpoint == Endpoint::Chat { "messages" } else { "prompt" };
    if prompt.is_empty() {
        return Err(ApiError::field(param, "at least one token", "none"));
    }
    let left = u32::try_from(prompt.len()).ok().and_then(|len| context.checked_sub(len)).filter(|left| *left > 0);
    let Some(left) = left else {
        let expected = format!("fewer than {context} tokens (the context of this server)");
        return Err(ApiError::field(param, &expected, prompt.len()));
    };
    match limit {
        Some(limit) if limit > left => {
            let expected = format!("at most {left} (a context of {context} tokens, {} of them prompt)", prompt.len());
            Err(ApiError::field("max_tokens", &expected, limit))
        }
        Some(limit) => Ok(limit),
        None if endpoint == Endpoint::Chat => Ok(left),
        None => Ok(DEFAULT_TOKENS.min(left)),
    }
}

/// Any whole number of 64 bits.
fn seed_of(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.get("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| ApiError::field("seed", "a whole number of 64 bits", shown(value)))
}

fn token(value: &Value, served: &Served, name: impl Fn() -> String) -> Result<TokenId, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < served.vocab_size);
    id.map(TokenId)
        .ok_or_else(|| ApiError::field(&name(), &format!("a token id below {}", served.vocab_size), shown(value)))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let all = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(one @ Value::String(_)) => std::slice::from_ref(one),
        Some(Value::Array(all)) if all.len() <= MAX_STOPS => all,
        Some(other) => {
            return Err(ApiError::field("stop", &format!("a string or up to {MAX_STOPS} of them"), shown(other)));
        }
    };
    let read = |value: &Value| {
        let text = value.as_str().filter(|text| (1..=MAX_STOP_BYTES).contains(&text.len()));
        let expected = format!("strings of 1 to {MAX_STOP_BYTES} bytes");
        text.map(str::to_owned).ok_or_else(|| ApiError::field("stop", &expected, shown(value)))
    };
    all.iter().map(read).collect()
}

/// Prompts of a completion: a text, token ids, or a list of either.
fn texts(fields: &Fields<'_>, served: &Served) -> Result<Vec<Vec<TokenId>>, ApiError> {
    const EXPECTED: &str = "a string, token ids, or a list of strings or of token ids";
    let Some(prompt) = fields.get("prompt") else { return Err(ApiError::field("prompt", EXPECTED, "nothing")) };
    let text = |text: &str| encoded(served.tokenizer.encode(text));
    let ids = |ids: &[Value], name: &dyn Fn(usize) -> String| {
        ids.iter().enumerate().map(|(at, id)| token(id, served, || name(at))).collect::<Result<Vec<_>, _>>()
    };
    let all = match prompt {
        Value::String(one) => return Ok(vec![text(one)?]),
        Value::Array(all) if all.first().is_some_and(Value::is_number) => {
            return Ok(vec![ids(all, &|at| format!("prompt[{at}]"))?]);
        }
        Value::Array(all) if !all.is_empty() => all,
        other => return Err(ApiError::field("prompt", EXPECTED, shown(other))),
    };
    if all.len() > served.max_prompts {
        return Err(ApiError::field("prompt", &format!("at most {} prompts", served.max_prompts), all.len()));
    }
    let one = |(at, value): (usize, &Value)| match value {
        Value::String(one) => text(one),
        Value::Array(one) => ids(one, &|inner| format!("prompt[{at}][{inner}]")),
        other => Err(ApiError::field(&format!("prompt[{at}]"), "a string or token ids", shown(other))),
    };
    all.iter().enumerate().map(one).collect()
}

fn encoded(tokens: Result<Vec<TokenId>, engine::tokenizer::TokenizerError>) -> Result<Vec<TokenId>, ApiError> {
    tokens.map_err(|error| ApiError::invalid(error.to_string()))
}

/// The prompt of a chat, and where its answer begins.
fn conversation(fields: &Fields<'_>, served: &Served) -> Result<(Vec<TokenId>, Start), ApiError> {
    let thinking = thinking(fields)?;
    let all = fields.array("messages")?.filter(|all| !all.is_empty());
    let all = all.ok_or_else(|| ApiError::field("messages", "at least one message", "none"))?;
    let last = all.len() - 1;
    let messages = all.iter().enumerate().map(|(at, value)| message(value, &format!("messages[{at}]"), at == last));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let answers = match messages.last() {
        Some(Message::Assistant { content, prefix: true, .. }) => !content.is_empty(),
        _ => false,
    };
    let start = if thinking == Thinking::Off || answers { Start::Answer } else { Start::Reasoning };
    Ok((encoded(prompt::encode(&served.tokenizer, &prompt::render(&messages, thinking)))?, start))
}

/// An explicit switch decides, then the effort; without either the model thinks, as its makers have it.
fn thinking(fields: &Fields<'_>) -> Result<Thinking, ApiError> {
    let effort = match fields.str("reasoning_effort")? {
        None => None,
        Some("none") => Some(Thinking::Off),
        Some("minimal" | "low") => Some(Thinking::Low),
        Some("medium" | "high" | "xhigh") => Some(Thinking::High),
        Some("max" | "ultra") => Some(Thinking::Max),
        Some(other) => {
            let expected = "none, minimal, low, medium, high, xhigh, ultra or max";
            return Err(ApiError::field("reasoning_effort", expected, format!("{other:?}")));
        }
    };
    let mut switch = None;
    if let Some(value) = fields.get("thinking") {
        switch = match Fields::of(value, "thinking")?.str("type")? {
            Some("enabled" | "adaptive") => Some(true),
            Some("disabled") => Some(false),
            other => return Err(ApiError::field("thinking.type", "enabled or disabled", format!("{other:?}"))),
        };
    }
    if let Some(value) = fields.get("chat_template_kwargs") {
        let options = Fields::of(value, "chat_template_kwargs")?;
        switch = switch.or(options.bool("thinking")?).or(options.bool("enable_thinking")?);
    }
    Ok(match (switch, effort) {
        (Some(false), _) => Thinking::Off,
        (Some(true), None | Some(Thinking::Off)) | (None, None) => Thinking::High,
        (_, Some(effort)) => effort,
    })
}

fn message(value: &Value, path: &str, last: bool) -> Result<Message, ApiError> {
    const ROLES: &str = "system, developer, user, assistant or latest_reminder";
    let fields = Fields::of(value, path)?;
    let name = |field: &str| fields.name(field);
    let role = fields.str("role")?.ok_or_else(|| ApiError::field(&name("role"), ROLES, "nothing"))?;
    let content = content(&fields)?;
    let needed = |content: Option<String>| {
        content.ok_or_else(|| ApiError::field(&name("content"), "a string or a list of text parts", "nothing"))
    };
    match role {
        "system" | "developer" => Ok(Message::System(needed(content)?)),
        "user" => Ok(Message::User(needed(content)?)),
        "latest_reminder" => Ok(Message::Reminder(needed(content)?)),
        "assistant" => {
            let none = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
            fields.only("tool_calls", "nothing, since tools are not supported yet", none)?;
            let prefix = fields.bool("prefix")?.unwrap_or(false);
            if prefix && !last {
                return Err(ApiError::field(&name("prefix"), "false but in the last message", "true"));
            }
            let reasoning = fields.str("reasoning_content")?.map(str::to_owned);
            Ok(Message::Assistant { content: content.unwrap_or_default(), reasoning, prefix })
        }
        "tool" | "function" => {
            Err(ApiError::field(&name("role"), ROLES, format!("{role:?}: tools are not supported yet")))
        }
        other => Err(ApiError::field(&name("role"), ROLES, shown(&Value::String(other.to_owned())))),
    }
}

/// Text, or parts of text with a blank line between them.
fn content(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let wrong = |value: &Value| {
        let expected = "a string or a list of {\"type\": \"text\", \"text\": ..}";
        ApiError::field(&fields.name("content"), expected, shown(value))
    };
    match fields.get("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (Some(other), _) if other != "text" => Err(wrong(&part["type"])),
                _ => Err(wrong(part)),
            };
            Ok(Some(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n\n")))
        }
        Some(other) => Err(wrong(other)),
    }
}

#[cfg(test)]
mod tests;
