//! The body of an entry: declarations, labels, guards, instructions.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::inst::{Inst, MAX_MODS, Mods, type_name, type_of};
use super::lex::Tok;
use super::module::ModuleState;
use super::operand::same_width;
use super::scope::{Named, Pending, Scopes, Slot};
use super::target::sm;
use crate::ir::{Guard, Instruction, Op, Param, Symbol, Type, Variable};

/// Deepest nesting of `{ }` in a body.
const MAX_SCOPES: usize = 256;

/// State while one entry is read.
pub(crate) struct Function<'m, 'a> {
    pub(crate) cursor: Cursor<'a>,
    pub(crate) module: &'m mut ModuleState<'a>,
    pub(crate) scopes: Scopes<'a>,
    pub(crate) params: Vec<Param>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) code: Vec<Instruction>,
    pub(crate) labels: Vec<(u32, String)>,
    pub(crate) branch_targets: Vec<Vec<u32>>,
    loc: Option<(u32, u32)>,
}

impl<'m, 'a> Function<'m, 'a> {
    /// Starts at the token after `{` of the body, with the parameters already read.
    pub(crate) fn new(cursor: Cursor<'a>, module: &'m mut ModuleState<'a>) -> Function<'m, 'a> {
        Function {
            cursor,
            module,
            scopes: Scopes::new(),
            params: Vec::new(),
            variables: Vec::new(),
            code: Vec::new(),
            labels: Vec::new(),
            branch_targets: Vec::new(),
            loc: None,
        }
    }

    /// Meaning of a name: scopes of the function first, then variables of the module.
    pub(crate) fn find(&mut self, name: &'a str) -> Option<Named> {
        self.scopes.find(name).or_else(|| self.module.names.get(name).map(|i| Named::Symbol(Symbol::Module(*i))))
    }

    fn duplicate(&self, at: usize, name: &str) -> ParseError {
        self.cursor.error_at(at, ParseErrorKind::Symbol, format!("`{name}` is declared twice"))
    }

    /// Reads statements up to and including the `}` that closes the body.
    pub(crate) fn body(&mut self) -> Result<(), ParseError> {
        loop {
            match self.cursor.peek() {
                Tok::Eof => return Err(self.cursor.unexpected("`}` at the end of the body")),
                Tok::Punct(b'{') => {
                    if self.scopes.depth() >= MAX_SCOPES {
                        let message = format!("blocks nested deeper than {MAX_SCOPES}");
                        return Err(self.cursor.error(ParseErrorKind::Syntax, message));
                    }
                    self.cursor.bump();
                    self.scopes.open();
                }
                Tok::Punct(b'}') => {
                    let last = self.scopes.depth() == 1;
                    self.close_scope()?;
                    self.cursor.bump();
                    if last {
                        return Ok(());
                    }
                }
                Tok::Punct(b';') => self.cursor.bump(),
                Tok::Dot => self.directive()?,
                Tok::Ident if self.cursor.peek_at(1) == Tok::Punct(b':') => self.label()?,
                Tok::Ident | Tok::Punct(b'@') => self.instruction()?,
                _ => return Err(self.cursor.unexpected("an instruction, label or directive")),
            }
        }
    }

    fn close_scope(&mut self) -> Result<(), ParseError> {
        let (code, tables) = (&mut self.code, &mut self.branch_targets);
        let rest = self.scopes.close(|slot, index| match slot {
            Slot::Branch(at) => {
                if let Some(Op::Bra { target, .. }) = code.get_mut(at as usize).map(|i| &mut i.op) {
                    *target = index;
                }
            }
            Slot::Brx(at) => {
                if let Some(Op::BrxIdx { table, .. }) = code.get_mut(at as usize).map(|i| &mut i.op) {
                    *table = index;
                }
            }
            Slot::Table(t, i) => tables[t as usize][i as usize] = index,
        });
        match rest.first() {
            None => Ok(()),
            Some(p) => {
                let what = if matches!(p.slot, Slot::Brx(_)) { "branch table" } else { "label" };
                let message = format!("{what} `{}` is not declared in this function", p.label);
                Err(self.cursor.error_at(p.at, ParseErrorKind::Symbol, message))
            }
        }
    }

    fn label(&mut self) -> Result<(), ParseError> {
        let at = self.cursor.pos();
        let name = self.cursor.ident("a label")?;
        self.cursor.bump();
        if self.cursor.peek() == Tok::Dot {
            match self.cursor.text() {
                ".branchtargets" => return self.branch_table(at, name),
                word @ (".calltargets" | ".callprototype") => {
                    return Err(self
                        .cursor
                        .error(ParseErrorKind::Unsupported, format!("`{word}`: calls are not supported")));
                }
                _ => {}
            }
        }
        let index = self.code.len() as u32;
        if !self.scopes.declare_label(name, index) {
            return Err(self.duplicate(at, name));
        }
        self.labels.push((index, name.to_string()));
        Ok(())
    }

    fn branch_table(&mut self, at: usize, name: &'a str) -> Result<(), ParseError> {
        self.cursor.bump();
        let table = self.branch_targets.len() as u32;
        let mut count = 0u32;
        loop {
            let at = self.cursor.pos();
            let label = self.cursor.ident("a label in .branchtargets")?;
            self.scopes.refer(Pending { label, at, slot: Slot::Table(table, count) });
            count += 1;
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.cursor.expect(b';', ".branchtargets")?;
        self.branch_targets.push(vec![0; count as usize]);
        if !self.scopes.declare_table(name, table) {
            return Err(self.duplicate(at, name));
        }
        Ok(())
    }

    fn directive(&mut self) -> Result<(), ParseError> {
        let word = self.cursor.text();
        match word {
            ".reg" => self.registers(),
            ".loc" => self.location(),
            ".pragma" => {
                self.cursor.bump();
                self.module.pragma(&mut self.cursor)
            }
            ".shared" | ".local" | ".global" | ".const" | ".extern" | ".weak" | ".visible" => {
                for (at, name, variable) in self.module.variable(&mut self.cursor)? {
                    if variable.external {
                        let message = format!("`.extern {name}` inside an entry: declare it at module scope");
                        return Err(self.cursor.error_at(at, ParseErrorKind::Unsupported, message));
                    }
                    let symbol = Symbol::Entry(self.variables.len() as u32);
                    if !self.scopes.declare_symbol(name, symbol) {
                        return Err(self.duplicate(at, name));
                    }
                    self.variables.push(variable);
                }
                Ok(())
            }
            ".param" => Err(self.cursor.error(
                ParseErrorKind::Unsupported,
                "`.param` in a body: calls of device functions are not supported, inline them".into(),
            )),
            _ => Err(self.cursor.error(ParseErrorKind::Unsupported, format!("directive `{word}` is not supported"))),
        }
    }

    fn registers(&mut self) -> Result<(), ParseError> {
        self.cursor.bump();
        let mut width = None;
        for (word, n) in [(".v2", 2), (".v4", 4)] {
            if self.cursor.eat_dot(word) {
                width = Some(n);
            }
        }
        let word = self.cursor.text();
        let ty = match (self.cursor.peek(), word.strip_prefix('.').and_then(type_of)) {
            (Tok::Dot, Some(ty)) if register_type(ty) => ty,
            (Tok::Dot, _) => {
                return Err(self.cursor.error(ParseErrorKind::Type, format!("`.reg`: {word} is not a register type")));
            }
            _ => return Err(self.cursor.unexpected("a type in .reg")),
        };
        if ty == Type::B128
            && let Some(what) = sm(70, 8, 3).lacking(self.module.version, self.module.target)
        {
            return Err(self.cursor.error(ParseErrorKind::Target, format!("`.reg .b128`: {what}")));
        }
        self.cursor.bump();
        loop {
            let at = self.cursor.pos();
            let name = self.cursor.ident("a register name")?;
            if name == "_" {
                return Err(self.cursor.error_at(
                    at,
                    ParseErrorKind::Syntax,
                    "`.reg`: `_` is not a register name".into(),
                ));
            }
            let fresh = if self.cursor.eat(b'<') {
                let count = self.cursor.register_count()?;
                self.cursor.expect(b'>', ".reg")?;
                if width.is_some() {
                    let message = format!("`.reg`: a range of vector registers `{name}<{count}>` is not supported");
                    return Err(self.cursor.error_at(at, ParseErrorKind::Unsupported, message));
                }
                self.scopes.declare_range(name, count, ty)
            } else {
                self.scopes.declare_register(name, ty, width)
            };
            if !fresh {
                return Err(self.duplicate(at, name));
            }
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.cursor.expect(b';', ".reg")
    }

    /// `.loc file line column[, function_name label[+n], inlined_at file line column]`
    fn location(&mut self) -> Result<(), ParseError> {
        self.cursor.bump();
        let file = self.cursor.constant_u32(".loc file")?;
        let line = self.cursor.constant_u32(".loc line")?;
        if self.cursor.peek() == Tok::Int {
            self.cursor.bump();
        }
        self.loc = Some((file, line));
        while self.cursor.eat(b',') {
            match self.cursor.ident("function_name or inlined_at in .loc")? {
                "function_name" => {
                    self.cursor.ident("a label after function_name")?;
                    if self.cursor.eat(b'+') {
                        self.cursor.constant_u32(".loc function_name offset")?;
                    }
                }
                "inlined_at" => {
                    for what in ["inlined_at file", "inlined_at line", "inlined_at column"] {
                        self.cursor.constant_u32(what)?;
                    }
                }
                other => {
                    let message = format!("`.loc`: attribute {other} is not supported");
                    return Err(self.cursor.error(ParseErrorKind::Unsupported, message));
                }
            }
        }
        self.cursor.eat(b';');
        Ok(())
    }

    fn guard(&mut self) -> Result<Option<Guard>, ParseError> {
        if !self.cursor.eat(b'@') {
            return Ok(None);
        }
        let negate = self.cursor.eat(b'!');
        let at = self.cursor.pos();
        let name = self.cursor.ident("a predicate register after `@`")?;
        match self.find(name) {
            Some(Named::Reg(pred, ty)) if same_width(Type::Pred, ty) => Ok(Some(Guard { pred, negate })),
            Some(Named::Reg(_, ty)) => {
                let message = format!("guard: expected a .pred register, got {name} (.{})", type_name(ty));
                Err(self.cursor.error_at(at, ParseErrorKind::Type, message))
            }
            _ => Err(self.cursor.error_at(at, ParseErrorKind::Symbol, format!("guard: `{name}` is not declared"))),
        }
    }

    /// Appends an instruction with the guard and place of `inst`.
    pub(crate) fn push(&mut self, inst: &Inst<'a>, op: Op) {
        self.code.push(Instruction { guard: inst.guard, op, line: inst.line, loc: self.loc });
    }

    fn instruction(&mut self) -> Result<(), ParseError> {
        let guard = self.guard()?;
        let line = self.cursor.line();
        let at = self.cursor.pos();
        let head = self.cursor.rest();
        let name = self.cursor.ident("an instruction")?;
        let mut words = Vec::with_capacity(8);
        let mut length = name.len();
        while self.cursor.peek() == Tok::Dot {
            let word = self.cursor.text();
            words.push(&word[1..]);
            length = word.as_ptr() as usize - head.as_ptr() as usize + word.len();
            if words.len() > MAX_MODS {
                let message = format!("`{name}`: more than {MAX_MODS} modifiers");
                return Err(self.cursor.error(ParseErrorKind::Syntax, message));
            }
            self.cursor.bump();
        }
        let full = &head[..length];
        let mut inst = Inst { name, full, mods: Mods::new(words), args: Vec::new(), at, line, guard };
        super::ops::refuse(self, &inst)?;
        if !self.cursor.is(b';') {
            inst.args.reserve(4);
            loop {
                let arg = self.cursor.operand()?;
                inst.args.push(arg);
                // `[a].unified` promises a property of the address that makes no difference here.
                self.cursor.eat_dot(".unified");
                if !self.cursor.eat(b',') {
                    break;
                }
            }
        }
        if !self.cursor.eat(b';') {
            return Err(self.cursor.unexpected(&format!("`,` or `;` after the operands of `{full}`")));
        }
        let op = super::ops::lower(self, &mut inst)?;
        self.push(&inst, op);
        Ok(())
    }
}

/// Types that `.reg` may declare.
const fn register_type(ty: Type) -> bool {
    use Type::*;
    matches!(
        ty,
        Pred | B8 | B16 | B32 | B64 | B128 | U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64 | F16 | F16x2 | F32 | F64
    )
}
