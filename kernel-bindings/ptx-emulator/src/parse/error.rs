//! Why a text was refused, and where.

use std::fmt;

/// What a [`ParseError`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParseErrorKind {
    /// The text does not follow the grammar, or an operand has the wrong form or value.
    Syntax,
    /// An instruction, modifier or directive that the checked form has no place for.
    Unsupported,
    /// A register or immediate does not fit the type of the instruction.
    Type,
    /// `.version` or `.target` is too low for what is used.
    Target,
    /// A name is unknown, or declared twice.
    Symbol,
}

impl ParseErrorKind {
    /// Lower-case word for messages.
    pub const fn name(self) -> &'static str {
        match self {
            ParseErrorKind::Syntax => "syntax",
            ParseErrorKind::Unsupported => "unsupported",
            ParseErrorKind::Type => "type",
            ParseErrorKind::Target => "target",
            ParseErrorKind::Symbol => "symbol",
        }
    }
}

impl fmt::Display for ParseErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Refusal of a PTX text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {kind}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
    /// What is wrong.
    pub kind: ParseErrorKind,
    /// Lower-case sentence that names the instruction or directive, what was expected and what was there.
    pub message: String,
}
