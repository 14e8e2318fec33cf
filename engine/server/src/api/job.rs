//! Bodies to requests. Unknown fields are ignored, as clients send many that concern others; a known field that would change
//! the answer and is not supported is refused by name, unless its value is the one that changes nothing.

use super::chat::{self, Chat};
use super::error::ApiError;
use super::fields::{Fields, shown};
use super::json::{Json, Object};
use super::tools::Offer;
use super::turn::Start;
use super::{Endpoint, Served};
use engine::ids::TokenId;
use engine::sequence::Request;
use engine::step::Sampling;
use std::sync::Arc;

/// Stop strings of a request at most.
const MAX_STOPS: usize = 16;
/// Bytes of a stop string at most.
const MAX_STOP_BYTES: usize = 1024;
/// Tokens of a completion that does not say how many.
const DEFAULT_TOKENS: u32 = 16;

/// A request as it was understood.
#[derive(Debug, Clone)]
pub struct Job {
    /// The texts: of each prompt as many as were asked for.
    pub requests: Vec<Request>,
    /// Where each text begins.
    pub start: Start,
    /// Tools that may be called.
    pub offer: Option<Arc<Offer>>,
    /// Stop strings.
    pub stops: Vec<String>,
    /// Answer as events.
    pub stream: bool,
    /// With the usage at their end.
    pub include_usage: bool,
    /// With the tokens beside the text.
    pub token_ids: bool,
}

fn json(body: &[u8]) -> Result<Json, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("body: {error}")))
}

/// The fields of a body that is for this model.
fn fields<'a>(body: &'a Json, served: &Served) -> Result<Fields<'a>, ApiError> {
    let fields = Fields::of(body, "")?;
    fields.str("model")?.map_or(Ok(()), |name| served.known(name))?;
    Ok(fields)
}

/// The tokens of the prompt or of the messages of a body.
pub fn tokens(served: &Served, body: &[u8]) -> Result<Vec<TokenId>, ApiError> {
    let body = json(body)?;
    let fields = fields(&body, served)?;
    fields.only("add_special_tokens", "false, as in completions", |value| value == &Json::Bool(false))?;
    if fields.get("messages").is_some() {
        fields.only("prompt", "nothing beside messages", |_| false)?;
        return Ok(chat::read(&fields, served)?.prompt);
    }
    let prompt = fields.str("prompt")?.ok_or_else(|| ApiError::field("prompt", "a string, or messages", "nothing"))?;
    encoded(served.tokenizer.encode(prompt))
}

/// The text of the tokens of a body.
pub fn text(served: &Served, body: &[u8]) -> Result<String, ApiError> {
    let body = json(body)?;
    let fields = fields(&body, served)?;
    let ids = fields.array("tokens")?.ok_or_else(|| ApiError::field("tokens", "an array of token ids", "nothing"))?;
    let id = |(at, id): (usize, &Json)| token(id, served, || format!("tokens[{at}]"));
    let ids = ids.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
    served.tokenizer.decode(&ids).map_err(|error| ApiError::invalid(error.to_string()))
}

/// Reads a body. `seed` is taken where the body has none.
pub fn read(endpoint: Endpoint, served: &Served, body: &[u8], seed: u64) -> Result<Job, ApiError> {
    let body = json(body)?;
    let fields = fields(&body, served)?;
    unsupported(&fields, endpoint)?;
    let (prompts, start, offer) = match endpoint {
        Endpoint::Completions => (texts(&fields, served)?, Start::Plain, None),
        Endpoint::Chat => {
            let Chat { prompt, start, offer } = chat::read(&fields, served)?;
            (vec![prompt], start, offer.map(Arc::new))
        }
    };
    let n = copies(&fields, prompts.len(), served)?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    let include_usage = match fields.get("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(ApiError::field("stream_options", "stream to be true beside it", "a request without a stream"));
        }
        Some(options) => {
            let options = Fields::of(options, "stream_options")?;
            options.only("continuous_usage_stats", "false", |value| value == &Json::Bool(false))?;
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
    let prompts = prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt, n));
    let requests = prompts.enumerate().map(|(at, prompt)| {
        let max_tokens = room(&prompt, limit, endpoint, served.context)?;
        // Equal prompts of one request are different samples.
        let sampling = Sampling { seed: sampling.seed.wrapping_add(at as u64), ..sampling };
        Ok(Request { prompt, max_tokens, stop: stop.clone(), sampling })
    });
    let requests = requests.collect::<Result<_, ApiError>>()?;
    let token_ids = fields.bool("return_token_ids")?.unwrap_or(false);
    Ok(Job { requests, start, offer, stops, stream, include_usage, token_ids })
}

/// Refuses what would change the answer and is not there.
fn unsupported(fields: &Fields<'_>, endpoint: Endpoint) -> Result<(), ApiError> {
    let is = |numbers: &'static [f64]| move |value: &Json| value.as_f64().is_some_and(|n| numbers.contains(&n));
    let off = |value: &Json| value == &Json::Bool(false);
    let empty = |value: &Json| {
        value.as_object().is_some_and(Object::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_str().is_some_and(str::is_empty)
    };
    for name in ["best_of", "top_p", "repetition_penalty", "num_beams"] {
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
    let text = |value: &Json| value.as_str() == Some("text");
    fields.only("response_format", "{\"type\": \"text\"}", |value| value.field("type").is_some_and(text))?;
    fields.only("modalities", "[\"text\"]", |value| value.as_array().is_some_and(|all| all.iter().all(text)))?;
    match endpoint {
        Endpoint::Completions => {
            fields.only("tools", "nothing: those go to /v1/chat/completions", empty)?;
            fields.only("messages", "nothing: those go to /v1/chat/completions", |_| false)
        }
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

/// Texts of each prompt.
fn copies(fields: &Fields<'_>, prompts: usize, served: &Served) -> Result<usize, ApiError> {
    let n = fields.u32("n", 1..=u32::MAX)?.unwrap_or(1) as usize;
    let most = served.max_prompts / prompts.max(1);
    if n > 1 && n > most {
        return Err(ApiError::field("n", &format!("at most {most} texts of each of {prompts} prompts"), n));
    }
    Ok(n)
}

/// Any whole number of 64 bits.
fn seed_of(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.get("seed") else { return Ok(None) };
    let seed = value.as_number().and_then(|seed| seed.as_u64().or(seed.as_i64().map(i64::cast_unsigned)));
    seed.map(Some).ok_or_else(|| ApiError::field("seed", "a whole number of 64 bits", shown(value)))
}

fn token(value: &Json, served: &Served, name: impl Fn() -> String) -> Result<TokenId, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < served.vocab_size);
    id.map(TokenId)
        .ok_or_else(|| ApiError::field(&name(), &format!("a token id below {}", served.vocab_size), shown(value)))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let all = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(one @ Json::String(_)) => std::slice::from_ref(one),
        Some(Json::Array(all)) if all.len() <= MAX_STOPS => all,
        Some(other) => {
            return Err(ApiError::field("stop", &format!("a string or up to {MAX_STOPS} of them"), shown(other)));
        }
    };
    let read = |value: &Json| {
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
    let ids = |ids: &[Json], name: &dyn Fn(usize) -> String| {
        ids.iter().enumerate().map(|(at, id)| token(id, served, || name(at))).collect::<Result<Vec<_>, _>>()
    };
    let all = match prompt {
        Json::String(one) => return Ok(vec![text(one)?]),
        Json::Array(all) if all.first().is_some_and(|first| first.as_number().is_some()) => {
            return Ok(vec![ids(all, &|at| format!("prompt[{at}]"))?]);
        }
        Json::Array(all) if !all.is_empty() => all,
        other => return Err(ApiError::field("prompt", EXPECTED, shown(other))),
    };
    if all.len() > served.max_prompts {
        return Err(ApiError::field("prompt", &format!("at most {} prompts", served.max_prompts), all.len()));
    }
    let one = |(at, value): (usize, &Json)| match value {
        Json::String(one) => text(one),
        Json::Array(one) => ids(one, &|inner| format!("prompt[{at}][{inner}]")),
        other => Err(ApiError::field(&format!("prompt[{at}]"), "a string or token ids", shown(other))),
    };
    all.iter().enumerate().map(one).collect()
}

/// Tokens, or an error of the client's: the text cannot be encoded.
pub(super) fn encoded(
    tokens: Result<Vec<TokenId>, engine::tokenizer::TokenizerError>,
) -> Result<Vec<TokenId>, ApiError> {
    tokens.map_err(|error| ApiError::invalid(error.to_string()))
}

#[cfg(test)]
mod tests;
