//! Module scope: version, target, variables, entries.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::lex::{Tok, lex, line_starts};
use super::target::{introduced, parse_target};
use crate::ir::{Entry, Module, Target, TargetSuffix, Variable};
use std::collections::HashMap;
use std::sync::Arc;

/// Newest PTX version that is read. The forms known here are those of 9.0; a later minor version only adds some, and
/// what it adds is refused by name.
const NEWEST: (u32, u32) = (9, 99);

/// What is known of the module while it is read.
#[derive(Debug)]
pub(crate) struct ModuleState<'a> {
    pub(crate) version: (u32, u32),
    pub(crate) target: Target,
    pub(crate) variables: Vec<Variable>,
    pub(crate) names: HashMap<&'a str, u32>,
    pub(super) entries: Vec<Arc<Entry>>,
    files: Vec<(u32, String)>,
}

impl Module {
    /// Reads and checks a PTX text.
    ///
    /// # Errors
    /// [`ParseError`] with line and column: the text does not follow the grammar, a name or type is wrong, `.version`
    /// or `.target` lacks what is used, or something is used that the machine does not have (by name).
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let tokens = lex(text)?;
        let mut cursor = Cursor::new(text, &tokens);
        let mut state = ModuleState {
            version: (0, 0),
            target: Target { sm: 0, suffix: TargetSuffix::None },
            variables: Vec::new(),
            names: HashMap::new(),
            entries: Vec::new(),
            files: Vec::new(),
        };
        state.header(&mut cursor)?;
        while cursor.peek() != Tok::Eof {
            state.item(&mut cursor)?;
        }
        Ok(Module {
            version: state.version,
            target: state.target,
            variables: state.variables,
            entries: state.entries,
            files: state.files,
            text: Arc::from(text),
            line_starts: line_starts(text),
        })
    }
}

impl<'a> ModuleState<'a> {
    fn header(&mut self, c: &mut Cursor<'a>) -> Result<(), ParseError> {
        if !c.eat_dot(".version") {
            return Err(c.unexpected("`.version` as the first directive"));
        }
        let text = c.text();
        let version = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (Tok::Float, Some(version)) = (c.peek(), version) else { return Err(c.unexpected("a version like 9.0")) };
        if version > NEWEST || version < (6, 0) {
            let message = format!("`.version {text}`: expected 6.0 to {}.x", NEWEST.0);
            return Err(c.error(ParseErrorKind::Target, message));
        }
        self.version = version;
        c.bump();
        if !c.eat_dot(".target") {
            return Err(c.unexpected("`.target` after .version"));
        }
        let text = c.text();
        let Some(target) = parse_target(text).filter(|_| c.peek() == Tok::Ident) else {
            return Err(c.unexpected("a target like sm_120a"));
        };
        match introduced(target) {
            Some(first) if self.version >= first => {}
            Some((major, minor)) => {
                let message = format!("`.target {text}`: needs .version {major}.{minor} or later");
                return Err(c.error(ParseErrorKind::Target, message));
            }
            None => {
                let message = format!("`.target {text}`: expected an architecture from sm_70 to sm_121a");
                return Err(c.error(ParseErrorKind::Target, message));
            }
        }
        self.target = target;
        c.bump();
        while c.eat(b',') {
            let option = c.ident("a target option")?;
            if option != "debug" && option != "texmode_unified" {
                let message = format!("`.target`: option {option} is not supported");
                return Err(c.error(ParseErrorKind::Unsupported, message));
            }
        }
        if !c.eat_dot(".address_size") {
            return Err(c.unexpected("`.address_size 64` after .target"));
        }
        match c.constant_u32(".address_size")? {
            64 => Ok(()),
            other => Err(c.error(ParseErrorKind::Unsupported, format!("`.address_size {other}`: expected 64"))),
        }
    }

    fn item(&mut self, c: &mut Cursor<'a>) -> Result<(), ParseError> {
        if c.eat(b';') {
            return Ok(());
        }
        if c.peek() != Tok::Dot {
            return Err(c.unexpected("a directive at module scope"));
        }
        let word = c.text();
        match word {
            ".file" => self.file(c),
            ".pragma" => {
                c.bump();
                self.pragma(c)
            }
            ".section" => section(c),
            ".visible" | ".extern" | ".weak" | ".common" | ".entry" | ".func" | ".global" | ".const" | ".shared" => {
                let mut ahead = 0;
                while c.peek_at(ahead) == Tok::Dot {
                    let mut look = c.clone();
                    for _ in 0..ahead {
                        look.bump();
                    }
                    match look.text() {
                        ".visible" | ".extern" | ".weak" | ".common" => ahead += 1,
                        ".entry" => {
                            for _ in 0..=ahead {
                                c.bump();
                            }
                            return self.entry(c);
                        }
                        ".func" => return Err(function(look)),
                        _ => break,
                    }
                }
                for (at, name, variable) in self.variable(c)? {
                    self.declare(c, at, name)?;
                    self.variables.push(variable);
                }
                Ok(())
            }
            ".version" | ".target" | ".address_size" => {
                Err(c.error(ParseErrorKind::Syntax, format!("`{word}` must stand once, at the head of the text")))
            }
            _ => Err(c.error(ParseErrorKind::Unsupported, format!("directive `{word}` is not supported"))),
        }
    }

    fn declare(&mut self, c: &Cursor<'a>, at: usize, name: &'a str) -> Result<(), ParseError> {
        if self.entries.iter().any(|e| e.name == name) || self.names.insert(name, self.variables.len() as u32).is_some()
        {
            return Err(c.error_at(at, ParseErrorKind::Symbol, format!("`{name}` is declared twice")));
        }
        Ok(())
    }

    fn file(&mut self, c: &mut Cursor<'a>) -> Result<(), ParseError> {
        c.bump();
        let index = c.constant_u32(".file")?;
        if c.peek() != Tok::Str {
            return Err(c.unexpected("a file name in .file"));
        }
        self.files.push((index, c.text().to_string()));
        c.bump();
        while c.eat(b',') {
            c.constant_int(".file")?;
        }
        Ok(())
    }

    /// `.pragma "text"[, "text"];` after its name: hints for the assembler.
    pub(crate) fn pragma(&mut self, c: &mut Cursor<'a>) -> Result<(), ParseError> {
        loop {
            if c.peek() != Tok::Str {
                return Err(c.unexpected("a string in .pragma"));
            }
            c.bump();
            if !c.eat(b',') {
                break;
            }
        }
        c.expect(b';', ".pragma")
    }
}

/// Debug sections are skipped.
fn section(c: &mut Cursor<'_>) -> Result<(), ParseError> {
    c.bump();
    if c.peek() != Tok::Dot {
        return Err(c.unexpected("a section name"));
    }
    c.bump();
    c.expect(b'{', ".section")?;
    let mut depth = 1;
    while depth > 0 {
        match c.peek() {
            Tok::Eof => return Err(c.unexpected("`}` at the end of .section")),
            Tok::Punct(b'{') => depth += 1,
            Tok::Punct(b'}') => depth -= 1,
            _ => {}
        }
        c.bump();
    }
    Ok(())
}

/// Error for a `.func`, named.
fn function(mut c: Cursor<'_>) -> ParseError {
    let at = c.clone();
    c.bump();
    if c.is(b'(') {
        while c.peek() != Tok::Eof && !c.eat(b')') {
            c.bump();
        }
    }
    let name = if c.peek() == Tok::Ident { c.text() } else { "?" };
    let message = format!("`.func {name}`: device functions are not supported, inline them");
    at.error(ParseErrorKind::Unsupported, message)
}
