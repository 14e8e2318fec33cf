//! Chat messages to a DeepSeek-V4 prompt: plain text between markers that are special tokens. Text of a message that spells a
//! marker stays text.

use super::text::THINK_END;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Moved to the front.
    System(String),
    /// A question.
    User(String),
    /// An earlier answer, or the beginning of the next one.
    Assistant {
        /// The answer.
        content: String,
        /// Written only where the answer is continued: earlier reasoning is forgotten.
        reasoning: Option<String>,
        /// The last message, to be continued.
        prefix: bool,
    },
    /// A reminder behind the conversation.
    Reminder(String),
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

    /// The model's own words, grounding markers in them.
    fn own(&mut self, mut text: &str) {
        while let Some((at, marker)) = GROUNDING.iter().filter_map(|m| Some((text.find(m)?, *m))).min() {
            self.text(&text[..at]);
            self.marker(marker);
            text = &text[at + marker.len()..];
        }
        self.text(text);
    }
}

/// The prompt of a conversation.
pub fn render(messages: &[Message], thinking: Thinking) -> Vec<Segment> {
    let mut prompt = Prompt::default();
    prompt.marker(BOS);
    prompt.text(match thinking {
        Thinking::Off | Thinking::Low => "",
        Thinking::High => EFFORT_HIGH,
        Thinking::Max => EFFORT_MAX,
    });
    let system = messages.iter().filter_map(|message| match message {
        Message::System(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    });
    prompt.text(&system.collect::<Vec<_>>().join("\n\n"));
    let others: Vec<&Message> = messages.iter().filter(|message| !matches!(message, Message::System(_))).collect();
    let thinks = thinking != Thinking::Off;
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
                prompt.marker(USER);
                prompt.text(&texts.iter().copied().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n"));
                at += texts.len() - 1;
            }
            Message::Assistant { content, reasoning, prefix } => {
                prompt.marker(ASSISTANT);
                if *prefix && thinks {
                    prompt.marker(THINK);
                    prompt.own(reasoning.as_deref().unwrap_or_default());
                }
                if !thinks || !*prefix || !content.is_empty() {
                    prompt.marker(THINK_END);
                }
                prompt.own(content);
                if !*prefix {
                    prompt.marker(EOS);
                }
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
