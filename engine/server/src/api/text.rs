//! One text on its way from tokens to the pieces that a client gets: characters whole, reasoning and calls apart from the
//! answer, stop strings cut. What is handed out does not depend on how tokens cut the text.

use super::marker::{Unit, Units};
use super::tools::Offer;
use super::turn::{End, Piece, Start, Turn};
use engine::ids::TokenId;
use engine::tokenizer::{Tokenizer, TokenizerError};
use std::sync::Arc;

/// See above.
#[derive(Debug)]
pub struct Text {
    units: Units,
    turn: Turn,
}

impl Text {
    /// A text that begins so. Calls of a text without tools are dropped.
    pub fn new(tokenizer: &Tokenizer, start: Start, stops: &[String], offer: Option<Arc<Offer>>) -> Self {
        Self { units: Units::new(tokenizer, start != Start::Plain), turn: Turn::new(start, stops, offer) }
    }

    /// Whether nothing comes any more, whatever is pushed.
    pub fn stopped(&self) -> bool {
        self.turn.stopped()
    }

    /// Whether every tool call is complete; `None` without any.
    pub fn called(&self) -> Option<bool> {
        self.turn.called()
    }

    /// The pieces that a token completes.
    ///
    /// # Errors
    /// A token that the model does not have.
    pub fn push(&mut self, token: TokenId) -> Result<Vec<Piece>, TokenizerError> {
        let units = self.units.push(token)?;
        Ok(self.turn(&units))
    }

    /// What was held back.
    ///
    /// # Errors
    /// The tokenizer refuses the sequence.
    pub fn finish(&mut self, end: End) -> Result<Vec<Piece>, TokenizerError> {
        let units = self.units.finish()?;
        let mut pieces = self.turn(&units);
        self.turn.finish(end, &mut pieces);
        Ok(pieces)
    }

    fn turn(&mut self, units: &[Unit]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        units.iter().for_each(|unit| self.turn.push(unit, &mut pieces));
        pieces
    }
}

#[cfg(test)]
mod tests;
