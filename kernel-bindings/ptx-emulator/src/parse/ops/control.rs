//! Control flow, and instructions that speak to the scheduler.

use crate::ir::{Op, Type::*};
use crate::parse::cursor::RawKind;
use crate::parse::error::ParseError;
use crate::parse::function::Function;
use crate::parse::inst::Inst;
use crate::parse::scope::{Pending, Slot};
use crate::parse::target::{sm, special};

pub(super) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    let index = f.code.len() as u32;
    match inst.name {
        "bra" => {
            let uni = inst.mods.take("uni");
            inst.exactly(f, 1)?;
            let label = name(f, inst, 0, "a label")?;
            f.scopes.refer(Pending { label, at: inst.args[0].at, slot: Slot::Branch(index) });
            Ok(Op::Bra { target: 0, uni })
        }
        "brx" => {
            inst.must_word(f, "idx")?;
            let uni = inst.mods.take("uni");
            inst.exactly(f, 2)?;
            let label = name(f, inst, 1, "a table of .branchtargets")?;
            f.scopes.refer(Pending { label, at: inst.args[1].at, slot: Slot::Brx(index) });
            Ok(Op::BrxIdx { index: f.src(inst, 0, U32)?, table: 0, uni })
        }
        "ret" => {
            inst.mods.take("uni");
            inst.exactly(f, 0)?;
            Ok(Op::Exit)
        }
        "exit" => {
            inst.exactly(f, 0)?;
            Ok(Op::Exit)
        }
        "trap" | "brkpt" => {
            inst.exactly(f, 0)?;
            Ok(Op::Trap)
        }
        "nanosleep" => {
            inst.ty_of(f, &[U32])?;
            inst.exactly(f, 1)?;
            f.src(inst, 0, U32)?;
            Ok(Op::Nop)
        }
        "griddepcontrol" => {
            let wait = inst.must(f, &[("wait", true), ("launch_dependents", false)])?;
            inst.need(f, sm(90, 7, 8))?;
            inst.exactly(f, 0)?;
            Ok(Op::GridDepControl { wait })
        }
        _ => {
            let increase = inst.must(f, &[("inc", true), ("dec", false)])?;
            inst.must_word(f, "sync")?;
            inst.must_word(f, "aligned")?;
            inst.ty_of(f, &[U32])?;
            inst.need(f, special(&[90, 100, 110, 120], 8, 0))?;
            inst.exactly(f, 1)?;
            let registers = f.imm(inst, 0, 24..=256, "the register count")? as u32;
            if !registers.is_multiple_of(8) {
                return Err(
                    inst.syntax(f, &format!("expected a register count that is a multiple of 8, got {registers}"))
                );
            }
            Ok(Op::SetMaxNReg { increase, registers })
        }
    }
}

fn name<'a>(f: &Function<'_, 'a>, inst: &Inst<'a>, i: usize, what: &str) -> Result<&'a str, ParseError> {
    match inst.args[i].kind {
        RawKind::Name(name) => Ok(name),
        _ => Err(inst.syntax(f, &format!("operand {}: expected {what}", i + 1))),
    }
}
