//! Operands: names to registers, constants to bit patterns, and the type rules of the ISA.

use super::cursor::{Raw, RawBase, RawKind};
use super::error::{ParseError, ParseErrorKind};
use super::expr::Const;
use super::function::Function;
use super::inst::{Inst, type_name};
use super::scope::Named;
use super::special::{special, special_need, special_type};
use crate::ir::{Address, AddressBase, Dst, Operand, Reg, Space, Symbol, Type};

const fn is_bits(ty: Type) -> bool {
    matches!(ty, Type::B8 | Type::B16 | Type::B32 | Type::B64 | Type::B128)
}

const fn is_int(ty: Type) -> bool {
    use Type::*;
    matches!(ty, U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
}

const fn is_float(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::F32 | Type::F64)
}

/// True if a register of type `reg` may stand where the instruction has type `ty` and asks for the same width.
///
/// Bit types fit every type of their width and the other way round; signedness does not matter; a floating-point type
/// fits itself. Packed and alternate formats take bit registers only, the 16-bit pairs also `.f16x2` registers.
pub(crate) fn same_width(ty: Type, reg: Type) -> bool {
    use Type::*;
    if ty.bits() != reg.bits() {
        return false;
    }
    match ty {
        Pred => reg == Pred,
        F16 | F32 | F64 => is_bits(reg) || ty as u8 == reg as u8,
        F16x2 | U16x2 | S16x2 => is_bits(reg) || reg == F16x2,
        _ if is_bits(ty) => reg != Pred,
        _ if is_int(ty) => is_bits(reg) || is_int(reg),
        _ => is_bits(reg),
    }
}

/// True if a register of type `reg` may hold a value of type `ty` for `ld`, `st` and `cvt`, where it may be wider.
pub(crate) fn may_be_wider(ty: Type, reg: Type) -> bool {
    if reg.bits() <= ty.bits() || reg.bits() > 64 {
        return same_width(ty, reg);
    }
    is_bits(ty) || (is_int(ty) && (is_bits(reg) || is_int(reg))) || (is_float(ty) && is_bits(reg))
}

/// Rule that a register operand must follow.
pub(crate) type Rule = fn(Type, Type) -> bool;

impl<'a> Function<'_, 'a> {
    fn bad(&self, inst: &Inst<'a>, raw: &Raw<'a>, kind: ParseErrorKind, what: &str) -> ParseError {
        let index = inst.args.iter().position(|a| a.at >= raw.at).unwrap_or(inst.args.len().saturating_sub(1));
        // Elements of a vector start after the operand that holds them.
        let index = if inst.args.get(index).is_some_and(|a| a.at > raw.at) { index.saturating_sub(1) } else { index };
        self.cursor.error_at(raw.at, kind, format!("`{}`: operand {}: {what}", inst.full, index + 1))
    }

    fn unknown(&self, inst: &Inst<'a>, raw: &Raw<'a>, name: &str) -> ParseError {
        self.bad(inst, raw, ParseErrorKind::Symbol, &format!("`{name}` is not declared"))
    }

    /// Bit pattern of a constant in a position of type `ty`.
    fn immediate(&self, inst: &Inst<'a>, raw: &Raw<'a>, value: Const, ty: Type) -> Result<u64, ParseError> {
        let mask = if ty.bits() >= 64 { u64::MAX } else { (1u64 << ty.bits()) - 1 };
        let mismatch = |got: &str| {
            self.bad(inst, raw, ParseErrorKind::Type, &format!("expected a .{} constant, got {got}", type_name(ty)))
        };
        match (value, ty) {
            (_, Type::B128) => Err(mismatch("one of at most 64 bits")),
            (Const::F32(bits), Type::F32 | Type::B32) => Ok(u64::from(bits)),
            (Const::F32(bits), Type::F64) => Ok(f64::from(f32::from_bits(bits)).to_bits()),
            (Const::F64(v), Type::F64 | Type::B64) => Ok(v.to_bits()),
            (Const::F64(v), Type::F32) => Ok(u64::from((v as f32).to_bits())),
            (Const::F32(_) | Const::F64(_), _) => Err(mismatch("a floating-point one")),
            (Const::Int { .. }, _) if is_float(ty) => Err(mismatch("an integer")),
            // Integer constants have 64 bits and are cut to the size of the place they stand in.
            (Const::Int { bits, .. }, _) => Ok(bits & mask),
        }
    }

    fn register(
        &self,
        inst: &Inst<'a>,
        raw: &Raw<'a>,
        reg: Reg,
        got: Type,
        ty: Type,
        rule: Rule,
    ) -> Result<Reg, ParseError> {
        if rule(ty, got) {
            return Ok(reg);
        }
        let described = self.scopes.describe(reg);
        Err(self.bad(
            inst,
            raw,
            ParseErrorKind::Type,
            &format!("expected a .{} register, got {described}", type_name(ty)),
        ))
    }

    /// One scalar source.
    pub(crate) fn scalar(
        &mut self,
        inst: &Inst<'a>,
        raw: &Raw<'a>,
        ty: Type,
        rule: Rule,
    ) -> Result<Operand, ParseError> {
        let (name, member) = match &raw.kind {
            RawKind::Const(value) => return Ok(Operand::Imm(self.immediate(inst, raw, *value, ty)?)),
            RawKind::Name(name) => (*name, None),
            RawKind::Member(name, member) => (*name, Some(*member)),
            RawKind::Offset(name, offset) => return self.symbol_value(inst, raw, name, *offset, ty),
            RawKind::Not(_) => {
                return Err(self.bad(inst, raw, ParseErrorKind::Syntax, "negation is not allowed here"));
            }
            RawKind::Vector(_) => {
                return Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected a scalar, got a vector"));
            }
            RawKind::Address { .. } | RawKind::Pair(_) => {
                return Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected a register or constant"));
            }
        };
        match (self.find(name), member) {
            (Some(Named::Reg(reg, got)), None) => Ok(Operand::Reg(self.register(inst, raw, reg, got, ty, rule)?)),
            (Some(Named::VectorReg(regs, got)), Some(member)) => {
                let reg = self.element(inst, raw, &regs, member)?;
                Ok(Operand::Reg(self.register(inst, raw, reg, got, ty, rule)?))
            }
            (Some(Named::VectorReg(..)), None) => {
                Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected a scalar, got a vector register"))
            }
            (Some(Named::Symbol(_)), None) => self.symbol_value(inst, raw, name, 0, ty),
            (None, _) if name.starts_with('%') => {
                let Some(found) = special(name, member) else {
                    return Err(self.unknown_special(inst, raw, name, member));
                };
                inst.need(self, special_need(found))?;
                let got = special_type(found);
                if !matches!(inst.name, "mov" | "cvt") {
                    let what = format!("special register {name} may only be read by mov and cvt");
                    return Err(self.bad(inst, raw, ParseErrorKind::Syntax, &what));
                }
                let cut = got == Type::U32 && matches!(ty, Type::U16 | Type::S16);
                if !rule(ty, got) && !cut {
                    return Err(self.bad(
                        inst,
                        raw,
                        ParseErrorKind::Type,
                        &format!("expected a .{} source, got {name} (.{})", type_name(ty), type_name(got)),
                    ));
                }
                Ok(Operand::Special(found))
            }
            (None, _) => Err(self.unknown(inst, raw, name)),
            (Some(_), Some(member)) => {
                Err(self.bad(inst, raw, ParseErrorKind::Syntax, &format!("`{name}` has no element .{member}")))
            }
        }
    }

    fn unknown_special(&self, inst: &Inst<'a>, raw: &Raw<'a>, name: &str, member: Option<&str>) -> ParseError {
        let member = member.map(|m| format!(".{m}")).unwrap_or_default();
        let known =
            ["%envreg", "%pm", "%current_graph_exec", "%reserved_smem", "%clusterid", "%tid", "%ntid", "%ctaid"];
        if known.iter().any(|k| name.starts_with(k)) {
            let what = format!("special register {name}{member} is not supported");
            return self.bad(inst, raw, ParseErrorKind::Unsupported, &what);
        }
        self.unknown(inst, raw, &format!("{name}{member}"))
    }

    fn element(&self, inst: &Inst<'a>, raw: &Raw<'a>, regs: &[Reg], member: &str) -> Result<Reg, ParseError> {
        let index = match member {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => usize::MAX,
        };
        regs.get(index).copied().ok_or_else(|| {
            self.bad(
                inst,
                raw,
                ParseErrorKind::Syntax,
                &format!("vector register of {} elements has no element .{member}", regs.len()),
            )
        })
    }

    /// A variable's address as a value.
    fn symbol_value(
        &mut self,
        inst: &Inst<'a>,
        raw: &Raw<'a>,
        name: &'a str,
        offset: i64,
        ty: Type,
    ) -> Result<Operand, ParseError> {
        let Some(named) = self.find(name) else { return Err(self.unknown(inst, raw, name)) };
        let Named::Symbol(symbol) = named else {
            return Err(self.bad(inst, raw, ParseErrorKind::Syntax, "an offset belongs to a variable, not a register"));
        };
        if !matches!(inst.name, "mov" | "cvta" | "mapa") {
            let what = format!("the address of `{name}` may only be taken by mov, cvta and mapa");
            return Err(self.bad(inst, raw, ParseErrorKind::Syntax, &what));
        }
        let (space, _) = self.symbol_facts(symbol);
        let short = matches!(space, Space::Shared | Space::Local | Space::Param | Space::Const);
        if !(matches!(ty, Type::U64 | Type::S64 | Type::B64)
            || (short && matches!(ty, Type::U32 | Type::S32 | Type::B32)))
        {
            return Err(self.bad(
                inst,
                raw,
                ParseErrorKind::Type,
                &format!("the address of `{name}` is no .{} value", type_name(ty)),
            ));
        }
        Ok(Operand::Symbol(symbol, offset))
    }

    /// Source operand `i` of exactly the width of `ty`.
    pub(crate) fn src(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<Operand, ParseError> {
        self.scalar(inst, &inst.args[i], ty, same_width)
    }

    /// Source operand `i`, whose register may be wider.
    pub(crate) fn wide_src(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<Operand, ParseError> {
        self.scalar(inst, &inst.args[i], ty, may_be_wider)
    }

    /// Source operand `i`, which must be a register.
    pub(crate) fn reg_src(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<Operand, ParseError> {
        match self.src(inst, i, ty)? {
            reg @ Operand::Reg(_) => Ok(reg),
            _ => Err(self.bad(inst, &inst.args[i], ParseErrorKind::Syntax, "expected a register")),
        }
    }

    /// Immediate operand `i` in `range`.
    pub(crate) fn imm(
        &self,
        inst: &Inst<'a>,
        i: usize,
        range: std::ops::RangeInclusive<i64>,
        what: &str,
    ) -> Result<i64, ParseError> {
        let raw = &inst.args[i];
        let expected = format!("expected {what}, a constant from {} to {}", range.start(), range.end());
        match raw.kind {
            RawKind::Const(Const::Int { bits, .. }) if range.contains(&(bits as i64)) => Ok(bits as i64),
            RawKind::Const(Const::Int { bits, .. }) => {
                Err(self.bad(inst, raw, ParseErrorKind::Syntax, &format!("{expected}, got {}", bits as i64)))
            }
            _ => Err(self.bad(inst, raw, ParseErrorKind::Syntax, &format!("{expected}, got another operand"))),
        }
    }

    /// Predicate source, `p` or `!p`.
    pub(crate) fn predicate(&mut self, inst: &Inst<'a>, raw: &Raw<'a>) -> Result<Operand, ParseError> {
        if let RawKind::Not(name) = raw.kind {
            let plain = Raw { kind: RawKind::Name(name), at: raw.at };
            return match self.scalar(inst, &plain, Type::Pred, same_width)? {
                Operand::Reg(reg) => Ok(Operand::NotPred(reg)),
                _ => Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected a predicate register after `!`")),
            };
        }
        self.scalar(inst, raw, Type::Pred, same_width)
    }

    /// Predicate source operand `i`.
    pub(crate) fn pred_src(&mut self, inst: &Inst<'a>, i: usize) -> Result<Operand, ParseError> {
        self.predicate(inst, &inst.args[i])
    }

    /// One scalar destination.
    pub(crate) fn scalar_dst(
        &mut self,
        inst: &Inst<'a>,
        raw: &Raw<'a>,
        ty: Type,
        rule: Rule,
    ) -> Result<Dst, ParseError> {
        let (name, member) = match &raw.kind {
            RawKind::Name("_") => return Ok(Dst::Sink),
            RawKind::Name(name) => (*name, None),
            RawKind::Member(name, member) => (*name, Some(*member)),
            _ => return Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected a destination register")),
        };
        match (self.find(name), member) {
            (Some(Named::Reg(reg, got)), None) => Ok(Dst::Reg(self.register(inst, raw, reg, got, ty, rule)?)),
            (Some(Named::VectorReg(regs, got)), Some(member)) => {
                let reg = self.element(inst, raw, &regs, member)?;
                Ok(Dst::Reg(self.register(inst, raw, reg, got, ty, rule)?))
            }
            (None, _) if special(name, member).is_none() => Err(self.unknown(inst, raw, name)),
            _ => Err(self.bad(
                inst,
                raw,
                ParseErrorKind::Syntax,
                &format!("expected a destination register, got `{name}`"),
            )),
        }
    }

    /// Destination operand `i`; `_` is refused.
    pub(crate) fn dst(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<Dst, ParseError> {
        self.dst_by(inst, i, ty, same_width)
    }

    /// Destination operand `i`, whose register may be wider; `_` is refused.
    pub(crate) fn wide_dst(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<Dst, ParseError> {
        self.dst_by(inst, i, ty, may_be_wider)
    }

    fn dst_by(&mut self, inst: &Inst<'a>, i: usize, ty: Type, rule: Rule) -> Result<Dst, ParseError> {
        match self.scalar_dst(inst, &inst.args[i], ty, rule)? {
            Dst::Sink => Err(self.bad(inst, &inst.args[i], ParseErrorKind::Syntax, "`_` is not allowed here")),
            d => Ok(d),
        }
    }

    /// Destination operand `i`, `_` allowed.
    pub(crate) fn dst_or_sink(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<Dst, ParseError> {
        self.scalar_dst(inst, &inst.args[i], ty, same_width)
    }

    /// Destination operand `i` of the form `d` or `d|p` with a predicate `p`.
    pub(crate) fn dst_pair(&mut self, inst: &Inst<'a>, i: usize, ty: Type) -> Result<(Dst, Option<Dst>), ParseError> {
        let RawKind::Pair(pair) = &inst.args[i].kind else {
            return Ok((self.dst_or_sink(inst, i, ty)?, None));
        };
        let d = self.scalar_dst(inst, &pair.0, ty, same_width)?;
        let p = self.scalar_dst(inst, &pair.1, Type::Pred, same_width)?;
        Ok((d, Some(p)))
    }

    /// Elements of operand `i` as raw scalars: `{...}`, a vector register, or the one scalar that it is.
    pub(crate) fn elements(&mut self, inst: &Inst<'a>, i: usize) -> Vec<Raw<'a>> {
        let raw = &inst.args[i];
        match &raw.kind {
            RawKind::Vector(items) => items.clone(),
            RawKind::Name(name) => match self.find(name) {
                Some(Named::VectorReg(regs, _)) => ["x", "y", "z", "w"][..regs.len().min(4)]
                    .iter()
                    .map(|m| Raw { kind: RawKind::Member(name, m), at: raw.at })
                    .collect(),
                _ => vec![raw.clone()],
            },
            _ => vec![raw.clone()],
        }
    }

    /// Refuses integer and floating-point registers side by side in vector operand `i`.
    pub(crate) fn alike(&mut self, inst: &Inst<'a>, i: usize) -> Result<(), ParseError> {
        let RawKind::Vector(items) = &inst.args[i].kind else { return Ok(()) };
        let (mut int, mut float) = (false, false);
        for raw in items {
            if let RawKind::Name(name) = raw.kind
                && let Some(Named::Reg(_, ty)) = self.find(name)
            {
                int |= is_int(ty);
                float |= is_float(ty);
            }
        }
        if int && float {
            let what = "integer and floating-point registers in one vector";
            return Err(self.bad(inst, &inst.args[i], ParseErrorKind::Type, what));
        }
        Ok(())
    }

    fn arity(&mut self, inst: &Inst<'a>, i: usize, n: usize) -> Result<Vec<Raw<'a>>, ParseError> {
        let items = self.elements(inst, i);
        if items.len() == n {
            return Ok(items);
        }
        let got = items.len();
        Err(self.bad(
            inst,
            &inst.args[i],
            ParseErrorKind::Syntax,
            &format!("expected a vector of {n} elements, got {got}"),
        ))
    }

    /// Source operand `i` as a vector of `n` registers or constants.
    pub(crate) fn src_list(
        &mut self,
        inst: &Inst<'a>,
        i: usize,
        n: usize,
        ty: Type,
        rule: Rule,
    ) -> Result<Vec<Operand>, ParseError> {
        self.arity(inst, i, n)?.iter().map(|raw| self.scalar(inst, raw, ty, rule)).collect()
    }

    /// Destination operand `i` as a vector of `n` registers or `_`.
    pub(crate) fn dst_list(
        &mut self,
        inst: &Inst<'a>,
        i: usize,
        n: usize,
        ty: Type,
        rule: Rule,
    ) -> Result<Vec<Dst>, ParseError> {
        let list: Vec<Dst> =
            self.arity(inst, i, n)?.iter().map(|raw| self.scalar_dst(inst, raw, ty, rule)).collect::<Result<_, _>>()?;
        if list.iter().all(|d| *d == Dst::Sink) {
            return Err(self.bad(inst, &inst.args[i], ParseErrorKind::Syntax, "every element is `_`"));
        }
        Ok(list)
    }

    /// Address operand `i` in `space`.
    pub(crate) fn addr(&mut self, inst: &Inst<'a>, i: usize, space: Space) -> Result<Address, ParseError> {
        let raw = &inst.args[i];
        let RawKind::Address { base, offset } = &raw.kind else {
            return Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected an address in brackets"));
        };
        let RawBase::Name(name) = *base else {
            if space != Space::Local {
                let what = format!("an absolute address belongs to .local, not to .{}", space_name(space));
                return Err(self.bad(inst, raw, ParseErrorKind::Syntax, &what));
            }
            return Ok(Address { base: AddressBase::Absolute, offset: *offset });
        };
        match self.find(name) {
            Some(Named::Reg(reg, ty)) if (is_bits(ty) || is_int(ty)) && matches!(ty.bits(), 32 | 64) => {
                Ok(Address { base: AddressBase::Reg(reg), offset: *offset })
            }
            Some(Named::Reg(reg, _)) => {
                let got = self.scopes.describe(reg);
                let what = format!("expected a 32- or 64-bit integer register as address, got {got}");
                Err(self.bad(inst, raw, ParseErrorKind::Type, &what))
            }
            Some(Named::Symbol(symbol)) => {
                let (own, size) = self.symbol_facts(symbol);
                let fits = match space {
                    Space::Shared | Space::SharedCluster => own == Space::Shared,
                    Space::Generic => !matches!(own, Space::Param | Space::Const),
                    other => own == other,
                };
                if !fits {
                    let what = format!("`{name}` is a .{} variable, expected .{}", space_name(own), space_name(space));
                    return Err(self.bad(inst, raw, ParseErrorKind::Type, &what));
                }
                // Only parameters are checked here: a variable out of bounds is a finding of the run.
                if own == Space::Param && !(*offset >= 0 && (*offset as u64) < size.max(1)) {
                    let what = format!("offset {offset} is outside parameter `{name}` of {size} bytes");
                    return Err(self.bad(inst, raw, ParseErrorKind::Syntax, &what));
                }
                Ok(Address { base: AddressBase::Symbol(symbol), offset: *offset })
            }
            Some(Named::VectorReg(..)) => {
                Err(self.bad(inst, raw, ParseErrorKind::Syntax, "expected a scalar register as address"))
            }
            None => Err(self.unknown(inst, raw, name)),
        }
    }

    /// Space and size in bytes of a variable or parameter.
    fn symbol_facts(&self, symbol: Symbol) -> (Space, u64) {
        match symbol {
            Symbol::Module(i) => {
                self.module.variables.get(i as usize).map_or((Space::Generic, 0), |v| (v.space, v.size))
            }
            Symbol::Entry(i) => self.variables.get(i as usize).map_or((Space::Generic, 0), |v| (v.space, v.size)),
            Symbol::Param(i) => (Space::Param, self.params.get(i as usize).map_or(0, |p| u64::from(p.size))),
        }
    }
}

/// Spelling of a state space, without its dot.
pub(crate) const fn space_name(space: Space) -> &'static str {
    match space {
        Space::Generic => "generic",
        Space::Global => "global",
        Space::Shared => "shared",
        Space::SharedCluster => "shared::cluster",
        Space::Local => "local",
        Space::Const => "const",
        Space::Param => "param",
    }
}
