//! The checked form of a PTX module: what the parser produces and the machine executes.
//!
//! Everything here is data. Names are resolved (a register is an index, a label is an instruction number, a symbol is
//! an index into the module's or function's variables), modifiers are enums, immediates are bit patterns already
//! converted to the type of the instruction. An instruction whose text uses anything that has no place here is refused
//! by the parser as `Unsupported`, by name and line.

mod arith;
mod matrix;
mod module;
mod op;
mod operand;
mod sync;
mod types;

pub use arith::{Binary, BoolOp, Cmp, FloatClass, FloatMods, PrmtMode, Rounding, Ternary, Unary};
pub use matrix::{BlockScale, MatrixElement, MatrixShape, MmaDesc, MmaKind, ScaleOperand, Shape};
pub use module::{Entry, Module, Param, RegisterDecl, Target, TargetSuffix, Variable};
pub use op::{Guard, Instruction, Op};
pub use operand::{Address, AddressBase, Dst, Operand, Reg, Special, Symbol};
pub use sync::{Atomic, BarRed, BulkDirection, Fence, Mbarrier, Ordering, Redux, Scope, ShflMode, VoteMode};
pub use types::{Space, Type};
