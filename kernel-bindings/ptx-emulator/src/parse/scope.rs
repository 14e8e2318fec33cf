//! Names inside a function: nested `{ }` scopes of registers, variables and labels.

use super::inst::type_name;
use crate::ir::{Reg, RegisterDecl, Symbol, Type};
use std::collections::HashMap;

/// What a name stands for.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Reg(Reg, Type),
    /// `.reg .v4 .b32 v`: the registers of its elements.
    VectorReg(Vec<Reg>, Type),
    Symbol(Symbol),
}

/// `%r<45>`: registers come into being when they are first used.
#[derive(Debug)]
struct Range<'a> {
    prefix: &'a str,
    count: u32,
    ty: Type,
}

impl Range<'_> {
    /// True if the range declares `name`.
    fn has(&self, name: &str) -> bool {
        let Some(digits) = name.strip_prefix(self.prefix) else { return false };
        let canonical = digits == "0" || (!digits.starts_with('0') && !digits.is_empty());
        canonical && digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u32>().is_ok_and(|n| n < self.count)
    }
}

#[derive(Debug, Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Named>,
    ranges: Vec<Range<'a>>,
    labels: HashMap<&'a str, u32>,
    tables: HashMap<&'a str, u32>,
}

/// A branch whose label is not yet known.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    pub(crate) label: &'a str,
    pub(crate) at: usize,
    pub(crate) slot: Slot,
}

/// Where the instruction index of a label goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slot {
    /// The `bra` at this instruction index.
    Branch(u32),
    /// Entry of a branch table.
    Table(u32, u32),
    /// The `brx.idx` at this instruction index, which names a table.
    Brx(u32),
}

/// Scopes, innermost last. There is always one.
#[derive(Debug)]
pub(crate) struct Scopes<'a> {
    stack: Vec<Scope<'a>>,
    pending: Vec<Vec<Pending<'a>>>,
    pub(crate) registers: Vec<RegisterDecl>,
}

impl<'a> Scopes<'a> {
    pub(crate) fn new() -> Scopes<'a> {
        Scopes { stack: vec![Scope::default()], pending: vec![Vec::new()], registers: Vec::new() }
    }

    pub(crate) fn depth(&self) -> usize {
        self.stack.len()
    }

    pub(crate) fn open(&mut self) {
        self.stack.push(Scope::default());
        self.pending.push(Vec::new());
    }

    fn top(&mut self) -> &mut Scope<'a> {
        self.stack.last_mut().expect("a function has at least its own scope")
    }

    fn declared_here(&self, name: &str) -> bool {
        let scope = self.stack.last().expect("a function has at least its own scope");
        scope.names.contains_key(name)
            || scope.labels.contains_key(name)
            || scope.tables.contains_key(name)
            || scope.ranges.iter().any(|r| r.has(name))
    }

    /// A register that no text can name.
    pub(crate) fn scratch(&mut self, ty: Type) -> Reg {
        self.register(format!("(scratch {})", self.registers.len()), ty)
    }

    fn register(&mut self, name: String, ty: Type) -> Reg {
        self.registers.push(RegisterDecl { name, ty });
        Reg(self.registers.len() as u32 - 1)
    }

    /// Declares one register, or `width` elements. False if the name is taken in this scope.
    pub(crate) fn declare_register(&mut self, name: &'a str, ty: Type, width: Option<u32>) -> bool {
        if self.declared_here(name) {
            return false;
        }
        let named = match width {
            None => Named::Reg(self.register(name.to_string(), ty), ty),
            Some(n) => Named::VectorReg(
                (0..n as usize).map(|i| self.register(format!("{name}.{}", ["x", "y", "z", "w"][i % 4]), ty)).collect(),
                ty,
            ),
        };
        self.top().names.insert(name, named);
        true
    }

    /// Declares `prefix0` to `prefix(count-1)`. False if one of them is taken in this scope.
    pub(crate) fn declare_range(&mut self, prefix: &'a str, count: u32, ty: Type) -> bool {
        let range = Range { prefix, count, ty };
        let scope = self.top();
        // The smallest number that two ranges of different prefixes share is the first name of the longer prefix.
        let clash = scope.names.keys().chain(scope.labels.keys()).chain(scope.tables.keys()).any(|n| range.has(n))
            || scope.ranges.iter().any(|other| {
                (count > 0 && other.has(&format!("{prefix}0")))
                    || (other.count > 0 && range.has(&format!("{}0", other.prefix)))
            });
        if !clash {
            scope.ranges.push(range);
        }
        !clash
    }

    /// Declares a variable. False if the name is taken in this scope.
    pub(crate) fn declare_symbol(&mut self, name: &'a str, symbol: Symbol) -> bool {
        if self.declared_here(name) {
            return false;
        }
        self.top().names.insert(name, Named::Symbol(symbol));
        true
    }

    /// Declares a label. False if the name is taken in this scope.
    pub(crate) fn declare_label(&mut self, name: &'a str, index: u32) -> bool {
        if self.declared_here(name) {
            return false;
        }
        self.top().labels.insert(name, index);
        true
    }

    /// Declares a branch table. False if the name is taken in this scope.
    pub(crate) fn declare_table(&mut self, name: &'a str, index: u32) -> bool {
        if self.declared_here(name) {
            return false;
        }
        self.top().tables.insert(name, index);
        true
    }

    /// Meaning of a name, innermost scope first.
    pub(crate) fn find(&mut self, name: &'a str) -> Option<Named> {
        for depth in (0..self.stack.len()).rev() {
            if let Some(named) = self.stack[depth].names.get(name) {
                return Some(named.clone());
            }
            if let Some(ty) = self.stack[depth].ranges.iter().find(|r| r.has(name)).map(|r| r.ty) {
                let named = Named::Reg(self.register(name.to_string(), ty), ty);
                self.stack[depth].names.insert(name, named.clone());
                return Some(named);
            }
        }
        None
    }

    /// Notes a use of a label of this scope or of one around it.
    pub(crate) fn refer(&mut self, pending: Pending<'a>) {
        self.pending.last_mut().expect("a function has at least its own scope").push(pending);
    }

    /// Closes the innermost scope. `found` gets every reference to one of its labels or tables with the index; the
    /// others are handed to the scope around it, or come back if there is none.
    pub(crate) fn close(&mut self, mut found: impl FnMut(Slot, u32)) -> Vec<Pending<'a>> {
        let scope = self.stack.pop().unwrap_or_default();
        let mut rest = Vec::new();
        for pending in self.pending.pop().unwrap_or_default() {
            let index = match pending.slot {
                Slot::Brx(_) => scope.tables.get(pending.label),
                Slot::Branch(_) | Slot::Table(..) => scope.labels.get(pending.label),
            };
            match index {
                Some(index) => found(pending.slot, *index),
                None => rest.push(pending),
            }
        }
        match self.pending.last_mut() {
            Some(outer) => {
                outer.append(&mut rest);
                Vec::new()
            }
            None => rest,
        }
    }

    /// Name and type of a register, for messages.
    pub(crate) fn describe(&self, reg: Reg) -> String {
        match self.registers.get(reg.0 as usize) {
            Some(r) => format!("{} (.{})", r.name, type_name(r.ty)),
            None => "?".into(),
        }
    }
}
