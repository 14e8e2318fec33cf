//! A PTX machine and sanitizer on the CPU.
#![warn(missing_docs)]

mod cfg;
pub mod check;
pub mod exec;
mod finding;
pub mod ir;
pub mod machine;
pub mod num;
pub mod parse;
pub mod tensor;

pub use finding::{Finding, FindingClass, Place};
