//! The `sm120` command: parity, mutation score, benchmarks, reports.
#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod cli;
pub mod command;
pub mod deployment;
pub mod devices;
pub mod e2e;
pub mod experiment;
pub mod generate;
pub mod halves;
pub mod host_ops;
pub mod job;
pub mod moved;
pub mod mutants;
pub mod parity;
pub mod plan;
pub mod plots;
mod probe;
mod progress;
pub mod report;
pub mod serve;
pub mod serving;
pub mod shapes;
pub mod span;
pub mod timed;
