//! The tools that a request offers, and what it demands of their use.

use super::error::ApiError;
use super::fields::{Fields, shown};
use super::json::{Json, Object};
use super::prompt::Thinking;

/// Bytes of a name at most.
const MAX_NAME_BYTES: usize = 64;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// JSON schema of its arguments.
    pub parameters: Object,
}

/// What must be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// Any tool.
    Any,
    /// This one, which then is the only one offered.
    Named(String),
}

/// The tools of a request; at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Offered, in the order of the request.
    pub tools: Vec<Tool>,
    /// What must be called, if anything.
    pub demand: Option<Demand>,
    /// Whether the text goes on behind the first call.
    pub parallel: bool,
}

impl Offer {
    /// Whether that tool takes exactly such arguments as these but no argument called `key`: then an object under `key` is a
    /// wrapper around the arguments that the model has made up.
    pub fn unwraps(&self, tool: &str, key: &str, object: &Object) -> bool {
        let tool = self.tools.iter().find(|candidate| candidate.name == tool);
        let known = tool.and_then(|tool| tool.parameters.get("properties")?.as_object());
        known.is_some_and(|known| !known.contains_key(key) && object.keys().all(|name| known.contains_key(name)))
    }
}

/// The tools of a chat; `None` where none may be called.
pub fn offer(fields: &Fields<'_>, thinking: Thinking) -> Result<Option<Offer>, ApiError> {
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let mut tools: Vec<Tool> = Vec::new();
    for (at, value) in fields.array("tools")?.into_iter().flatten().enumerate() {
        let tool = tool(value, &format!("tools[{at}]"))?;
        if tools.iter().any(|other| other.name == tool.name) {
            let name = format!("tools[{at}].function.name");
            return Err(ApiError::field(&name, "a name that no other tool has", format!("{:?} again", tool.name)));
        }
        tools.push(tool);
    }
    let demand = match choice(fields)? {
        Choice::None => return Ok(None),
        Choice::Auto if tools.is_empty() => return Ok(None),
        Choice::Auto => None,
        Choice::Demand(demand) => Some(demand),
    };
    if let Some(demand) = &demand {
        if let Demand::Named(name) = demand {
            tools.retain(|tool| tool.name == *name);
        }
        if tools.is_empty() {
            let got = if let Demand::Named(name) = demand { format!("{name:?}") } else { "\"required\"".to_owned() };
            return Err(ApiError::field("tool_choice", "a tool of the request", got));
        }
        if thinking != Thinking::Off {
            let expected = "\"auto\" or \"none\" while the model thinks (reasoning_effort \"none\" switches that off)";
            return Err(ApiError::field("tool_choice", expected, "a tool that must be called"));
        }
    }
    Ok(Some(Offer { tools, demand, parallel }))
}

enum Choice {
    None,
    Auto,
    Demand(Demand),
}

fn choice(fields: &Fields<'_>) -> Result<Choice, ApiError> {
    const EXPECTED: &str = "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ..}}";
    match fields.get("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Json::String(word)) => match word.as_str() {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" => Ok(Choice::Demand(Demand::Any)),
            _ => Err(ApiError::field("tool_choice", EXPECTED, format!("{word:?}"))),
        },
        Some(value) => {
            let name = value.field("function").and_then(|function| function.field("name")?.as_str());
            let name = name.filter(|_| value.field("type").and_then(Json::as_str) == Some("function"));
            let name = name.ok_or_else(|| ApiError::field("tool_choice", EXPECTED, shown(value)))?;
            Ok(Choice::Demand(Demand::Named(name.to_owned())))
        }
    }
}

fn tool(value: &Json, path: &str) -> Result<Tool, ApiError> {
    let fields = Fields::of(value, path)?;
    if fields.str("type")? != Some("function") {
        let got = fields.get("type").map_or("nothing".to_owned(), shown);
        return Err(ApiError::field(&fields.name("type"), "\"function\"", got));
    }
    let path = fields.name("function");
    let function = fields
        .get("function")
        .ok_or_else(|| ApiError::field(&path, "an object with name and parameters", "nothing"))?;
    let fields = Fields::of(function, &path)?;
    let name = fields.str("name")?.unwrap_or_default();
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(letters) {
        let expected = format!("1 to {MAX_NAME_BYTES} letters, digits, _ and -");
        let got = fields.get("name").map_or("nothing".to_owned(), shown);
        return Err(ApiError::field(&fields.name("name"), &expected, got));
    }
    fields.only("strict", "false, since arguments are not constrained", |value| value == &Json::Bool(false))?;
    let parameters = match fields.get("parameters") {
        None => Object::new(),
        Some(Json::Object(schema)) => schema.clone(),
        Some(other) => {
            return Err(ApiError::field(&fields.name("parameters"), "a JSON schema, an object", shown(other)));
        }
    };
    let description = fields.str("description")?.unwrap_or_default().to_owned();
    Ok(Tool { name: name.to_owned(), description, parameters })
}
