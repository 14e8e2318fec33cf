//! A PTX machine and sanitizer on the CPU.
//!
//! [`Module::parse`] reads PTX text into a checked form, [`Machine`] owns device memory and launches its entries. What a
//! card would leave undefined is a [`Finding`]. See [`machine`] for an example.
#![warn(missing_docs)]

pub mod case;
mod cfg;
pub mod check;
pub mod counters;
mod exec;
mod finding;
pub mod ir;
pub mod machine;
pub mod memory;
mod named;
pub mod num;
pub mod parse;
pub mod tensor;

pub use counters::{CounterMode, Counters};
pub use finding::{Finding, FindingClass, Place};
pub use ir::Module;
pub use machine::{AsyncMode, Checks, DeviceModel, LaunchConfig, LaunchError, LaunchReport, Machine, MachineConfig};
pub use memory::MemoryError;
