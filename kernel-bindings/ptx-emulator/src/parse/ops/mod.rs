//! Instruction families: raw form to [`Op`].

mod arith;
mod asynch;
mod atomic;
mod barrier;
mod bits;
mod compare;
mod control;
mod convert;
mod form;
mod matrix;
mod mbarrier;
mod memory;
mod warp;

use super::error::ParseError;
use super::function::Function;
use super::inst::Inst;
use crate::ir::{Op, Scope};

/// Instructions that have no place in the checked form, but for the `v*` video family.
const REFUSED: [&str; 19] = [
    "alloca",
    "call",
    "clusterlaunchcontrol",
    "getctarank",
    "istypep",
    "ldu",
    "multimem",
    "pmevent",
    "stackrestore",
    "stacksave",
    "suld",
    "suq",
    "sured",
    "sust",
    "tcgen05",
    "tensormap",
    "tex",
    "tld4",
    "txq",
];

/// SIMD video instructions by their common part.
const VIDEO: [&str; 10] = ["abs", "add", "avrg", "mad", "max", "min", "set", "shl", "shr", "sub"];

/// Refuses by name what is known and not supported, before its operands are read: they have forms of their own.
pub(crate) fn refuse<'a>(f: &Function<'_, 'a>, inst: &Inst<'a>) -> Result<(), ParseError> {
    let video = inst.name.strip_prefix('v').is_some_and(|rest| VIDEO.iter().any(|v| rest.starts_with(v)));
    if video || REFUSED.contains(&inst.name) || matches!(inst.name, "wgmma" | "wmma") {
        return Err(inst.unsupported(f, "this instruction is not supported"));
    }
    if inst.name == "cp" && inst.mods.has("tensor") {
        return Err(inst.unsupported(f, "tensor copies are not supported"));
    }
    Ok(())
}

/// Meaning of an instruction.
pub(crate) fn lower<'a>(f: &mut Function<'_, 'a>, inst: &mut Inst<'a>) -> Result<Op, ParseError> {
    match inst.name {
        "add" | "sub" | "mul" | "mul24" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "shl" | "shr"
        | "copysign" | "addc" | "subc" | "abs" | "neg" | "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" | "rcp"
        | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "mad" | "mad24" | "madc" | "fma" | "sad" => {
            arith::lower(f, inst)
        }
        "lop3" | "shf" | "prmt" | "bfe" | "bfi" | "bmsk" | "szext" | "fns" | "dp4a" | "dp2a" => bits::lower(f, inst),
        "setp" | "set" | "selp" | "slct" | "testp" => compare::lower(f, inst),
        "cvt" => convert::lower(f, inst),
        "mov" | "ld" | "st" | "cvta" | "isspacep" | "mapa" | "prefetch" | "prefetchu" | "applypriority" | "discard"
        | "createpolicy" => memory::lower(f, inst),
        "atom" | "red" => atomic::lower(f, inst),
        "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "setmaxnreg" | "griddepcontrol" => {
            control::lower(f, inst)
        }
        "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" => warp::lower(f, inst),
        "bar" | "barrier" | "fence" | "membar" => barrier::lower(f, inst),
        "cp" => asynch::lower(f, inst),
        "mbarrier" => mbarrier::lower(f, inst),
        "mma" | "ldmatrix" | "stmatrix" | "movmatrix" => matrix::lower(f, inst),
        _ => Err(inst.unsupported(f, "unknown instruction")),
    }
}

/// `.cta`, `.cluster`, `.gpu`, `.sys`
const SCOPES: [(&str, Scope); 4] =
    [("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::Sys)];
