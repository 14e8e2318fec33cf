//! The parser, from outside: what it makes of instructions and modules, what it refuses and in which words.

mod control;
mod errors;
mod families;
mod matrices;
mod memory;
mod modules;
mod soup;
mod verdicts;

use ptx_emulator::ir::{Dst, Entry, Instruction, Module, Op, Operand, Reg};
use ptx_emulator::parse::ParseError;

/// A module with one entry `k` that has registers of every kind, variables and parameters, and this body.
pub(crate) fn text(target: &str, body: &str) -> String {
    format!(
        ".version 9.0
.target {target}
.address_size 64
.global .align 16 .b8 gv[256];
.const .align 16 .b8 cv[256];
.shared .align 16 .b8 sv[1024];
.visible .entry k(.param .u64 pa, .param .align 8 .b8 pb[64])
{{
.reg .pred %p<8>;
.reg .b8 %b<8>;
.reg .b16 %h<8>;
.reg .b32 %r<16>;
.reg .f32 %f<16>;
.reg .b64 %rd<8>;
.reg .f64 %d<8>;
.reg .b128 %q<4>;
.reg .u32 %u<4>;
.reg .s64 %s<4>;
.local .align 16 .b8 lv[64];
{body}
}}
"
    )
}

/// Line of the first line of `body` in [`text`].
pub(crate) const FIRST: u32 = 20;

/// A parsed body.
pub(crate) struct Parsed {
    pub(crate) module: Module,
}

impl Parsed {
    pub(crate) fn entry(&self) -> &Entry {
        &self.module.entries[0]
    }

    pub(crate) fn code(&self) -> &[Instruction] {
        &self.entry().code
    }

    pub(crate) fn op(&self) -> &Op {
        assert_eq!(self.code().len(), 1, "{:?}", self.code());
        &self.code()[0].op
    }

    /// The register of this name.
    pub(crate) fn reg(&self, name: &str) -> Reg {
        let at = self.entry().registers.iter().position(|r| r.name == name);
        Reg(at.unwrap_or_else(|| panic!("{name} is not used")) as u32)
    }

    pub(crate) fn d(&self, name: &str) -> Dst {
        if name == "_" { Dst::Sink } else { Dst::Reg(self.reg(name)) }
    }

    pub(crate) fn a(&self, name: &str) -> Operand {
        Operand::Reg(self.reg(name))
    }

    pub(crate) fn dv(&self, names: &[&str]) -> Vec<Dst> {
        names.iter().map(|n| self.d(n)).collect()
    }

    pub(crate) fn av(&self, names: &[&str]) -> Vec<Operand> {
        names.iter().map(|n| self.a(n)).collect()
    }
}

/// The parsed body, which must be sound for sm_120a.
pub(crate) fn parse(body: &str) -> Parsed {
    let text = text("sm_120a", body);
    Parsed { module: Module::parse(&text).unwrap_or_else(|e| panic!("{body}: {e}")) }
}

/// The refusal of a body.
pub(crate) fn refuse(target: &str, body: &str) -> ParseError {
    match Module::parse(&text(target, body)) {
        Ok(_) => panic!("`{body}` is accepted for {target}"),
        Err(error) => error,
    }
}
