//! Strict reader of PTX text: [`crate::ir::Module::parse`].
//!
//! Text becomes tokens (`lex`), tokens become instructions in raw form (`cursor`, `expr`), and each instruction family
//! turns its raw form into an [`crate::ir::Op`] (`ops`), checking modifiers, operand types and what the target has.
//! Whatever is not known by name is refused by name and line.

mod cursor;
mod entry;
mod error;
mod expr;
mod function;
mod inst;
mod lex;
mod module;
mod mutate;
mod operand;
mod ops;
mod scope;
mod special;
mod target;
mod variable;

pub use error::{ParseError, ParseErrorKind};
pub use mutate::{SyncKind, SyncPoint, remove_statement, sync_points};
