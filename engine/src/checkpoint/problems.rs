//! Everything that is wrong with a checkpoint, up to a bound.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file or tensor.
    pub place: String,
    /// What is accepted.
    pub expected: String,
    /// What was found.
    pub got: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.place, self.expected, self.got)
    }
}

/// Problems in the order they were found. All are counted; the first [`Problems::KEPT`] are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<Problem>,
    count: usize,
}

impl Problems {
    /// Problems kept: one wrong size in a large model makes tens of thousands.
    pub const KEPT: usize = 50;

    /// Adds one.
    pub(super) fn add(&mut self, place: &str, expected: impl Into<String>, got: impl Into<String>) {
        self.count += 1;
        if self.kept.len() < Self::KEPT {
            let (place, expected, got) = (short(place.to_owned()), short(expected.into()), short(got.into()));
            self.kept.push(Problem { place, expected, got });
        }
    }

    /// The first of them.
    pub fn kept(&self) -> &[Problem] {
        &self.kept
    }

    /// All of them.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// Names and values come out of files: a message shows as much of them as a line holds, and nothing that a terminal obeys.
fn short(text: String) -> String {
    let text = match text.chars().any(char::is_control) {
        true => text.escape_debug().to_string(),
        false => text,
    };
    if text.chars().count() <= 300 { text } else { text.chars().take(297).chain("...".chars()).collect() }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} problem{}", self.count, if self.count == 1 { "" } else { "s" })?;
        for problem in &self.kept {
            write!(f, "\n  {problem}")?;
        }
        match self.count - self.kept.len() {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}
