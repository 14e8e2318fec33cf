//! Entries: parameters, directives, body.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::function::Function;
use super::lex::Tok;
use super::module::ModuleState;
use super::target::sm;
use super::variable::{MAX_STATIC_SHARED, Size, alignment, array_size};
use crate::cfg;
use crate::ir::{Entry, Param, Space, Symbol};
use std::sync::Arc;

/// Largest parameter buffer before sm_70, and from there on with PTX 8.1.
const MAX_PARAM_BYTES: u32 = 32764;

impl<'a> ModuleState<'a> {
    pub(super) fn entry(&mut self, c: &mut Cursor<'a>) -> Result<(), ParseError> {
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
