//! Tool calls in DSML, the markup that the model writes them in:
//!
//! ```text
//! <｜DSML｜tool_calls>
//! <｜DSML｜invoke name="NAME">
//! <｜DSML｜parameter name="KEY" string="true">text as it is</｜DSML｜parameter>
//! <｜DSML｜parameter name="KEY" string="false">JSON</｜DSML｜parameter>
//! </｜DSML｜invoke>
//! </｜DSML｜tool_calls>
//! ```
//!
//! Every tag holds the marker, so text never becomes a tag by its looks. The names of the outer tags do not matter, text between
//! tags is dropped, and a tag that is missing is implied by the next one. What goes out is JSON at every complete call.

mod tag;

use self::tag::{attribute, may_be_ours, name, tag_end};
use super::json::{Json, Object, escaped};
use super::marker::DSML;
use super::tools::Offer;
use super::turn::{End, Piece, add};
use std::collections::HashSet;
use std::sync::Arc;

/// Reads calls.
#[derive(Debug)]
pub(super) struct Calls {
    offer: Option<Arc<Offer>>,
    state: State,
    /// `<` or `</` at the end of the text so far: what a marker behind it makes of it is not known yet.
    tail: String,
    call: Option<Call>,
    begun: usize,
    /// The text ended in the tag of a call or a parameter.
    cut: bool,
}

#[derive(Debug)]
enum State {
    /// Between tags.
    Between,
    /// Behind the marker of a tag.
    Tag(Tag),
    /// In the value of a parameter of the call.
    Value(Value),
}

#[derive(Debug)]
struct Tag {
    text: String,
    kind: TagKind,
}

#[derive(Debug)]
enum TagKind {
    Opens,
    /// In a value that goes on if this is none of our tags.
    OpensInValue(Value),
    Closes,
    /// It has ended a value.
    ClosesValue,
}

#[derive(Debug)]
enum Value {
    /// Handed out as it comes.
    String,
    /// Kept until it is known whether it is JSON.
    Json { key: String, text: String },
    /// Of a key that is there already, which may have been handed out.
    Dropped,
}

#[derive(Debug)]
struct Call {
    index: usize,
    name: String,
    keys: HashSet<String>,
    /// Whether the object was begun.
    written: bool,
    /// An object under a key that the tool does not have: the arguments themselves, if nothing follows.
    wrapped: Option<(String, String)>,
    /// Text before the first parameter, which may be all arguments as one object.
    body: String,
}

impl Call {
    fn say(&self, text: String, out: &mut Vec<Piece>) {
        add(Piece::Arguments { index: self.index, text }, out);
    }

    /// `{"key": ` or `, "key": `
    fn key(&mut self, key: &str) -> String {
        let before = if std::mem::replace(&mut self.written, true) { ", " } else { "{" };
        format!("{before}\"{}\": ", escaped(key))
    }

    /// What was taken for all arguments is one of them.
    fn unwrap_not(&mut self, out: &mut Vec<Piece>) {
        if let Some((key, text)) = self.wrapped.take() {
            let text = self.key(&key) + &text;
            self.say(text, out);
        }
    }

    fn close(mut self, out: &mut Vec<Piece>) {
        let body = self.body.trim();
        let rest = match self.wrapped.take() {
            Some((_, object)) => object.trim().to_owned(),
            None if self.written => "}".to_owned(),
            None if object(body).is_some() => body.to_owned(),
            None => "{}".to_owned(),
        };
        self.say(rest, out);
    }
}

impl Calls {
    /// Between tags of a block, with the tools that are known.
    pub(super) fn new(offer: Option<Arc<Offer>>) -> Self {
        Self { offer, state: State::Between, tail: String::new(), call: None, begun: 0, cut: false }
    }

    /// Whether every call is complete; `None` before the first.
    pub(super) fn complete(&self) -> Option<bool> {
        (self.begun > 0 || self.cut).then_some(self.call.is_none() && !self.cut)
    }

    /// Calls that are complete.
    pub(super) fn completed(&self) -> usize {
        self.begun - usize::from(self.call.is_some())
    }

    /// Text.
    pub(super) fn text(&mut self, text: &str, out: &mut Vec<Piece>) {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Tag(mut tag) => {
                tag.text += text;
                self.tag(tag, out);
            }
            State::Value(value) => {
                let text = self.without_tail(text);
                self.state = State::Value(self.value(value, &text, out));
            }
            State::Between => {
                let text = self.without_tail(text);
                if let Some(call) = &mut self.call
                    && call.keys.is_empty()
                {
                    call.body += &text;
                }
            }
        }
    }

    /// The marker.
    pub(super) fn marker(&mut self, out: &mut Vec<Piece>) {
        let tail = std::mem::take(&mut self.tail);
        let closes = tail == "</";
        let kind = match std::mem::replace(&mut self.state, State::Between) {
            State::Between if closes => TagKind::Closes,
            State::Between => TagKind::Opens,
            State::Value(value) if closes => {
                self.end_value(value, out);
                TagKind::ClosesValue
            }
            State::Value(value) if tail.is_empty() => {
                self.state = State::Value(self.value(value, DSML, out));
                return;
            }
            State::Value(value) => TagKind::OpensInValue(value),
            State::Tag(mut tag) => {
                // The tag before has no end; this marker is behind it.
                let text = std::mem::take(&mut tag.text);
                tag.text = self.without_tail(&text);
                self.resolve(tag, out);
                return self.marker(out);
            }
        };
        self.state = State::Tag(Tag { text: String::new(), kind });
    }

    /// Nothing follows.
    pub(super) fn finish(&mut self, end: End, out: &mut Vec<Piece>) {
        let tail = std::mem::take(&mut self.tail);
        match std::mem::replace(&mut self.state, State::Between) {
            State::Tag(tag) => match tag.kind {
                TagKind::Closes => self.close(out),
                TagKind::OpensInValue(value) => return self.cut(value, out),
                TagKind::Opens => self.cut = end == End::Said && !name(&tag.text).is_empty() && may_be_ours(&tag.text),
                TagKind::ClosesValue => {}
            },
            State::Value(value) => {
                let value = self.value(value, &tail, out);
                return self.cut(value, out);
            }
            State::Between => {}
        }
        match (&mut self.call, end) {
            (None, _) => {}
            (Some(_), End::Said) if !self.cut => self.close(out),
            (Some(call), _) => {
                call.unwrap_not(out);
                let body = call.body.trim_start();
                if !call.written && body.starts_with('{') {
                    call.say(body.to_owned(), out);
                }
            }
        }
    }

    /// The text so far without `<` or `</` at its end, which becomes the tail.
    fn without_tail(&mut self, text: &str) -> String {
        let mut all = std::mem::take(&mut self.tail) + text;
        let tail = ["</", "<"].into_iter().find(|tail| all.ends_with(tail)).unwrap_or("");
        self.tail = tail.to_owned();
        all.truncate(all.len() - tail.len());
        all
    }

    /// A tag with more of its text.
    fn tag(&mut self, tag: Tag, out: &mut Vec<Piece>) {
        let ours = !matches!(tag.kind, TagKind::OpensInValue(_)) || may_be_ours(&tag.text);
        match tag_end(&tag.text, matches!(tag.kind, TagKind::Closes | TagKind::ClosesValue)) {
            Some(end) if ours => {
                let (text, rest) = tag.text.split_at(end);
                let rest = rest.to_owned();
                self.resolve(Tag { text: text.to_owned(), kind: tag.kind }, out);
                self.text(&rest, out);
            }
            None if ours => self.state = State::Tag(tag),
            _ => {
                let Tag { text, .. } = &tag;
                let text = text.clone();
                self.resolve(Tag { text: String::new(), kind: tag.kind }, out);
                self.text(&text, out);
            }
        }
    }

    /// Does what a tag says.
    fn resolve(&mut self, tag: Tag, out: &mut Vec<Piece>) {
        let text = tag.text.as_str();
        let value = match tag.kind {
            TagKind::Closes if name(text) == "parameter" => return,
            TagKind::Closes => return self.close(out),
            TagKind::ClosesValue if ["invoke", "tool_calls", "function_calls", "calls"].contains(&name(text)) => {
                return self.close(out);
            }
            TagKind::ClosesValue => return,
            TagKind::Opens => None,
            TagKind::OpensInValue(value) => Some(value),
        };
        match (name(text), value) {
            ("invoke", value) => {
                value.into_iter().for_each(|value| self.end_value(value, out));
                self.open(text, out);
            }
            ("parameter", value) => {
                value.into_iter().for_each(|value| self.end_value(value, out));
                self.begin_value(text, out);
            }
            (_, Some(value)) => {
                let value = self.value(value, &format!("<{DSML}{}", tag.text), out);
                self.state = State::Value(value);
            }
            (_, None) => {}
        }
    }

    fn open(&mut self, tag: &str, out: &mut Vec<Piece>) {
        self.close(out);
        if self.begun > 0 && self.offer.as_ref().is_some_and(|offer| !offer.parallel) {
            return;
        }
        let Some(name) = attribute(tag, "name").filter(|name| !name.is_empty()) else { return };
        let (index, name) = (self.begun, name.to_owned());
        self.begun += 1;
        out.push(Piece::Call { index, name: name.clone() });
        let (keys, body) = (HashSet::new(), String::new());
        self.call = Some(Call { index, name, keys, written: false, wrapped: None, body });
        if tag.trim_end_matches('>').ends_with('/') {
            self.close(out);
        }
    }

    fn close(&mut self, out: &mut Vec<Piece>) {
        if let Some(call) = self.call.take() {
            call.close(out);
        }
    }

    fn begin_value(&mut self, tag: &str, out: &mut Vec<Piece>) {
        let Some(call) = &mut self.call else { return };
        let value = match attribute(tag, "name") {
            Some(key) if call.keys.insert(key.to_owned()) => match attribute(tag, "string") {
                Some("true") => {
                    call.unwrap_not(out);
                    let begin = call.key(key) + "\"";
                    call.say(begin, out);
                    Value::String
                }
                _ => Value::Json { key: key.to_owned(), text: String::new() },
            },
            _ => Value::Dropped,
        };
        self.state = State::Value(value);
    }

    /// More of a value.
    fn value(&mut self, mut value: Value, more: &str, out: &mut Vec<Piece>) -> Value {
        match (&mut value, &self.call) {
            (Value::String, Some(call)) => call.say(escaped(more), out),
            (Value::Json { text, .. }, _) => *text += more,
            (Value::String, None) | (Value::Dropped, _) => {}
        }
        value
    }

    fn end_value(&mut self, value: Value, out: &mut Vec<Piece>) {
        let Some(call) = &mut self.call else { return };
        match value {
            Value::String => call.say("\"".to_owned(), out),
            Value::Dropped => {}
            Value::Json { key, text } => {
                let lone = call.keys.len() == 1 && (key == "arguments" || key == "input");
                let object = lone.then(|| object(&text)).flatten();
                let unwraps =
                    |object| self.offer.as_ref().is_some_and(|offer| offer.unwraps(&call.name, &key, &object));
                if object.is_some_and(unwraps) {
                    call.wrapped = Some((key, text));
                    return;
                }
                call.unwrap_not(out);
                // What is no JSON is text that was announced wrongly.
                let value = if is_value(&text) { text } else { format!("\"{}\"", escaped(&text)) };
                let member = call.key(&key) + &value;
                call.say(member, out);
            }
        }
    }

    /// The text ends in a value: what there is of it, and nothing that would make it look complete.
    fn cut(&mut self, value: Value, out: &mut Vec<Piece>) {
        if let (Value::Json { key, text }, Some(call)) = (value, &mut self.call) {
            call.unwrap_not(out);
            let member = call.key(&key) + &text;
            call.say(member, out);
        }
    }
}

/// The object that a text is.
fn object(text: &str) -> Option<Object> {
    match serde_json::from_str(text) {
        Ok(Json::Object(object)) => Some(object),
        _ => None,
    }
}

/// Whether a text is JSON, and still is inside an object: readers do not follow values to any depth.
fn is_value(text: &str) -> bool {
    let reads = |text: &str| serde_json::from_str::<Json>(text).is_ok();
    reads(text) && reads(&format!("[{text}]"))
}

#[cfg(test)]
mod tests;
