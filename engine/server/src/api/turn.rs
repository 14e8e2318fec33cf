//! What a model says, taken apart: reasoning, answer, tool calls.

use super::dsml::Calls;
use super::marker::{Marker, THINK_END, Unit};
use super::stop::StopScanner;
use super::tools::Offer;
use std::sync::Arc;

/// A piece of an answer; its text is never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What the model says to itself.
    Reasoning(String),
    /// The answer.
    Content(String),
    /// A tool call begins.
    Call {
        /// Its number in the answer, from 0.
        index: usize,
        /// Of the tool; whether there is such a tool is not looked at.
        name: String,
    },
    /// More of the arguments of a call, which are a JSON object when the call is complete.
    Arguments {
        /// Number of the call.
        index: usize,
        /// JSON.
        text: String,
    },
}

/// Adds a piece, joined with the one before where both are of one kind.
pub(super) fn add(piece: Piece, out: &mut Vec<Piece>) {
    match (out.last_mut(), piece) {
        (_, Piece::Reasoning(text) | Piece::Content(text) | Piece::Arguments { text, .. }) if text.is_empty() => {}
        (Some(Piece::Reasoning(all)), Piece::Reasoning(text)) => *all += &text,
        (Some(Piece::Content(all)), Piece::Content(text)) => *all += &text,
        (Some(Piece::Arguments { index, text: all }), Piece::Arguments { index: at, text }) if *index == at => {
            *all += &text
        }
        (_, piece) => out.push(piece),
    }
}

/// Where a text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// A completion: everything is content, as it is.
    Plain,
    /// A chat turn that begins with reasoning.
    Reasoning,
    /// A chat turn that begins with the answer.
    Answer,
    /// A chat turn in the middle of its reasoning.
    WithinReasoning,
    /// A chat turn in the middle of its answer.
    Within,
    /// A chat turn in the middle of a block of tool calls.
    Calls,
}

impl Start {
    /// Whether there is reasoning beside the answer.
    pub const fn reasons(self) -> bool {
        matches!(self, Start::Reasoning | Start::WithinReasoning)
    }
}

/// How a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model has ended it.
    Said,
    /// It was cut off.
    Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Plain,
    Reasoning,
    Content,
    /// In a block of calls, or behind one, where text belongs to nobody.
    Calls,
    /// In a closing tag that closes nothing; then back.
    Stray {
        reasoning: bool,
        /// Nothing of its name has come.
        fresh: bool,
    },
}

/// A turn on its way from units to pieces. Newlines at the beginning of reasoning and answer, and before what follows either,
/// belong to neither. The end of reasoning inside the answer is swallowed. Stop strings count in the answer alone.
#[derive(Debug)]
pub struct Turn {
    stage: Stage,
    /// Whether this stage has said anything.
    begun: bool,
    /// What may belong to a marker that follows: newlines and the beginning of a tag.
    held: String,
    stop: StopScanner,
    stopped: bool,
    calls: Calls,
    /// Without tools, calls are dropped.
    offer: Option<Arc<Offer>>,
}

impl Turn {
    /// A turn that begins so.
    pub fn new(start: Start, stops: &[String], offer: Option<Arc<Offer>>) -> Self {
        let stage = match start {
            Start::Plain => Stage::Plain,
            Start::Reasoning | Start::WithinReasoning => Stage::Reasoning,
            Start::Answer | Start::Within => Stage::Content,
            Start::Calls => Stage::Calls,
        };
        let begun = matches!(start, Start::WithinReasoning | Start::Within);
        let (stop, calls) = (StopScanner::new(stops), Calls::new(offer.clone()));
        Self { stage, begun, held: String::new(), stop, stopped: false, calls, offer }
    }

    /// Whether nothing comes any more: a stop string was found, or the only call that is allowed is complete.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Whether every tool call is complete; `None` without any.
    pub fn called(&self) -> Option<bool> {
        self.offer.as_ref()?;
        self.calls.complete()
    }

    /// What a unit brings.
    pub fn push(&mut self, unit: &Unit, out: &mut Vec<Piece>) {
        if self.stopped {
            return;
        }
        match (self.stage, unit) {
            (Stage::Plain, Unit::Text(text)) => self.content(text, out),
            (Stage::Plain, Unit::Marker(marker)) => self.content(marker.spelling(), out),
            (Stage::Reasoning, Unit::Text(text)) => self.reasoning(text, out),
            (Stage::Content, Unit::Text(text)) => self.content(text, out),
            (Stage::Reasoning, Unit::Marker(Marker::ThinkEnd)) => {
                let held = std::mem::take(&mut self.held);
                self.say(held.trim_end_matches('\n'), out);
                (self.stage, self.begun) = (Stage::Content, false);
            }
            (Stage::Content, Unit::Marker(Marker::ThinkEnd)) => {}
            (Stage::Reasoning | Stage::Content, Unit::Marker(Marker::Dsml)) => self.markup(out),
            (Stage::Stray { reasoning, fresh }, unit) => self.stray(reasoning, fresh, unit, out),
            (Stage::Calls, Unit::Text(text)) => self.call(out, |calls, out| calls.text(text, out)),
            (Stage::Calls, Unit::Marker(Marker::ThinkEnd)) => self.call(out, |calls, out| calls.text(THINK_END, out)),
            (Stage::Calls, Unit::Marker(Marker::Dsml)) => self.call(out, Calls::marker),
        }
    }

    /// What was held back.
    pub fn finish(&mut self, end: End, out: &mut Vec<Piece>) {
        if self.stopped {
            return;
        }
        let rest = std::mem::take(&mut self.held) + &self.stop.finish();
        self.say(&rest, out);
        self.call(out, |calls, out| calls.finish(end, out));
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.held += if self.begun || !self.held.is_empty() { text } else { text.trim_start_matches('\n') };
        self.hold(out);
    }

    fn content(&mut self, text: &str, out: &mut Vec<Piece>) {
        let fresh = !self.begun && self.held.is_empty() && self.stage == Stage::Content && self.stop.is_empty();
        let (text, stopped) = self.stop.push(if fresh { text.trim_start_matches('\n') } else { text });
        self.held += &text;
        self.stopped = stopped;
        self.hold(out);
    }

    /// Says what cannot belong to a marker.
    fn hold(&mut self, out: &mut Vec<Piece>) {
        let keep = match self.stage {
            _ if self.stopped => 0,
            Stage::Plain => 0,
            _ => {
                let text = self.held.as_str();
                let text = text.strip_suffix("</").or_else(|| text.strip_suffix('<')).unwrap_or(text);
                self.held.len() - text.trim_end_matches('\n').len()
            }
        };
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        self.say(&text, out);
    }

    /// A tag begins: of a block of calls, or one that closes nothing.
    fn markup(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held) + &self.stop.finish();
        let (before, closes) = match held.strip_suffix("</") {
            Some(before) => (before, true),
            None => (held.strip_suffix('<').unwrap_or(&held), false),
        };
        self.say(before.trim_end_matches('\n'), out);
        if closes {
            self.stage = Stage::Stray { reasoning: self.stage == Stage::Reasoning, fresh: true };
        } else {
            self.stage = Stage::Calls;
            self.call(out, Calls::marker);
        }
    }

    /// Drops the name of a tag and its `>`, and nothing else.
    fn stray(&mut self, reasoning: bool, fresh: bool, unit: &Unit, out: &mut Vec<Piece>) {
        let back = if reasoning { Stage::Reasoning } else { Stage::Content };
        let Unit::Text(text) = unit else {
            self.stage = back;
            return self.push(unit, out);
        };
        let name = if fresh { text.strip_prefix(' ').unwrap_or(text) } else { text };
        let behind = name.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if behind.is_empty() {
            self.stage = Stage::Stray { reasoning, fresh: false };
            return;
        }
        self.stage = back;
        let behind = behind.strip_prefix('>').unwrap_or(behind);
        if !behind.is_empty() {
            self.push(&Unit::Text(behind.to_owned()), out);
        }
    }

    fn call(&mut self, out: &mut Vec<Piece>, step: impl FnOnce(&mut Calls, &mut Vec<Piece>)) {
        let mut pieces = Vec::new();
        step(&mut self.calls, &mut pieces);
        let Some(offer) = &self.offer else { return };
        pieces.into_iter().for_each(|piece| add(piece, out));
        self.stopped = !offer.parallel && self.calls.completed() > 0;
    }

    fn say(&mut self, text: &str, out: &mut Vec<Piece>) {
        if !text.is_empty() {
            self.begun = true;
            let text = text.to_owned();
            add(if self.stage == Stage::Reasoning { Piece::Reasoning(text) } else { Piece::Content(text) }, out);
        }
    }
}
