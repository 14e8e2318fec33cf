//! Chat messages to a DeepSeek-V4 prompt: plain text between markers that are special tokens. Text of a message that spells a
//! marker stays text.

mod tools;

use super::json::Object;
use super::marker::{DSML, THINK_END};
use super::tools::Tool;
use engine::ids::TokenId;
use engine::tokenizer::{Tokenizer, TokenizerError};

const BOS: &str = "<｜begin▁of▁sentence｜>";
const EOS: &str = "<｜end▁of▁sentence｜>";
const USER: &str = "<｜User｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const REMINDER: &str = "<｜latest_reminder｜>";
const THINK: &str = "<think>";

/// Markers that a model's own words may contain.
const GROUNDING: [&str; 8] = [
    "<｜ref｜>",
    "<｜/ref｜>",
    "<｜box｜>",
    "<｜/box｜>",
    "<｜point｜>",
    "<｜/point｜>",
    "<｜polygon｜>",
    "<｜/polygon｜>",
];

const EFFORT_HIGH: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously \
stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and \
rejected hypothesis to ensure absolutely no assumption is left unchecked.

";
const EFFORT_MAX: &str = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem \
into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any \
surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no \
assumption remains unchecked and no error remains undiscovered.

";

/// How much the model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// Not at all.
    Off,
    /// Without a word about it.
    Low,
    /// With the usual instruction.
    High,
    /// With the strongest.
    Max,
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Moved to the front.
    System(String),
    /// A question.
    User(String),
    /// An earlier answer, or the beginning of the next one.
    Assistant {
        /// The answer.
        content: String,
        /// Written where the answer is continued or tools are offered; otherwise earlier reasoning is forgotten.
        reasoning: Option<String>,
        /// What it called.
        calls: Vec<PastCall>,
        /// The last message, to be continued.
        prefix: bool,
    },
    /// The result of a call of the answer before.
    Tool {
        /// Of the call.
        id: String,
        /// The result.
        text: String,
    },
    /// A reminder behind the conversation.
    Reminder(String),
}

/// A call of an earlier answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PastCall {
    /// Its id; calls of a message and their results are written in the order of ids.
    pub id: String,
    /// Of the tool.
    pub name: String,
    /// Arguments by name.
    pub arguments: Object,
}

/// A conversation that the model goes on with.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// What was said.
    pub messages: &'a [Message],
    /// Tools that may be called.
    pub tools: &'a [Tool],
    /// Whether one must be called: the prompt ends where the first call begins.
    pub demanded: bool,
    /// How much the model is asked to think.
    pub thinking: Thinking,
}

/// Text of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Text.
    pub text: String,
    /// Whether it is a marker.
    pub marker: bool,
}

#[derive(Default)]
struct Prompt(Vec<Segment>);

impl Prompt {
    fn marker(&mut self, text: &str) {
        self.0.push(Segment { text: text.to_owned(), marker: true });
    }

    /// Neighbouring texts are one text, because their tokens may join.
    fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(last) if !last.marker => last.text += text,
            _ if text.is_empty() => {}
            _ => self.0.push(Segment { text: text.to_owned(), marker: false }),
        }
    }

    /// A text in which those markers are markers.
    fn marked(&mut self, mut text: &str, markers: &[&str]) {
        while let Some((at, marker)) = markers.iter().filter_map(|m| Some((text.find(m)?, *m))).min() {
            self.text(&text[..at]);
            self.marker(marker);
            text = &text[at + marker.len()..];
        }
        self.text(text);
    }

    /// The model's own words.
    fn own(&mut self, text: &str) {
        self.marked(text, &GROUNDING);
    }

    fn system(&mut self, conversation: &Conversation<'_>) {
        self.text(match conversation.thinking {
            Thinking::Off | Thinking::Low => "",
            Thinking::High => EFFORT_HIGH,
            Thinking::Max => EFFORT_MAX,
        });
        let system = conversation.messages.iter().filter_map(|message| match message {
            Message::System(text) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        });
        self.text(&system.collect::<Vec<_>>().join("\n\n"));
        if !conversation.tools.is_empty() {
            self.tools(conversation.tools);
        }
    }

    fn assistant(&mut self, message: &Assistant<'_>, thinks: bool, remembers: bool) {
        self.marker(ASSISTANT);
        if thinks && (message.prefix || remembers) {
            self.marker(THINK);
            self.own(message.reasoning);
        }
        if !thinks || !message.prefix || !message.content.is_empty() {
            self.marker(THINK_END);
        }
        self.own(message.content);
        self.calls(message.calls);
        if !message.prefix {
            self.marker(EOS);
        }
    }
}

struct Assistant<'a> {
    content: &'a str,
    reasoning: &'a str,
    calls: &'a [PastCall],
    prefix: bool,
}

/// The prompt of a conversation.
pub fn render(conversation: &Conversation<'_>) -> Vec<Segment> {
    let mut prompt = Prompt::default();
    prompt.marker(BOS);
    prompt.system(conversation);
    let thinks = conversation.thinking != Thinking::Off;
    let others = conversation.messages.iter().filter(|message| !matches!(message, Message::System(_)));
    let others: Vec<&Message> = others.collect();
    let mut at = 0;
    while at < others.len() {
        match others[at] {
            Message::System(_) => {}
            Message::User(_) => {
                // Adjacent messages are one, a blank line between what they say.
                let run = others[at..].iter().map_while(|message| match message {
                    Message::User(text) => Some(text.as_str()),
                    _ => None,
                });
                let texts: Vec<&str> = run.collect();
                match at.checked_sub(1).map(|before| others[before]) {
                    Some(Message::Tool { .. }) => prompt.text("\n\n"),
                    _ => prompt.marker(USER),
                }
                prompt.text(&texts.iter().copied().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n"));
                at += texts.len() - 1;
            }
            Message::Tool { .. } => {
                let run = others[at..].iter().map_while(|message| match message {
                    Message::Tool { id, text } => Some((id.as_str(), text.as_str())),
                    _ => None,
                });
                let mut results: Vec<(&str, &str)> = run.collect();
                at += results.len() - 1;
                results.sort_by_key(|(id, _)| *id);
                prompt.marker(USER);
                let results = results.iter().map(|(_, text)| format!("<tool_result>{text}</tool_result>"));
                prompt.text(&results.collect::<Vec<_>>().join("\n\n"));
            }
            Message::Assistant { content, reasoning, calls, prefix } => {
                let reasoning = reasoning.as_deref().unwrap_or_default();
                let message = Assistant { content, reasoning, calls, prefix: *prefix };
                prompt.assistant(&message, thinks, !conversation.tools.is_empty());
            }
            Message::Reminder(text) => {
                prompt.marker(REMINDER);
                prompt.text(text);
            }
        }
        at += 1;
    }
    if !matches!(others.last(), Some(Message::Assistant { prefix: true, .. })) {
        prompt.marker(ASSISTANT);
        prompt.marker(if thinks { THINK } else { THINK_END });
    }
    if conversation.demanded {
        prompt.marked(&format!("\n\n<{DSML}tool_calls>\n"), &[DSML]);
    }
    prompt.0
}

/// The tokens of a prompt. A marker that the vocabulary does not have is spelled.
pub fn encode(tokenizer: &Tokenizer, segments: &[Segment]) -> Result<Vec<TokenId>, TokenizerError> {
    let mut tokens = Vec::new();
    for segment in segments {
        match tokenizer.marker(&segment.text).filter(|_| segment.marker) {
            Some(token) => tokens.push(token),
            None => tokens.extend(tokenizer.encode_unmarked(&segment.text)?),
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests;
