//! Tokens to the pieces of text that a client gets: characters whole, reasoning apart from the answer, stop strings cut.

use super::stop::{StopScanner, overlap};
use engine::ids::TokenId;
use engine::tokenizer::{TextStream, Tokenizer, TokenizerError};

/// Ends the reasoning.
pub const THINK_END: &str = "</think>";

/// A piece of text, never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What the model says to itself.
    Reasoning(String),
    /// The answer.
    Content(String),
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Plain,
    Reasoning,
    Content,
}

/// Reasoning and answer of a chat turn. Newlines at the beginning of either and before the marker belong to neither; the marker
/// inside the answer is swallowed. Where the marker is a token only that token counts, elsewhere its spelling.
#[derive(Debug)]
struct Turn {
    stage: Stage,
    /// Whether this stage has said anything.
    begun: bool,
    spelled: bool,
    held: String,
}

impl Turn {
    fn text(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.held += text;
        loop {
            let mut held = std::mem::take(&mut self.held);
            if self.stage == Stage::Plain {
                return self.say(held, out);
            }
            if !self.begun {
                held = held.trim_start_matches('\n').to_owned();
            }
            let found = if self.spelled { held.find(THINK_END) } else { None };
            if let Some(at) = found {
                self.held = held.split_off(at + THINK_END.len());
                held.truncate(at);
                self.marker_behind(held, out);
                continue;
            }
            let mut keep = if self.spelled { overlap(&held, THINK_END) } else { 0 };
            if self.stage == Stage::Reasoning {
                let before = held[..held.len() - keep].trim_end_matches('\n').len();
                keep = held.len() - before;
            }
            self.held = held.split_off(held.len() - keep);
            return self.say(held, out);
        }
    }

    fn marker(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        self.marker_behind(held, out);
    }

    fn marker_behind(&mut self, held: String, out: &mut Vec<Piece>) {
        if self.stage == Stage::Reasoning {
            self.say(held.trim_end_matches('\n').to_owned(), out);
            (self.stage, self.begun) = (Stage::Content, false);
        } else {
            self.say(held, out);
        }
    }

    fn say(&mut self, text: String, out: &mut Vec<Piece>) {
        if !text.is_empty() {
            self.begun = true;
            out.push(if self.stage == Stage::Reasoning { Piece::Reasoning(text) } else { Piece::Content(text) });
        }
    }

    fn finish(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        self.say(held, out);
    }
}

/// One text on its way from tokens to pieces. What it hands out does not depend on how tokens cut the text.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    stream: TextStream,
    marker: Option<TokenId>,
    turn: Turn,
    stop: StopScanner,
    stopped: bool,
}

impl Text {
    /// A text that begins so; stop strings count in the answer alone.
    pub fn new(tokenizer: &Tokenizer, start: Start, stops: &[String]) -> Self {
        let stage = match start {
            Start::Plain => Stage::Plain,
            Start::Reasoning => Stage::Reasoning,
            Start::Answer => Stage::Content,
        };
        let marker = if start == Start::Plain { None } else { tokenizer.marker(THINK_END) };
        Self {
            tokenizer: tokenizer.clone(),
            stream: tokenizer.stream(),
            marker,
            turn: Turn { stage, begun: false, spelled: marker.is_none(), held: String::new() },
            stop: StopScanner::new(stops),
            stopped: false,
        }
    }

    /// Whether a stop string was found; nothing comes any more.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The pieces that a token completes.
    pub fn push(&mut self, token: TokenId) -> Result<Vec<Piece>, TokenizerError> {
        let mut pieces = Vec::new();
        if self.marker == Some(token) {
            let rest = std::mem::replace(&mut self.stream, self.tokenizer.stream()).finish()?;
            self.turn.text(&rest, &mut pieces);
            self.turn.marker(&mut pieces);
        } else {
            let text = self.stream.push(token)?;
            self.turn.text(&text, &mut pieces);
        }
        Ok(self.scan(pieces))
    }

    /// What was held back.
    pub fn finish(&mut self) -> Result<Vec<Piece>, TokenizerError> {
        let mut pieces = Vec::new();
        let rest = std::mem::replace(&mut self.stream, self.tokenizer.stream()).finish()?;
        self.turn.text(&rest, &mut pieces);
        self.turn.finish(&mut pieces);
        let mut pieces = self.scan(pieces);
        let held = if self.stopped { String::new() } else { self.stop.finish() };
        if !held.is_empty() {
            pieces.push(Piece::Content(held));
        }
        Ok(pieces)
    }

    fn scan(&mut self, pieces: Vec<Piece>) -> Vec<Piece> {
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                _ if self.stopped => break,
                Piece::Reasoning(_) => out.push(piece),
                Piece::Content(text) => {
                    let (text, stopped) = self.stop.push(&text);
                    self.stopped = stopped;
                    if !text.is_empty() {
                        out.push(Piece::Content(text));
                    }
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;
