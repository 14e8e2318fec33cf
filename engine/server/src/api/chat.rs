//! The conversation of a chat request.

use super::Served;
use super::error::ApiError;
use super::fields::{Fields, shown};
use super::job::encoded;
use super::json::{Json, Object};
use super::prompt::{self, Conversation, Message, PastCall, Thinking};
use super::tools::{self, Offer};
use super::turn::Start;
use engine::ids::TokenId;

/// A chat as it was understood.
#[derive(Debug, Clone)]
pub struct Chat {
    /// Its prompt.
    pub prompt: Vec<TokenId>,
    /// Where its answer begins.
    pub start: Start,
    /// Tools that may be called.
    pub offer: Option<Offer>,
}

/// The chat of a body.
pub fn read(fields: &Fields<'_>, served: &Served) -> Result<Chat, ApiError> {
    let thinking = thinking(fields)?;
    let offer = tools::offer(fields, thinking)?;
    let messages = messages(fields)?;
    let demanded = offer.as_ref().is_some_and(|offer| offer.demand.is_some());
    let thinks = thinking != Thinking::Off;
    let start = match messages.last() {
        Some(Message::Assistant { prefix: true, .. }) if offer.is_some() => {
            let name = format!("messages[{}].prefix", messages.len() - 1);
            return Err(ApiError::field(&name, "false beside tools", "true"));
        }
        Some(Message::Assistant { content, prefix: true, .. }) if !content.is_empty() => Start::Within,
        Some(Message::Assistant { reasoning: Some(reasoning), prefix: true, .. })
            if thinks && !reasoning.is_empty() =>
        {
            Start::WithinReasoning
        }
        _ if demanded => Start::Calls,
        _ if thinks => Start::Reasoning,
        _ => Start::Answer,
    };
    let tools = offer.as_ref().map_or(&[][..], |offer| &offer.tools);
    let conversation = Conversation { messages: &messages, tools, demanded, thinking };
    let prompt = encoded(prompt::encode(&served.tokenizer, &prompt::render(&conversation)))?;
    Ok(Chat { prompt, start, offer })
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

/// The messages. Behind one with calls stand their results, one each, and results stand nowhere else.
fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let all = fields.array("messages")?.filter(|all| !all.is_empty());
    let all = all.ok_or_else(|| ApiError::field("messages", "at least one message", "none"))?;
    let mut messages = Vec::with_capacity(all.len());
    // Ids of calls without a result.
    let mut open: Vec<String> = Vec::new();
    for (at, value) in all.iter().enumerate() {
        let path = format!("messages[{at}]");
        let message = message(value, &path, at + 1 == all.len())?;
        match &message {
            Message::Tool { id, .. } => match open.iter().position(|call| call == id) {
                Some(call) => _ = open.swap_remove(call),
                None => {
                    let expected = "the id of a call that the message before has made and that has no result";
                    return Err(ApiError::field(&format!("{path}.tool_call_id"), expected, format!("{id:?}")));
                }
            },
            _ if !open.is_empty() => return Err(unanswered(&path, &open)),
            Message::Assistant { calls, .. } => open = calls.iter().map(|call| call.id.clone()).collect(),
            _ => {}
        }
        messages.push(message);
    }
    if open.is_empty() { Ok(messages) } else { Err(unanswered("messages", &open)) }
}

fn unanswered(path: &str, open: &[String]) -> ApiError {
    ApiError::field(path, &format!("a tool message with the result of call {:?}", open[0]), "another or none")
}

fn message(value: &Json, path: &str, last: bool) -> Result<Message, ApiError> {
    const ROLES: &str = "system, developer, user, assistant, tool or latest_reminder";
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
        "tool" => {
            let id = fields.str("tool_call_id")?;
            let id = id.ok_or_else(|| ApiError::field(&name("tool_call_id"), "the id of a call", "nothing"))?;
            Ok(Message::Tool { id: id.to_owned(), text: needed(content)? })
        }
        "assistant" => {
            fields.only("function_call", "nothing: tool_calls has taken its place", |_| false)?;
            let calls = calls(&fields)?;
            let prefix = fields.bool("prefix")?.unwrap_or(false);
            if prefix && !last {
                return Err(ApiError::field(&name("prefix"), "false but in the last message", "true"));
            }
            let reasoning = fields.str("reasoning_content")?.map(str::to_owned);
            Ok(Message::Assistant { content: content.unwrap_or_default(), reasoning, calls, prefix })
        }
        other => Err(ApiError::field(&name("role"), ROLES, shown(&Json::String(other.to_owned())))),
    }
}

/// Text, or parts of text with a blank line between them.
fn content(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let wrong = |value: &Json| {
        let expected = "a string or a list of {\"type\": \"text\", \"text\": ..}";
        ApiError::field(&fields.name("content"), expected, shown(value))
    };
    match fields.get("content") {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone())),
        Some(Json::Array(parts)) => {
            let text = |part: &Json| match (part.field("type"), part.field("text").and_then(Json::as_str)) {
                (Some(Json::String(kind)), Some(text)) if kind == "text" => Ok(text.to_owned()),
                (Some(kind @ Json::String(word)), _) if word != "text" => Err(wrong(kind)),
                _ => Err(wrong(part)),
            };
            Ok(Some(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n\n")))
        }
        Some(other) => Err(wrong(other)),
    }
}

/// The calls of an earlier answer.
fn calls(fields: &Fields<'_>) -> Result<Vec<PastCall>, ApiError> {
    let mut calls: Vec<PastCall> = Vec::new();
    for (at, value) in fields.array("tool_calls")?.into_iter().flatten().enumerate() {
        let path = format!("{}[{at}]", fields.name("tool_calls"));
        let call = call(&Fields::of(value, &path)?)?;
        if calls.iter().any(|other| other.id == call.id) {
            let got = format!("{:?} again", call.id);
            return Err(ApiError::field(&format!("{path}.id"), "an id that no other call has", got));
        }
        calls.push(call);
    }
    Ok(calls)
}

fn call(fields: &Fields<'_>) -> Result<PastCall, ApiError> {
    fn text<'a>(fields: &Fields<'a>, field: &str) -> Result<&'a str, ApiError> {
        fields.str(field)?.ok_or_else(|| ApiError::field(&fields.name(field), "a string", "nothing"))
    }
    let path = fields.name("function");
    let function = fields.get("function").ok_or_else(|| ApiError::field(&path, "an object", "nothing"))?;
    let function = Fields::of(function, &path)?;
    let arguments = text(&function, "arguments")?;
    // As the makers of the model have it: what is no object is one argument of that name.
    let arguments = match serde_json::from_str(arguments) {
        Ok(Json::Object(object)) => object,
        _ => Object::from_iter([("arguments".to_owned(), Json::String(arguments.to_owned()))]),
    };
    Ok(PastCall { id: text(fields, "id")?.to_owned(), name: text(&function, "name")?.to_owned(), arguments })
}
