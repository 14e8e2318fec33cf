//! Tokens to text and the markers in it.

use super::stop::overlap;
use engine::ids::TokenId;
use engine::tokenizer::{TextStream, Tokenizer, TokenizerError};

/// Ends the reasoning.
pub const THINK_END: &str = "</think>";
/// In every tag around tool calls.
pub const DSML: &str = "｜DSML｜";

/// A token that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// [`THINK_END`]
    ThinkEnd,
    /// [`DSML`]
    Dsml,
}

const MARKERS: [Marker; 2] = [Marker::ThinkEnd, Marker::Dsml];

impl Marker {
    /// How it is spelled.
    pub const fn spelling(self) -> &'static str {
        match self {
            Marker::ThinkEnd => THINK_END,
            Marker::Dsml => DSML,
        }
    }
}

/// Something that a model has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unit {
    /// Characters; never none.
    Text(String),
    /// A marker.
    Marker(Marker),
}

/// Tokens to units. Where a marker is a token of the vocabulary only that token counts and its spelling is text; elsewhere the
/// spelling counts.
#[derive(Debug)]
pub struct Units {
    tokenizer: Tokenizer,
    stream: TextStream,
    tokens: Vec<(TokenId, Marker)>,
    spelled: Vec<Marker>,
    /// The longest end of the text that a spelled marker begins with.
    held: String,
}

impl Units {
    /// With markers, or everything as text.
    pub fn new(tokenizer: &Tokenizer, marked: bool) -> Self {
        let (mut tokens, mut spelled) = (Vec::new(), Vec::new());
        for marker in MARKERS.into_iter().filter(|_| marked) {
            match tokenizer.marker(marker.spelling()) {
                Some(token) => tokens.push((token, marker)),
                None => spelled.push(marker),
            }
        }
        let (tokenizer, stream) = (tokenizer.clone(), tokenizer.stream());
        Self { tokenizer, stream, tokens, spelled, held: String::new() }
    }

    /// What a token completes.
    pub fn push(&mut self, token: TokenId) -> Result<Vec<Unit>, TokenizerError> {
        let Some(&(_, marker)) = self.tokens.iter().find(|(id, _)| *id == token) else {
            let text = self.stream.push(token)?;
            return Ok(self.text(&text));
        };
        let mut units = self.finish()?;
        units.push(Unit::Marker(marker));
        Ok(units)
    }

    /// What was held back, as text.
    pub fn finish(&mut self) -> Result<Vec<Unit>, TokenizerError> {
        let rest = std::mem::replace(&mut self.stream, self.tokenizer.stream()).finish()?;
        let mut units = self.text(&rest);
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            units.push(Unit::Text(held));
        }
        Ok(units)
    }

    pub(super) fn text(&mut self, text: &str) -> Vec<Unit> {
        self.held += text;
        let mut units = Vec::new();
        let found = |text: &str, marker: Marker| Some((text.find(marker.spelling())?, marker));
        let first =
            |text: &str| self.spelled.iter().filter_map(|&marker| found(text, marker)).min_by_key(|(at, _)| *at);
        while let Some((at, marker)) = first(&self.held) {
            let rest = self.held.split_off(at + marker.spelling().len());
            self.held.truncate(at);
            let before = std::mem::replace(&mut self.held, rest);
            units.extend((!before.is_empty()).then_some(Unit::Text(before)));
            units.push(Unit::Marker(marker));
        }
        let keep = self.spelled.iter().map(|marker| overlap(&self.held, marker.spelling())).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        let before = std::mem::replace(&mut self.held, rest);
        units.extend((!before.is_empty()).then_some(Unit::Text(before)));
        units
    }
}
