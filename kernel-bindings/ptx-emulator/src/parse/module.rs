//! Module scope: version, target, variables, entries.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::expr::Const;
use super::function::Function;
use super::inst::{type_name, type_of};
use super::lex::{Tok, lex, line_starts};
use super::target::{introduced, parse_target, sm};
use crate::cfg;
use crate::ir::{Entry, Module, Param, Space, Symbol, Target, TargetSuffix, Type, Variable};
use std::collections::HashMap;
use std::sync::Arc;

/// Newest PTX version that is read. The forms known here are those of 9.0; a later minor version only adds some, and
/// what it adds is refused by name.
const NEWEST: (u32, u32) = (9, 99);
/// Largest variable.
const MAX_VARIABLE: u64 = 1 << 40;
/// Largest initialiser that is kept.
const MAX_INITIALISER: u64 = 64 << 20;
/// Static shared memory that an entry may have.
pub(crate) const MAX_STATIC_SHARED: u64 = 48 * 1024;
/// Largest parameter buffer before sm_70, and from there on with PTX 8.1.
const MAX_PARAM_BYTES: u32 = 32764;

/// What is known of the module while it is read.
#[derive(Debug)]
pub(crate) struct ModuleState<'a> {
    pub(crate) version: (u32, u32),
    pub(crate) target: Target,
    pub(crate) variables: Vec<Variable>,
    pub(crate) names: HashMap<&'a str, u32>,
    entries: Vec<Arc<Entry>>,
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

    /// One variable declaration, with everything that its commas separate.
    pub(crate) fn variable(&mut self, c: &mut Cursor<'a>) -> Result<Vec<(usize, &'a str, Variable)>, ParseError> {
        let mut external = false;
        loop {
            match c.text() {
                ".extern" => external = true,
                ".visible" | ".weak" | ".common" => {}
                _ => break,
            }
            c.bump();
        }
        let space = match c.text() {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" | ".shared::cta" => Space::Shared,
            ".local" => Space::Local,
            word => {
                let message = format!("directive `{word}` is not supported");
                return Err(c.error(ParseErrorKind::Unsupported, message));
            }
        };
        c.bump();
        let (align, width, ty) = self.declared_type(c)?;
        let mut found = Vec::new();
        loop {
            let at = c.pos();
            let name = c.ident("a variable name")?;
            let element = u64::from(ty.bytes()) * u64::from(width);
            let size = array_size(c, element)?;
            let natural = ty.bytes() * width;
            let init = if c.is(b'=') {
                if !matches!(space, Space::Global | Space::Const) {
                    return Err(c.error(
                        ParseErrorKind::Syntax,
                        format!("`{name}`: only .global and .const have initialisers"),
                    ));
                }
                c.bump();
                Some(initialiser(c, name, ty, size)?)
            } else {
                None
            };
            let size = match size {
                Size::Bytes(n) => n,
                Size::Open => match &init {
                    Some(bytes) => bytes.len() as u64,
                    None if external => 0,
                    None => {
                        let message = format!("`{name}[]`: only an .extern array may be unsized");
                        return Err(c.error_at(at, ParseErrorKind::Syntax, message));
                    }
                },
            };
            if external && space != Space::Shared {
                let message = format!("`.extern {name}`: variables of other modules are not supported");
                return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
            }
            if space == Space::Shared && size > MAX_STATIC_SHARED {
                let message = format!("`{name}`: expected at most {MAX_STATIC_SHARED} static shared bytes, got {size}");
                return Err(c.error_at(at, ParseErrorKind::Syntax, message));
            }
            found.push((
                at,
                name,
                Variable { name: name.to_string(), space, align: align.unwrap_or(natural), size, external, init },
            ));
            if !c.eat(b',') {
                break;
            }
        }
        c.expect(b';', "the variable declaration")?;
        Ok(found)
    }

    /// `{.align N} {.vN} .type`
    fn declared_type(&self, c: &mut Cursor<'a>) -> Result<(Option<u32>, u32, Type), ParseError> {
        let (mut align, mut width) = (None, 1);
        loop {
            if c.peek() != Tok::Dot {
                return Err(c.unexpected("a type in the declaration"));
            }
            let word = c.text();
            match word {
                ".align" => {
                    c.bump();
                    align = Some(alignment(c)?);
                }
                ".v2" | ".v4" => {
                    c.bump();
                    width = if word == ".v2" { 2 } else { 4 };
                }
                _ => {
                    use Type::*;
                    let ty = type_of(&word[1..]).filter(|t| {
                        matches!(t, B8 | B16 | B32 | B64 | B128 | U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
                            || matches!(t, F16 | F16x2 | F32 | F64)
                    });
                    let Some(ty) = ty else {
                        let message = format!("type `{word}` of a variable is not supported");
                        return Err(c.error(ParseErrorKind::Unsupported, message));
                    };
                    if ty.bytes() * width > 16 {
                        let message = format!("a vector of {width} x .{} is longer than 16 bytes", type_name(ty));
                        return Err(c.error(ParseErrorKind::Syntax, message));
                    }
                    c.bump();
                    return Ok((align, width, ty));
                }
            }
        }
    }

    fn entry(&mut self, c: &mut Cursor<'a>) -> Result<(), ParseError> {
        let at = c.pos();
        let name = c.ident("an entry name")?;
        if self.entries.iter().any(|e| e.name == name) || self.names.contains_key(name) {
            return Err(c.error_at(at, ParseErrorKind::Symbol, format!("entry `{name}` is declared twice")));
        }
        let mut entry = Entry {
            name: name.to_string(),
            params: Vec::new(),
            param_bytes: 0,
            maxntid: None,
            reqntid: None,
            minnctapersm: None,
            maxnreg: None,
            reqnctapercluster: None,
            maxclusterrank: None,
            explicit_cluster: false,
            blocks_are_clusters: false,
            registers: Vec::new(),
            variables: Vec::new(),
            code: Vec::new(),
            ipdom: Vec::new(),
            labels: Vec::new(),
            branch_targets: Vec::new(),
        };
        let mut names = Vec::new();
        if c.eat(b'(') && !c.eat(b')') {
            loop {
                names.push(self.param(c, &mut entry)?);
                if !c.eat(b',') {
                    break;
                }
            }
            c.expect(b')', "the parameter list")?;
        }
        self.entry_directives(c, &mut entry)?;
        if c.is(b';') {
            let message = format!("entry `{name}` has no body: declarations are not supported");
            return Err(c.error(ParseErrorKind::Unsupported, message));
        }
        c.expect(b'{', "the entry")?;
        let mut f = Function::new(c.clone(), self);
        for (i, (at, param)) in names.iter().enumerate() {
            if !f.scopes.declare_symbol(param, Symbol::Param(i as u32)) {
                return Err(c.error_at(*at, ParseErrorKind::Symbol, format!("`{param}` is declared twice")));
            }
        }
        f.params = std::mem::take(&mut entry.params);
        f.body()?;
        entry.params = f.params;
        entry.registers = f.scopes.registers;
        entry.variables = f.variables;
        entry.code = f.code;
        entry.labels = f.labels;
        entry.branch_targets = f.branch_targets;
        *c = f.cursor;
        let shared: u64 = entry.variables.iter().filter(|v| v.space == Space::Shared).map(|v| v.size).sum();
        if shared > MAX_STATIC_SHARED {
            let message =
                format!("entry `{name}`: expected at most {MAX_STATIC_SHARED} static shared bytes, got {shared}");
            return Err(c.error_at(at, ParseErrorKind::Syntax, message));
        }
        entry.ipdom = cfg::immediate_post_dominators(&entry.code, &entry.branch_targets);
        self.entries.push(Arc::new(entry));
        Ok(())
    }

    fn param(&mut self, c: &mut Cursor<'a>, entry: &mut Entry) -> Result<(usize, &'a str), ParseError> {
        if !c.eat_dot(".param") {
            return Err(c.unexpected("`.param` in the parameter list"));
        }
        let mut outer_align = None;
        while c.eat_dot(".align") {
            outer_align = Some(alignment(c)?);
        }
        let (align, width, ty) = self.declared_type(c)?;
        // `.ptr{.space}{.align N}` speaks of what the pointer points to.
        if c.eat_dot(".ptr") {
            loop {
                match c.text() {
                    ".align" => {
                        c.bump();
                        alignment(c)?;
                    }
                    ".global" | ".const" | ".local" | ".shared" => c.bump(),
                    _ => break,
                }
            }
        }
        let at = c.pos();
        let name = c.ident("a parameter name")?;
        let size = match array_size(c, u64::from(ty.bytes() * width))? {
            Size::Bytes(n) => n,
            Size::Open => {
                return Err(c.error_at(at, ParseErrorKind::Syntax, format!("parameter `{name}` has no size")));
            }
        };
        let align = outer_align.or(align).unwrap_or(ty.bytes() * width);
        let offset = u64::from(entry.param_bytes).next_multiple_of(u64::from(align));
        let end = offset.saturating_add(size);
        if end > u64::from(MAX_PARAM_BYTES) {
            let message = format!("parameter `{name}`: expected at most {MAX_PARAM_BYTES} parameter bytes, got {end}");
            return Err(c.error_at(at, ParseErrorKind::Syntax, message));
        }
        entry.params.push(Param { name: name.to_string(), align, size: size as u32, offset: offset as u32 });
        entry.param_bytes = end as u32;
        Ok((at, name))
    }

    fn entry_directives(&mut self, c: &mut Cursor<'a>, entry: &mut Entry) -> Result<(), ParseError> {
        while c.peek() == Tok::Dot {
            let at = c.pos();
            let word = c.text();
            c.bump();
            match word {
                ".maxntid" => entry.maxntid = Some(triple(c, word)?),
                ".reqntid" => entry.reqntid = Some(triple(c, word)?),
                ".minnctapersm" => entry.minnctapersm = Some(c.constant_u32(word)?),
                ".maxnctapersm" => {
                    c.constant_u32(word)?;
                }
                ".maxnreg" => entry.maxnreg = Some(c.constant_u32(word)?),
                ".reqnctapercluster" => entry.reqnctapercluster = Some(triple(c, word)?),
                ".maxclusterrank" => entry.maxclusterrank = Some(c.constant_u32(word)?),
                ".explicitcluster" => entry.explicit_cluster = true,
                ".blocksareclusters" => entry.blocks_are_clusters = true,
                ".pragma" => self.pragma(c)?,
                _ => {
                    let message = format!("directive `{word}` of an entry is not supported");
                    return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
                }
            }
            if matches!(word, ".reqnctapercluster" | ".maxclusterrank" | ".explicitcluster" | ".blocksareclusters") {
                let need = if word == ".blocksareclusters" { sm(90, 9, 0) } else { sm(90, 7, 8) };
                if let Some(what) = need.lacking(self.version, self.target) {
                    return Err(c.error_at(at, ParseErrorKind::Target, format!("`{word}`: {what}")));
                }
            }
        }
        if entry.blocks_are_clusters && (entry.reqntid.is_none() || entry.reqnctapercluster.is_none()) {
            let message = "`.blocksareclusters` needs .reqntid and .reqnctapercluster".to_string();
            return Err(c.error(ParseErrorKind::Syntax, message));
        }
        Ok(())
    }
}

/// Size of a declared name.
#[derive(Clone, Copy)]
enum Size {
    Bytes(u64),
    /// `name[]`, or an open first dimension.
    Open,
}

/// `[a][b]...` after a name, in bytes.
fn array_size(c: &mut Cursor<'_>, element: u64) -> Result<Size, ParseError> {
    let mut bytes = element;
    let mut open = false;
    let mut first = true;
    while c.eat(b'[') {
        if first && c.eat(b']') {
            open = true;
        } else {
            let at = c.pos();
            let n = c.constant_int("array size")?;
            c.expect(b']', "the array size")?;
            bytes =
                u64::try_from(n).ok().and_then(|n| bytes.checked_mul(n)).filter(|n| *n <= MAX_VARIABLE).ok_or_else(
                    || {
                        c.error_at(
                            at,
                            ParseErrorKind::Syntax,
                            format!("array size {n}: expected 0 to {MAX_VARIABLE} bytes in all"),
                        )
                    },
                )?;
        }
        first = false;
    }
    Ok(if open { Size::Open } else { Size::Bytes(bytes) })
}

fn alignment(c: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let at = c.pos();
    let n = c.constant_u32(".align")?;
    if n.is_power_of_two() && n <= 4096 {
        return Ok(n);
    }
    Err(c.error_at(at, ParseErrorKind::Syntax, format!("`.align {n}`: expected a power of two up to 4096")))
}

fn triple(c: &mut Cursor<'_>, what: &str) -> Result<[u32; 3], ParseError> {
    let at = c.pos();
    let mut dims = [1; 3];
    for (i, dim) in dims.iter_mut().enumerate() {
        *dim = c.constant_u32(what)?;
        if i == 2 || !c.eat(b',') {
            break;
        }
    }
    if dims.contains(&0) {
        return Err(c.error_at(
            at,
            ParseErrorKind::Syntax,
            format!("`{what}`: expected sizes of at least 1, got {dims:?}"),
        ));
    }
    Ok(dims)
}

/// Bytes of `= value` or `= {value, ...}`.
fn initialiser(c: &mut Cursor<'_>, name: &str, ty: Type, size: Size) -> Result<Vec<u8>, ParseError> {
    let at = c.pos();
    let limit = match size {
        Size::Bytes(n) => n,
        Size::Open => MAX_INITIALISER,
    };
    let mut bytes = Vec::new();
    let mut depth = 0u32;
    loop {
        if c.eat(b'{') {
            depth += 1;
            if !c.eat(b'}') {
                continue;
            }
            depth -= 1;
        } else {
            if c.peek() == Tok::Ident && c.text() != "WARP_SZ" {
                let message = format!("`{name}`: the address of `{}` as initial value is not supported", c.text());
                return Err(c.error(ParseErrorKind::Unsupported, message));
            }
            let value_at = c.pos();
            let bits = match (c.constant()?, ty) {
                (Const::Int { bits, .. }, Type::F32) => u64::from((bits as i64 as f32).to_bits()),
                (Const::Int { bits, .. }, Type::F64) => (bits as i64 as f64).to_bits(),
                (Const::Int { bits, .. }, _) => bits,
                (Const::F32(bits), Type::F32 | Type::B32) => u64::from(bits),
                (Const::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
                (Const::F64(v), Type::F32) => u64::from((v as f32).to_bits()),
                (Const::F64(v), Type::F64 | Type::B64) => v.to_bits(),
                _ => {
                    let message = format!("`{name}`: floating-point value for .{}", type_name(ty));
                    return Err(c.error_at(value_at, ParseErrorKind::Type, message));
                }
            };
            let width = ty.bytes() as usize;
            if width > 8 {
                let message = format!("`{name}`: initialiser of .{} is not supported", type_name(ty));
                return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
            }
            bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
            if bytes.len() as u64 > limit {
                let message = format!("`{name}`: initialiser is longer than its {limit} bytes");
                return Err(c.error_at(value_at, ParseErrorKind::Syntax, message));
            }
        }
        while depth > 0 && c.eat(b'}') {
            depth -= 1;
        }
        if depth == 0 {
            break;
        }
        c.expect(b',', "the initialiser")?;
    }
    if let Size::Bytes(n) = size {
        if n > MAX_INITIALISER {
            let message = format!("`{name}`: initialised variables of {n} bytes are not supported");
            return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
        }
        bytes.resize(n as usize, 0);
    }
    Ok(bytes)
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
