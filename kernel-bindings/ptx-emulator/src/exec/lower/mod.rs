//! From the checked form to the decoded form: operands become slots, variables become addresses, arithmetic becomes lane
//! functions.

mod arith;
mod liveness;
mod memory;
mod registers;
mod sync;

use super::lanes::{L32, L64, Lanes};
use super::program::{ALWAYS, Any, Base, CONST, Ins, List, NEGATE, NONE, Op, Program, Rule, Slot};
use super::visit::{self, Visitor};
use crate::counters::Class;
use crate::ir::{self, Address, AddressBase, Dst, Entry, Module, Operand, Reg, Space, Special, Symbol, Variable};
use crate::memory::WINDOW_START;
use registers::{Location, Registers};
use std::collections::{BTreeSet, HashMap};

/// An instruction that parses but that the machine does not run, or a variable that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LowerError {
    /// PTX line; 0 for the entry as a whole.
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// Result of lowering one operand or instruction; the line is added by the caller.
type Lowered<T> = Result<T, String>;

/// Where the module's variables are: device addresses of `.global`, offsets in the constant bank of `.const`.
pub(crate) struct ModuleLayout {
    /// By index in [`Module::variables`].
    pub(crate) addresses: Vec<u64>,
    /// The constant bank.
    pub(crate) constants: Vec<u8>,
}

struct Lower<'a> {
    module: &'a Module,
    entry: &'a Entry,
    layout: &'a ModuleLayout,
    registers: Registers,
    const32: Vec<L32>,
    const64: Vec<L64>,
    const32_of: HashMap<u32, Slot>,
    const64_of: HashMap<u64, Slot>,
    lists: Vec<Any>,
    specials: Vec<(Slot, Special)>,
    specials64: Vec<(Slot, Special)>,
    /// Offsets of shared variables by symbol.
    shared: HashMap<Symbol, u32>,
    local: HashMap<Symbol, u32>,
}

/// Decodes an entry.
pub(crate) fn lower(module: &Module, entry: &Entry, layout: &ModuleLayout) -> Result<Program, LowerError> {
    let whole = |message| LowerError { line: 0, message };
    let mut lower = Lower {
        module,
        entry,
        layout,
        registers: Registers::assign(entry),
        const32: Vec::new(),
        const64: Vec::new(),
        const32_of: HashMap::new(),
        const64_of: HashMap::new(),
        lists: Vec::new(),
        specials: Vec::new(),
        specials64: Vec::new(),
        shared: HashMap::new(),
        local: HashMap::new(),
    };
    let (shared_static, shared_dynamic_at) = lower.place_shared().map_err(whole)?;
    let local_bytes = lower.place_local().map_err(whole)?;
    let mut code = Vec::with_capacity(entry.code.len());
    for instruction in &entry.code {
        let ins = lower.instruction(instruction).map_err(|message| LowerError { line: instruction.line, message })?;
        code.push(ins);
    }
    Ok(Program {
        code,
        ipdom: entry.ipdom.clone(),
        branch_targets: entry.branch_targets.clone(),
        num32: lower.registers.num32,
        num64: lower.registers.num64,
        num_pred: lower.registers.num_pred,
        const32: lower.const32,
        const64: lower.const64,
        lists: lower.lists,
        specials: lower.specials,
        specials64: lower.specials64,
        shared_static,
        shared_dynamic_at,
        local_bytes,
        constants: layout.constants.clone(),
    })
}

struct Symbols(BTreeSet<u32>);

impl Visitor for Symbols {
    fn read(&mut self, _: Reg) {}
    fn write(&mut self, _: Reg) {}
    fn symbol(&mut self, symbol: Symbol) {
        if let Symbol::Module(index) = symbol {
            self.0.insert(index);
        }
    }
}

impl Lower<'_> {
    /// Places static shared variables in order of declaration (those of the module only if the entry names them) and
    /// all unsized ones at one offset behind them.
    fn place_shared(&mut self) -> Lowered<(u32, u32)> {
        let mut used = Symbols(BTreeSet::new());
        for instruction in &self.entry.code {
            visit::walk(&instruction.op, &mut used);
        }
        let of_module = used.0.iter().map(|i| (Symbol::Module(*i), &self.module.variables[*i as usize]));
        let of_entry = self.entry.variables.iter().enumerate().map(|(i, v)| (Symbol::Entry(i as u32), v));
        let variables: Vec<(Symbol, &Variable)> =
            of_module.chain(of_entry).filter(|(_, v)| v.space == Space::Shared).collect();
        let mut at = 0u64;
        let is_dynamic = |v: &Variable| v.external && v.size == 0;
        for (symbol, variable) in variables.iter().filter(|(_, v)| !is_dynamic(v)) {
            at = at.next_multiple_of(u64::from(variable.align.max(1)));
            self.shared.insert(*symbol, at as u32);
            at += variable.size;
            if at > u64::from(u32::MAX) {
                return Err(format!("shared variables of {at} bytes"));
            }
        }
        let dynamic: Vec<_> = variables.iter().filter(|(_, v)| is_dynamic(v)).collect();
        let align = dynamic.iter().map(|(_, v)| v.align).max().unwrap_or(1).max(16);
        let dynamic_at = at.next_multiple_of(u64::from(align)) as u32;
        for (symbol, _) in dynamic {
            self.shared.insert(*symbol, dynamic_at);
        }
        Ok((at as u32, dynamic_at))
    }

    fn place_local(&mut self) -> Lowered<u32> {
        let mut at = 0u64;
        for (i, variable) in self.entry.variables.iter().enumerate().filter(|(_, v)| v.space == Space::Local) {
            at = at.next_multiple_of(u64::from(variable.align.max(1)));
            self.local.insert(Symbol::Entry(i as u32), at as u32);
            at += variable.size;
        }
        // 512 KiB is the most that a thread can have.
        if at > 512 << 10 { Err(format!("local memory of {at} bytes per thread")) } else { Ok(at as u32) }
    }

    /// Address of a symbol in its own space, and that space.
    fn symbol(&self, symbol: Symbol) -> Lowered<(u64, Space)> {
        let start = u64::from(WINDOW_START);
        let missing = || format!("variable of an unexpected space: {symbol:?}");
        match symbol {
            Symbol::Param(index) => Ok((start + u64::from(self.entry.params[index as usize].offset), Space::Param)),
            Symbol::Module(index) => {
                let variable = &self.module.variables[index as usize];
                match variable.space {
                    Space::Shared => {
                        Ok((start + u64::from(*self.shared.get(&symbol).ok_or_else(missing)?), Space::Shared))
                    }
                    Space::Const | Space::Global => Ok((self.layout.addresses[index as usize], variable.space)),
                    _ => Err(missing()),
                }
            }
            Symbol::Entry(index) => {
                let space = self.entry.variables[index as usize].space;
                let offset = match space {
                    Space::Shared => self.shared.get(&symbol),
                    Space::Local => self.local.get(&symbol),
                    _ => None,
                };
                Ok((start + u64::from(*offset.ok_or_else(missing)?), space))
            }
        }
    }

    fn constant32(&mut self, value: u32) -> Slot {
        *self.const32_of.entry(value).or_insert_with(|| {
            self.const32.push(Lanes::splat(value));
            CONST | (self.const32.len() as u32 - 1)
        })
    }

    fn constant64(&mut self, value: u64) -> Slot {
        *self.const64_of.entry(value).or_insert_with(|| {
            self.const64.push(Lanes::splat(value));
            CONST | (self.const64.len() as u32 - 1)
        })
    }

    fn special32(&mut self, special: Special) -> Lowered<Slot> {
        match special {
            Special::Clock | Special::ClockHi | Special::Clock64 => Err("a clock outside `mov`".to_owned()),
            Special::GlobalTimer | Special::GlobalTimerLo | Special::GlobalTimerHi => {
                Err("a timer outside `mov`".to_owned())
            }
            Special::IsExplicitCluster => Err("a predicate special register outside `mov`".to_owned()),
            _ => {
                if let Some((slot, _)) = self.specials.iter().find(|(_, s)| *s == special) {
                    return Ok(*slot);
                }
                let slot = self.registers.new32();
                self.specials.push((slot, special));
                Ok(slot)
            }
        }
    }

    fn special64(&mut self, special: Special) -> Lowered<Slot> {
        if special != Special::GridId {
            return Err(format!("special register {special:?} as a 64-bit operand"));
        }
        if let Some((slot, _)) = self.specials64.iter().find(|(_, s)| *s == special) {
            return Ok(*slot);
        }
        let slot = self.registers.new64();
        self.specials64.push((slot, special));
        Ok(slot)
    }

    fn location(&self, reg: Reg) -> Location {
        self.registers.locations[reg.0 as usize]
    }

    fn name(&self, reg: Reg) -> &str {
        &self.entry.registers[reg.0 as usize].name
    }

    /// A source in the 32-bit file.
    fn w(&mut self, operand: &Operand) -> Lowered<Slot> {
        match operand {
            Operand::Reg(reg) => match self.location(*reg) {
                Location::W(slot) => Ok(slot),
                _ => Err(format!("register {} where at most 32 bits are expected", self.name(*reg))),
            },
            Operand::Imm(value) => Ok(self.constant32(*value as u32)),
            Operand::Special(special) => self.special32(*special),
            Operand::Symbol(symbol, offset) => {
                let (address, _) = self.symbol(*symbol)?;
                let value = address.wrapping_add_signed(*offset);
                u32::try_from(value).map(|v| self.constant32(v)).map_err(|_| "a 64-bit address as 32 bits".to_owned())
            }
            Operand::NotPred(_) | Operand::Vector(_) => Err("a plain operand is expected".to_owned()),
        }
    }

    /// A source in the 64-bit file.
    fn x(&mut self, operand: &Operand) -> Lowered<Slot> {
        match operand {
            Operand::Reg(reg) => match self.location(*reg) {
                Location::X(slot) => Ok(slot),
                _ => Err(format!("register {} where 64 bits are expected", self.name(*reg))),
            },
            Operand::Imm(value) => Ok(self.constant64(*value)),
            Operand::Special(special) => self.special64(*special),
            Operand::Symbol(symbol, offset) => {
                let (address, _) = self.symbol(*symbol)?;
                Ok(self.constant64(address.wrapping_add_signed(*offset)))
            }
            Operand::NotPred(_) | Operand::Vector(_) => Err("a plain operand is expected".to_owned()),
        }
    }

    /// A source of that many bits, or of the register's own width.
    fn any(&mut self, operand: &Operand, bits: u32) -> Lowered<Any> {
        match operand {
            Operand::Reg(reg) => Ok(match self.location(*reg) {
                Location::W(slot) => Any::W(slot),
                Location::X(slot) | Location::Pair(slot) => Any::X(slot),
                Location::P(slot) => Any::P(slot),
            }),
            Operand::NotPred(_) => Ok(Any::P(self.p(operand)?)),
            Operand::Special(Special::GridId) if bits == 64 => Ok(Any::X(self.x(operand)?)),
            Operand::Special(_) => Ok(Any::W(self.w(operand)?)),
            _ if bits == 1 => Ok(Any::P(self.p(operand)?)),
            _ if bits == 64 => Ok(Any::X(self.x(operand)?)),
            _ => Ok(Any::W(self.w(operand)?)),
        }
    }

    /// A predicate source.
    fn p(&mut self, operand: &Operand) -> Lowered<u32> {
        match operand {
            Operand::Reg(reg) => Ok(self.pred(*reg)?),
            Operand::NotPred(reg) => Ok(self.pred(*reg)? | NEGATE),
            Operand::Imm(value) => Ok(if *value != 0 { ALWAYS } else { ALWAYS | NEGATE }),
            _ => Err("a predicate is expected".to_owned()),
        }
    }

    fn pred(&self, reg: Reg) -> Lowered<u32> {
        match self.location(reg) {
            Location::P(slot) => Ok(slot),
            _ => Err(format!("register {} where a predicate is expected", self.name(reg))),
        }
    }

    /// A destination in the 32-bit file.
    fn dw(&mut self, dst: &Dst) -> Lowered<Slot> {
        match dst {
            Dst::Reg(reg) => match self.location(*reg) {
                Location::W(slot) => Ok(slot),
                _ => Err(format!("destination {} where at most 32 bits are expected", self.name(*reg))),
            },
            Dst::Sink => Ok(self.registers.sink32()),
            Dst::Vector(_) => Err("a plain destination is expected".to_owned()),
        }
    }

    /// A destination in the 64-bit file.
    fn dx(&mut self, dst: &Dst) -> Lowered<Slot> {
        match dst {
            Dst::Reg(reg) => match self.location(*reg) {
                Location::X(slot) => Ok(slot),
                _ => Err(format!("destination {} where 64 bits are expected", self.name(*reg))),
            },
            Dst::Sink => Ok(self.registers.sink64()),
            Dst::Vector(_) => Err("a plain destination is expected".to_owned()),
        }
    }

    /// A predicate destination.
    fn dp(&mut self, dst: &Dst) -> Lowered<u32> {
        match dst {
            Dst::Reg(reg) => self.pred(*reg),
            Dst::Sink => Ok(NONE),
            Dst::Vector(_) => Err("a predicate destination is expected".to_owned()),
        }
    }

    fn dp_opt(&mut self, dst: &Option<Dst>) -> Lowered<u32> {
        dst.as_ref().map_or(Ok(NONE), |d| self.dp(d))
    }

    /// A destination of whatever file its register is in.
    fn dany(&mut self, dst: &Dst) -> Lowered<Any> {
        match dst {
            Dst::Reg(reg) => Ok(match self.location(*reg) {
                Location::W(slot) => Any::W(slot),
                Location::X(slot) | Location::Pair(slot) => Any::X(slot),
                Location::P(slot) => Any::P(slot),
            }),
            Dst::Sink => Ok(Any::None),
            Dst::Vector(_) => Err("a plain destination is expected".to_owned()),
        }
    }

    /// Declared bits of a destination register; `otherwise` for a sink.
    fn dst_bits(&self, dst: &Dst, otherwise: u32) -> u32 {
        match dst {
            Dst::Reg(reg) => self.entry.registers[reg.0 as usize].ty.bits(),
            _ => otherwise,
        }
    }

    fn list(&mut self, items: Vec<Any>) -> List {
        let start = self.lists.len() as u32;
        let len = items.len() as u32;
        self.lists.extend(items);
        List { start, len }
    }

    /// Elements of a vector operand, or the operand itself.
    fn sources(&mut self, operand: &Operand, bits: u32) -> Lowered<List> {
        let items = match operand {
            Operand::Vector(parts) => parts.iter().map(|p| self.any(p, bits)).collect::<Lowered<Vec<_>>>()?,
            _ => vec![self.any(operand, bits)?],
        };
        Ok(self.list(items))
    }

    fn destinations(&mut self, dst: &Dst) -> Lowered<List> {
        let items = match dst {
            Dst::Vector(parts) => parts.iter().map(|p| self.dany(p)).collect::<Lowered<Vec<_>>>()?,
            _ => vec![self.dany(dst)?],
        };
        Ok(self.list(items))
    }

    /// An address; with the space of its symbol where it names one.
    fn addr(&mut self, address: &Address) -> Lowered<super::program::Addr> {
        use super::program::Addr;
        Ok(match address.base {
            AddressBase::Reg(reg) => match self.location(reg) {
                Location::W(slot) => Addr { base: Base::W(slot), offset: address.offset },
                Location::X(slot) => Addr { base: Base::X(slot), offset: address.offset },
                _ => return Err(format!("register {} as an address", self.name(reg))),
            },
            AddressBase::Symbol(symbol) => {
                let (at, _) = self.symbol(symbol)?;
                Addr { base: Base::Absolute, offset: (at as i64).wrapping_add(address.offset) }
            }
            AddressBase::Absolute => Addr { base: Base::Absolute, offset: address.offset },
        })
    }

    fn instruction(&mut self, instruction: &ir::Instruction) -> Lowered<Ins> {
        let guard = match instruction.guard {
            None => ALWAYS,
            Some(guard) => self.pred(guard.pred)? | if guard.negate { NEGATE } else { 0 },
        };
        let (op, class, rule) = self.operation(&instruction.op)?;
        Ok(Ins { guard, rule, class, op })
    }

    fn operation(&mut self, op: &ir::Op) -> Lowered<(Op, Class, Rule)> {
        if let Some(lowered) = self.arith(op)? {
            return Ok(lowered);
        }
        if let Some((op, class)) = self.memory(op)? {
            return Ok((op, class, Rule::All));
        }
        let (op, class) = self.sync(op)?;
        Ok((op, class, Rule::All))
    }
}
