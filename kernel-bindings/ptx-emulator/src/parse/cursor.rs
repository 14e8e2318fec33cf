//! A position in the token list, and instructions in raw form: names and constants, nothing resolved.

use super::error::{ParseError, ParseErrorKind};
use super::expr::Const;
use super::lex::{Tok, Token, error_at};

/// Reader of a token list.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    src: &'a str,
    tokens: &'a [Token],
    pos: usize,
}

/// Start of `[...]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RawBase<'a> {
    Name(&'a str),
    Absolute,
}

/// Form of a raw operand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RawKind<'a> {
    /// `name`
    Name(&'a str),
    /// `name.x`
    Member(&'a str, &'a str),
    /// `name+8`
    Offset(&'a str, i64),
    Const(Const),
    /// `{a, b}`
    Vector(Vec<Raw<'a>>),
    /// `[base+offset]`
    Address {
        base: RawBase<'a>,
        offset: i64,
    },
    /// `a|b`
    Pair(Box<(Raw<'a>, Raw<'a>)>),
    /// `!a`
    Not(&'a str),
}

/// An operand and the token it starts at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Raw<'a> {
    pub(crate) kind: RawKind<'a>,
    pub(crate) at: usize,
}

/// Most elements in one `{...}` of an instruction.
const MAX_VECTOR: usize = 64;

impl<'a> Cursor<'a> {
    pub(crate) fn new(src: &'a str, tokens: &'a [Token]) -> Cursor<'a> {
        Cursor { src, tokens, pos: 0 }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn token_at(&self, at: usize) -> Token {
        self.tokens[at.min(self.tokens.len() - 1)]
    }

    fn token(&self) -> Token {
        self.token_at(self.pos)
    }

    pub(crate) fn peek(&self) -> Tok {
        self.token().kind
    }

    pub(crate) fn peek_at(&self, ahead: usize) -> Tok {
        self.token_at(self.pos + ahead).kind
    }

    pub(crate) fn line(&self) -> u32 {
        self.token().line
    }

    /// Text of the next token.
    pub(crate) fn text(&self) -> &'a str {
        let token = self.token();
        &self.src[token.start as usize..token.end as usize]
    }

    /// Text from the next token on.
    pub(crate) fn rest(&self) -> &'a str {
        &self.src[self.token().start as usize..]
    }

    pub(crate) fn bump(&mut self) {
        if self.pos + 1 < self.tokens.len() {
            self.pos += 1;
        }
    }

    pub(crate) fn error_at(&self, at: usize, kind: ParseErrorKind, message: String) -> ParseError {
        error_at(self.src, self.token_at(at).start as usize, kind, message)
    }

    pub(crate) fn error(&self, kind: ParseErrorKind, message: String) -> ParseError {
        self.error_at(self.pos, kind, message)
    }

    pub(crate) fn unexpected(&self, expected: &str) -> ParseError {
        let got = match self.peek() {
            Tok::Eof => "the end of the text".to_string(),
            _ => format!("`{}`", self.text()),
        };
        self.error(ParseErrorKind::Syntax, format!("expected {expected}, got {got}"))
    }

    pub(crate) fn is(&self, punct: u8) -> bool {
        self.peek() == Tok::Punct(punct)
    }

    /// Takes `punct` if it comes next.
    pub(crate) fn eat(&mut self, punct: u8) -> bool {
        let yes = self.is(punct);
        if yes {
            self.bump();
        }
        yes
    }

    pub(crate) fn expect(&mut self, punct: u8, context: &str) -> Result<(), ParseError> {
        if self.eat(punct) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{}` in {context}", punct as char)))
    }

    /// Takes the modifier or directive `word` (with its dot) if it comes next.
    pub(crate) fn eat_dot(&mut self, word: &str) -> bool {
        let yes = self.peek() == Tok::Dot && self.text() == word;
        if yes {
            self.bump();
        }
        yes
    }

    pub(crate) fn ident(&mut self, what: &str) -> Result<&'a str, ParseError> {
        if self.peek() != Tok::Ident {
            return Err(self.unexpected(what));
        }
        let text = self.text();
        self.bump();
        Ok(text)
    }

    /// One operand of an instruction.
    pub(crate) fn operand(&mut self) -> Result<Raw<'a>, ParseError> {
        let first = self.scalar()?;
        if !self.is(b'|') {
            return Ok(first);
        }
        self.bump();
        let at = first.at;
        let second = self.scalar()?;
        Ok(Raw { kind: RawKind::Pair(Box::new((first, second))), at })
    }

    fn scalar(&mut self) -> Result<Raw<'a>, ParseError> {
        let at = self.pos;
        let kind = match self.peek() {
            Tok::Punct(b'[') => return self.address(),
            Tok::Punct(b'{') => {
                self.bump();
                let mut items = Vec::new();
                loop {
                    if self.is(b'{') || self.is(b'[') {
                        return Err(self.unexpected("a register or constant in the vector"));
                    }
                    items.push(self.scalar()?);
                    if items.len() > MAX_VECTOR {
                        return Err(self.error(
                            ParseErrorKind::Syntax,
                            format!("vector operand: expected at most {MAX_VECTOR} elements"),
                        ));
                    }
                    if !self.eat(b',') {
                        break;
                    }
                }
                self.expect(b'}', "the vector operand")?;
                RawKind::Vector(items)
            }
            Tok::Punct(b'!') if self.peek_at(1) == Tok::Ident => {
                self.bump();
                RawKind::Not(self.ident("a predicate")?)
            }
            _ if self.at_constant() => RawKind::Const(self.constant()?),
            Tok::Ident => {
                let name = self.text();
                self.bump();
                match self.peek() {
                    Tok::Dot => {
                        let member = &self.text()[1..];
                        self.bump();
                        RawKind::Member(name, member)
                    }
                    Tok::Punct(b'+') => RawKind::Offset(name, self.constant_int("address offset")?),
                    _ => RawKind::Name(name),
                }
            }
            _ => return Err(self.unexpected("an operand")),
        };
        Ok(Raw { kind, at })
    }

    /// `[name]`, `[name+constant]`, `[constant]`.
    pub(crate) fn address(&mut self) -> Result<Raw<'a>, ParseError> {
        let at = self.pos;
        self.expect(b'[', "the address")?;
        let (base, offset) = if self.at_constant() {
            (RawBase::Absolute, self.constant_int("address")?)
        } else {
            let name = self.ident("a register, variable or constant in the address")?;
            if self.peek() == Tok::Dot {
                return Err(self.unexpected("`+` or `]` in the address"));
            }
            let offset = if self.is(b'+') { self.constant_int("address offset")? } else { 0 };
            (RawBase::Name(name), offset)
        };
        self.expect(b']', "the address")?;
        Ok(Raw { kind: RawKind::Address { base, offset }, at })
    }
}
