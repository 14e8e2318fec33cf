//! Text to tokens and back: `tokenizer.json` where a checkpoint has one, the bytes of the text otherwise.
//!
//! Byte tokens: byte `b` is id `first + b`. `first` is one past the configured special ids if the vocabulary has room for
//! 256 more behind them; then special ids, and ids behind the bytes, have no byte. A vocabulary without that room, such as
//! one of 256 tokens, has `first` = 0, and its special ids are bytes like any other. A byte token stands for its byte; an id
//! without one decodes to nothing if it is special and to U+FFFD otherwise.
//!
//! Special tokens are neither added to a text nor left out of one: chat markup is made of them.

use crate::config::ModelConfig;
use crate::ids::TokenId;
use kernel_bindings::mapped_file::read_file;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// Largest `tokenizer.json` that is read; those of large models have some 10 MB.
const MAX_FILE_BYTES: u64 = 1 << 28;

/// Why text or tokens were refused.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// `tokenizer.json` cannot be read.
    #[error("{}: expected a tokenizer, got: {got}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        got: String,
    },
    /// The tokens do not fit the model.
    #[error("vocabulary: expected {expected}, got {got}")]
    Vocabulary {
        /// What is accepted.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A token that the model does not have.
    #[error("token: expected an id below {vocab_size}, got {id}")]
    Token {
        /// The vocabulary of the model.
        vocab_size: u32,
        /// The id.
        id: TokenId,
    },
    /// The tokenizer refused a text or a sequence.
    #[error("tokenizer: {0}")]
    Failed(String),
}

/// The tokens of a model. Copies share it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    kind: Kind,
    vocab_size: u32,
}

#[derive(Debug, Clone)]
enum Kind {
    File(Arc<File>),
    Bytes { first: u32, special: Vec<u32> },
}

#[derive(Debug)]
struct File {
    inner: tokenizers::Tokenizer,
    /// The same without markers, made when it is first needed.
    unmarked: OnceLock<tokenizers::Tokenizer>,
}

impl std::ops::Deref for File {
    type Target = tokenizers::Tokenizer;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl Tokenizer {
    /// The tokenizer of a folder: `tokenizer.json` if it is there, byte tokens if not.
    pub fn open(dir: impl AsRef<Path>, config: &ModelConfig) -> Result<Tokenizer, TokenizerError> {
        let path = dir.as_ref().join("tokenizer.json");
        // A link to nowhere is an error, not a reason to speak in bytes.
        if std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Self::bytes(config);
        }
        let file = |got: String| TokenizerError::File { path: path.clone(), got };
        let text = read_file(&path, MAX_FILE_BYTES).map_err(|error| file(error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(text).map_err(|error| file(error.to_string()))?;
        // Both are for training: a prompt is neither cut nor filled up.
        inner.with_padding(None).with_truncation(None).map_err(|error| file(error.to_string()))?;
        let largest = inner.get_vocab(true).into_values().max().unwrap_or(0);
        if largest >= config.vocab_size {
            let (expected, got) = (format!("ids below vocab_size {}", config.vocab_size), format!("id {largest}"));
            return Err(TokenizerError::Vocabulary { expected, got: format!("{got} in {}", path.display()) });
        }
        Ok(Tokenizer {
            kind: Kind::File(Arc::new(File { inner, unmarked: OnceLock::new() })),
            vocab_size: config.vocab_size,
        })
    }

    /// Byte tokens.
    pub fn bytes(config: &ModelConfig) -> Result<Tokenizer, TokenizerError> {
        let vocab_size = config.vocab_size;
        if vocab_size < 256 {
            let (expected, got) = ("256 ids or more for bytes".to_owned(), vocab_size.to_string());
            return Err(TokenizerError::Vocabulary { expected, got });
        }
        let special: Vec<u32> = config.eos_ids.iter().copied().chain([config.bos_id]).collect();
        let behind = special.iter().max().map_or(0, |&id| id + 1);
        let kind = if behind + 256 <= vocab_size {
            Kind::Bytes { first: behind, special }
        } else {
            Kind::Bytes { first: 0, special: Vec::new() }
        };
        Ok(Tokenizer { kind, vocab_size })
    }

    /// Whether tokens are bytes.
    pub fn is_bytes(&self) -> bool {
        matches!(self.kind, Kind::Bytes { .. })
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        match &self.kind {
            Kind::Bytes { first, .. } => Ok(text.bytes().map(|byte| TokenId(first + u32::from(byte))).collect()),
            Kind::File(inner) => {
                let encoding = inner.encode_fast(text, false).map_err(failed)?;
                Ok(encoding.get_ids().iter().map(|&id| TokenId(id)).collect())
            }
        }
    }

    /// The tokens of a text that nobody vouches for: what spells a marker becomes plain characters.
    pub fn encode_unmarked(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        let Kind::File(file) = &self.kind else { return self.encode(text) };
        let unmarked = file.unmarked.get_or_init(|| {
            let mut plain = file.inner.clone();
            plain.with_added_vocabulary(tokenizers::AddedVocabulary::new());
            plain
        });
        let encoding = unmarked.encode_fast(text, false).map_err(failed)?;
        Ok(encoding.get_ids().iter().map(|&id| TokenId(id)).collect())
    }

    /// The token that a marker is, such as `</think>`; `None` where it has to be spelled. Byte tokens have those of begin and
    /// end of a text, if they have room for special ids.
    pub fn marker(&self, text: &str) -> Option<TokenId> {
        match &self.kind {
            Kind::File(file) => file.inner.token_to_id(text).map(TokenId),
            Kind::Bytes { special, .. } => match text {
                "<｜begin▁of▁sentence｜>" => special.last().map(|&id| TokenId(id)),
                "<｜end▁of▁sentence｜>" => special.first().map(|&id| TokenId(id)),
                _ => None,
            },
        }
    }

    /// The text of a whole sequence; what is not UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        if let Kind::File(inner) = &self.kind {
            tokens.iter().try_for_each(|&id| self.check(id))?;
            let ids: Vec<u32> = tokens.iter().map(|id| id.0).collect();
            return inner.decode(&ids, false).map_err(failed);
        }
        let (mut stream, mut text) = (self.stream(), String::new());
        for &id in tokens {
            text += &stream.push(id)?;
        }
        Ok(text + &stream.finish()?)
    }

    /// A decoder for tokens that come one by one.
    pub fn stream(&self) -> TextStream {
        let state = match self.kind {
            Kind::File(_) => State::Window { ids: Vec::new(), said: String::new() },
            Kind::Bytes { .. } => State::Bytes(Vec::new()),
        };
        TextStream { tokenizer: self.clone(), state }
    }

    fn check(&self, id: TokenId) -> Result<(), TokenizerError> {
        let vocab_size = self.vocab_size;
        if id.0 < vocab_size { Ok(()) } else { Err(TokenizerError::Token { vocab_size, id }) }
    }
}

fn failed(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Failed(error.to_string())
}

/// Tokens to text, piece by piece. A character is handed out when its last byte is there; the pieces and what
/// [`TextStream::finish`] returns are together the text of the whole sequence. With `tokenizer.json` a U+FFFD that the text
/// itself contains is handed out with the token behind it.
#[derive(Debug, Clone)]
pub struct TextStream {
    tokenizer: Tokenizer,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// The start of a character.
    Bytes(Vec<u8>),
    /// The last tokens, and what was handed out of their text. Tokens are decoded together because the text of one may
    /// depend on those before it.
    Window { ids: Vec<u32>, said: String },
}

/// Tokens from which on the older half of a window is dropped.
const WINDOW: usize = 32;

impl TextStream {
    /// The text that a token completes; often none.
    pub fn push(&mut self, id: TokenId) -> Result<String, TokenizerError> {
        self.tokenizer.check(id)?;
        match (&self.tokenizer.kind, &mut self.state) {
            (Kind::Bytes { first, special }, State::Bytes(start)) => {
                match id.0.checked_sub(*first).and_then(|byte| u8::try_from(byte).ok()) {
                    Some(byte) => start.push(byte),
                    None if special.contains(&id.0) => {}
                    // Not a byte of any character: ends one that was begun.
                    None => start.push(0xff),
                }
                Ok(complete(start))
            }
            (Kind::File(inner), State::Window { ids, said }) => {
                ids.push(id.0);
                let text = inner.decode(ids, false).map_err(failed)?;
                // A character of which bytes are missing shows as U+FFFD, with some decoders as one per byte.
                let ends = text.char_indices().rev().take(3).take_while(|&(_, c)| c == '\u{fffd}');
                let stable = ends.last().map_or(text.len(), |(at, _)| at);
                let new = text[..stable].strip_prefix(said.as_str()).unwrap_or("").to_owned();
                *said += &new;
                if ids.len() >= WINDOW && stable == text.len() && said.len() == stable {
                    ids.drain(..WINDOW / 2);
                    *said = inner.decode(ids, false).map_err(failed)?;
                }
                Ok(new)
            }
            _ => unreachable!("a stream is made for its tokenizer"),
        }
    }

    /// What is left: the incomplete character at the end, as U+FFFD.
    pub fn finish(self) -> Result<String, TokenizerError> {
        match (&self.tokenizer.kind, &self.state) {
            (Kind::File(inner), State::Window { ids, said }) => {
                let text = inner.decode(ids, false).map_err(failed)?;
                Ok(text.strip_prefix(said.as_str()).unwrap_or("").to_owned())
            }
            (_, State::Bytes(start)) => Ok(String::from_utf8_lossy(start).into_owned()),
            _ => unreachable!("a stream is made for its tokenizer"),
        }
    }
}

/// Takes the complete characters off the front; what can never become one is replaced as [`String::from_utf8_lossy`] does.
fn complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let rest = loop {
        match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text += valid;
                break Vec::new();
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                text += &String::from_utf8_lossy(valid);
                let Some(wrong) = error.error_len() else { break rest.to_vec() };
                text.push('\u{fffd}');
                *bytes = rest[wrong..].to_vec();
            }
        }
    };
    *bytes = rest;
    text
}

#[cfg(test)]
mod tests;
