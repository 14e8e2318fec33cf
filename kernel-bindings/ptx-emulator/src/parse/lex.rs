//! Text to tokens.
//!
//! A token is a byte range of the text; nothing is copied. Modifiers are lexed with their dot and with every `::` part
//! (`.L2::cache_hint` is one token), so an instruction is a name followed by dot tokens.

use super::error::{ParseError, ParseErrorKind};

/// Kind of a [`Token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tok {
    /// `name`, `%name`, `$name`, `_`
    Ident,
    /// `.word`, `.word::word`
    Dot,
    /// Integer literal, `0x..`, octal, binary, with an optional `U`.
    Int,
    /// Decimal floating-point literal, e.g. `9.0`.
    Float,
    /// `0f` and eight hexadecimal digits.
    HexF32,
    /// `0d` and sixteen hexadecimal digits.
    HexF64,
    /// `"..."`, without its quotes in the range.
    Str,
    /// Any other single character.
    Punct(u8),
    /// End of the text.
    Eof,
}

/// A piece of the text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) kind: Tok,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// From 1.
    pub(crate) line: u32,
}

/// Largest text that is read: offsets are 32 bits wide.
const MAX_BYTES: usize = 1 << 30;

/// Byte offset of the start of every line.
pub(crate) fn line_starts(text: &str) -> Vec<u32> {
    let mut starts = vec![0];
    starts.extend(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i as u32 + 1));
    starts
}

/// Error at a byte offset.
pub(crate) fn error_at(text: &str, offset: usize, kind: ParseErrorKind, message: String) -> ParseError {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() as u32 + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() as u32 + 1;
    ParseError { line, column, kind, message }
}

const fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'$'
}

/// Tokens of `text`, closed by one `Eof`.
pub(crate) fn lex(text: &str) -> Result<Vec<Token>, ParseError> {
    let bytes = text.as_bytes();
    if bytes.len() > MAX_BYTES {
        return Err(ParseError {
            line: 1,
            column: 1,
            kind: ParseErrorKind::Syntax,
            message: format!("text of {} bytes: expected at most {MAX_BYTES}", bytes.len()),
        });
    }
    let mut tokens = Vec::with_capacity(bytes.len() / 4);
    let mut line = 1u32;
    let mut i = 0usize;
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let syntax = |offset: usize, message: String| error_at(text, offset, ParseErrorKind::Syntax, message);
    while i < bytes.len() {
        let b = bytes[i];
        let start = i;
        let kind = match b {
            b'\n' => {
                line += 1;
                i += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => {
                i += 1;
                continue;
            }
            // Some producers end the text with a NUL, as a C string would.
            0 if bytes[i..].iter().all(|b| *b == 0) => break,
            b'/' if at(i + 1) == b'/' => {
                while i < bytes.len() && bytes[i] != b'\n' {
                    i += 1;
                }
                continue;
            }
            b'/' if at(i + 1) == b'*' => {
                i += 2;
                loop {
                    if i >= bytes.len() {
                        return Err(syntax(start, "comment `/*` is not closed".into()));
                    }
                    if bytes[i] == b'*' && at(i + 1) == b'/' {
                        i += 2;
                        break;
                    }
                    line += u32::from(bytes[i] == b'\n');
                    i += 1;
                }
                continue;
            }
            b'"' => {
                i += 1;
                while i < bytes.len() && bytes[i] != b'"' && bytes[i] != b'\n' {
                    i += 1;
                }
                if at(i) != b'"' {
                    return Err(syntax(start, "string is not closed on its line".into()));
                }
                tokens.push(Token { kind: Tok::Str, start: start as u32 + 1, end: i as u32, line });
                i += 1;
                continue;
            }
            b'0'..=b'9' => {
                let kind = number(bytes, &mut i);
                match kind {
                    Some(kind) if !is_word(at(i)) => kind,
                    _ => {
                        while is_word(at(i)) {
                            i += 1;
                        }
                        return Err(syntax(start, format!("`{}` is not a number", text.get(start..i).unwrap_or("?"))));
                    }
                }
            }
            b'.' if is_word(at(i + 1)) => {
                i += 1;
                loop {
                    while is_word(at(i)) {
                        i += 1;
                    }
                    if at(i) == b':' && at(i + 1) == b':' && is_word(at(i + 2)) {
                        i += 2;
                    } else {
                        break;
                    }
                }
                Tok::Dot
            }
            b'%' if is_word(at(i + 1)) => {
                i += 1;
                while is_word(at(i)) {
                    i += 1;
                }
                Tok::Ident
            }
            _ if is_word(b) => {
                while is_word(at(i)) {
                    i += 1;
                }
                Tok::Ident
            }
            0x21..=0x7e => {
                i += 1;
                Tok::Punct(b)
            }
            _ => return Err(syntax(start, "character outside printable ASCII".into())),
        };
        tokens.push(Token { kind, start: start as u32, end: i as u32, line });
    }
    tokens.push(Token { kind: Tok::Eof, start: bytes.len() as u32, end: bytes.len() as u32, line });
    Ok(tokens)
}

/// Moves `i` past a number that starts there.
fn number(bytes: &[u8], i: &mut usize) -> Option<Tok> {
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let digits = |i: &mut usize, ok: fn(&u8) -> bool| {
        let start = *i;
        while ok(&at(*i)) {
            *i += 1;
        }
        *i - start
    };
    let start = *i;
    if at(start) == b'0' {
        match at(start + 1) {
            b'f' | b'F' => {
                *i += 2;
                return (digits(i, u8::is_ascii_hexdigit) == 8).then_some(Tok::HexF32);
            }
            b'd' | b'D' => {
                *i += 2;
                return (digits(i, u8::is_ascii_hexdigit) == 16).then_some(Tok::HexF64);
            }
            b'x' | b'X' => {
                *i += 2;
                let n = digits(i, u8::is_ascii_hexdigit);
                *i += usize::from(at(*i) == b'U');
                return (n > 0).then_some(Tok::Int);
            }
            b'b' | b'B' => {
                *i += 2;
                let n = digits(i, |b| matches!(b, b'0' | b'1'));
                *i += usize::from(at(*i) == b'U');
                return (n > 0).then_some(Tok::Int);
            }
            _ => {}
        }
    }
    digits(i, u8::is_ascii_digit);
    let mut float = false;
    // `9.0`, `1.` and `1.e5`, but not the dot of a modifier.
    let fraction = !at(*i + 1).is_ascii_alphabetic() || matches!(at(*i + 1), b'e' | b'E');
    if at(*i) == b'.' && fraction {
        *i += 1;
        digits(i, u8::is_ascii_digit);
        float = true;
    }
    if matches!(at(*i), b'e' | b'E') {
        let mut j = *i + 1;
        j += usize::from(matches!(at(j), b'+' | b'-'));
        if digits(&mut j, u8::is_ascii_digit) > 0 {
            *i = j;
            float = true;
        }
    }
    if float {
        return Some(Tok::Float);
    }
    *i += usize::from(at(*i) == b'U');
    Some(Tok::Int)
}

/// Value of an `Int` token; `None` if it does not fit 64 bits or is a malformed octal.
pub(crate) fn int_value(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(binary) = text.strip_prefix("0b").or_else(|| text.strip_prefix("0B")) {
        u64::from_str_radix(binary, 2).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        u64::from_str_radix(&text[1..], 8).ok()
    } else {
        text.parse().ok()
    }
}
